#!/bin/sh
# DPR (Karpukhin 2020) and DPR with DiffCSE's replaced-token detection (Chuang's thesis, section 2.7).
#
#   just reproduce dpr [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# full: Natural Questions with 21 million passages: nq.md.
. "$(dirname "$0")/common.sh"
if [ "$scale" = full ]; then
  echo "dpr.sh: the commands of full scale are in docs/cookbook/nq.md" >&2
  exit 2
fi
mine_bm25
for seed in $seeds; do
  if is_selected dpr; then tune dpr "$start" dpr-nq; fi
  if is_selected dpr-shared; then tune dpr-shared "$start" dpr-nq-roberta-shared; fi
  if is_selected dpr-shared-diffcse; then tune dpr-shared-diffcse "$start" dpr-nq-roberta-shared --set aux=diffcse --set "aux_generator=$generator"; fi
done
compare_rows dpr-shared
