#!/bin/sh
# Variants of SimLM (Wang 2023): masking rates (Table 8), corpora (Table 10) and generators (Table 13), each followed by the first retriever.
#
#   just reproduce simlm-variants [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: `other-corpus` is Cranfield and CACM.
# full: 80,000 steps of 2,048 passages per row, as in simlm.sh (about 23 hours of an H200 per row, estimated).
# Row other-corpus: 200,000 steps on Wikipedia (57 hours).
# The column NQ of Table 10: SimLM in ../nq.md, with ENCODER=OUT/encoders/ROW.42.
. "$(dirname "$0")/common.sh"
mine_bm25

common_passages=$passages
set_row() {
  preset=simlm passages=$common_passages more="--generator $generator"
  case $row in
    rates-*) # percent of the encoder's and of the decoder's tokens
      more="$more $(echo "${row#rates-}" | awk -F - '{ print "--set slots.encoder.rate=" $1 / 100, "--set slots.decoder.rate=" $2 / 100 }')" ;;
    joint*) more="$more --set generator.mode=joint --set generator.slot=encoder" ;;
    other-corpus)
      passages=$out/other.jsonl
      if [ "$scale" = full ]; then passages=irds:dpr-w100 more="$more --max-steps 200000"; fi ;;
  esac
  case $row in joint-random) more="$more --set generator.init=random" ;; esac
}
run_rows simlm-r1 simlm rates-15-15 rates-15-30 rates-30-30 rates-40-60 rates-30-100 joint joint-random other-corpus
compare_rows simlm
