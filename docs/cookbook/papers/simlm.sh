#!/bin/sh
# SimLM (Wang 2023), Table 7: pre-training objectives, each followed by the first retriever.
#
#   just reproduce simlm [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# full: 80,000 steps of 2,048 passages per row (8 V100, 1.5 days in the paper), then MS MARCO's first retriever.
. "$(dirname "$0")/common.sh"
mine_bm25

# The common start, without more pre-training.
for seed in $seeds; do
  is_selected start && tune start "$start" simlm-r1
done

set_row() {
  case $row in simlm | simlm-rtd) more="--generator $generator" ;; esac
}
run_rows simlm-r1 simlm-table7-mlm simlm-table7-condenser simlm-mlm simlm simlm-rtd simlm-ae
compare_rows simlm-table7-mlm
