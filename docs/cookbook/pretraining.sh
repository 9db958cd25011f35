#!/bin/sh
# Compare pre-training objectives: a common warm-up, one run per objective and seed, the same short fine-tuning, and evaluation on
# SQuAD's dev questions, Cranfield and the sample's test queries. Sized for some hours on two CPU cores; run it again to resume.
#
#   sh docs/cookbook/pretraining.sh runs/pretraining MODEL      MODEL: a BERT-type encoder, such as MiniLM
#
# Environment variables and their defaults:
#
#   WARM=150 STEPS=150 BATCH=32 LENGTH=64        steps of the warm-up and of each objective, texts per batch, tokens per text
#   PASSAGES=8000 SEEDS="1 2 3"
#   ARMS="mlm simlm-mlm simlm cotmae rom condenser"        presets to compare
#   TITLE=join                                   titles in pre-training and fine-tuning; none omits them in pre-training
#
# The data, in BEIR layout, is in $DRTK_TEST_DATA (../shared/data).
set -eu
out=${1:-runs/pretraining}
model=${2:?missing MODEL, the encoder to start from}
data=${DRTK_TEST_DATA:-../shared/data}
warm=${WARM:-150} steps=${STEPS:-150} batch=${BATCH:-32} length=${LENGTH:-64} passages=${PASSAGES:-8000}
arms=${ARMS:-mlm simlm-mlm simlm cotmae rom condenser}
again="--skip-done --resume --force"
made="--skip-done --force"
mkdir -p "$out"

# Chunk whole articles, so that passages have neighbors; weights for ROM.
drtk chunk "$data/squad/documents.jsonl.gz" --tokenizer "$model" --max-tokens $((length - 2)) -o "$out/all.jsonl" $again
head -n "$passages" "$out/all.jsonl" > "$out/passages.part" && cmp -s "$out/passages.part" "$out/passages.jsonl" || mv "$out/passages.part" "$out/passages.jsonl"
drtk termweight "$out/passages.jsonl" --method bprop --model "$model" -o "$out/weighted.jsonl" $again

# Collections to search: SQuAD's dev paragraphs and as many others, Cranfield, the sample. Some dev questions; train questions for fine-tuning.
gzip -cd "$data/squad/queries.jsonl.gz" > "$out/queries.part" # no pipe: it would hide a truncated archive
if [ ! -s "$out/squad/queries.jsonl" ]; then
  mkdir -p "$out/squad/qrels"
  gzip -cd "$data/squad/corpus.jsonl.gz" > "$out/corpus.part"
  tail -n 3000 "$out/corpus.part" > "$out/squad/corpus.jsonl"
  rm "$out/corpus.part"
  grep '"_id": *"dev-' "$out/queries.part" | awk 'NR % 21 == 0' > "$out/squad/queries.jsonl"
  sed 's/.*"_id": *"\([^"]*\)".*/\1/' "$out/squad/queries.jsonl" |
    awk -F '\t' 'NR == FNR { ids[$1]; next } FNR == 1 || $1 in ids' - "$data/squad/qrels/dev.tsv" > "$out/squad/qrels/dev.tsv"
fi
drtk sample "$out/sample" --limit 2000 $made
cut -f 1 "$out/sample/qrels/test.tsv" | sed 's/.*/"_id":"&"/' | grep -F -f - "$out/sample/queries.jsonl" > "$out/sample.test.jsonl"
grep '"_id": *"train-' "$out/queries.part" | awk 'NR % 40 == 0' > "$out/questions.jsonl"
rm "$out/queries.part"
awk 'NR > 1 { split($1, part, "-"); if (part[2] % 40 == 0) printf "{\"query_id\":\"%s\",\"positives\":[\"%s\"],\"negatives\":[]}\n", $1, $2 }' \
  "$data/squad/qrels/train.tsv" > "$out/train.jsonl"

# The common start: masked language modeling, which also trains a language-model head. It is SimLM's generator too.
# All runs share learning rate, warm-up, weight decay and titles, in which the presets differ.
pretrain() {
  drtk pretrain "$out/weighted.jsonl" --batch-size "$batch" --max-length "$length" --learning-rate 1e-4 --set warmup=0.1 --set weight_decay=0.01 --set held_out=256 --set "title=${TITLE:-join}" "$@" $again
}
pretrain --preset mlm --model "$model" --max-steps "$warm" --eval-steps "$warm" --seed 0 -o "$out/start"

# Pre-train with one preset and seed, fine-tune, and search the three collections.
run_arm() { # ARM SEED
  arm=$1 seed=$2 name=$1.$2
  if [ "$arm" = start ]; then
    encoder=$out/start
  else
    encoder=$out/$name.encoder
    more=""
    case $arm in simlm) more="--generator $out/start" ;; cotmae) more="--set slots.context.spans=mixed" ;; esac
    pretrain --preset "$arm" --model "$out/start" $more --max-steps "$steps" --eval-steps "$steps" --seed "$seed" -o "$encoder"
  fi
  drtk train-retriever "$out/train.jsonl" --corpus "$data/squad/corpus.jsonl.gz" --queries "$out/questions.jsonl" --model "$encoder" \
    --negatives 0 --batch-size 16 --max-steps 60 --set temperature=0.05 --query-length 32 --passage-length "$length" --seed "$seed" -o "$out/$name.retriever" $again
  for pool in squad cranfield sample; do
    set_collection $pool
    drtk encode "$corpus" --model "$out/$name.retriever" -o "$out/$name.$pool.vectors" $again
    drtk index "$out/$name.$pool.vectors" --type exact -o "$out/$name.$pool.index" $made
    drtk search "$out/$name.$pool.index" "$queries" -k 100 -o "$out/$pool.$name.run" $again
  done
}

set_collection() { # NAME: set corpus, queries and qrels
  case $1 in
    squad) corpus=$out/squad/corpus.jsonl queries=$out/squad/queries.jsonl qrels=$out/squad/qrels/dev.tsv ;;
    cranfield) corpus=$data/cranfield/corpus.jsonl.gz queries=$data/cranfield/queries.jsonl.gz qrels=$data/cranfield/qrels/test.tsv ;;
    sample) corpus=$out/sample/documents.jsonl queries=$out/sample.test.jsonl qrels=$out/sample/qrels/test.tsv ;;
  esac
}

# All presets with the first seed first, so that intermediate results can be compared.
run_arm start 1
for seed in ${SEEDS:-1 2 3}; do
  for arm in $arms; do
    case $seed.$arm in 1.* | *.mlm | *.simlm | *.cotmae) run_arm "$arm" "$seed" ;; esac
  done
done

for pool in squad cranfield sample; do
  set_collection $pool
  runs=""
  for arm in start $arms; do for run in "$out/$pool.$arm".*.run; do runs="$runs $arm=$run"; done; done
  drtk compare $runs --qrels "$qrels" --measures "nDCG@10 R@100" --baseline mlm --moved 0 > "$out/$pool.txt"
  cat "$out/$pool.txt"
done
grep -h '"gain_' "$out"/*.encoder/log.jsonl || true
