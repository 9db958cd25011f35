#!/bin/sh
# EAR (Chuang 2023; thesis, chapter 3): GAR, first candidate, all in one query, oracle, EAR-RI, EAR-RD, passage reranker, fusion with dense
# retrieval; fewer candidates (Table 3.8).
#
#   just reproduce ear [--scale mini|full]        options: common.sh; one seed runs all rows, by ear.sh of the cookbook
#
# mini: SQuAD, with the candidates of BM25's first passages and those of a T5 that is trained from random weights; Answer@k on 500 questions.
# full: Natural Questions and TriviaQA with T0 and BART, transfer to WebQuestions, CuratedTREC and EntityQuestions, FiD: ear-nq.md.
. "$(dirname "$0")/common.sh"
if [ "$scale" = full ]; then
  echo "ear.sh: the commands of full scale are in docs/cookbook/ear-nq.md" >&2
  exit 2
fi
mine_bm25
export RI_EPOCHS=2 RD_EPOCHS=2 BATCH=8 MAX_LR=5e-3 EVERY=120 SWEEP="2 5" RERANK_EPOCHS=2 RERANK_LENGTH=128 EAR_DATA="$source/squad"
export GENERATOR="$out/t5" GENERATOR_STEPS=300 SAMPLES=10
drtk init-model "$out/all.jsonl" --arch t5 --layers 2 --hidden 128 --heads 4 --vocab-size 8000 --max-length 512 -o "$GENERATOR" $made
for seed in $seeds; do
  work=$out/dense tune dense "$start" simlm-r1
  SEED=$seed DENSE=$out/dense/dense.$seed.retriever sh "$here/../ear.sh" "$work/$seed" "$start"
done
for run in "$work"/*/*.run; do
  folder=${run%/*} name=$(basename "$run" .run)
  case $name in train | dev | *.sentence | *.title | *.terms | *.answer | *.of-*) continue ;; test) name=bm25 ;; flat) name=dense ;; esac
  cp -p "$run" "$work/$name.${folder##*/}.run"
done
judgments="--answers $work/${seeds%% *}/test.jsonl --corpus $source/squad/corpus.jsonl.gz" measures="Answer@1 Answer@5 Answer@20 Answer@100"
compare_rows bm25
