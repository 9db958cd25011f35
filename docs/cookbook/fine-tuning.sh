#!/bin/sh
# SimLM's pipeline (simlm.sh) on two small collections, with sizes for two CPU cores: paragraphs of SQuAD, and the sample collection.
#
#   sh docs/cookbook/fine-tuning.sh runs/fine-tuning MODEL [squad|sample]      MODEL: a BERT-type encoder, MiniLM say
#
# or: just reproduce fine-tuning MODEL. Every size is a variable. An empty one (R1=) means simlm.sh's own, for a GPU and the whole collection:
#
#   PASSAGES=3000                      the last so many of SQuAD's paragraphs (+1: all); QUESTIONS=35: one in so many of dev's, DOCUMENTS=2000: of the sample
#   WARM_STEPS=150 PRETRAIN_STEPS=100 RETRIEVER_STEPS=80 RERANKER_STEPS=1200       of the trainings; for the sample 50, 40, 30 and 1200
#   SCORED_QUERIES=500 RERANK=30       queries that the teacher scores, documents re-ranked for a query
#   SEED=42                            of pre-training, mining and fine-tuning; a folder for each
#   INDEX DEPTH MINE SCORED ENCODE WARM PRETRAIN R1 R2 RERANKER DISTILL TEACHER TITLE BASELINES      as in simlm.sh, instead of the values below
#
# The sample has judgements of documents, and chunks that are searched: an hour on both cores.
# SQuAD's data is in BEIR layout; its folder is $DRTK_TEST_DATA, by default ../shared/data.
set -eu
out=${1:-runs/fine-tuning} model=${2:?name an encoder to start from} only=${3:-squad sample}
data=${DRTK_TEST_DATA:-../shared/data}
pipeline=$(dirname "$0")/simlm.sh

# What both have in common. The vector is the mean over tokens, as MiniLM's is; rates suit a small model and few steps.
# The re-ranker begins with MODEL (the paper's begins with ELECTRA, not with the pre-trained encoder either).
export INDEX="${INDEX-exact}" DEPTH="${DEPTH-50}" BASELINES="${BASELINES-start pretrained}"
export MINE="${MINE---min-negatives 0}" SCORED="${SCORED---min-negatives 0 --negatives 15}" ENCODE="${ENCODE---max-length 128}" TEACHER="${TEACHER-$model}"

# sizes WARM PRETRAIN RETRIEVER RERANKER SCORED RERANK: steps of the four trainings, queries that the teacher scores, documents re-ranked
sizes() {
  pretraining="--set pooling=mean --batch-size 32 --max-length 64 --learning-rate 5e-5 --warmup 0.1 --held-out 256"
  tuning="--learning-rate 2e-5 --warmup 0.1 --passage-length 128 --log-steps 5 --batch-size 16 --negatives 3 --max-steps ${RETRIEVER_STEPS:-$3}"
  pairs="--learning-rate 1e-4 --warmup 0.1 --batch-size 4 --negatives 3 --max-length 160 --max-steps ${RERANKER_STEPS:-$4} --log-steps 10"
  export WARM="${WARM-$pretraining --max-steps ${WARM_STEPS:-$1}}"
  export PRETRAIN="${PRETRAIN-$pretraining --max-steps ${PRETRAIN_STEPS:-$2} --eval-steps 100}"
  export R1="${R1-$tuning}" R2="${R2-$tuning}" DISTILL="${DISTILL-$tuning}" RERANKER="${RERANKER-$pairs}"
  export SCORED_QUERIES="${SCORED_QUERIES-$5}" RERANK="${RERANK-$6}"
}

# The last 3,000 paragraphs of SQuAD hold all of dev's, and others whose train questions are learnt from.
squad() {
  place=$out/squad cut="the last ${PASSAGES:-3000} paragraphs, one in ${QUESTIONS:-35} of dev's questions"
  mkdir -p "$place"
  if [ ! -s "$place/test.tsv" ] || [ "$(cat "$place/cut" 2> /dev/null)" != "$cut" ]; then
    gzip -cd "$data/squad/corpus.jsonl.gz" > "$place/all.jsonl" # not into a pipe, which would hide that it breaks off
    tail -n "${PASSAGES:-3000}" "$place/all.jsonl" > "$place/corpus.jsonl"
    rm "$place/all.jsonl"
    gzip -cd "$data/squad/queries.jsonl.gz" > "$place/queries.jsonl"
    sed 's/.*"_id": *"\([^"]*\)".*/\1/' "$place/corpus.jsonl" > "$place/ids"
    awk 'NR == FNR { pool[$1]; next } FNR == 1 || $2 in pool' "$place/ids" "$data/squad/qrels/train.tsv" > "$place/train.tsv"
    awk -v every="${QUESTIONS:-35}" 'NR == 1 || NR % every == 0' "$data/squad/qrels/dev.tsv" > "$place/test.tsv"
    echo "$cut" > "$place/cut"
  fi
  sizes 150 100 80 1200 500 30
  sh "$pipeline" "$place/corpus.jsonl" "$place/queries.jsonl" "$place/train.tsv" "$place/test.tsv" "$model" "$place/run"
}

# Documents in chunks; judgements name documents.
sample() {
  place=$out/sample
  mkdir -p "$place"
  drtk sample "$place/data" --limit "${DOCUMENTS:-2000}" --skip-done --force
  drtk chunk "$place/data/documents.jsonl" --tokenizer "$model" --max-tokens 126 -o "$place/corpus.jsonl" --skip-done --resume --force
  sizes 50 40 30 1200 500 30
  BY=source sh "$pipeline" "$place/corpus.jsonl" "$place/data/queries.jsonl" "$place/data/qrels/train.tsv" \
    "$place/data/qrels/test.tsv" "$model" "$place/run"
}

for pool in $only; do ($pool); done # what one says of sizes shall not hold for the other
