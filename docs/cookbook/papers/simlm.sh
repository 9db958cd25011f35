#!/bin/sh
# SimLM (Wang 2023): pre-training objectives (Table 7), masking rates (Table 8), generators (Table 13); each followed by the first retriever.
#
#   just reproduce simlm [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# full: 80,000 steps of 2,048 passages per row (8 V100, 1.5 days in the paper), then MS MARCO's first retriever.
. "$(dirname "$0")/common.sh"
mine_bm25

# The common start, without more pre-training.
for seed in $seeds; do
  if is_selected start; then tune start "$start" simlm-r1; fi
done

set_row() {
  case $row in simlm | simlm-rtd | rates-* | joint*) more="--generator $generator" ;; esac
  case $row in
    rates-*) # ENCODER-DECODER in percent
      rates=${row#rates-} preset=simlm
      more="$more --set slots.encoder.rate=0.${rates%-*} --set slots.decoder.rate=$(echo "${rates#*-}" | awk '{ print $1 / 100 }')" ;;
    joint) preset=simlm more="$more --set generator.mode=joint --set generator.slot=encoder" ;;
    joint-random) preset=simlm more="$more --set generator.mode=joint --set generator.slot=encoder --set generator.init=random" ;;
  esac
}
run_rows simlm-r1 simlm-table7-mlm simlm-table7-condenser simlm-mlm simlm simlm-rtd simlm-ae
run_rows simlm-r1 rates-15-15 rates-15-30 rates-30-30 rates-40-60 rates-30-100 joint joint-random
compare_rows simlm-table7-mlm
