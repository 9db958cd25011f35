# Sourced by the recipes of this folder. They share these options:
#
#   sh docs/cookbook/papers/PAPER.sh [--scale mini|full] [--rows "ROW …"] [--seeds "1 2 3"] [--out DIR]
#
#   --scale mini   SQuAD and an encoder of two layers that is trained from random weights (two CPU cores, about ten minutes per row and seed)
#   --scale full   the paper's data, models and settings, from the hub and ir_datasets (GPUs; hours in each recipe)
#   --rows         rows to run; all by default. The comparison always covers the rows that are finished.
#   --out          folder of data, models and runs [runs/SCALE]
#
# A recipe that is run again resumes and skips finished steps. Data and first encoder are shared by all recipes.
# The comparison is written to OUT/PAPER.jsonl; `just verify OUT/PAPER.jsonl` checks it against expected.toml.
# mini reads SQuAD, Cranfield and CACM in BEIR layout from $DRTK_TEST_DATA (../shared/data).
set -eu
scale=mini rows="" seeds="" out=""
while [ $# -gt 0 ]; do
  case $1 in
    --scale) scale=$2 ;;
    --rows) rows=$2 ;;
    --seeds) seeds=$2 ;;
    --out) out=$2 ;;
    *) echo "$0: unknown option $1; see docs/cookbook/papers/common.sh" >&2 && exit 2 ;;
  esac
  shift 2
done
case $scale in mini | full) ;; *) echo "$0: unknown scale $scale; use mini or full" >&2 && exit 2 ;; esac
here=$(dirname "$0") paper=$(basename "$0" .sh) out=${out:-runs/$scale}
work=$out/$paper again="--skip-done --resume --force" made="--skip-done --force"
mkdir -p "$work"

if [ "$scale" = mini ]; then
  data=${DRTK_TEST_DATA:-../shared/data} seeds=${seeds:-1 2 3} shared=$out/data
  passages=$out/passages.jsonl corpus=$shared/corpus.jsonl queries=$shared/queries.jsonl qrels=$shared/qrels/test.tsv
  train_queries=$data/squad/queries.jsonl.gz train_corpus=$data/squad/corpus.jsonl.gz train_qrels=$shared/train.tsv
  start=$out/start generator=$out/start measures="RR@10 nDCG@10 R@50" depth=50
  # Pre-training: 64 passages of 64 tokens per step. Fine-tuning: 32 questions with a hard negative per step. No titles: presets differ in them.
  pretrain_options="--batch-size 64 --max-length 64 --learning-rate 5e-4 --max-steps 600 --eval-steps 600
    --set warmup=0.1 --set weight_decay=0.01 --set held_out=256 --set title=none"
  tune_options="--batch-size 32 --negatives 1 --max-steps 200 --learning-rate 5e-4 --passage-length 128
    --set warmup=0.1 --set title=none --set log_steps=20"
  drtk init-model "$train_corpus" --layers 2 --hidden 128 --heads 4 --vocab-size 8000 --max-length 128 -o "$out/init" $made
  drtk chunk "$data/squad/documents.jsonl.gz" --tokenizer "$out/init" --max-tokens 62 -o "$passages" $again
  for name in cranfield cacm; do drtk chunk "$data/$name/corpus.jsonl.gz" --tokenizer "$out/init" --max-tokens 62 -o "$out/$name.jsonl" $again; done
  cat "$passages" "$out/cranfield.jsonl" "$out/cacm.jsonl" > "$out/all.part"
  if cmp -s "$out/all.part" "$out/all.jsonl"; then rm "$out/all.part"; else mv "$out/all.part" "$out/all.jsonl"; fi
  [ -s "$shared/fields.jsonl" ] || python "$here/mini_data.py" "$data/squad" "$passages" "$shared"
  drtk pretrain "$out/all.jsonl" --preset mlm --model "$out/init" --max-steps 5000 --batch-size 64 --max-length 64 --learning-rate 1e-3 \
    --set warmup=0.1 --set held_out=512 --eval-steps 1000 --seed 0 -o "$start" $again
  fields="--with $shared/fields.jsonl"
else
  seeds=${seeds:-42} shared=irds:msmarco-passage
  passages=$shared corpus=$shared queries=$shared/dev/small qrels=$shared/dev/small
  train_queries=$shared/train train_corpus=$shared train_qrels=$shared/train
  start=${START:-bert-base-uncased} generator=google/electra-base-generator measures="RR@10 R@50 R@1000" depth=1000
  pretrain_options="" tune_options="" fields=""
fi

# Negatives of the first retriever: BM25's.
mine_bm25() {
  drtk index "$train_corpus" --type bm25s -o "$out/bm25.index" $made
  drtk mine-negatives "$out/bm25.index" --queries "$train_queries" --qrels "$train_qrels" --depth "$([ "$scale" = mini ] && echo 50 || echo 200)" -o "$out/train.jsonl" $again
}

# is_selected ROW
is_selected() { case " ${rows:-$1} " in *" $1 "*) ;; *) return 1 ;; esac; }

# pretrain NAME OPTIONS: pre-train an encoder with the current seed; writes WORK/NAME.SEED.encoder
pretrain() {
  encoder=$work/$1.$seed.encoder
  shift
  drtk pretrain "$passages" $fields $pretrain_options --seed "$seed" -o "$encoder" "$@" $again
}

# tune NAME MODEL PRESET: fine-tune a retriever with the current seed and search the test queries; writes WORK/NAME.SEED.run
tune() {
  name=$work/$1.$seed
  drtk train-retriever "$out/train.jsonl" --corpus "$train_corpus" --queries "$train_queries" --model "$2" --preset "$3" $tune_options --seed "$seed" -o "$name.retriever" $again
  drtk encode "$corpus" --model "$name.retriever" -o "$name.vectors" $again
  drtk index "$name.vectors" --type "$([ "$scale" = mini ] && echo exact || echo flat)" -o "$name.index" $made
  drtk search "$name.index" "$queries" -k "$depth" -o "$name.run" $again
  rm -r "$name.vectors" "$name.index"
}

# run_rows PRESET ROW …: pre-train the selected rows with each seed and fine-tune them with PRESET. The recipe's function set_row may change
# preset (the row's name), model (the common start), more (options) and passages of $row.
run_rows() {
  tune_preset=$1
  shift
  for seed in $seeds; do
    for row; do
      is_selected "$row" || continue
      preset=$row model=$start more=""
      set_row
      pretrain "$row" --preset "$preset" --model "$model" $more
      tune "$row" "$work/$row.$seed.encoder" "$tune_preset"
    done
  done
}

# compare_rows BASELINE: means over seeds and paired tests of all finished rows, to OUT/PAPER.jsonl
compare_rows() {
  runs=""
  for run in "$work"/*.run; do name=$(basename "$run" .run) && runs="$runs ${name%.*}=$run"; done
  drtk compare $runs --qrels "$qrels" --measures "$measures" --baseline "$1" --moved 0 --format jsonl -o "$out/$paper.jsonl" --force
  drtk compare $runs --qrels "$qrels" --measures "$measures" --baseline "$1" --moved 0
}
