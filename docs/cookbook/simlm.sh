#!/bin/sh
# SimLM's pipeline: pre-train, first retriever, mine, second retriever, mine, re-ranker, its scores, the distilled retriever, evaluation.
# Every retriever begins with the pre-trained encoder, never with the one before it. What is done is not done again; what was
# interrupted goes on.
#
#   sh docs/cookbook/simlm.sh CORPUS QUERIES QRELS TEST_QRELS MODEL [OUT]        or: just simlm CORPUS QUERIES …
#
#   CORPUS       passages, QUERIES: all of them, in any format drtk reads
#   QRELS        judgements to train with; TEST_QRELS: those to evaluate with (queries that neither names are passed over)
#   MODEL        the encoder to begin with: a folder or hub name; OUT: where all of it goes (runs/simlm)
#
# Without settings the recipes are the papers', for eight GPUs and days. What can be set in the environment:
#
#   LAUNCH       what starts training: "torchrun --nproc-per-node 8 -m"
#   RECIPE       whose fine-tuning presets: simlm, simlm-nq or master-official; VARIANT=-official takes those of the released code
#   PRETRAINING  the preset of pre-training (simlm); ENCODER: an encoder that is pre-trained already, nothing is pre-trained then
#   TITLE        titles in pre-training: by default as in the fine-tuning presets (segment; sep with RECIPE=master-official); none: no titles
#   GENERATOR    the masked language model that replaces tokens; without it MODEL after a warm-up (WARM="--max-steps 5000 …")
#   TEACHER      what the re-ranker begins with (the pre-trained encoder; the paper: google/electra-base-discriminator)
#   BM25         the engine, bm25 or bm25s; INDEX: of vectors, flat or exact; DEPTH: of mining (200); K: of test runs (1000)
#   NEGATIVES    source of negatives instead of the BM25 index, for retriever 1 and with UNION for the others: a run, or examples (MS MARCO's
#                official triples). The first 1000 of a query, whatever DEPTH is, as official lists are in random order; MINE="--depth N" sets both
#   RERANK       documents re-ranked for each test query (200)
#   BY           source, where judgements name documents and passages are chunks of them; test runs are of passages all the same
#   SCORED       options of mine-negatives for what the teacher scores ("--negatives 23"), else all that was mined; SCORED_QUERIES: how many
#   UNION        yes: the second retriever, the re-ranker and the distilled retriever learn from BM25's examples too, as on NQ
#   BASELINES    systems besides: start (MODEL as it is), pretrained (before fine-tuning)
#   WARM PRETRAIN MINE R1 R2 RERANKER DISTILL ENCODE    further options of these stages' commands
#   ANSWERS      questions with answers: these are searched, and a passage is right that holds one; TEST_QRELS may then be anything
#   MEASURES     what is measured
#   SEED         of pre-training, mining and fine-tuning, in place of the commands' own
set -eu
stop() { echo "simlm.sh: $*" >&2 && exit 1; }
[ $# -ge 5 ] || stop "wanted are CORPUS QUERIES QRELS TEST_QRELS MODEL [OUT], given were $#"
corpus=$1 queries=$2 qrels=$3 test=$4 model=$5 out=${6:-runs/simlm}
recipe=${RECIPE:-simlm} variant=${VARIANT:-} depth=${DEPTH:-200} k=${K:-1000} by=${BY:-passage}
case $recipe in master-*) title=${TITLE:-sep} ;; *) title=${TITLE:-segment} ;; esac
for file in "$corpus" "$queries" "$qrels" "${ANSWERS:-$test}" "${NEGATIVES:-$corpus}"; do # fail now, not after hours
  case $file in hf:*) ;; *) [ -e "$file" ] || stop "$file: No such file" ;; esac
done
case $model in /* | ./* | ../*) [ -e "$model" ] || stop "$model: no such model" ;; esac
again="--skip-done --resume --force" # a stage with the same inputs and settings is left as it is
made="--skip-done --force"
mkdir -p "$out"
step() { printf '\n== %s\n' "$*" >&2; }
seed=${SEED:+--seed $SEED}
train() { ${LAUNCH:-} drtk "$@" $seed $again; }

# The test run of an index: ask NAME
ask() {
  if [ -n "${ANSWERS:-}" ]; then
    drtk search "$out/$1.index" "$ANSWERS" -k "$k" -o "$out/$1.run" $again
  else
    drtk search "$out/$1.index" "$queries" --qrels "$test" -k "$k" -o "$out/$1.run" $again
  fi
}

# Vectors, an index and the test run of an encoder: search NAME MODEL
search() {
  drtk encode "$corpus" --model "$2" -o "$out/$1.vectors" ${ENCODE:-} $again
  drtk index "$out/$1.vectors" --type "${INDEX:-flat}" -o "$out/$1.index" $made
  ask "$1"
}

# Training examples from an index, a run or examples: mine NAME SOURCE DEPTH [OPTION…]
mine() {
  name=$1 source=$2 ranks=$3 && shift 3
  drtk mine-negatives "$source" --queries "$queries" --qrels "$qrels" --corpus "$corpus" --positives "$by" --depth "$ranks" \
    -o "$out/$name.jsonl" ${MINE:-} "$@" $seed $again
}

# The examples to learn from, with UNION after those that BM25 gave: learn EXAMPLES BM25S JOINED
learn() {
  examples=$out/$1.jsonl
  if [ "${UNION:-no}" = yes ]; then
    examples=$out/$3.jsonl
    drtk convert "$out/$2.jsonl" "$out/$1.jsonl" --as examples -o "$examples" $again
  fi
}

retriever() { # retriever NAME EXAMPLES PRESET [OPTION…]
  name=$1 examples=$2 preset=$3 && shift 3
  train train-retriever "$examples" --corpus "$corpus" --queries "$queries" --model "$encoder" \
    --preset "$recipe-$preset$variant" -o "$out/$name" "$@"
}

step "BM25"
drtk index "$corpus" --type "${BM25:-bm25}" -o "$out/bm25.index" $made
ask bm25
negatives=$out/bm25.index ranks_of_negatives=$depth
if [ -n "${NEGATIVES:-}" ]; then negatives=$NEGATIVES ranks_of_negatives=1000; fi
mine bm25 "$negatives" "$ranks_of_negatives"
systems="bm25"

encoder=${ENCODER:-$out/pretrained}
if [ -z "${ENCODER:-}" ]; then
  start=$model generator=${GENERATOR:-}
  if [ -z "$generator" ]; then
    step "Warm-up: a head for MODEL, and a generator"
    train pretrain "$corpus" --preset mlm --set "title=$title" --model "$model" -o "$out/warm" ${WARM:-}
    start=$out/warm generator=$out/warm
  fi
  step "Pre-training"
  case ${PRETRAINING:-simlm} in simlm | simlm-rtd) proposals="--generator $generator" ;; *) proposals="" ;; esac
  train pretrain "$corpus" --preset "${PRETRAINING:-simlm}" --set "title=$title" --model "$start" $proposals -o "$encoder" ${PRETRAIN:-}
fi
for system in ${BASELINES:-}; do
  case $system in start) search start "$model" ;; pretrained) search pretrained "$encoder" ;; esac
  systems="$systems $system"
done

step "Retriever 1: BM25's negatives"
retriever retriever1 "$out/bm25.jsonl" r1 ${R1:-}
search retriever1 "$out/retriever1"

step "Retriever 2: negatives that retriever 1 takes for right"
mine mined1 "$out/retriever1.index" "$depth"
learn mined1 bm25 union
retriever retriever2 "$examples" r2 ${R2:-}
search retriever2 "$out/retriever2"

step "Re-ranker: reads query and passage together; negatives of retriever 2"
mine mined2 "$out/retriever2.index" "$depth"
learn mined2 bm25 union2
train train-reranker "$examples" --corpus "$corpus" --queries "$queries" --model "${TEACHER:-$encoder}" \
  --preset "$recipe-reranker$variant" -o "$out/reranker" ${RERANKER:-}
drtk rerank "$out/retriever2.run" --corpus "$corpus" --queries "${ANSWERS:-$queries}" --model "$out/reranker" --depth "${RERANK:-200}" \
  -o "$out/reranked.run" $again

step "Distilled retriever: learns from the re-ranker's scores"
if [ -n "${SCORED:-}" ]; then
  mine teacher "$out/retriever2.index" "$depth" $SCORED
  if [ "${UNION:-no}" = yes ]; then mine teacher-bm25 "$negatives" "$ranks_of_negatives" $SCORED; fi
  learn teacher teacher-bm25 teacher-union
fi
drtk score "$examples" --corpus "$corpus" --queries "$queries" --model "$out/reranker" ${SCORED_QUERIES:+--sample "$SCORED_QUERIES"} \
  -o "$out/scored.jsonl" $again
retriever distilled "$out/scored.jsonl" distill ${DISTILL:-}
search distilled "$out/distilled"

step "How good are they?"
runs=""
for system in $systems retriever1 retriever2 distilled reranked; do runs="$runs $system=$out/$system.run"; done
if [ -n "${ANSWERS:-}" ]; then
  drtk eval $runs --answers "$ANSWERS" --corpus "$corpus" --measures "${MEASURES:-Answer@1 Answer@5 Answer@20 Answer@100}" -o "$out/figures.txt" --force -q
else
  drtk compare $runs --qrels "$test" --by "$by" --all-pairs --measures "${MEASURES:-RR@10 nDCG@10 R@50 R@1000}" --moved 0 -o "$out/figures.txt" --force -q
fi
cat "$out/figures.txt"
