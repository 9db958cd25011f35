# Sourced by the recipes of this folder. They share these options:
#
#   sh docs/cookbook/papers/RECIPE.sh [--scale mini|full] [--rows "ROW …"] [--seeds "1 2 3"] [--out DIR]
#
#   --scale mini   SQuAD and an encoder of two layers that is trained from random weights (two CPU cores, minutes per row and seed)
#   --scale full   the paper's data, models and settings, from the hub and ir_datasets (GPUs; hours in each recipe's header)
#   --rows         rows to run; all by default. The comparison covers all finished rows.
#   --seeds        [mini: 1 2 3, full: 42]
#   --out          folder of data, models and runs [runs/SCALE]
#
# Environment variables of full scale:
#
#   START          initial encoder [bert-base-uncased]
#   SET            open-domain questions: nq or trivia [nq]
#   DOWNLOADS      folder of DPR's downloads (../ear-nq.md) [downloads]
#
# A recipe that is run again resumes and skips finished steps. Data and pre-trained encoders are shared by all recipes.
# The comparison is written to OUT/RECIPE.jsonl; `just verify OUT/RECIPE.jsonl` checks it against expected.toml. It covers the seeds whose values by
# question are in OUT/RECIPE.SEED.values.jsonl.zst; copy these files to join the seeds of several machines.
# mini reads SQuAD, Cranfield, CACM and STS-B from $DRTK_TEST_DATA (../shared/data).
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
for row in $rows; do # reject misspelled rows before the work; check_rows, at the end, knows the rows of the recipe
  case $row in step-*) continue ;; esac # named after folders
  grep -qE "(^|[ \"'=])$row([ \"'=;)]|\$)" "$0" "$(dirname "$0")/expected.toml" || { echo "$0: --rows: no row $row; docs/reproduction.md has the rows" >&2 && exit 2; }
done
case $scale in mini | full) ;; *) echo "$0: unknown scale $scale; use mini or full" >&2 && exit 2 ;; esac
here=$(dirname "$0") recipe=$(basename "$0" .sh)
case $recipe.$rows in stages.?* | ear.?*) echo "$0: --rows: all rows run together; omit it" >&2 && exit 2 ;; esac
out=${out:-runs/$scale}
work=$out/$recipe examples=$out/train.jsonl policy=tevatron again="--skip-done --resume --force" made="--skip-done --force"
mkdir -p "$work" "$out/encoders"

# join OUTPUT FILE …: an unchanged OUTPUT keeps its time, for --skip-done
join() {
  joined=$1
  shift
  cat "$@" > "$joined.$$" # one name per process: recipes may run at the same time
  if cmp -s "$joined.$$" "$joined"; then rm "$joined.$$"; else mv "$joined.$$" "$joined"; fi
}

if [ "$scale" = mini ]; then
  source=${DRTK_TEST_DATA:-../shared/data} seeds=${seeds:-1 2 3} data=$out/data
  passages=$out/squad.jsonl corpus=$data/corpus.jsonl queries=$data/queries.jsonl qrels=$data/qrels/test.tsv
  train_queries=$queries train_qrels=$data/qrels/train.tsv
  start=$out/start generator=$out/start measures="RR@10 nDCG@10 R@50" depth=50 mining_depth=50 index_type=exact bm25_type=bm25s
  # Pre-training: 32 passages of 64 tokens per step. Fine-tuning: 16 questions with a hard negative per step. No titles: presets differ in them.
  pretrain_options="--batch-size 32 --max-length 64 --learning-rate 1e-3 --max-steps 500 --eval-steps 500 --export-steps 100
    --set warmup=0.1 --set weight_decay=0.01 --set held_out=256 --set title=none"
  tune_options="--batch-size 16 --negatives 1 --max-steps 200 --learning-rate 1e-3 --query-length 32 --passage-length 128
    --set warmup=0.1 --set title=none --set log_steps=20"
  [ -e "$source/squad/corpus.jsonl.gz" ] || { echo "common.sh: no $source/squad; run \`python docs/cookbook/papers/public_data.py runs/data\` and \`export DRTK_TEST_DATA=runs/data\`" >&2 && exit 1; }
  drtk init-model "$source/squad/corpus.jsonl.gz" --layers 2 --hidden 128 --heads 4 --vocab-size 8000 --max-length 128 -o "$out/init" $made
  for file in squad/documents cranfield/corpus cacm/corpus; do
    drtk chunk "$source/$file.jsonl.gz" --tokenizer "$out/init" --max-tokens 62 -o "$out/${file%/*}.jsonl" $again
  done
  join "$out/other.jsonl" "$out/cranfield.jsonl" "$out/cacm.jsonl"
  join "$out/all.jsonl" "$passages" "$out/other.jsonl"
  [ -s "$data/fields.jsonl" ] || python "$here/mini_data.py" "$source/squad" "$passages" "$data"
  drtk pretrain "$out/all.jsonl" --preset mlm --model "$out/init" --max-steps 5000 --batch-size 64 --max-length 64 --learning-rate 1e-3 \
    --set warmup=0.1 --set held_out=512 --eval-steps 1000 --seed 0 -o "$start" $again
  questions="--with $data/fields.jsonl"
else
  seeds=${seeds:-42} passages=$out/msmarco.jsonl corpus=$passages
  case $recipe in
    diffcse | dpr | ear | glue) ;; # other data
    *) drtk convert hf:Tevatron/msmarco-passage-corpus:train --as passages -o "$corpus" $again ;; # with the titles that RocketQA added
  esac
  train_queries=irds:msmarco-passage/train train_qrels=$train_queries queries=irds:msmarco-passage/dev/small qrels=$queries
  start=${START:-bert-base-uncased} generator=google/electra-base-generator
  measures="RR@10 R@50 R@1000 Success@50 Success@1000" depth=1000 mining_depth=200 index_type=flat bm25_type=bm25 policy=msmarco # query-as-context and ROM: tevatron
  pretrain_options="--export-steps 10000" tune_options="" questions=""
fi

# use_wikipedia: search the Wikipedia passages and the questions of SET, from DOWNLOADS
use_wikipedia() {
  set=${SET:-nq} downloads=${DOWNLOADS:-downloads}
  case $set in nq | trivia) ;; *) echo "$0: unknown SET $set; use nq or trivia" >&2 && exit 2 ;; esac
  corpus=$(find_download psgs_w100.tsv) queries=$(find_download "$set-test.qa.csv") qrels=""
  judgments="--answers $queries --corpus $corpus" measures="Answer@1 Answer@5 Answer@20 Answer@100"
}

# find_download NAME: a file of DOWNLOADS, compressed or not
find_download() { if [ -e "$downloads/$1.gz" ]; then echo "$downloads/$1.gz"; else echo "$downloads/$1"; fi; }

# At full scale, objectives that pair passages of a document need MS MARCO's documents.
chunk_documents() {
  [ "$scale" = full ] || return 0
  passages=$out/documents.jsonl
  drtk chunk irds:msmarco-document --tokenizer "$start" --max-tokens 142 -o "$passages" $again
}

# mine INDEX OPTIONS: write training examples with negatives of an index to $examples, by $policy
mine() {
  index=$1
  shift
  drtk mine-negatives "$index" --queries "$train_queries" --qrels "$train_qrels" --depth "$mining_depth" --policy "$policy" -o "$examples" "$@" $again
}

# mine_bm25 [INDEX]: negatives of the first retriever are those of this BM25 index, not MS MARCO's official lists
mine_bm25() {
  bm25=${1:-$out/bm25.index}
  drtk index "$corpus" --type "$bm25_type" -o "$bm25" $made
  if [ "$policy" = tevatron ]; then
    mine "$bm25"
  else # this policy also samples negatives from the corpus
    examples=$out/train-$policy.jsonl
    mine "$bm25" --corpus "$corpus"
  fi
}

known="" # rows of the recipe
# is_selected ROW
is_selected() {
  case "$known " in *" $1 "*) ;; *) known="$known $1" ;; esac
  case " ${rows:-$1} " in *" $1 "*) ;; *) return 1 ;; esac
}
# check_rows: exit if the recipe has no such row
check_rows() {
  for row in $rows; do
    case "$known " in *" $row "*) ;; *) echo "$recipe.sh: --rows: no row $row; use some of:$known" >&2 && exit 2 ;; esac
  done
}

encode_options=""
fields="" # options of pretrain that add fields to the passages
# pretrain NAME OPTIONS: pre-train an encoder with the current seed; writes OUT/encoders/NAME.SEED and sets `encoder`
pretrain() {
  encoder=$out/encoders/$1.$seed
  shift
  drtk pretrain "$passages" $fields $pretrain_options --seed "$seed" -o "$encoder" "$@" $again
}

# tune NAME MODEL PRESET OPTIONS: fine-tune a retriever on $examples with the current seed and search the test queries; writes WORK/NAME.SEED.run
tune() {
  name=$work/$1.$seed model=$2 preset=$3
  shift 3
  drtk train-retriever "$examples" --corpus "$corpus" --queries "$train_queries" --model "$model" --preset "$preset" $tune_options "$@" \
    --seed "$seed" -o "$name.retriever" $again
  search "$name" "$name.retriever"
}

# search NAME MODEL: search the test queries; writes NAME.run
search() {
  if [ "$1.run" -nt "$2" ]; then return; fi # --skip-done would need the vectors, which are removed
  drtk encode "$corpus" --model "$2" $encode_options -o "$1.vectors" $again
  drtk index "$1.vectors" --type "$index_type" -o "$1.index" $made
  drtk search "$1.index" "$queries" ${qrels:+--qrels "$qrels"} -k "$depth" -o "$1.run" $again
  rm -r "$1.vectors" "$1.index"
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
      tune "$row" "$encoder" "$tune_preset"
    done
  done
}

# compare_rows BASELINE: values of the finished rows by question, to OUT/RECIPE.SEED.values.jsonl.zst; means and paired tests, to OUT/RECIPE.jsonl
compare_rows() {
  check_rows
  for seed in $seeds; do
    runs=""
    for run in "$work"/*."$seed".run; do
      if [ -e "$run" ]; then name=$(basename "$run" ".$seed.run") runs="$runs $name=$run"; fi
    done
    [ -z "$runs" ] || drtk eval $runs ${judgments:---qrels $qrels} --measures "$measures" --per-query --format jsonl -o "$out/$recipe.$seed.values.jsonl.zst" --force
  done
  set -- "$out/$recipe.jsonl" "$1" "$out/$recipe".*.values.jsonl.zst
  [ -e "$3" ] || { echo "$recipe.sh: no row is finished" >&2 && exit 1; }
  python "$here/summarize.py" "$@"
}
