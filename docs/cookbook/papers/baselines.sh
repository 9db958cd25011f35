#!/bin/sh
# Lexical baselines of the papers: BM25, docT5query and DeepCT; flat and HNSW indexes of the same vectors (Chuang's thesis, Table 3.11).
#
#   just reproduce baselines [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: a T5 of two layers, trained from random weights on the training questions, writes five queries per passage. Row doct5query-others: each
#   passage gets the queries of another one.
# full: BM25, docT5query and DeepCT have passages without titles, as in the published figures; 40 queries per passage by docT5query; vectors of
#   the first retriever from BERT-base. About 55 hours of an H200, estimated; 50 of them generate queries.
. "$(dirname "$0")/common.sh"
titled=$corpus negatives=$policy
if [ "$scale" = full ]; then corpus=irds:msmarco-passage; fi
policy=tevatron examples=$work/train.jsonl
mine_bm25 "$work/bm25.index"

# search_words NAME INDEX: search an inverted index
search_words() { drtk search "$2" "$queries" --qrels "$qrels" -k "$depth" -o "$work/$1.$seed.run" $again; }

# search_expanded NAME QUERIES: search the passages with the generated queries of the file QUERIES
search_expanded() {
  drtk index "$corpus" --with "$2" --expand queries --type "$bm25_type" -o "$work/$1.$seed.index" $made
  search_words "$1" "$work/$1.$seed.index"
}

for seed in $seeds; do
  if is_selected bm25; then search_words bm25 "$bm25"; fi
  if is_selected doct5query || is_selected doct5query-others; then
    writer=castorini/doc2query-t5-base-msmarco number=40
    if [ "$scale" = mini ]; then
      writer=$work/writer.$seed number=5
      drtk init-model "$out/all.jsonl" --arch t5 --layers 2 --hidden 128 --heads 4 --vocab-size 8000 --max-length 128 --seed "$seed" -o "$work/t5.$seed" $made
      drtk train-generator "$examples" --corpus "$corpus" --queries "$train_queries" --model "$work/t5.$seed" --max-steps 600 --batch-size 16 \
        --max-length 128 --target-length 24 --seed "$seed" -o "$writer" $again
    fi
    drtk doc2query "$corpus" --model "$writer" --n "$number" --top-k 10 --top-p 1 --bare --seed "$seed" -o "$work/queries.$seed.jsonl" $again
    search_expanded doct5query "$work/queries.$seed.jsonl"
    if is_selected doct5query-others && [ "$scale" = mini ]; then
      python -c 'import json, sys
records = [json.loads(line) for line in sys.stdin]
for record, other in zip(records, records[1000:] + records[:1000]): print(json.dumps(record | {"queries": other["queries"]}))' \
        < "$work/queries.$seed.jsonl" > "$work/others.$seed.part"
      join "$work/others.$seed.jsonl" "$work/others.$seed.part"
      search_expanded doct5query-others "$work/others.$seed.jsonl"
    fi
  fi
  if is_selected deepct; then
    [ "$scale" = mini ] && short="--max-steps 300 --set batch_size=16 --set learning_rate=5e-4 --set max_length=128" || short=""
    drtk termweight --method deepct --train "$examples" --corpus "$corpus" --queries "$train_queries" --model "$start" $short --seed "$seed" \
      -o "$work/deepct.$seed" $again
    drtk termweight "$corpus" --method deepct --model "$work/deepct.$seed" -o "$work/deepct.$seed.jsonl" $again
    drtk index "$work/deepct.$seed.jsonl" --type "$bm25_type" --term-weights -o "$work/deepct.$seed.index" $made
    search_words deepct "$work/deepct.$seed.index"
  fi
done

if is_selected flat || is_selected hnsw; then
  if [ "$scale" = full ]; then
    corpus=$titled policy=$negatives
    mine_bm25
  fi
  for seed in $seeds; do
    index_type=flat
    tune flat "$start" simlm-r1
    index_type=hnsw
    if is_selected hnsw; then search "$work/hnsw.$seed" "$work/flat.$seed.retriever"; fi
  done
fi
compare_rows bm25
