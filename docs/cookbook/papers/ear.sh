#!/bin/sh
# EAR (Chuang 2023; thesis, chapter 3): GAR, first candidate, all in one query, oracle, EAR-RI, EAR-RD, passage reranker, fusion with dense
# retrieval; fewer candidates (Table 3.8).
#
#   just reproduce ear [--scale mini|full]        options: common.sh; one seed runs all rows
#
# mini: SQuAD, by ear.sh of the cookbook, with the candidates of BM25's first passages and those of a T5 that is trained from random weights;
#   Answer@k on 500 questions.
# full: Natural Questions or TriviaQA (SET, DOWNLOADS: common.sh) with T0, BART and the encoder of dpr.sh, which runs first; transfer to
#   WebQuestions, CuratedTREC and EntityQuestions; FiD. Files and hours: ../ear-nq.md.
. "$(dirname "$0")/common.sh"
if [ "$scale" = full ]; then
  use_wikipedia
  seed=${seeds%% *} kinds="sentence answer title" bm25=$out/wikipedia.bm25 dense=$out/wikipedia.dense models=$work/$set
  encoder=$out/dpr/$set/dpr.$seed.retriever lengths="" reader=$downloads/nq_reader_large train=$(find_download biencoder-nq-train.json)
  if [ "$set" = trivia ]; then # DPR's file does not mark the answer that is GAR's target
    lengths=-triviaqa reader=$downloads/tqa_reader_large train=hf:mandarjoshi/trivia_qa:unfiltered.nocontext:train
  fi
  [ -e "$encoder" ] || { echo "ear.sh: no $encoder; run dpr.sh --scale full first" >&2 && exit 1; }
  drtk index "$corpus" --type bm25 -o "$bm25" $made
  drtk encode "$corpus" --model "$encoder" --vector-dtype float16 -o "$dense.$set" $again
  for type in flat hnsw; do drtk index "$dense.$set" --type $type -o "$dense.$set.$type" $made; done

  # open_questions FOLDER PART FILE: questions as FOLDER/PART.jsonl, and BM25's run
  open_questions() {
    work=$1
    mkdir -p "$work"
    drtk convert "$3" --as queries -o "$work/$2.jsonl" $again
    drtk search "$bm25" "$work/$2.jsonl" -k 100 -o "$work/$2.run" $again
  }
  # label NAME PART: label candidates of the questions PART with the rank of the first passage that has an answer
  label() {
    drtk rerank-queries label "$work/$1.jsonl" --queries "$work/$2.jsonl" --index "$bm25" --corpus "$corpus" $match -o "$work/$1.labeled.jsonl" $again
  }
  # expand PART: label the candidates of each kind, by GAR's generators
  expand() {
    for kind in $kinds; do
      drtk expand-queries "$work/$1.jsonl" --model "$models/gar-$kind" --n 50 -o "$work/$1.$kind.jsonl" $again
      label "$1.$kind" "$1"
    done
  }
  # choose ROW CANDIDATES WAY OPTIONS: choose a query of each kind, by a scorer (ri, rd) or another way; search it, and fuse the runs
  choose() {
    row=$1 candidates=$2 way=$3 runs=""
    shift 3
    for kind in $kinds; do
      case $way in ri | rd) by="--model $models/$way/$kind" ;; *) by="--select $way" ;; esac
      drtk rerank-queries apply "$work/test.$kind.$candidates.jsonl" --queries "$work/test.jsonl" $by "$@" -o "$work/$row.$kind.queries" $again
      drtk search "$retriever" "$work/$row.$kind.queries/$kind.jsonl" -k 100 -o "$work/$row.$kind.run" $again
      runs="$runs $work/$row.$kind.run"
    done
    fuse "$row" $runs
  }
  # fuse ROW RUN …: take the passages of the runs in turn
  fuse() {
    fused=$work/$1.$seed.run
    shift
    drtk fuse "$@" --method round-robin --top 100 -o "$fused" $again
  }
  # evaluate_questions FOLDER FILE: the rows that all test questions have
  evaluate_questions() {
    open_questions "$1" test "$2"
    judgments="--answers $work/test.jsonl --corpus $corpus $match"
    expand test
    for kind in $kinds; do
      drtk expand-queries "$work/test.jsonl" --model "$models/gar-$kind" --decode greedy -o "$work/test.$kind.greedy.jsonl" $again
    done
    cp "$work/test.run" "$work/bm25.$seed.run"
    drtk search "$dense.$set.flat" "$work/test.jsonl" -k 100 -o "$work/dense.$seed.run" $again
    choose gar.greedy greedy greedy
    for way in oracle ri rd; do choose gar.$way labeled $way; done
  }

  match="" retriever=$bm25
  open_questions "$models" dev "$(find_download "$set-dev.qa.csv")"
  open_questions "$models" train "$train"
  for kind in $kinds; do
    case $kind in answer) hits="" ;; *) hits="--run $work/train.run --corpus $corpus --dev-run $work/dev.run" ;; esac
    drtk train-generator "$work/train.jsonl" --preset "gar-$kind$lengths" --model facebook/bart-large --dev "$work/dev.jsonl" $hits -o "$work/gar-$kind" $again
  done
  # T0 expands the training questions, which it never saw.
  drtk expand-queries "$work/train.jsonl" --model bigscience/T0_3B --kind t0 --prompt "To answer this question, we need to know" --n 50 \
    -o "$work/train.t0.jsonl" $again
  label train.t0 train
  expand dev
  for scorer in ri rd; do # one training keeps the best weights of each kind
    drtk rerank-queries train "$work/train.t0.labeled.jsonl" --queries "$work/train.jsonl" --model microsoft/deberta-v3-base --preset "ear-$scorer" \
      --dev "sentence=$work/dev.sentence.labeled.jsonl" --dev "answer=$work/dev.answer.labeled.jsonl" \
      --dev "title=$work/dev.title.labeled.jsonl" --dev-queries "$work/dev.jsonl" --set dev_questions=2000 -o "$work/$scorer" $again
  done
  drtk mine-negatives "bm25=$work/train.run" --policy nq --depth 10 --corpus "$corpus" --queries "$work/train.jsonl" -o "$work/pairs.jsonl" $again
  drtk train-reranker "$work/pairs.jsonl" --corpus "$corpus" --queries "$work/train.jsonl" --model bert-base-uncased \
    --preset bert-passage-reranker -o "$work/reranker" $again

  evaluate_questions "$models" "$queries"
  for kind in $kinds; do
    drtk expand-queries "$work/test.jsonl" --model "$models/gar-$kind" --decode beam --n 1 --set beams=10 -o "$work/test.$kind.beam.jsonl" $again
  done
  choose gar.beam beam first
  choose gar.concat labeled concat
  for count in 5 10 20 30; do
    for scorer in ri rd; do choose "gar.$scorer.of-$count" labeled $scorer --set "max_candidates=$count"; done
  done
  retriever=$dense.$set.flat # DPR instead of BM25
  choose gar.rd.by-dense labeled rd
  retriever=$bm25
  drtk search "$dense.$set.hnsw" "$work/test.jsonl" -k 100 -o "$work/hnsw.$seed.run" $again
  drtk fuse "$work/test.run" "$work/dense.$seed.run" --method linear --weights 1,1.1 --top 100 -o "$work/bm25+dense.$seed.run" $again # DPR's fusion
  for row in gar.greedy gar.ri gar.rd; do fuse "$row+dense" "$work/$row.$seed.run" "$work/dense.$seed.run"; done
  for row in gar.greedy gar.rd; do
    drtk rerank "$work/$row.$seed.run" --corpus "$corpus" --queries "$work/test.jsonl" --model "$work/reranker" --depth 100 -o "$work/$row+reranked.$seed.run" $again
  done
  recipe=ear.$set
  compare_rows bm25

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
        [ -s "$file" ] || jq -c 'if type == "array" then .[] else . end' "$downloads"/EntityQuestions/dataset/test/P*.test.json* > "$file" ;;
    esac
    evaluate_questions "$models/$other" "$file"
    compare_rows bm25
  done
  exit
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
  case $name in train | dev | *.sentence | *.title | *.terms | *.answer) continue ;; test) name=bm25 ;; flat) name=dense ;; esac
  cp -p "$run" "$work/$name.${folder##*/}.run"
done
judgments="--answers $work/${seeds%% *}/test.jsonl --corpus $source/squad/corpus.jsonl.gz" measures="Answer@1 Answer@5 Answer@20 Answer@100"
compare_rows bm25
