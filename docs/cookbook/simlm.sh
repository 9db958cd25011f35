#!/bin/sh
# SimLM's pipeline: BM25, pre-training, retriever 1, mining, retriever 2, mining, reranker, teacher scores, distilled retriever, evaluation.
# Every retriever starts from the pre-trained encoder, not from the retriever before it. Run the script again to resume; finished stages are skipped.
#
#   sh docs/cookbook/simlm.sh CORPUS QUERIES QRELS TEST_QRELS MODEL [OUT]        or: just simlm CORPUS QUERIES …
#
#   CORPUS       passages, in any format that drtk reads
#   QUERIES      training and test queries; queries without judgments are ignored
#   QRELS        judgments for training
#   TEST_QRELS   judgments for evaluation
#   MODEL        initial encoder: a folder or a hub name
#   OUT          output folder (runs/simlm)
#
# The default settings are the papers', for eight GPUs and days. Environment variables:
#
#   LAUNCH       launcher of trainings: "torchrun --nproc-per-node 8 -m"
#   RECIPE       fine-tuning presets: simlm, simlm-nq or master-official; VARIANT=-official: those of the released code
#   PRETRAINING  pre-training preset (simlm)
#   ENCODER      an encoder that is already pre-trained; skips pre-training
#   TITLE        title format of pre-training: by default as the fine-tuning presets (segment; sep with RECIPE=master-official); none: no titles
#   GENERATOR    masked language model that replaces tokens; by default MODEL after a warm-up (WARM="--max-steps 5000 …")
#   TEACHER      initial model of the reranker (the pre-trained encoder; the paper: google/electra-base-discriminator)
#   BM25         bm25 (Lucene) or bm25s
#   INDEX        dense index: flat or exact
#   DEPTH        ranks to mine from (200)
#   K            hits per test query (1000)
#   NEGATIVES    a run or examples to take negatives from instead of the BM25 index (MS MARCO's official triples), for retriever 1, with
#                UNION for all. The first 1000 of a query are used, as official lists are in random order; MINE="--depth N" changes that
#   POOL         training passages: the positives, and the passages to mine negatives from (CORPUS). For a small corpus, exclude the test
#                queries' passages: a reranker memorizes them as negatives
#   RERANK       documents to rerank per test query (200)
#   BY           source: judgments are for documents, passages are their chunks; test runs are of passages
#   SCORED       options of mine-negatives for the examples that the teacher scores ("--negatives 23"); by default all mined negatives
#   SCORED_QUERIES  number of queries that the teacher scores
#   UNION        yes: also train retriever 2, the reranker and the distilled retriever on BM25's examples, as on NQ
#   BASELINES    more systems to evaluate: start (MODEL), pretrained (before fine-tuning)
#   WARM PRETRAIN MINE R1 R2 RERANKER DISTILL ENCODE    more options of the commands of these stages
#   ANSWERS      questions with answers: they are searched, and passages that contain an answer are relevant; TEST_QRELS is ignored
#   MEASURES     measures to print
#   SEED         seed of pre-training, mining and fine-tuning
set -eu
stop() { echo "simlm.sh: $*" >&2 && exit 1; }
[ $# -ge 5 ] || stop "expected CORPUS QUERIES QRELS TEST_QRELS MODEL [OUT], got $# arguments"
corpus=$1 queries=$2 qrels=$3 test=$4 model=$5 out=${6:-runs/simlm}
pool=${POOL:-$corpus} pooled=${POOL:+.pool}
recipe=${RECIPE:-simlm} variant=${VARIANT:-} depth=${DEPTH:-200} k=${K:-1000} by=${BY:-passage}
case $recipe in master-*) title=${TITLE:-sep} ;; *) title=${TITLE:-segment} ;; esac
for file in "$corpus" "$queries" "$qrels" "${ANSWERS:-$test}" "${NEGATIVES:-$corpus}" "$pool"; do # fail now, not after hours
  case $file in hf:* | irds:*) ;; *) [ -e "$file" ] || stop "$file: No such file or directory" ;; esac
done
case $model in /* | ./* | ../*) [ -e "$model" ] || stop "$model: no such model" ;; esac
again="--skip-done --resume --force" # skip stages whose inputs and settings have not changed
made="--skip-done --force"
mkdir -p "$out"
step() { printf '\n== %s\n' "$*" >&2; }
seed=${SEED:+--seed $SEED}
train() { ${LAUNCH:-} drtk "$@" $seed $again; }

# search_test NAME: search the test queries in the index NAME
search_test() {
  if [ -n "${ANSWERS:-}" ]; then
    drtk search "$out/$1.index" "$ANSWERS" -k "$k" -o "$out/$1.run" $again
  else
    drtk search "$out/$1.index" "$queries" --qrels "$test" -k "$k" -o "$out/$1.run" $again
  fi
}

# search NAME MODEL: encode and index the corpus, and search the test queries
search() {
  drtk encode "$corpus" --model "$2" -o "$out/$1.vectors" ${ENCODE:-} $again
  drtk index "$out/$1.vectors" --type "${INDEX:-flat}" -o "$out/$1.index" $made
  if [ -n "${POOL:-}" ]; then
    drtk encode "$POOL" --model "$2" -o "$out/$1.pool.vectors" ${ENCODE:-} $again
    drtk index "$out/$1.pool.vectors" --type "${INDEX:-flat}" -o "$out/$1.pool.index" $made
  fi
  search_test "$1"
}

# mine NAME SOURCE DEPTH [OPTION…]: training examples from an index, a run or examples
mine() {
  name=$1 source=$2 ranks=$3 && shift 3
  drtk mine-negatives "$source" --queries "$queries" --qrels "$qrels" --corpus "$pool" --by "$by" --policy msmarco \
    --depth "$ranks" -o "$out/$name.jsonl" ${MINE:-} "$@" $seed $again
}

# choose_examples MINED BM25 UNION: set `examples` to the mined ones, with UNION=yes to BM25's and the mined ones
choose_examples() {
  examples=$out/$1.jsonl
  if [ "${UNION:-no}" = yes ]; then
    examples=$out/$3.jsonl
    drtk convert "$out/$2.jsonl" "$out/$1.jsonl" --as examples -o "$examples" $again
  fi
}

retriever() { # retriever NAME EXAMPLES PRESET [OPTION…]
  name=$1 examples=$2 preset=$3 && shift 3
  train train-retriever "$examples" --corpus "$pool" --queries "$queries" --model "$encoder" \
    --preset "$recipe-$preset$variant" -o "$out/$name" "$@"
}

step "BM25"
drtk index "$corpus" --type "${BM25:-bm25}" -o "$out/bm25.index" $made
search_test bm25
if [ -n "${POOL:-}" ]; then drtk index "$POOL" --type "${BM25:-bm25}" -o "$out/bm25.pool.index" $made; fi
negatives=$out/bm25$pooled.index ranks_of_negatives=$depth
if [ -n "${NEGATIVES:-}" ]; then negatives=$NEGATIVES ranks_of_negatives=1000; fi
mine bm25 "$negatives" "$ranks_of_negatives"
systems="bm25"

encoder=${ENCODER:-$out/pretrained}
if [ -z "${ENCODER:-}" ]; then
  start=$model generator=${GENERATOR:-}
  if [ -z "$generator" ]; then
    step "Warm-up: language-model head and generator"
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

step "Retriever 1: BM25 negatives"
retriever retriever1 "$out/bm25.jsonl" r1 ${R1:-}
search retriever1 "$out/retriever1"

step "Retriever 2: negatives mined with retriever 1"
mine mined1 "$out/retriever1$pooled.index" "$depth"
choose_examples mined1 bm25 union
retriever retriever2 "$examples" r2 ${R2:-}
search retriever2 "$out/retriever2"

step "Reranker: negatives mined with retriever 2"
mine mined2 "$out/retriever2$pooled.index" "$depth"
choose_examples mined2 bm25 union2
train train-reranker "$examples" --corpus "$pool" --queries "$queries" --model "${TEACHER:-$encoder}" \
  --preset "$recipe-reranker$variant" -o "$out/reranker" ${RERANKER:-}
drtk rerank "$out/retriever2.run" --corpus "$corpus" --queries "${ANSWERS:-$queries}" --model "$out/reranker" --depth "${RERANK:-200}" \
  -o "$out/reranked.run" $again

step "Distilled retriever: trained on the reranker's scores"
if [ -n "${SCORED:-}" ]; then
  mine teacher "$out/retriever2$pooled.index" "$depth" $SCORED
  if [ "${UNION:-no}" = yes ]; then mine teacher-bm25 "$negatives" "$ranks_of_negatives" $SCORED; fi
  choose_examples teacher teacher-bm25 teacher-union
fi
drtk score "$examples" --corpus "$pool" --queries "$queries" --model "$out/reranker" ${SCORED_QUERIES:+--sample "$SCORED_QUERIES"} \
  -o "$out/scored.jsonl" $again
retriever distilled "$out/scored.jsonl" distill ${DISTILL:-}
search distilled "$out/distilled"

step "Evaluation"
runs=""
for system in $systems retriever1 retriever2 distilled reranked; do runs="$runs $system=$out/$system.run"; done
if [ -n "${ANSWERS:-}" ]; then
  drtk eval $runs --answers "$ANSWERS" --corpus "$corpus" --measures "${MEASURES:-Answer@1 Answer@5 Answer@20 Answer@100}" -o "$out/figures.txt" --force -q
else
  drtk compare $runs --qrels "$test" --by "$by" --all-pairs --measures "${MEASURES:-RR@10 nDCG@10 R@50 R@1000}" --moved 0 -o "$out/figures.txt" --force -q
fi
cat "$out/figures.txt"
