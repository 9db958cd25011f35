#!/bin/sh
# EAR on SQuAD as open-domain question answering: expand questions, choose expansions with a query reranker, search with BM25, and compare
# with BM25, RM3, dense retrieval and passage reranking. Train, dev and test questions are about different articles.
# Sized for two CPU cores: no command takes an hour. Run the script again to resume.
#
#   sh docs/cookbook/ear.sh runs/ear MODEL       or: just ear MODEL
#
# MODEL is the initial encoder of both scorers and the reranker, such as MiniLM. Environment variables and their defaults:
#
#   TRAIN=500 DEV=80 TEST=500                    questions of each split
#   CANDIDATES=10                                candidates of each kind
#   SWEEP="1 2 5 10"                             numbers of candidates to choose from, for a comparison
#   KINDS="sentence title terms"                 kinds of --from-run to search, in fusion order; scorers are trained on all three
#   RI_EPOCHS=3 RD_EPOCHS=2 RD_LENGTH=128 BATCH=4 WARMUP=100 EVERY=250
#   MAX_LR=5e-4                                  peak learning rate times sqrt(WARMUP)
#   PER_KIND=                                    yes: one checkpoint per kind, in $out/ri/KIND; default: one for all kinds
#   RERANK_EPOCHS=2 RERANK_LENGTH=192            passage reranker: epochs over BM25's first ten passages, tokens
#   RERANK_DEPTH=25                              passages to rerank
#   PASSAGE_RERANKER=                            a trained passage reranker to use instead
#   GENERATOR=                                   a T5 or BART model to train as GAR's generators, evaluated separately; needs rouge-score
#   GENERATOR_STEPS=1000 GENERATOR_BATCH=16 GENERATOR_LR=1e-3 SAMPLES=50
#   DENSE= ENCODE=                               encoder of the dense runs (MODEL), and options of its encode command
#   ENGINE=bm25                                  bm25 (Lucene) or bm25s (without RM3)
#   SEED=                                        seed of scorers, generators and passage reranker (each command's default)
#
# The data, in BEIR layout with answers in the queries, is in $EAR_DATA, by default $DRTK_TEST_DATA/squad or ../shared/data/squad.
# Test questions are those of qrels/dev.tsv; every tenth article of qrels/train.tsv is for choosing checkpoints.
set -eu
out=${1:-runs/ear}
model=${2:?missing MODEL, the encoder to start from}
data=${EAR_DATA:-${DRTK_TEST_DATA:-../shared/data}/squad}
kinds=${KINDS:-sentence title terms}
engine=${ENGINE:-bm25}
again="--skip-done --resume --force"
made="--skip-done --force" seed=${SEED:+--seed $SEED}
first_existing() { for file in "$@"; do if [ -e "$file" ]; then echo "$file"; return; fi; done; echo "$1"; }
corpus=$(first_existing "$data/corpus.jsonl.gz" "$data/corpus.jsonl")
questions=$(first_existing "$data/queries.jsonl.gz" "$data/queries.jsonl")
mkdir -p "$out"
gzip -cdf "$questions" > "$out/questions.part" # no pipe: it would hide a truncated archive

# Split questions by the article of their passage (a073-p046 is of article a073); take COUNT evenly spaced ones.
make_split() { # NAME COUNT QRELS REMAINDER IS: use articles for which (number % 10 == REMAINDER) is IS, 0 or 1
  awk -F '\t' -v remainder="$4" -v is="$5" 'FNR > 1 {
      article = $2; sub(/[-#][^-#]*$/, "", article)
      if (!(article in number)) number[article] = ++articles
      if ((number[article] % 10 == remainder) == is) print $1 }' "$3" > "$out/ids.part"
  awk -v count="$2" '{ id[NR] = $1 } END { if (count > NR) count = NR; for (at = 0; at < count; at++) print id[int(at * NR / count) + 1] }' \
    "$out/ids.part" > "$out/$1.ids"
  awk 'NR == FNR { wanted[$1]; next } match($0, /"_id": *"[^"]*"/) {
      id = substr($0, RSTART, RLENGTH); sub(/^"_id": *"/, "", id); sub(/"$/, "", id); if (id in wanted) print }' "$out/$1.ids" "$out/questions.part" > "$out/$1.part"
  if ! cmp -s "$out/$1.part" "$out/$1.jsonl"; then mv "$out/$1.part" "$out/$1.jsonl"; else rm "$out/$1.part"; fi
  rm "$out/ids.part" "$out/$1.ids"
}
make_split train "${TRAIN:-500}" "$data/qrels/train.tsv" 0 0
make_split dev "${DEV:-80}" "$data/qrels/train.tsv" 0 1
make_split test "${TEST:-500}" "$data/qrels/dev.tsv" 10 0
rm "$out/questions.part"
for name in train dev test; do
  printf '== %s: %d questions\n' "$name" "$(wc -l < "$out/$name.jsonl")" >&2
  if [ ! -s "$out/$name.jsonl" ]; then
    echo "ear.sh: no question for $name; qrels/train.tsv needs passages of at least ten articles (a073-p046 is of a073), qrels/dev.tsv of one" >&2
    exit 1
  fi
done

# BM25, and RM3 as a baseline of query expansion.
drtk index "$corpus" --type "$engine" -o "$out/bm25" $made
for name in train dev test; do drtk search "$out/bm25" "$out/$name.jsonl" -k 100 -o "$out/$name.run" $again; done
systems="bm25=$out/test.run"
if [ "$engine" = bm25 ]; then
  drtk index "$corpus" --type bm25 --term-vectors -o "$out/bm25-vectors" $made
  drtk search "$out/bm25-vectors" "$out/test.jsonl" --rm3 -k 100 -o "$out/rm3.run" $again
  systems="$systems rm3=$out/rm3.run"
fi

# Candidates from BM25's passages, labeled with the rank of the first answer; both scorers.
label() { # NAME PART
  drtk rerank-queries label "$out/$1.$2.jsonl" --queries "$out/$2.jsonl" --index "$out/bm25" --corpus "$corpus" -o "$out/$1.$2.labeled.jsonl" $again
}
for name in train dev test; do
  drtk expand-queries "$out/$name.jsonl" --from-run "$out/$name.run" --corpus "$corpus" --set "candidates=${CANDIDATES:-10}" -o "$out/passages.$name.jsonl" $again
  label passages $name
done
train_scorer() { # SCORER EPOCHS LENGTH
  devs="--dev $out/passages.dev.labeled.jsonl"
  if [ -n "${PER_KIND:-}" ]; then
    devs=""
    for kind in $kinds; do devs="$devs --dev $kind=$out/passages.dev.labeled.jsonl"; done
  fi
  drtk rerank-queries train "$out/passages.train.labeled.jsonl" --queries "$out/train.jsonl" --model "$model" --preset "ear-$1" \
    $devs --dev-queries "$out/dev.jsonl" --set "candidates=${CANDIDATES:-10}" --epochs "$2" --max-length "$3" \
    --batch-size "${BATCH:-4}" --set "max_lr=${MAX_LR:-5e-4}" --set "warmup=${WARMUP:-100}" --set "eval_steps=${EVERY:-250}" --set "save_steps=${EVERY:-250}" -o "$out/$1" $seed $again
}
train_scorer ri "${RI_EPOCHS:-3}" 64
train_scorer rd "${RD_EPOCHS:-2}" "${RD_LENGTH:-128}"

# Dense retrieval, with an exact and an HNSW index.
drtk encode "$corpus" --model "${DENSE:-$model}" ${ENCODE:-} -o "$out/vectors" $again
for type in flat hnsw; do
  drtk index "$out/vectors" --type $type -o "$out/$type" $made
  drtk search "$out/$type" "$out/test.jsonl" -k 100 -o "$out/$type.run" $again
done

# The passage reranker: trained on BM25's first ten passages per training question, positive if they contain an answer.
passage_reranker=${PASSAGE_RERANKER:-$out/passage-reranker}
if [ -z "${PASSAGE_RERANKER:-}" ]; then
  drtk mine-negatives "bm25=$out/train.run" --policy nq --depth 10 --corpus "$corpus" --queries "$out/train.jsonl" -o "$out/pairs.jsonl" $again
  drtk train-reranker "$out/pairs.jsonl" --corpus "$corpus" --queries "$out/train.jsonl" --model "$model" --preset bert-passage-reranker \
    --batch-size 32 --epochs "${RERANK_EPOCHS:-2}" --set warmup=0.1 --max-length "${RERANK_LENGTH:-192}" -o "$passage_reranker" $seed $again
fi
rerank() { # RUN NAME
  drtk rerank "$1" --corpus "$corpus" --queries "$out/test.jsonl" --model "$passage_reranker" --depth "${RERANK_DEPTH:-25}" -o "$out/$2.run" $again
  systems="$systems $2=$out/$2.run"
}
rerank "$out/test.run" reranked

# Choose a query of each kind, search it, and fuse the runs round robin. Only the oracle gets labels; scorers choose without answers.
choose() { # CANDIDATES SYSTEM KINDS OPTIONS…
  candidates=$out/$1.jsonl system=${1%%.*}.$2 order=$3
  shift 3
  drtk rerank-queries apply "$candidates" --queries "$out/test.jsonl" "$@" -o "$out/$system.queries" $again
  runs=""
  for kind in $order; do
    drtk search "$out/bm25" "$out/$system.queries/$kind.jsonl" -k 100 -o "$out/$system.$kind.run" $again
    runs="$runs $out/$system.$kind.run"
  done
  drtk fuse $runs --method round-robin --top 100 -o "$out/$system.run" $again
}
scorer_options() { # SCORER; with PER_KIND its checkpoint for each kind, and that of the first kind for all others
  if [ "$1" = rd ]; then echo "--index $out/bm25 --corpus $corpus"; fi # RD reads the first passage of each candidate
  if [ -z "${PER_KIND:-}" ]; then echo "--model $out/$1"; return; fi
  echo "--model $out/$1/${kinds%% *}"
  for kind in $kinds; do echo "--model $kind=$out/$1/$kind"; done
}
choose_all() { # NAME KINDS
  choose "$1.test" first "$2" --select first
  choose "$1.test" concat "$2" --select concat
  choose "$1.test.labeled" oracle "$2" --select oracle
  choose "$1.test" ri "$2" --select scorer $(scorer_options ri)
  choose "$1.test" rd "$2" --select scorer $(scorer_options rd)
  for way in first concat oracle ri rd; do systems="$systems $1.$way=$out/$1.$way.run"; done
}
choose_all passages "$kinds"
rerank "$out/passages.rd.run" passages.rd+reranked
drtk fuse "$out/passages.rd.run" "$out/flat.run" --method round-robin --top 100 -o "$out/passages.rd+dense.run" $again
systems="$systems passages.rd+dense=$out/passages.rd+dense.run dense=$out/flat.run hnsw=$out/hnsw.run"

# With GENERATOR: train GAR's three generators and choose among their texts with the same scorers.
if [ -n "${GENERATOR:-}" ]; then
  files=""
  for kind in sentence answer title; do
    if [ $kind = answer ]; then hits=""; else hits="--run $out/train.run --dev-run $out/dev.run --corpus $corpus"; fi
    drtk train-generator "$out/train.jsonl" --task gar-$kind --model "$GENERATOR" --dev "$out/dev.jsonl" $hits --max-steps "${GENERATOR_STEPS:-1000}" \
      --batch-size "${GENERATOR_BATCH:-16}" --learning-rate "${GENERATOR_LR:-1e-3}" --eval-steps $(((${GENERATOR_STEPS:-1000} + 4) / 5)) -o "$out/gar-$kind" $seed $again
    drtk expand-queries "$out/test.jsonl" --model "$out/gar-$kind" --n "${SAMPLES:-50}" -o "$out/gar.$kind.jsonl" $again
    files="$files $out/gar.$kind.jsonl"
  done
  cat $files > "$out/gar.test.part"
  if ! cmp -s "$out/gar.test.part" "$out/gar.test.jsonl"; then mv "$out/gar.test.part" "$out/gar.test.jsonl"; else rm "$out/gar.test.part"; fi
  label gar test
  choose_all gar "sentence answer title"
fi

# Top-k accuracy. Systems are SOURCE.CHOICE: candidates from BM25's passages (passages) or a generator (gar), chosen by first, concat, oracle, ri or rd.
# Paired tests of all systems against BM25, the first candidate, RI's choice and reranked BM25.
measures="Answer@1 Answer@5 Answer@20 Answer@100"
drtk eval $systems --answers "$out/test.jsonl" --corpus "$corpus" --measures "$measures" > "$out/accuracy.txt"
cat "$out/accuracy.txt"
drtk eval $systems --answers "$out/test.jsonl" --corpus "$corpus" --measures "$measures" --format jsonl -o "$out/accuracy.jsonl" $made
for baseline in bm25 passages.first passages.ri reranked; do
  drtk compare $systems --baseline $baseline --answers "$out/test.jsonl" --corpus "$corpus" --measures "$measures" --set missing_as_zero=true --moved 0 \
    -o "$out/against.$baseline.txt" $made
  cat "$out/against.$baseline.txt"
done

# Choose among fewer candidates.
few=""
for count in ${SWEEP:-1 2 5 10}; do
  for scorer in ri rd; do
    choose passages.test "$scorer.of-$count" "$kinds" --select scorer $(scorer_options $scorer) --set "max_candidates=$count"
    few="$few $scorer.of-$count=$out/passages.$scorer.of-$count.run"
  done
done
if [ -n "$few" ]; then
  drtk eval $few --answers "$out/test.jsonl" --corpus "$corpus" --measures "$measures" > "$out/sweep.txt"
  cat "$out/sweep.txt"
fi

# Seconds per question from the manifests: whole commands including model loading, summed over resumed runs. Index sizes.
seconds() { # WHAT OUTPUT
  manifest=$2.meta.json
  if [ -d "$2" ]; then manifest=$2/meta.json; fi
  if [ ! -e "$manifest" ]; then echo "ear.sh: $manifest: not found, the time of '$1' is unknown" >&2; exit 1; fi
  sed -n 's/^ *"seconds": *\([0-9.]*\),*$/\1/p' "$manifest" | awk -v what="$1" -v all="$(awk 'END { print NR }' "$out/test.jsonl")" '
    { sum += $1 } END { printf "%-34s %9.4f s per question\n", what, sum / all }'
}
{
  echo "Seconds per test question of whole commands, including model loading; sizes on disk"
  seconds "BM25" "$out/test.run"
  if [ "$engine" = bm25 ]; then seconds "BM25 + RM3" "$out/rm3.run"; fi
  seconds "dense, flat" "$out/flat.run"
  seconds "dense, HNSW" "$out/hnsw.run"
  seconds "expand (from BM25's passages)" "$out/passages.test.jsonl"
  seconds "choose, RI" "$out/passages.ri.queries"
  seconds "first passages and choose, RD" "$out/passages.rd.queries"
  for kind in $kinds; do seconds "search the RD query, $kind" "$out/passages.rd.$kind.run"; done
  seconds "fuse the RD runs" "$out/passages.rd.run"
  seconds "passage reranker, BM25" "$out/reranked.run"
  seconds "passage reranker, RD" "$out/passages.rd+reranked.run"
  seconds "fuse RD with dense" "$out/passages.rd+dense.run"
  for kind in ${GENERATOR:+sentence answer title}; do seconds "expand (generator), $kind" "$out/gar.$kind.jsonl"; done
  for name in bm25 bm25-vectors flat hnsw; do
    if [ -d "$out/$name" ]; then du -sk "$out/$name" | awk -v name=$name '{ printf "%-34s %9.1f MB\n", "index " name, $1 / 1024 }'; fi
  done
} > "$out/costs.txt"
cat "$out/costs.txt"
