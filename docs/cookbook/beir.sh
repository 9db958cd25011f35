#!/bin/sh
# Zero-shot retrieval: one encoder, trained elsewhere, on every collection of a folder in BEIR's layout, beside BM25.
#
#   sh docs/cookbook/beir.sh BEIR MODEL [OUT]        or: just beir BEIR MODEL [OUT]
#
#   BEIR     a folder of collections: NAME/corpus.jsonl, NAME/queries.jsonl (.gz, .zst), NAME/qrels/test.tsv; a folder of collections
#            within, such as cqadupstack/android, counts as one
#   MODEL    the encoder; OUT: where all of it goes (runs/beir), one encoder in each
#
#   SETS     which collections, in place of all: "scifact cqadupstack/android"; the table has those of earlier calls, too
#   SPLIT    which judgements (test; where a collection has a single other file, that one)
#   BM25     the engine, bm25 or bm25s, or none; INDEX: of vectors, flat or exact; K: documents a query (1000)
#   ENCODE SEARCH    further options of drtk encode, and of drtk search for vectors (--max-length); MEASURES: what is measured
set -eu
beir=${1:?name the folder of collections} model=${2:?name an encoder} out=${3:-runs/beir}
k=${K:-1000} engine=${BM25:-bm25}
again="--skip-done --resume --force" # what is done with the same inputs and settings is left as it is
made="--skip-done --force"

mkdir -p "$out"
if [ -e "$out/model" ] && [ "$(cat "$out/model")" != "$model" ]; then
  echo "$out: holds figures of $(cat "$out/model"); name another folder for $model" >&2
  exit 1
fi
printf '%s\n' "$model" > "$out/model"

file() { # WHAT: the file of the collection, compressed or not
  for ending in "" .gz .zst; do if [ -e "$folder/$1$ending" ]; then echo "$folder/$1$ending"; return; fi; done
  echo "$folder has no $1" >&2
  exit 1
}
judged() { # the judgements of SPLIT, or else the only ones
  if [ -e "$folder/qrels/${SPLIT:-test}.tsv" ]; then echo "$folder/qrels/${SPLIT:-test}.tsv"; return; fi
  set -- "$folder"/qrels/*.tsv
  if [ $# = 1 ] && [ -e "$1" ]; then echo "$1"; return; fi
  echo "$folder/qrels has no ${SPLIT:-test}.tsv" >&2
  exit 1
}

sets=${SETS:-}
if [ -z "$sets" ]; then
  for folder in "$beir"/*/qrels "$beir"/*/*/qrels; do
    if [ -d "$folder" ]; then name=${folder#"$beir"/}; sets="$sets ${name%/qrels}"; fi
  done
fi
if [ -z "$sets" ]; then echo "$beir: holds no folder with qrels in it" >&2; exit 1; fi

for name in $sets; do
  name=${name%/}
  printf '\n== %s\n' "$name" >&2
  folder=$beir/$name
  place=$out/collections/$name run=$(echo "$name" | tr / -).run
  mkdir -p "$place" "$out/runs/bm25" "$out/runs/dense"
  corpus=$(file corpus.jsonl) # one a line: a failure ends the script
  queries=$(file queries.jsonl)
  qrels=$(judged)
  if [ "$engine" != none ]; then
    drtk index "$corpus" --type "$engine" -o "$place/bm25" $made
    drtk search "$place/bm25" "$queries" --qrels "$qrels" -k "$k" --drop-same-id -o "$out/runs/bm25/$run" $again
  fi
  drtk encode "$corpus" --model "$model" ${ENCODE:-} -o "$place/vectors" $again
  drtk index "$place/vectors" --type "${INDEX:-flat}" -o "$place/index" $made
  drtk search "$place/index" "$queries" --qrels "$qrels" -k "$k" --drop-same-id ${SEARCH:-} -o "$out/runs/dense/$run" $again
  mkdir -p "$place/qrels" # OUT is a folder of collections itself, of those that were searched
  cp "$qrels" "$place/qrels/test.tsv"
done

set -- "dense=$out/runs/dense"
beside=yes # BM25 is in the table where it was asked about all that is in it
for run in "$out"/runs/dense/*.run; do if [ ! -e "$out/runs/bm25/${run##*/}" ]; then beside=no; fi; done
if [ $beside = yes ]; then set -- "bm25=$out/runs/bm25" "$@"; fi
drtk eval "$@" --qrels "$out/collections" --measures "${MEASURES:-nDCG@10}" -o "$out/figures.txt" --force -q
cat "$out/figures.txt"
