#!/bin/sh
# ROM and coROM (Long 2022): masking by term weights, with weights of B-PROP or DeepImpact, and a contrastive loss between spans.
#
#   just reproduce rom [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: rom-twice is the same pre-training twice, with another order of the examples, because corom starts from rom.
# full: 8 epochs of MS MARCO's documents per row (34 million passages: about 38 hours of an H200, estimated), coROM 120,000 steps of 2,048 pairs
# (68 hours), then MS MARCO's first retriever; B-PROP's weights take 7 hours. The paper pre-trains ROM on Wikipedia and books; its figures are
# probably of the second retriever (second.sh). DeepImpact gets passages that are not expanded.
. "$(dirname "$0")/common.sh"
policy=tevatron
mine_bm25
chunk_documents
drtk termweight "$passages" --method bprop --model "$start" -o "$out/bprop.jsonl" $again
if is_selected rom-deepimpact; then
  [ "$scale" = mini ] && short="--max-steps 300 --set batch_size=16 --set learning_rate=5e-4 --set max_length=128" || short=""
  drtk termweight --method deepimpact --train "$examples" --corpus "$corpus" --queries "$train_queries" --model "$start" $short -o "$out/deepimpact" $again
  drtk termweight "$passages" --method deepimpact --model "$out/deepimpact" -o "$out/impacts.jsonl" $again
fi

twice=$([ "$scale" = full ] || echo rom-twice)
set_row() {
  passages=$out/bprop.jsonl
  case $row in
    mlm-15) preset=mlm more="--set slots.passage.rate=0.15 --set slots.passage.masking=random" ;;
    rom-deepimpact) preset=rom passages=$out/impacts.jsonl ;;
    corom | rom-twice)
      pretrain rom --preset rom --model "$start"
      preset=${row%-twice} model=$encoder
      [ "$row" = corom ] || more="--seed $((seed + 100))" ;;
  esac
}
run_rows rom-ft mlm-15 rom rom-deepimpact corom $twice
compare_rows mlm-15
