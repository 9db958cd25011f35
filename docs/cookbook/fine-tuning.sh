#!/bin/sh
# SimLM's pipeline (simlm.sh) on two small collections, with sizes for two CPU cores: paragraphs of SQuAD, and the sample collection.
#
#   sh docs/cookbook/fine-tuning.sh runs/fine-tuning MODEL [squad|sample]      MODEL: a BERT-type encoder, MiniLM say
#
# SQuAD's data is in BEIR layout; its folder is $DRTK_TEST_DATA, by default ../shared/data.
set -eu
out=${1:-runs/fine-tuning} model=${2:?name an encoder to start from} only=${3:-squad sample}
data=${DRTK_TEST_DATA:-../shared/data}
pipeline=$(dirname "$0")/simlm.sh

# What both have in common. The vector is the mean over tokens, as MiniLM's is; rates suit a small model and few steps.
# The re-ranker begins with MODEL (the paper's begins with ELECTRA, not with the pre-trained encoder either).
export INDEX=exact DEPTH=50 BASELINES="start pretrained"
export MINE="--floor 0" SCORED="--floor 0 --keep 15" ENCODE="--max-length 128"

# sizes WARM PRETRAIN RETRIEVER RERANKER SCORED RERANK: steps of the four trainings, queries that the teacher scores, documents re-ranked
sizes() {
  pretraining="--set pooling=mean --batch 32 --max-length 64 --lr 5e-5 --warmup 0.1 --held-out 256"
  tuning="--lr 2e-5 --warmup 0.1 --passage-length 128 --log-every 5 --batch 16 --negatives 3 --steps $3"
  export WARM="$pretraining --steps $1" PRETRAIN="$pretraining --steps $2 --eval-every 100" R1="$tuning" R2="$tuning" DISTILL="$tuning"
  export TEACHER=$model RERANKER="--lr 1e-4 --warmup 0.1 --batch 4 --negatives 3 --max-length 160 --steps $4 --log-every 10"
  export SCORED_QUERIES=$5 RERANK=$6
}

# The last 3,000 paragraphs of SQuAD hold all of dev's, and others whose train questions are learnt from.
squad() {
  place=$out/squad
  mkdir -p "$place"
  if [ ! -s "$place/test.tsv" ]; then
    gzip -cd "$data/squad/corpus.jsonl.gz" | tail -n 3000 > "$place/corpus.jsonl"
    gzip -cd "$data/squad/queries.jsonl.gz" > "$place/queries.jsonl"
    sed 's/.*"_id": *"\([^"]*\)".*/\1/' "$place/corpus.jsonl" > "$place/ids"
    awk 'NR == FNR { pool[$1]; next } FNR == 1 || $2 in pool' "$place/ids" "$data/squad/qrels/train.tsv" > "$place/train.tsv"
    awk 'NR == 1 || NR % 35 == 0' "$data/squad/qrels/dev.tsv" > "$place/test.tsv"
  fi
  sizes 150 100 80 1200 500 30
  sh "$pipeline" "$place/corpus.jsonl" "$place/queries.jsonl" "$place/train.tsv" "$place/test.tsv" "$model" "$place/run"
}

# Documents in chunks; judgements name documents.
sample() {
  place=$out/sample
  mkdir -p "$place"
  drtk sample "$place/data" --limit 2000 --skip-done --force
  drtk chunk "$place/data/documents.jsonl" --tokenizer "$model" --max-tokens 126 -o "$place/corpus.jsonl" --skip-done --resume --force
  sizes 50 40 30 300 200 10
  BY=source sh "$pipeline" "$place/corpus.jsonl" "$place/data/queries.jsonl" "$place/data/qrels/train.tsv" \
    "$place/data/qrels/test.tsv" "$model" "$place/run"
}

for pool in $only; do $pool; done
