#!/bin/sh
# Zero-shot retrieval: one encoder, trained elsewhere, on every collection of a folder in BEIR's layout, beside BM25.
#
#   sh docs/cookbook/beir.sh BEIR MODEL [OUT]        or: just beir BEIR MODEL
#
#   BEIR     a folder of collections: NAME/corpus.jsonl, NAME/queries.jsonl (.gz, .zst …), NAME/qrels/test.tsv; a folder of collections
#            within, such as cqadupstack/android, counts as one. MODEL: the encoder; OUT: where all of it goes (runs/beir)
#
#   SETS     which collections, in place of all: "scifact cqadupstack/android"; the table has those of earlier calls, too
#   BM25     the engine, bm25 or bm25s, or none; INDEX: of vectors, flat or exact; K: documents a query (1000)
#   ENCODE   further options of drtk encode; MEASURES: what is measured
set -eu
beir=${1:?name the folder of collections} model=${2:?name an encoder} out=${3:-runs/beir}
k=${K:-1000} engine=${BM25:-bm25}
again="--skip-done --resume --force" # what is done with the same inputs and settings is left as it is
made="--skip-done --force"

file() { # WHAT: the file of the collection, however it is compressed
  for found in "$folder/$1" "$folder/$1".*; do if [ -e "$found" ]; then echo "$found"; return; fi; done
  echo "$folder has no $1" >&2
  exit 1
}
judged() { # the test judgements, or else the only ones (MS MARCO has dev)
  if [ -e "$folder/qrels/test.tsv" ]; then echo "$folder/qrels/test.tsv"; return; fi
  set -- "$folder"/qrels/*.tsv
  if [ $# = 1 ] && [ -e "$1" ]; then echo "$1"; return; fi
  echo "$folder/qrels has no test.tsv" >&2
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
  printf '\n== %s\n' "$name" >&2
  folder=$beir/$name
  place=$out/collections/$name run=$(echo "$name" | tr / -).run
  mkdir -p "$place/qrels" "$out/runs/bm25" "$out/runs/dense"
  corpus=$(file corpus.jsonl) # one a line: a failure ends the script
  queries=$(file queries.jsonl)
  qrels=$(judged)
  cp "$qrels" "$place/qrels/test.tsv" # OUT is a folder of collections itself, of those that were searched
  if [ "$engine" != none ]; then
    drtk index "$corpus" --type "$engine" -o "$place/bm25" $made
    drtk search "$place/bm25" "$queries" --qrels "$qrels" -k "$k" -o "$out/runs/bm25/$run" $again
  fi
  drtk encode "$corpus" --model "$model" ${ENCODE:-} -o "$place/vectors" $again
  drtk index "$place/vectors" --type "${INDEX:-flat}" -o "$place/index" $made
  drtk search "$place/index" "$queries" --qrels "$qrels" -k "$k" -o "$out/runs/dense/$run" $again
done

systems="dense=$out/runs/dense"
if [ "$engine" != none ]; then systems="bm25=$out/runs/bm25 $systems"; fi
drtk eval $systems --qrels "$out/collections" --measures "${MEASURES:-nDCG@10}" > "$out/figures.txt"
cat "$out/figures.txt"
