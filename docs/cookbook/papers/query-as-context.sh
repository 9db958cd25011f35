#!/bin/sh
# Query-as-context pre-training (Wu 2023): coCondenser and CoT-MAE with spans, queries or both as context; number of queries per passage.
#
#   just reproduce query-as-context [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: queries are the questions whose answers a passage contains (mini_data.py).
# full: five queries per passage by docT5query, then 120,000 steps of 2,048 passages (coCondenser) or 50,000 of 16,384 (CoT-MAE) per row
# (about 34 and 110 hours of an H200, estimated).
. "$(dirname "$0")/common.sh"
mine_bm25
chunk_documents
fields=$questions
if [ "$scale" = full ]; then
  drtk doc2query "$passages" --model doc2query/all-with_prefix-t5-base-v1 --prefix "text2query: " --n 5 --top-p 0.95 --top-k 25 -o "$out/queried.jsonl" $again
  fields="--with $out/queried.jsonl"
fi

set_row() {
  case $row in
    qac-cotmae-1-query) preset=qac-cotmae more="--set slots.context.limit=1" ;;
    qac-cotmae-2-queries) preset=qac-cotmae more="--set slots.context.limit=2" ;;
    cocondenser | qac-cocondenser*)
      pretrain condenser --preset condenser --model "$start" && model=$encoder
      [ "$scale" = full ] || more="--set held_out=32" ;; # of 490 documents
  esac
}
run_rows qac-r1 condenser cocondenser qac-cocondenser qac-cocondenser-mixed cotmae qac-cotmae qac-cotmae-mixed qac-cotmae-1-query qac-cotmae-2-queries
compare_rows cotmae
