"""A generator trained from scratch on the sample collection: its queries match their passages."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from drtk.evaluation.significance import run_randomization_test, run_t_test
from drtk.runtime.integrity import read_json
from tests.expansion_collection import read_rows, write_rows
from tests.squad_passages import run_command

pytestmark = pytest.mark.slow
SIZE = ["--vocab-size", "2500", "--layers", "2", "--hidden", "96", "--heads", "4", "--max-length", "64"]
TRAINING = "--batch-size 32 --max-steps 1500 --learning-rate 4e-3 --set warmup=100 --set schedule=linear".split()
TRAINING += "--max-length 48 --target-length 16 --dev-share 0.05 --set dev_limit=200 --eval-steps 500".split()
DECODING = ["--max-new-tokens", "16"]


def read_positives(sample: Path, split: str) -> dict[str, str]:
    """Return the positive passage of each query of a split."""
    lines = (sample / "sample" / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]
    return {line.split("\t")[0]: line.split("\t")[1] for line in lines}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the sample, and a generator trained on its training split."""
    folder = tmp_path_factory.mktemp("generator")
    run_command("sample", folder / "sample")
    corpus, queries = folder / "sample" / "documents.jsonl", folder / "sample" / "queries.jsonl"
    examples = [
        {"query_id": query, "positives": [id], "negatives": []} for query, id in read_positives(folder, "train").items()
    ]
    write_rows(folder / "train.jsonl", examples)
    run_command("init-model", corpus, "--arch", "t5", *SIZE, "-o", folder / "start")
    named = ["--corpus", corpus, "--queries", queries, "--model", folder / "start"]
    run_command("train-generator", folder / "train.jsonl", *named, *TRAINING, "-o", folder / "trained")
    return folder


def compute_word_f1(one: str, other: str) -> float:
    """Return the F1 of the words of two texts: 2 * common / (words of one + words of the other)."""
    first, second = Counter(one.lower().split()), Counter(other.lower().split())
    return 2 * (first & second).total() / max(1, first.total() + second.total())


def test_generated_queries_match_their_passage_better_than_another(sample, capfd):
    held_out = read_positives(sample, "test")
    texts = {row["_id"]: row["text"] for row in read_rows(sample / "sample" / "queries.jsonl")}
    gold = {held_out[query]: texts[query] for query in held_out}
    passages = [row for row in read_rows(sample / "sample" / "documents.jsonl") if row["_id"] in gold]
    source = write_rows(sample / "unseen.jsonl", passages)
    given = ["--model", sample / "trained", "--decode", "greedy", *DECODING, "--bare"]
    run_command("doc2query", source, *given, "-o", sample / "written.jsonl")
    generated = {row["_id"]: row["queries"][0] for row in read_rows(sample / "written.jsonl")}
    ids = sorted(gold)
    order = np.random.default_rng(1).permutation(len(ids))
    # a cyclic shift of a random order: no passage keeps its query
    other = {ids[order[at]]: ids[order[at - 1]] for at in range(len(ids))}
    own = np.array([compute_word_f1(generated[id], gold[id]) for id in ids])
    permuted = np.array([compute_word_f1(generated[other[id]], gold[id]) for id in ids])
    t, p = run_t_test(own - permuted), run_randomization_test(own - permuted, permutations=10_000, seed=1)
    best = read_json(sample / "trained" / "meta.json")["best"]
    with capfd.disabled():
        print(f"\n{len(ids)} held-out passages, {len(set(generated.values()))} different queries, best {best}")
        print(
            f"F1 with the passage's query {own.mean():.4f}, with a query generated for another passage {permuted.mean():.4f}"
        )
        print(f"t({t.df}) = {t.t:.2f}, p = {t.p:.3g}; randomization p = {p:.3g}")
        for id in ids[:5]:
            print(f"  {id}: {generated[id]!r} for {gold[id]!r}")
    assert own.mean() > permuted.mean()
    assert t.p < 0.01
    assert p < 0.01
