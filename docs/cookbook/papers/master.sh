#!/bin/sh
# MASTER (Zhou 2023): five decoders, without a group of objectives, with one shared decoder (Table 6), masking rates (Table 8); followed by the
# first retriever. second.sh trains the second.
#
#   just reproduce master [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: queries are the questions whose answers a passage contains, continuations are the next passage (mini_data.py).
# full: ten queries per passage by docT5query, one continuation by GPT-2 (13 hours of an H200 each, estimated), 120,000 steps of 2,048 passages
# per row (72 hours); METHOD=master just reproduce stages runs the later stages.
. "$(dirname "$0")/common.sh"
mine_bm25
if [ "$scale" = full ]; then
  drtk doc2query "$passages" --model castorini/doc2query-t5-base-msmarco --n 10 --top-k 10 --top-p 1 --set title=none -o "$out/queried-10.jsonl" $again
  drtk continue-text "$out/queried-10.jsonl" --model gpt2 -o "$out/continued.jsonl" $again
  passages=$out/continued.jsonl
fi
titles=$([ "$scale" = mini ] || echo --set title=join) # the encoder reads title [SEP] text
drtk termweight "$passages" --method inv-freq --tokenizer "$start" $questions $titles -o "$out/inv-freq.jsonl" $again
passages=$out/inv-freq.jsonl
shared='decoders.shared={use="decoder",layers=2,init="random"}'

set_row() {
  preset=master
  if [ "$scale" = full ]; then more="--set slots.before.view=halves.a --set slots.next.view=halves.b --set title=sep"; fi # MS MARCO's passages have no neighbors
  case $row in
    mlm) preset=simlm-table7-mlm more=$([ "$scale" = mini ] || echo "--max-steps 120000 --set title=sep") ;;
    without-*) more="$more --drop ${row#without-}" ;;
    shared-decoder) more="$more --set $shared --set objective.mkp.decoder=shared --set objective.cmp.decoder=shared --set objective.npr.decoder=shared
      --set objective.dor.decoder=shared --set objective.gor.decoder=shared" ;;
    master-rates-*) # percent of the encoder's and of the decoders' tokens
      rates=${row#master-rates-}
      for slot in passage before; do more="$more --set slots.$slot.rate=0.${rates%-*}"; done
      for slot in keywords next queries continuation; do more="$more --set slots.$slot.rate=0.${rates#*-}"; done ;;
  esac
}
run_rows simlm-r1 mlm master without-cpr without-rpr without-por shared-decoder master-rates-15-50 master-rates-50-50 master-rates-30-30 master-rates-30-70
compare_rows mlm
