#!/bin/sh
# DPR (Karpukhin 2020) and DPR with DiffCSE's replaced-token detection (Chuang's thesis, section 2.7).
#
#   just reproduce dpr [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# full: Natural Questions or TriviaQA (SET, DOWNLOADS: common.sh); hours: ../nq.md.
. "$(dirname "$0")/common.sh"
shared=$start
if [ "$scale" = full ]; then
  use_wikipedia
  work=$work/$set examples=$out/$set.train.jsonl train_queries=$out/$set.questions.jsonl
  [ "$set" = nq ] || recipe=dpr-$set
  shared=roberta-base generator=distilroberta-base encode_options="--vector-dtype float16"
  mkdir -p "$work"
  drtk convert "$(find_download "biencoder-$set-train.json")" --as queries -o "$train_queries" $again
  drtk convert "$(find_download "biencoder-$set-train.json")" --as examples -o "$examples" $again
else
  mine_bm25
fi
for seed in $seeds; do
  if is_selected dpr; then tune dpr "$start" dpr-nq; fi
  if is_selected dpr-shared; then tune dpr-shared "$shared" dpr-nq-roberta-shared; fi
  if is_selected dpr-shared-diffcse; then tune dpr-shared-diffcse "$shared" dpr-nq-roberta-shared --set aux=diffcse --set "aux_generator=$generator"; fi
done
compare_rows dpr-shared
