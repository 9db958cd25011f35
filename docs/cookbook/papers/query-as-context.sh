#!/bin/sh
# Query-as-context pre-training (Wu 2023): coCondenser and CoT-MAE with passages, queries or both as context (Tables 1 and 4); number of queries per
# passage (Table 3); followed by the first retriever. second.sh trains the second.
#
#   just reproduce query-as-context [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: queries are the questions whose answers a passage contains (mini_data.py). Rows *-twice: the same pre-training twice, with
#   another order of the examples, because those of coCondenser start from condenser.
# full: five queries per passage by a T5, 20 for the rows with 10 and 20 (34 million passages of MS MARCO's documents: about 24 and 97 hours of
# an H200, estimated), then 120,000 steps of 2,048 pairs (coCondenser, 68 hours) or 50,000 of 16,384 (CoT-MAE, 114 hours) per row.
. "$(dirname "$0")/common.sh"
policy=tevatron
mine_bm25
chunk_documents
counts="1 2" twice="condenser-twice cotmae-twice"
# write_queries NUMBER: queries of docT5query
write_queries() {
  drtk doc2query "$passages" --model doc2query/all-with_prefix-t5-base-v1 --prefix "text2query: " --set title=none --n "$1" --top-p 0.95 --top-k 25 \
    -o "$out/queried-$1.jsonl" $again
}
if [ "$scale" = full ]; then
  counts="1 10 20" twice="" questions="--with $out/queried-5.jsonl"
  for row in ${rows:-qac-cotmae qac-cotmae-queries-20}; do # only the queries of the selected rows
    case $row in *-queries-[12]0) write_queries 20 ;; qac-*) write_queries 5 ;; esac
  done
fi

set_row() {
  fields=$questions
  case $scale.$row in full.*-queries-[12]0) fields="--with $out/queried-20.jsonl" ;; full.qac-*) ;; full.*) fields="" ;; esac
  case $row in
    qac-cotmae-queries-*) preset=qac-cotmae more="--set slots.context.limit=${row##*-}" ;;
    cotmae-twice)
      pretrain cotmae --preset cotmae --model "$start"
      preset=cotmae model=$encoder more="--seed $((seed + 100))" ;;
    cocondenser | condenser-twice | qac-cocondenser*)
      model=Luyu/condenser
      if [ "$scale" = mini ]; then
        pretrain condenser --preset condenser --model "$start"
        model=$encoder more="--set held_out=32" # an example is a document, and there are only 490
      fi
      case $row in
        condenser-twice) preset=condenser more="--seed $((seed + 100))" ;;
        *-queries-*) preset=qac-cocondenser more="$more --set slots.b.limit=${row##*-}" ;;
      esac ;;
  esac
}
run_rows qac-r1 condenser cocondenser qac-cocondenser qac-cocondenser-mixed cotmae qac-cotmae qac-cotmae-mixed $twice
for count in $counts; do run_rows qac-r1 "qac-cocondenser-queries-$count" "qac-cotmae-queries-$count"; done
compare_rows cotmae
