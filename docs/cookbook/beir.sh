#!/bin/sh
# Zero-shot evaluation of one encoder on every collection of a folder in BEIR layout, compared with BM25.
#
#   sh docs/cookbook/beir.sh BEIR MODEL [OUT]        or: just beir BEIR MODEL [OUT]
#
#   BEIR     folder of collections: NAME/corpus.jsonl, NAME/queries.jsonl (.gz, .zst), NAME/qrels/test.tsv. Collections in a
#            subfolder, such as cqadupstack/android, are averaged and count as one
#   MODEL    the encoder
#   OUT      output folder (runs/beir); one encoder per folder
#
# Environment variables:
#
#   SETS     collections to run, by default all: "scifact cqadupstack/android"; the table includes those of earlier runs
#   SPLIT    split of the judgments (test; a collection's only file if it has no such split)
#   BM25     bm25 (Lucene), bm25s or none
#   INDEX    dense index, flat or exact
#   K        hits per query (1000)
#   ENCODE   more options of drtk encode
#   SEARCH   more options of drtk search for vectors (--set max_length=350)
#   MEASURES measures to print (nDCG@10)
set -eu
beir=${1:?missing BEIR, the folder of collections} model=${2:?missing MODEL, the encoder} out=${3:-runs/beir}
k=${K:-1000} engine=${BM25:-bm25}
again="--skip-done --resume --force" # skip steps whose inputs and settings have not changed
made="--skip-done --force"

mkdir -p "$out"
if [ -e "$out/model" ] && [ "$(cat "$out/model")" != "$model" ]; then
  echo "beir.sh: $out: has results of $(cat "$out/model"); choose another OUT for $model" >&2
  exit 1
fi
printf '%s\n' "$model" > "$out/model"

find_file() { # NAME: print the path of the collection's file, compressed or not
  for ending in "" .gz .zst; do if [ -e "$folder/$1$ending" ]; then echo "$folder/$1$ending"; return; fi; done
  echo "beir.sh: $folder: has no $1" >&2
  exit 1
}
find_qrels() { # print the path of the judgments of SPLIT, or of the only ones
  if [ -e "$folder/qrels/${SPLIT:-test}.tsv" ]; then echo "$folder/qrels/${SPLIT:-test}.tsv"; return; fi
  set -- "$folder"/qrels/*.tsv
  if [ $# = 1 ] && [ -e "$1" ]; then echo "$1"; return; fi
  echo "beir.sh: $folder/qrels: has no ${SPLIT:-test}.tsv; set SPLIT" >&2
  exit 1
}

sets=${SETS:-}
if [ -z "$sets" ]; then
  for folder in "$beir"/*/qrels "$beir"/*/*/qrels; do
    if [ -d "$folder" ]; then name=${folder#"$beir"/}; sets="$sets ${name%/qrels}"; fi
  done
fi
if [ -z "$sets" ]; then echo "beir.sh: $beir: has no collection with a qrels folder" >&2; exit 1; fi

for name in $sets; do
  name=${name%/}
  printf '\n== %s\n' "$name" >&2
  folder=$beir/$name
  work=$out/collections/$name run=$(echo "$name" | tr / -).run
  mkdir -p "$work" "$out/runs/bm25" "$out/runs/dense"
  corpus=$(find_file corpus.jsonl) # one assignment per line, so that a failure ends the script
  queries=$(find_file queries.jsonl)
  qrels=$(find_qrels)
  if [ "$engine" != none ]; then
    drtk index "$corpus" --type "$engine" -o "$work/bm25" $made
    drtk search "$work/bm25" "$queries" --qrels "$qrels" -k "$k" --drop-same-id -o "$out/runs/bm25/$run" $again
  fi
  drtk encode "$corpus" --model "$model" ${ENCODE:-} -o "$work/vectors" $again
  drtk index "$work/vectors" --type "${INDEX:-flat}" -o "$work/index" $made
  drtk search "$work/index" "$queries" --qrels "$qrels" -k "$k" --drop-same-id ${SEARCH:-} -o "$out/runs/dense/$run" $again
  mkdir -p "$work/qrels" # OUT/collections has BEIR layout too; drtk eval reads it as a folder of collections
  cp "$qrels" "$work/qrels/test.tsv"
done

set -- "dense=$out/runs/dense"
complete=yes # compare with BM25 only if it has a run for every collection of the table
for run in "$out"/runs/dense/*.run; do if [ ! -e "$out/runs/bm25/${run##*/}" ]; then complete=no; fi; done
if [ $complete = yes ]; then set -- "bm25=$out/runs/bm25" "$@"; fi
drtk eval "$@" --qrels "$out/collections" --measures "${MEASURES:-nDCG@10}" -o "$out/figures.txt" --force -q
cat "$out/figures.txt"
