#!/bin/sh
# Questions answered by BM25 with expansions that a query re-ranker chooses (EAR), beside everything it is compared with: SQuAD as
# open-domain question answering, questions apart by article. Sizes are for two CPU cores: no command takes an hour, and whatever is
# interrupted goes on where it stopped when the same line is run again.
#
#   sh docs/cookbook/ear.sh runs/ear MODEL       MODEL: an encoder to begin both scorers and the re-ranker with, MiniLM say (or: just ear MODEL)
#
#   TRAIN=500 DEV=80 TEST=500                    questions of each part
#   CANDIDATES=10 SWEEP="1 2 5 10"               candidates of each kind; how many the sweep leaves to choose from
#   KINDS="sentence title terms"                 of what --from-run makes, the kinds that are searched, in the order of fusion; scorers learn from all three
#   RI_EPOCHS=3 RD_EPOCHS=2 RD_LENGTH=128 BATCH=4 MAX_LR=5e-4 WARMUP=100 EVERY=250    highest rate: MAX_LR / sqrt(WARMUP)
#   PER_KIND=                                    yes: a scorer's best weights for each kind, in $out/ri/KIND; else the best for all kinds together
#   RERANK_EPOCHS=2 RERANK_LENGTH=192 RERANK_DEPTH=25    the passage re-ranker: epochs over BM25's first ten, tokens, how many it re-orders
#   GENERATOR=                                   a T5 or BART model: trained for GAR's three tasks and reported apart; needs rouge-score
#   GENERATOR_STEPS=1000 GENERATOR_BATCH=16 GENERATOR_LR=1e-3 SAMPLES=50
#   PASSAGE_RERANKER=                            a passage re-ranker that is trained already
#   DENSE= ENCODE=                               the encoder of the dense runs, MODEL where nothing is said, and options of its encode
#   ENGINE=bm25                                  bm25 (Lucene) or bm25s, which knows no RM3
#
# The data is in BEIR layout with answers among the queries; its folder is $EAR_DATA, by default $DRTK_TEST_DATA/squad or ../shared/data/squad.
# Test questions are those of qrels/dev.tsv; of qrels/train.tsv every tenth article is for choosing checkpoints.
set -eu
out=${1:-runs/ear}
model=${2:?name an encoder to start from}
data=${EAR_DATA:-${DRTK_TEST_DATA:-../shared/data}/squad}
kinds=${KINDS:-sentence title terms}
engine=${ENGINE:-bm25}
again="--skip-done --resume --force"
made="--skip-done --force"
first() { for file in "$@"; do if [ -e "$file" ]; then echo "$file"; return; fi; done; echo "$1"; }
corpus=$(first "$data/corpus.jsonl.gz" "$data/corpus.jsonl")
questions=$(first "$data/queries.jsonl.gz" "$data/queries.jsonl")
mkdir -p "$out"
gzip -cdf "$questions" > "$out/questions.part" # not into a pipe, which would hide that it breaks off

# Parts: a question belongs where the article of its passage belongs (a073-p046 is of a073), evenly drawn.
part() { # NAME COUNT QRELS REMAINDER TEST: articles whose number leaves REMAINDER when divided by ten pass TEST
  awk -F '\t' -v remainder="$4" -v test="$5" 'FNR > 1 {
      article = $2; sub(/[-#][^-#]*$/, "", article)
      if (!(article in number)) number[article] = ++articles
      if ((number[article] % 10 == remainder) == test) print $1 }' "$3" > "$out/ids.part"
  awk -v count="$2" '{ id[NR] = $1 } END { if (count > NR) count = NR; for (at = 0; at < count; at++) print id[int(at * NR / count) + 1] }' \
    "$out/ids.part" > "$out/$1.ids"
  awk 'NR == FNR { wanted[$1]; next } match($0, /"_id": *"[^"]*"/) {
      id = substr($0, RSTART, RLENGTH); sub(/^"_id": *"/, "", id); sub(/"$/, "", id); if (id in wanted) print }' "$out/$1.ids" "$out/questions.part" > "$out/$1.part"
  if ! cmp -s "$out/$1.part" "$out/$1.jsonl"; then mv "$out/$1.part" "$out/$1.jsonl"; else rm "$out/$1.part"; fi
  rm "$out/ids.part" "$out/$1.ids"
}
part train "${TRAIN:-500}" "$data/qrels/train.tsv" 0 0
part dev "${DEV:-80}" "$data/qrels/train.tsv" 0 1
part test "${TEST:-500}" "$data/qrels/dev.tsv" 10 0
rm "$out/questions.part"
for name in train dev test; do
  printf '== %s: %d questions\n' "$name" "$(wc -l < "$out/$name.jsonl")" >&2
  if [ ! -s "$out/$name.jsonl" ]; then
    echo "$name has no question: qrels/train.tsv must name passages of ten articles at least (a073-p046 is of a073), qrels/dev.tsv of one" >&2
    exit 1
  fi
done

# BM25, with RM3 as the classical way to expand.
drtk index "$corpus" --type "$engine" -o "$out/bm25" $made
for name in train dev test; do drtk search "$out/bm25" "$out/$name.jsonl" -k 100 -o "$out/$name.run" $again; done
systems="bm25=$out/test.run"
if [ "$engine" = bm25 ]; then
  drtk index "$corpus" --type bm25 --term-vectors -o "$out/bm25-vectors" $made
  drtk search "$out/bm25-vectors" "$out/test.jsonl" --rm3 -k 100 -o "$out/rm3.run" $again
  systems="$systems rm3=$out/rm3.run"
fi

# Candidates out of BM25's passages, labelled with the rank at which they find an answer; both scorers.
label() { # NAME PART
  drtk rerank-queries label "$out/$1.$2.jsonl" --queries "$out/$2.jsonl" --index "$out/bm25" --corpus "$corpus" -o "$out/$1.$2.labelled.jsonl" $again
}
for name in train dev test; do
  drtk expand-queries "$out/$name.jsonl" --from-run "$out/$name.run" --corpus "$corpus" --candidates "${CANDIDATES:-10}" -o "$out/found.$name.jsonl" $again
  label found $name
done
learn() { # SCORER EPOCHS LENGTH
  devs="--dev $out/found.dev.labelled.jsonl"
  if [ -n "${PER_KIND:-}" ]; then
    devs=""
    for kind in $kinds; do devs="$devs --dev $kind=$out/found.dev.labelled.jsonl"; done
  fi
  drtk rerank-queries train "$out/found.train.labelled.jsonl" --queries "$out/train.jsonl" --model "$model" --preset "ear-$1" \
    $devs --dev-queries "$out/dev.jsonl" --candidates "${CANDIDATES:-10}" --epochs "$2" --max-length "$3" \
    --batch-size "${BATCH:-4}" --max-lr "${MAX_LR:-5e-4}" --warmup "${WARMUP:-100}" --eval-steps "${EVERY:-250}" --save-steps "${EVERY:-250}" -o "$out/$1" $again
}
learn ri "${RI_EPOCHS:-3}" 64
learn rd "${RD_EPOCHS:-2}" "${RD_LENGTH:-128}"

# Dense vectors, searched exactly and through a graph.
drtk encode "$corpus" --model "${DENSE:-$model}" ${ENCODE:-} -o "$out/vectors" $again
for type in flat hnsw; do
  drtk index "$out/vectors" --type $type -o "$out/$type" $made
  drtk search "$out/$type" "$out/test.jsonl" -k 100 -o "$out/$type.run" $again
done

# The passage re-ranker, trained where none is named: BM25's first ten of each training question, right where they hold an answer.
passage_reranker=${PASSAGE_RERANKER:-$out/passage-reranker}
if [ -z "${PASSAGE_RERANKER:-}" ]; then
  drtk mine-negatives "bm25=$out/train.run" --policy nq --depth 10 --corpus "$corpus" --queries "$out/train.jsonl" -o "$out/pairs.jsonl" $again
  drtk train-reranker "$out/pairs.jsonl" --corpus "$corpus" --queries "$out/train.jsonl" --model "$model" --preset bert-passage-reranker \
    --batch-size 32 --epochs "${RERANK_EPOCHS:-2}" --warmup 0.1 --max-length "${RERANK_LENGTH:-192}" -o "$passage_reranker" $again
fi
rerank() { # RUN NAME
  drtk rerank "$1" --corpus "$corpus" --queries "$out/test.jsonl" --model "$passage_reranker" --depth "${RERANK_DEPTH:-25}" -o "$out/$2.run" $again
  systems="$systems $2=$out/$2.run"
}
rerank "$out/test.run" reranked

# One way to choose: the query of each kind searched, the lists fused in turn. Only the oracle sees labels; a scorer chooses as it
# would for a question of which no answer is known.
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
scorers() { # SCORER: as options; with PER_KIND its weights for each kind, and those for the first where there are none
  if [ "$1" = rd ]; then echo "--index $out/bm25 --corpus $corpus"; fi # whose first passages it reads
  if [ -z "${PER_KIND:-}" ]; then echo "--model $out/$1"; return; fi
  echo "--model $out/$1/${kinds%% *}"
  for kind in $kinds; do echo "--model $kind=$out/$1/$kind"; done
}
every_choice() { # NAME KINDS
  choose "$1.test" first "$2" --select first
  choose "$1.test" concat "$2" --select concat
  choose "$1.test.labelled" oracle "$2" --select oracle
  choose "$1.test" ri "$2" --select scorer $(scorers ri)
  choose "$1.test" rd "$2" --select scorer $(scorers rd)
  for way in first concat oracle ri rd; do systems="$systems $1.$way=$out/$1.$way.run"; done
}
every_choice found "$kinds"
rerank "$out/found.rd.run" found.rd+reranked
drtk fuse "$out/found.rd.run" "$out/flat.run" --method round-robin --top 100 -o "$out/found.rd+dense.run" $again
systems="$systems found.rd+dense=$out/found.rd+dense.run dense=$out/flat.run hnsw=$out/hnsw.run"

# A generator of one's own, where a model to begin with is named: GAR's three, chosen from by the same scorers, which never saw it.
if [ -n "${GENERATOR:-}" ]; then
  files=""
  for kind in sentence answer title; do
    if [ $kind = answer ]; then hits=""; else hits="--run $out/train.run --dev-run $out/dev.run --corpus $corpus"; fi
    drtk train-generator "$out/train.jsonl" --task gar-$kind --model "$GENERATOR" --dev "$out/dev.jsonl" $hits --max-steps "${GENERATOR_STEPS:-1000}" \
      --batch-size "${GENERATOR_BATCH:-16}" --learning-rate "${GENERATOR_LR:-1e-3}" --eval-steps $(((${GENERATOR_STEPS:-1000} + 4) / 5)) -o "$out/gar-$kind" $again
    drtk expand-queries "$out/test.jsonl" --model "$out/gar-$kind" --n "${SAMPLES:-50}" -o "$out/gar.$kind.jsonl" $again
    files="$files $out/gar.$kind.jsonl"
  done
  cat $files > "$out/gar.test.part"
  if ! cmp -s "$out/gar.test.part" "$out/gar.test.jsonl"; then mv "$out/gar.test.part" "$out/gar.test.jsonl"; else rm "$out/gar.test.part"; fi
  label gar test
  every_choice gar "sentence answer title"
fi

# Top-k accuracy. found: candidates out of BM25's passages (gar: a generator's), chosen by first, concat, oracle, ri or rd.
# Paired tests: all systems against BM25, the first candidate, RI's choice and re-ranked BM25.
measures="Answer@1 Answer@5 Answer@20 Answer@100"
drtk eval $systems --answers "$out/test.jsonl" --corpus "$corpus" --measures "$measures" > "$out/accuracy.txt"
cat "$out/accuracy.txt"
drtk eval $systems --answers "$out/test.jsonl" --corpus "$corpus" --measures "$measures" --format jsonl -o "$out/accuracy.jsonl" $made
for baseline in bm25 found.first found.ri reranked; do
  drtk compare $systems --baseline $baseline --answers "$out/test.jsonl" --corpus "$corpus" --measures "$measures" --missing-as-zero --moved 0 \
    -o "$out/against.$baseline.txt" $made
  cat "$out/against.$baseline.txt"
done

# Fewer candidates to choose from.
few=""
for count in ${SWEEP:-1 2 5 10}; do
  for scorer in ri rd; do
    choose found.test "$scorer.of-$count" "$kinds" --select scorer $(scorers $scorer) --max-candidates "$count"
    few="$few $scorer.of-$count=$out/found.$scorer.of-$count.run"
  done
done
drtk eval $few --answers "$out/test.jsonl" --corpus "$corpus" --measures "$measures" > "$out/sweep.txt"
cat "$out/sweep.txt"

# Seconds a question, from the manifests (of whole commands, loading included; of all runs of one that was interrupted), and sizes.
seconds() { # WHAT OUTPUT: a file, or a folder
  manifest=$2.meta.json
  if [ -d "$2" ]; then manifest=$2/meta.json; fi
  if [ ! -e "$manifest" ]; then echo "$manifest: is not there, so that nothing says how long '$1' took" >&2; exit 1; fi
  sed -n 's/^ *"seconds": *\([0-9.]*\),*$/\1/p' "$manifest" | awk -v what="$1" -v all="$(awk 'END { print NR }' "$out/test.jsonl")" '
    { sum += $1 } END { printf "%-34s %9.4f s a question\n", what, sum / all }'
}
{
  echo "Seconds of whole commands, loading included, over the test questions; sizes on disk"
  seconds "BM25" "$out/test.run"
  if [ "$engine" = bm25 ]; then seconds "BM25 + RM3" "$out/rm3.run"; fi
  seconds "dense, flat" "$out/flat.run"
  seconds "dense, HNSW" "$out/hnsw.run"
  seconds "expand (from BM25's passages)" "$out/found.test.jsonl"
  seconds "choose, RI" "$out/found.ri.queries"
  seconds "first passages and choose, RD" "$out/found.rd.queries"
  for kind in $kinds; do seconds "search the RD query, $kind" "$out/found.rd.$kind.run"; done
  seconds "fuse the RD runs" "$out/found.rd.run"
  seconds "passage re-ranker, BM25" "$out/reranked.run"
  seconds "passage re-ranker, RD" "$out/found.rd+reranked.run"
  seconds "fuse RD with dense" "$out/found.rd+dense.run"
  for kind in ${GENERATOR:+sentence answer title}; do seconds "expand (generator), $kind" "$out/gar.$kind.jsonl"; done
  for name in bm25 bm25-vectors flat hnsw; do
    if [ -d "$out/$name" ]; then du -sk "$out/$name" | awk -v name=$name '{ printf "%-34s %9.1f MB\n", "index " name, $1 / 1024 }'; fi
  done
} > "$out/costs.txt"
cat "$out/costs.txt"
