#!/bin/sh
# DiffCSE (Chuang 2022; thesis, Tables 2.1 to 2.6 and 2.13): sentence similarity, and every ablation.
#
#   just reproduce diffcse [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# mini: pieces of up to 30 tokens of SQuAD's articles as sentences; Spearman correlation of the last checkpoint on STS-B.
# full: two epochs per row, about 15 minutes of an H200, estimated.
#   SENTENCES   10^6 sentences of Wikipedia, one per line (SimCSE's wiki1m_for_simcse.txt), or JSONL of drtk chunk; rows with the next sentence
#               need the latter, and are skipped with a text file
#   STS         folder of the seven STS tasks and the seven transfer tasks (docs/commands/eval-sentences.md)
#   START       FacebookAI/roberta-base: RoBERTa's rows
#   PRESET      diffcse-transfer-bert, diffcse-transfer-roberta: the transfer tables
. "$(dirname "$0")/common.sh"
single=""
if [ "$scale" = mini ]; then
  passages=$out/sentences.jsonl sts=$out/sts tasks="STS-B alignment uniformity retrieval" dev=""
  drtk chunk "$source/squad/documents.jsonl.gz" --tokenizer "$out/init" --max-tokens 30 -o "$passages" $again
  mkdir -p "$sts/STS-B" && cp "$source"/stsb/*.tsv "$sts/STS-B"
  pretrain_options="--batch-size 64 --max-length 32 --learning-rate 1e-4 --max-steps 100 --set title=none"
else
  passages=${SENTENCES:?the file of Wikipedia sentences} sts=${STS:?the folder of STS and transfer tasks} tasks="" dev="--dev-sts $STS/STS-B/dev.tsv"
  generator=distilbert/distilbert-base-uncased
  case $passages in
    *.txt)
      single="next both mlm-next mlm-both" passages=$out/sentences.jsonl
      python -c 'import json, sys
for number, line in enumerate(sys.stdin): print(json.dumps({"_id": str(number), "text": line.strip()}))' < "$SENTENCES" > "$passages" ;;
  esac
fi
family=bert simcse=simcse name=${PRESET:+.$PRESET}
case $start in *roberta*) family=roberta simcse=simcse-roberta name=.roberta$name generator=distilbert/distilroberta-base ;; esac

next="--set slots.changed_one.view=next --set slots.changed_two.view=next"
lm="--set objective.difference.classes=1 --set objective.difference.reduction=mean"
mlm="--set slots.changed_one.corruption=bert --set slots.changed_two.corruption=bert --set objective.difference.target=masked $lm"
both() { # both CORRUPTION: also the next sentence
  slot="{view=\"next\",masking=\"bernoulli\",rate=0.30,corruption=\"$1\"}"
  echo "--set slots.next_one=$slot --set slots.next_two=$slot" \
    '--set objective.difference.slot=["changed_one","changed_two","next_one","next_two"]' \
    '--set objective.difference.source=["one","two","one","two"]'
}
rate() { echo "--set slots.changed_one.rate=$1 --set slots.changed_two.rate=$1"; }
edit() { # edit CORRUPTION: how the sentence is changed
  case $1 in inserted | deleted) masking="" ;; *) masking='masking="bernoulli",' ;; esac
  echo "{view=\"passage\",${masking}rate=0.15,corruption=\"$1\"}"
}
extra() { echo "--drop difference --set slots.other=$(edit "$2") --set objective.contrast.extra_$1=[\"other\"] --set projectors.head.slots=[\"one\",\"two\",\"other\"]"; }

set_options() {
  preset=${PRESET:-diffcse-sts-$family}
  case $row in simcse* | mlm* | *deleted | lambda-0) more="" ;; *) more="--generator $generator" ;; esac # the first use no generator
  case $row in
    simcse) preset=$simcse ;;
    generator-large | generator-base) more="--generator google-bert/bert-${row#generator-}-uncased" ;;
    generator-medium) more="--generator google/bert_uncased_L-8_H-512_A-8" ;;
    generator-small) more="--generator google/bert_uncased_L-4_H-512_A-8" ;;
    generator-mini) more="--generator google/bert_uncased_L-4_H-256_A-4" ;;
    generator-tiny) more="--generator google/bert_uncased_L-2_H-128_A-2" ;;
    simcse-bn) preset=$simcse more="--set projectors.head.kind=bn" ;;
    without-bn) more="$more --set projectors.head.kind=tanh" ;;
    without-contrast) more="$more --drop contrast" ;;
    next) more="$more $next" ;;
    both) more="$more $(both replaced)" ;;
    mlm) more="$mlm" ;;
    mlm-next) more="$next $mlm" ;;
    mlm-both) more="$(both bert) $mlm" ;;
    corrective) more="$more --set objective.difference.target=corrected $lm" ;;
    inserted | deleted | any) more="$more --set slots.changed_one=$(edit "$row") --set slots.changed_two=$(edit "$row")" ;;
    rate-*) more="$more $(rate "${row#rate-}")" ;;
    lambda-0) more="--drop difference" ;;
    lambda-*) more="$more --set objective.difference.weight=${row#lambda-}" ;;
    positive-*) more="$more $(extra positives "${row#positive-}")" ;;
    negative-*) more="$more $(extra negatives "${row#negative-}")" ;;
  esac
}

generators=$([ "$scale$family" != fullbert ] || echo generator-large generator-base generator-medium generator-small generator-mini generator-tiny)
for seed in $seeds; do
  for row in diffcse simcse simcse-bn without-bn without-contrast next both mlm mlm-next mlm-both corrective inserted deleted any \
    rate-0.15 rate-0.20 rate-0.25 rate-0.40 rate-0.50 lambda-0 lambda-0.0001 lambda-0.0005 lambda-0.001 lambda-0.01 lambda-0.05 lambda-0.1 \
    positive-replaced positive-inserted positive-deleted negative-replaced negative-inserted negative-deleted $generators; do
    is_selected "$row" || continue
    case " $single " in *" $row "*) continue ;; esac
    set_options
    pretrain "diffcse$name-$row" --preset "$preset" --model "$start" $dev $more
  done
done
check_rows
models="start.0=$start"
for folder in "$out/encoders/diffcse$name"-*; do
  case $folder in *.part) ;; *) models="$models ${folder##*/"diffcse$name"-}=$folder" ;; esac
done
drtk eval-sentences $models --data "$sts" ${tasks:+--tasks "$tasks"} --format jsonl -o "$work/test.jsonl" --force
drtk eval-sentences $models --data "$sts" --tasks STS-B --split dev --format jsonl -o "$work/dev.jsonl" --force
python "$here/summarize.py" "$out/diffcse$name.jsonl" simcse "$work/test.jsonl"
python "$here/summarize.py" "$out/diffcse-dev$name.jsonl" simcse "$work/dev.jsonl"
