#!/bin/sh
# SimLM (Wang 2023): other starts (Table 1), pre-training objectives (Table 7), masking rates (Table 8), corpora (Table 10) and generators
# (Table 13); each followed by the first retriever.
#
#   just reproduce simlm [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: `random` has not been pre-trained; `other-corpus` is pre-trained on Cranfield and CACM.
# full: 80,000 steps of 2,048 passages per row (8 V100 for 1.5 days in the paper; about 21 hours of an H200, estimated), then MS MARCO's first retriever; `other-corpus` is Wikipedia.
. "$(dirname "$0")/common.sh"
mine_bm25

if [ "$scale" = mini ]; then starts="random=$out/init start=$start"; else
  starts="start=$start roberta=FacebookAI/roberta-base electra=google/electra-base-discriminator"
fi
for seed in $seeds; do
  for row in $starts; do
    case $row in electra=*) more="--epochs 6 --learning-rate 4e-5" ;; *) more="" ;; esac
    if is_selected "${row%%=*}"; then tune "${row%%=*}" "${row#*=}" simlm-r1 $more; fi
  done
done

common_passages=$passages
set_row() {
  passages=$common_passages
  case $row in simlm | simlm-rtd | rates-* | joint* | other-corpus) more="--generator $generator" ;; esac
  case $row in
    rates-*) # percent of the encoder's and of the decoder's tokens
      rates=${row#rates-} preset=simlm
      more="$more $(echo "$rates" | awk -F - '{ print "--set slots.encoder.rate=" $1 / 100, "--set slots.decoder.rate=" $2 / 100 }')" ;;
    joint*) preset=simlm more="$more --set generator.mode=joint --set generator.slot=encoder" ;;
    other-corpus) preset=simlm passages=$([ "$scale" = mini ] && echo "$out/other.jsonl" || echo irds:dpr-w100) ;;
  esac
  case $row in joint-random) more="$more --set generator.init=random" ;; esac
}
run_rows simlm-r1 simlm-table7-mlm simlm-table7-condenser simlm-mlm simlm simlm-rtd simlm-ae
run_rows simlm-r1 rates-15-15 rates-15-30 rates-30-30 rates-40-60 rates-30-100 joint joint-random other-corpus
compare_rows simlm-table7-mlm
