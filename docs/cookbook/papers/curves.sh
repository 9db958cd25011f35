#!/bin/sh
# Learning curves of the first retriever: after N steps of SimLM's pre-training (Zhou 2023, Figure 3, has MASTER and retriever 2), and with a
# fraction of the training queries (Wang 2023, Figure 3), from the initial encoder and from SimLM.
#
#   just reproduce curves [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# full: a checkpoint per 10,000 of 80,000 steps (23 hours of an H200, estimated; those of simlm.sh), then 15 retrievers of 2 hours each.
. "$(dirname "$0")/common.sh"
mine_bm25
for seed in $seeds; do
  pretrain simlm --preset simlm --model "$start" --generator "$generator"
  simlm=$encoder
  for folder in "$simlm"/step-*; do
    step=${folder##*/}
    if is_selected "$step"; then tune "$step" "$folder" simlm-r1; fi
  done
  for fraction in 0.05 0.1 0.2 0.5; do
    if is_selected "start-$fraction"; then tune "start-$fraction" "$start" simlm-r1 --set train_fraction=$fraction; fi
    if is_selected "simlm-$fraction"; then tune "simlm-$fraction" "$simlm" simlm-r1 --set train_fraction=$fraction; fi
  done
done
compare_rows start-0.05
