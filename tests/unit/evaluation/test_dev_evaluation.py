"""Probes of encoders and rerankers during training, by hand-computed values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.errors import DrtkError, MismatchError
from drtk.evaluation import dev_evaluation
from drtk.evaluation.dev_evaluation import RatingProbe, RerankingEvaluator, RetrievalEvaluator, sample_passages
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from tests.run_commands import write_text

LETTERS = "abcd"


def encode(items: Sequence[Any], role: str) -> np.ndarray:
    """Return the counts of four letters."""
    texts = [item if isinstance(item, str) else item.text for item in items]
    return np.array([[text.count(letter) for letter in LETTERS] for text in texts], dtype=np.float32)


def write_collection(folder: Path) -> Path:
    folder.mkdir()
    write_text(folder / "corpus.jsonl", "".join(f'{{"_id": "{t}", "text": "{t}"}}\n' for t in ("aa", "b", "ab", "c")))
    queries = {"q1": "a", "q2": "b", "q3": "d"}.items()
    write_text(folder / "queries.jsonl", "".join(f'{{"_id": "{id}", "text": "{text}"}}\n' for id, text in queries))
    (folder / "qrels").mkdir()
    write_text(folder / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore\nq1\tab\t1\nq2\tb\t1\n")
    return folder


def test_in_batch_accuracy(tmp_path: Path) -> None:
    # positives: ab of q1 "a", b of q2 "b". ab . a = 1 > b . a = 0: right; b . b = 1 = ab . b: a tie is no win
    probe = RetrievalEvaluator(write_collection(tmp_path / "c"), split="dev", tracker=InputTracker())
    metrics = probe.compute_metrics(encode, batch_size=2)
    assert metrics == {"nDCG@10": pytest.approx((0.6309298 + 1) / 2), "accuracy": 0.5}
    for value in (1.0, np.nan):  # all alike
        metrics = probe.compute_metrics(lambda items, role: np.full((len(items), 4), value), batch_size=2)  # noqa: B023
        assert metrics["accuracy"] == 0.0
    judged = "query-id\tcorpus-id\tscore\nq1\tb\t1\nq1\taa\t0\nq2\taa\t2\nq2\tb\t1\nq3\tc\t0\n"  # q3 has no positive
    write_text(tmp_path / "c" / "qrels" / "dev.tsv", judged)
    other_probe = RetrievalEvaluator(tmp_path / "c", split="dev", tracker=InputTracker())
    # the positive of q1 is b: aa . a = 2 > b . a = 0; of q2 aa: b . b = 1 > aa . b = 0. Alone, each is first
    assert other_probe.compute_metrics(encode, batch_size=2)["accuracy"] == 0.0
    assert other_probe.compute_metrics(encode, batch_size=1)["accuracy"] == 1.0


def test_pool_has_relevant_passages_and_a_sample_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_collection(tmp_path / "c")
    hashes = {"q1": 0.9, "q2": 0.1, "aa": 0.5, "b": 0.9, "ab": 0.1, "c": 0.2}
    monkeypatch.setattr(dev_evaluation, "sample_uniform", lambda *key: hashes[key[-1]])
    probe = RetrievalEvaluator(folder, split="dev", tracker=InputTracker(), max_queries=1, max_passages=2)
    assert [query.id for query in probe.queries] == ["q2"]
    # the relevant passage and the one with the smallest hash, in file order
    assert [passage.id for passage in probe._passages] == ["b", "ab"]
    assert probe(encode) == 1.0

    def sample_key(id: str) -> int:
        return int(id) * 37 % 100

    texts = [Passage(str(number), "") for number in range(100)]
    sample = sample_passages(texts, {"7", "93"}, count=10, sample_key=sample_key)
    others = sorted((id for id in map(str, range(100)) if id not in ("7", "93")), key=sample_key)
    assert [passage.id for passage in sample] == sorted(["7", "93", *others[:8]], key=int)


def test_limit_samples_queries_evenly(tmp_path: Path) -> None:
    run = write_text(tmp_path / "run", "".join(f"q{number} Q0 d 1 1 t\n" for number in range(201)))
    judgments = {f"q{number}": {"d": 1} for number in range(201)}

    def sample_queries(limit: int) -> list[int]:
        probe = RerankingEvaluator(str(run), judgments, depth=1, limit=limit, tracker=InputTracker())
        return [int(query[1:]) for query, _ in probe.candidates]

    assert [len(sample_queries(limit)) for limit in (200, 201, 500)] == [200, 201, 201]
    assert sample_queries(200) == list(range(1, 201))  # one of 201 is not sampled
    assert sample_queries(3) == [66, 133, 200]  # 201 / 3 = 67 apart


def test_metrics_have_confidence_intervals_over_queries(tmp_path: Path) -> None:
    ranking = "".join(f"q{query} Q0 d{rank} {rank} {-rank} t\n" for query in (1, 2, 3) for rank in (1, 2))
    judgments = {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}
    run = str(write_text(tmp_path / "run", ranking))
    probe = RerankingEvaluator(run, judgments, depth=2, limit=9, tracker=InputTracker())
    metrics = probe(np.array([2, 1] * 3, dtype=np.float32))
    assert metrics["RR@10"] == pytest.approx(0.5)  # of 1, 1/2 and 0
    reach = 4.302653 * 0.5 / 3**0.5  # quantile of Student's t with 2 degrees of freedom x standard error
    assert metrics.intervals["RR@10"] == pytest.approx((0.5 - reach, 0.5 + reach), abs=1e-6)


def test_rating_probe_computes_spearman(tmp_path: Path) -> None:
    # cosines: a-a 1, a-b 0, a-ab .7071, against 5, 1, 3: the same order
    pairs = write_text(tmp_path / "p.tsv", "sentence1\tsentence2\tscore\na\ta\t5\na\tb\t1\na\tab\t3\n")
    assert RatingProbe(str(pairs), tracker=InputTracker())(encode) == pytest.approx(1)


def test_a_dev_set_without_judgments_is_rejected(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "c")
    write_text(folder / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore\nq9\tab\t1\n")
    with pytest.raises(MismatchError, match="no query of dev has a judgment"):
        RetrievalEvaluator(folder, split="dev", tracker=InputTracker())
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(DrtkError, match=r"has no corpus\.jsonl"):
        RetrievalEvaluator(folder, split="dev", tracker=InputTracker())
