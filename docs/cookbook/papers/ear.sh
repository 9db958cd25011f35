#!/bin/sh
# EAR (Chuang 2023; thesis, chapter 3): GAR, all in one query, oracle, EAR-RI, EAR-RD, passage reranker, fusion with dense retrieval; fewer
# candidates (Table 3.8).
#
#   just reproduce ear [--scale mini|full]        options: common.sh, without --rows
#   TEST=2000 just reproduce ear                  mini: number of test questions, 500 by default. 2,000 take an hour per seed. Writes OUT/ear-2000.jsonl
#
# mini: SQuAD, by ../ear.sh, with the candidates of BM25's first passages and those of a T5 that is trained from random weights.
# full: Natural Questions or TriviaQA (SET, DOWNLOADS: common.sh) with T0, BART and the encoder of dpr.sh, which runs first; transfer to
#   WebQuestions, CuratedTREC and EntityQuestions; FiD; with HOLDOUT=yes also EAR-RI without T0. Files and hours: ../ear-nq.md.
. "$(dirname "$0")/common.sh"
kinds="sentence answer title" models=$work

# generate PART NAME GENERATORS OPTIONS: texts of the generators GENERATORS-KIND for the questions $work/PART.jsonl, as $work/PART.NAME.jsonl
generate() {
  part=$1 name=$2 generators=$3 files=""
  shift 3
  for kind in $kinds; do
    drtk expand-queries "$work/$part.jsonl" --model "$models/$generators-$kind" "$@" -o "$work/$part.$kind.$name.jsonl" $again
    files="$files $work/$part.$kind.$name.jsonl"
  done
  join "$work/$part.$name.jsonl" $files
}
# choose ROW CANDIDATES OPTIONS: choose a query of each kind from $work/CANDIDATES.jsonl; search them with $retriever, and fuse the runs
choose() {
  row=$1 candidates=$2 runs=""
  shift 2
  drtk rerank-queries apply "$work/$candidates.jsonl" --queries "$work/test.jsonl" "$@" -o "$work/$row.queries" $again
  for kind in $kinds; do
    drtk search "$retriever" "$work/$row.queries/$kind.jsonl" -k 100 -o "$work/$row.$kind.run" $again
    runs="$runs $work/$row.$kind.run"
  done
  fuse "$row" $runs
}
# fuse ROW RUN …: take the passages of the runs in turn
fuse() {
  fused=$runs_of_rows/$1.$seed.run
  shift
  drtk fuse "$@" --method round-robin --top 100 -o "$fused" $again
}
# add_rows CANDIDATES DENSE RERANKER DEPTH COUNT …: other decoding; COUNT candidates; dense retrieval with DENSE; the first DEPTH passages reranked
add_rows() {
  candidates_of_all=$1 dense_index=$2 reranker=$3 rerank_depth=$4
  shift 4
  generate test beam gar --decode beam --n 1 --set beams=10
  choose gar.beam test.beam --select first
  for count; do
    for scorer in ri rd; do choose "gar.$scorer.of-$count" "$candidates_of_all" $(scorer_options $scorer) --set "max_candidates=$count"; done
  done
  retriever=$dense_index
  choose gar.rd.by-dense "$candidates_of_all" $(scorer_options rd)
  retriever=$bm25
  drtk fuse "$work/test.run" "$runs_of_rows/dense.$seed.run" --method linear --weights 1,1.1 --top 100 -o "$runs_of_rows/bm25+dense.$seed.run" $again # DPR's fusion
  for row in gar.greedy gar.ri gar.rd; do fuse "$row+dense" "$runs_of_rows/$row.$seed.run" "$runs_of_rows/dense.$seed.run"; done
  for row in gar.greedy gar.rd; do
    drtk rerank "$runs_of_rows/$row.$seed.run" --corpus "$corpus" --queries "$work/test.jsonl" --model "$reranker" --depth "$rerank_depth" \
      -o "$runs_of_rows/$row+reranked.$seed.run" $again
  done
}

if [ "$scale" = mini ]; then
  if [ -n "${TEST:-}" ]; then recipe=ear-$TEST work=$out/$recipe; fi
  mine_bm25
  export RI_EPOCHS=2 RD_EPOCHS=2 BATCH=8 MAX_LR=5e-3 EVERY=120 SWEEP=" " RERANK_EPOCHS=2 RERANK_LENGTH=128 EAR_DATA="$source/squad"
  export GENERATOR="$out/t5" GENERATOR_STEPS=300 SAMPLES=10
  scorer_options() { echo "--model $work/$1"; }
  runs_of_rows=$work
  drtk init-model "$out/all.jsonl" --arch t5 --layers 2 --hidden 128 --heads 4 --vocab-size 8000 --max-length 512 -o "$GENERATOR" $made
  for seed in $seeds; do
    corpus=$data/corpus.jsonl work=$out/dense tune dense "$start" simlm-r1
    work=$runs_of_rows/$seed models=$work bm25=$work/bm25 retriever=$bm25 corpus=$source/squad/corpus.jsonl.gz
    SEED=$seed DENSE=$out/dense/dense.$seed.retriever sh "$here/../ear.sh" "$work" "$start"
    for run in "$work"/*.run; do
      name=$(basename "$run" .run)
      case $name in train | dev | *.sentence | *.title | *.terms | *.answer) continue ;; test) name=bm25 ;; flat) name=dense ;; esac
      cp -p "$run" "$runs_of_rows/$name.$seed.run"
    done
    generate test greedy gar --decode greedy
    choose gar.greedy test.greedy --select greedy
    add_rows gar.test.labeled "$work/flat" "$work/passage-reranker" 25 2 5
  done
  judgments="--answers $work/test.jsonl --corpus $corpus" measures="Answer@1 Answer@5 Answer@20 Answer@100" work=$runs_of_rows
  compare_rows gar.greedy
  exit
fi

use_wikipedia
seeds=${seeds%% *}
seed=$seeds bm25=$out/wikipedia.bm25 dense=$out/wikipedia.dense models=$work/$set match="" retriever=$bm25
encoder=$out/dpr/$set/dpr.$seed.retriever lengths="" reader=$downloads/nq_reader_large train=$(find_download biencoder-nq-train.json)
if [ "$set" = trivia ]; then # DPR's file does not mark the answer that is GAR's target
  lengths=-triviaqa reader=$downloads/tqa_reader_large train=hf:mandarjoshi/trivia_qa:unfiltered.nocontext:train
fi
[ -e "$encoder" ] || { echo "ear.sh: no $encoder; run dpr.sh --scale full first" >&2 && exit 1; }
drtk index "$corpus" --type bm25 -o "$bm25" $made
drtk encode "$corpus" --model "$encoder" --vector-dtype float16 -o "$dense.$set" $again
for type in flat hnsw; do drtk index "$dense.$set" --type $type -o "$dense.$set.$type" $made; done

# prepare_questions FOLDER PART FILE: questions as FOLDER/PART.jsonl, and BM25's run
prepare_questions() {
  work=$1 runs_of_rows=$1
  mkdir -p "$work"
  drtk convert "$3" --as queries -o "$work/$2.jsonl" $again
  drtk search "$bm25" "$work/$2.jsonl" -k 100 -o "$work/$2.run" $again
}
# label PART CANDIDATES: label candidates with the rank of the first passage that has an answer, as $work/PART.CANDIDATES.labeled.jsonl
label() {
  drtk rerank-queries label "$work/$1.$2.jsonl" --queries "$work/$1.jsonl" --index "$bm25" --corpus "$corpus" $match -o "$work/$1.$2.labeled.jsonl" $again
}
scorer_options() { for kind in $kinds; do echo "--model $kind=$models/$1/$kind"; done; }
# evaluate_questions FOLDER FILE: the rows that all test questions have
evaluate_questions() {
  prepare_questions "$1" test "$2"
  judgments="--answers $work/test.jsonl --corpus $corpus $match"
  cp "$work/test.run" "$work/bm25.$seed.run"
  drtk search "$dense.$set.flat" "$work/test.jsonl" -k 100 -o "$work/dense.$seed.run" $again
  generate test greedy gar --decode greedy
  choose gar.greedy test.greedy --select greedy
  generate test sampled gar --n 50
  label test sampled
  choose gar.oracle test.sampled.labeled --select oracle
  for scorer in ri rd; do choose "gar.$scorer" test.sampled.labeled $(scorer_options $scorer); done
}

prepare_questions "$models" dev "$(find_download "$set-dev.qa.csv")"
prepare_questions "$models" train "$train"
# train_generators NAME OPTIONS: GAR's generators NAME-KIND
train_generators() {
  generators=$1
  shift
  for kind in $kinds; do
    case $kind in answer) hits="" ;; *) hits="--run $work/train.run --corpus $corpus --dev-run $work/dev.run" ;; esac
    drtk train-generator "$work/train.jsonl" --preset "gar-$kind$lengths" --model facebook/bart-large --dev "$work/dev.jsonl" $hits "$@" \
      -o "$work/$generators-$kind" $again
  done
}
train_generators gar
# T0 expands the training questions, which it never saw.
drtk expand-queries "$work/train.jsonl" --model bigscience/T0_3B --kind t0 --prompt "To answer this question, we need to know" --n 50 \
  -o "$work/train.t0.jsonl" $again
label train t0
generate dev sampled gar --n 50
label dev sampled
dev_options=""
for kind in $kinds; do dev_options="$dev_options --dev $kind=$work/dev.sampled.labeled.jsonl"; done # one training keeps the best weights of each kind
# train_scorer SCORER CANDIDATES NAME: on the training questions
train_scorer() {
  drtk rerank-queries train "$work/train.$2.labeled.jsonl" --queries "$work/train.jsonl" --model microsoft/deberta-v3-base --preset "ear-$1" \
    $dev_options --dev-queries "$work/dev.jsonl" --set dev_questions=2000 -o "$work/$3" $again
}
for scorer in ri rd; do train_scorer $scorer t0 $scorer; done
drtk mine-negatives "bm25=$work/train.run" --policy nq --depth 10 --corpus "$corpus" --queries "$work/train.jsonl" -o "$work/pairs.jsonl" $again
drtk train-reranker "$work/pairs.jsonl" --corpus "$corpus" --queries "$work/train.jsonl" --model bert-base-uncased \
  --preset bert-passage-reranker -o "$work/reranker" $again

evaluate_questions "$models" "$queries"
choose gar.concat test.sampled --select concat
drtk search "$dense.$set.hnsw" "$work/test.jsonl" -k 100 -o "$work/hnsw.$seed.run" $again
add_rows test.sampled.labeled "$dense.$set.flat" "$work/reranker" 100 5 10 20 30
if [ "${HOLDOUT:-no}" = yes ]; then # instead of T0, five generators of each kind expand the training questions that they have not seen
  train_generators folds --set folds=5
  generate train held-out folds --holdout --n 50
  label train held-out
  train_scorer ri held-out held-out
  choose gar.ri.held-out test.sampled.labeled $(scorer_options held-out)
fi
recipe=ear.$set
compare_rows gar.greedy

work=$models/fid recipe=ear.fid.$set judgments="--exact-match --answers $models/test.jsonl" measures=EM
mkdir -p "$work"
for row in gar.greedy gar.ri gar.rd dense; do
  for depth in 10 100; do
    drtk read "$models/$row.$seed.run" --corpus "$corpus" --queries "$models/test.jsonl" --model "$reader" --tokenizer t5-large \
      --depth $depth -o "$work/$row.$depth.$seed.run" $again
  done
done
compare_rows gar.greedy.100

for other in webquestions curatedtrec entityquestions; do
  recipe=ear.$other.$set file=$(find_download "$other-test.qa.csv") match="" measures="Answer@5 Answer@20 Answer@100"
  case $other in
    curatedtrec) match="--match regex" ;; # its answers are regular expressions
    entityquestions)
      file=$out/entityquestions.jsonl
      [ -s "$file" ] || { jq -c 'if type == "array" then .[] else . end' "$downloads"/EntityQuestions/dataset/test/P*.test.json* > "$file.part"; mv "$file.part" "$file"; } ;;
  esac
  evaluate_questions "$models/$other" "$file"
  compare_rows gar.greedy
done
