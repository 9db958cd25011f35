#!/bin/sh
# Released retrievers on MS MARCO's dev queries: SimLM (distilled), CoT-MAE and coCondenser (retriever 2). Tests encoding, search and evaluation.
#
#   just reproduce checkpoints --scale full [--rows "ROW …"]        options: common.sh
#
# An hour of a GPU and 41 GB of disk per row, estimated.
# MASTER released pre-trained encoders only (MASTER-MARCO, MASTER-Wiki; microsoft/SimXNS on GitHub):
#   METHOD=master ENCODER=MASTER-MARCO just reproduce stages --scale full
# The collection has the titles that RocketQA added (../msmarco.md); without them the figures are lower.
case " $* " in *" --scale full "*) ;; *) echo "checkpoints.sh: there are no checkpoints of mini scale; use --scale full" >&2 && exit 2 ;; esac
. "$(dirname "$0")/common.sh"

released() { # released ROW MODEL OPTIONS
  is_selected "$1" || return 0
  row=$1 model=$2
  shift 2
  drtk encode "$corpus" --model "$model" --pooling cls --vector-dtype float16 "$@" -o "$work/$row.vectors" $again
  drtk index "$work/$row.vectors" --type flat -o "$work/$row.index" $made
  drtk search "$work/$row.index" "$queries" --qrels "$qrels" -k "$depth" -o "$work/$row.released.run" $again
}
released simlm intfloat/simlm-base-msmarco-finetuned --normalize --max-length 144 --set title=segment
released cotmae caskcsg/cotmae_base_msmarco_retriever --set similarity=dot --max-length 128 --set title=sep
released cocondenser Luyu/co-condenser-marco-retriever --set similarity=dot --max-length 128 --set title=sep
seeds=released
compare_rows simlm
