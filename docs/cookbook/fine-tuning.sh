#!/bin/sh
# SimLM's pipeline (simlm.sh) on two small collections, sized for two CPU cores: paragraphs of SQuAD, and the sample collection.
#
#   sh docs/cookbook/fine-tuning.sh runs/fine-tuning MODEL [squad|sample]
#
# MODEL is a BERT-type encoder, such as MiniLM. The sample takes an hour on both cores: its judgments are for documents, its passages are chunks.
# SQuAD's data, in BEIR layout, is in $DRTK_TEST_DATA (../shared/data).
#
# Environment variables; set one to nothing (R1=) for simlm.sh's default, which is for a GPU and a whole collection:
#
#   PASSAGES=3000          SQuAD: use the last so many paragraphs (+1: all)
#   QUESTIONS=35           SQuAD: use every 35th dev question
#   DOCUMENTS=2000         sample: number of documents
#   WARM_STEPS=150 PRETRAIN_STEPS=100 RETRIEVER_STEPS=80 RERANKER_STEPS=1200       training steps; for the sample 50, 40, 30 and 1200
#   SCORED_QUERIES=500     queries that the teacher scores
#   RERANK=30              documents to rerank per query
#   SEED=42                seed of pre-training, mining and fine-tuning; use one output folder per seed
#   INDEX DEPTH MINE SCORED ENCODE WARM PRETRAIN R1 R2 RERANKER DISTILL TEACHER TITLE BASELINES      as in simlm.sh
set -eu
out=${1:-runs/fine-tuning} model=${2:?missing MODEL, the encoder to start from} collections=${3:-squad sample}
data=${DRTK_TEST_DATA:-../shared/data}
pipeline=$(dirname "$0")/simlm.sh

# Settings of both collections: mean pooling, as MiniLM; learning rates for a small model and few steps.
# The reranker starts from MODEL; the paper's starts from ELECTRA, not from the pre-trained encoder either.
export INDEX="${INDEX-exact}" DEPTH="${DEPTH-50}" BASELINES="${BASELINES-start pretrained}"
export MINE="${MINE---set min_negatives=0}" SCORED="${SCORED---set min_negatives=0 --negatives 15}" ENCODE="${ENCODE---max-length 128}" TEACHER="${TEACHER-$model}"

# set_sizes WARM PRETRAIN RETRIEVER RERANKER SCORED RERANK: steps of the four trainings, queries that the teacher scores, documents to rerank
set_sizes() {
  pretraining="--set pooling=mean --batch-size 32 --max-length 64 --learning-rate 5e-5 --set warmup=0.1 --set held_out=256"
  tuning="--learning-rate 2e-5 --set warmup=0.1 --passage-length 128 --set log_steps=5 --batch-size 16 --negatives 3 --max-steps ${RETRIEVER_STEPS:-$3}"
  pairs="--learning-rate 1e-4 --set warmup=0.1 --batch-size 4 --negatives 3 --max-length 160 --max-steps ${RERANKER_STEPS:-$4} --set log_steps=10"
  export WARM="${WARM-$pretraining --max-steps ${WARM_STEPS:-$1}}"
  export PRETRAIN="${PRETRAIN-$pretraining --max-steps ${PRETRAIN_STEPS:-$2} --eval-steps 100}"
  export R1="${R1-$tuning}" R2="${R2-$tuning}" DISTILL="${DISTILL-$tuning}" RERANKER="${RERANKER-$pairs}"
  export SCORED_QUERIES="${SCORED_QUERIES-$5}" RERANK="${RERANK-$6}"
}

# The last 3,000 paragraphs of SQuAD include all of dev's; the others have train questions.
squad() {
  work=$out/squad cut="the last ${PASSAGES:-3000} paragraphs, one in ${QUESTIONS:-35} of dev's questions"
  mkdir -p "$work"
  if [ ! -s "$work/test.tsv" ] || [ "$(cat "$work/cut" 2> /dev/null)" != "$cut" ]; then
    gzip -cd "$data/squad/corpus.jsonl.gz" > "$work/all.jsonl" # no pipe: it would hide a truncated archive
    tail -n "${PASSAGES:-3000}" "$work/all.jsonl" > "$work/corpus.jsonl"
    rm "$work/all.jsonl"
    gzip -cd "$data/squad/queries.jsonl.gz" > "$work/queries.jsonl"
    sed 's/.*"_id": *"\([^"]*\)".*/\1/' "$work/corpus.jsonl" > "$work/ids"
    awk 'NR == FNR { pool[$1]; next } FNR == 1 || $2 in pool' "$work/ids" "$data/squad/qrels/train.tsv" > "$work/train.tsv"
    awk -v every="${QUESTIONS:-35}" 'NR == 1 || NR % every == 0' "$data/squad/qrels/dev.tsv" > "$work/test.tsv"
    echo "$cut" > "$work/cut"
  fi
  set_sizes 150 100 80 1200 500 30
  sh "$pipeline" "$work/corpus.jsonl" "$work/queries.jsonl" "$work/train.tsv" "$work/test.tsv" "$model" "$work/run"
}

# Chunked documents; the judgments are for documents.
sample() {
  work=$out/sample
  mkdir -p "$work"
  drtk sample "$work/data" --limit "${DOCUMENTS:-2000}" --skip-done --force
  drtk chunk "$work/data/documents.jsonl" --tokenizer "$model" --max-tokens 126 -o "$work/corpus.jsonl" --skip-done --resume --force
  set_sizes 50 40 30 1200 500 30
  BY=source sh "$pipeline" "$work/corpus.jsonl" "$work/data/queries.jsonl" "$work/data/qrels/train.tsv" \
    "$work/data/qrels/test.tsv" "$model" "$work/run"
}

for collection in $collections; do ($collection); done # subshells: the sizes of one collection do not apply to the other
