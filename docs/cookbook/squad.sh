#!/bin/sh
# SQuAD as a passage collection: chunk 490 articles, index 20,958 paragraphs with Lucene and bm25s, search 10,570 questions, evaluate.
#
#   sh docs/cookbook/squad.sh runs/squad      (or: just squad)
#
# The data, in BEIR layout, is in $DRTK_TEST_DATA/squad (../shared/data/squad). papers/public_data.py downloads it.
set -eu
out=${1:-runs/squad}
data=${DRTK_TEST_DATA:-../shared/data}/squad
again="--skip-done --force"
mkdir -p "$out"

# Articles to passages of whole sentences, at most 100 words.
drtk chunk "$data/documents.jsonl.gz" -o "$out/chunks.jsonl.zst" $again

# The published paragraphs with both engines. bm25s uses its default tokenization, as the data's README.
drtk index "$data/corpus.jsonl.gz" --type bm25 -o "$out/lucene" $again
drtk index "$data/corpus.jsonl.gz" --type bm25s -o "$out/bm25s" $again

# Dev questions only; the file also has the train questions.
gzip -cd "$data/queries.jsonl.gz" > "$out/queries.jsonl" # no pipe: it would hide a truncated archive
grep '"_id": *"dev-' "$out/queries.jsonl" > "$out/queries.dev.jsonl"
drtk search "$out/lucene" "$out/queries.dev.jsonl" -k 100 -o "$out/lucene.run" $again
drtk search "$out/bm25s" "$out/queries.dev.jsonl" -k 100 -o "$out/bm25s.run" $again

measures="nDCG@10 RR@10 R@100 AP@100"
drtk eval "$out/lucene.run" "$out/bm25s.run" --qrels "$data/qrels/dev.tsv" --measures "$measures"
drtk eval "$out/lucene.run" "$out/bm25s.run" --qrels "$data/qrels/dev.tsv" --measures "$measures" --format jsonl > "$out/figures.jsonl"
printf 'Expected: Lucene nDCG@10 .8235, bm25s .8099 (k1 .9, b .4)\n'
