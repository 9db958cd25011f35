#!/bin/sh
# SimLM (Wang 2023): other starts (Table 1) and pre-training objectives (Table 7), each followed by the first retriever.
# simlm-variants.sh has Tables 8, 10 and 13.
#
#   just reproduce simlm [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: `random` has not been pre-trained.
# full: 80,000 steps of 2,048 passages per row (8 V100 for 1.5 days in the paper; about 23 hours of an H200, estimated), then MS MARCO's first retriever.
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

set_row() {
  case $row in simlm | simlm-rtd) more="--generator $generator" ;; esac
}
run_rows simlm-r1 simlm-table7-mlm simlm-table7-condenser simlm-mlm simlm simlm-rtd simlm-ae
compare_rows simlm-table7-mlm
