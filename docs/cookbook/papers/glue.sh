#!/bin/sh
# Four GLUE tasks with pre-trained encoders (Zhou 2023, Table 7): CoLA, MRPC, STS-B and QQP, fine-tuned with transformers' Trainer.
#
#   just reproduce glue [--scale mini|full] [--rows "ROW …"]        options: common.sh
#
# First run the rows simlm of simlm.sh and master of master.sh; rows without an encoder are skipped.
# mini: STS-B only. full: minutes per row and task on a GPU.
. "$(dirname "$0")/common.sh"
tasks="cola mrpc stsb qqp" options=""
if [ "$scale" = mini ]; then tasks=stsb options="--data $source/stsb --learning-rate 5e-4"; fi
for seed in $seeds; do
  for row in start simlm master; do
    if [ "$row" = start ]; then model=$start; else model=$out/encoders/$row.$seed; fi
    is_selected "$row" || continue
    [ "$row" = start ] || [ -e "$model" ] || { echo "glue.sh: no $model; run \`just reproduce $row\` first" >&2 && continue; }
    for task in $tasks; do
      result=$work/$row.$seed.$task.jsonl
      [ -s "$result" ] || python "$here/glue.py" "$row.$seed" "$model" "$task" $options --seed "$seed" > "$result.part"
      [ -s "$result" ] || mv "$result.part" "$result"
    done
  done
done
check_rows
for task in $tasks; do
  set -- "$work"/*."$task.jsonl"
  if [ -e "$1" ]; then python "$here/summarize.py" "$out/glue-$task.jsonl" start "$@"; fi
done
