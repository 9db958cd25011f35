"""Training data of each step: matching positives, negatives, labels and scores."""

from pathlib import Path
from typing import Any

import pytest

from drtk.models.biencoder import load_towers
from drtk.records import Example
from drtk.training.dataset import SampledExamples, collate
from drtk.training.examples import PackedExamples, TrainingData
from tests.retriever_setup import MemoryCorpus, make_examples
from tests.tiny_models import make_collection, save_tiny_encoder

COUNT = 12


def sample_epochs(**changes: Any) -> SampledExamples:
    packed = PackedExamples(make_examples(COUNT), scored=True)
    queries = {row["_id"]: row["text"] for row in make_collection(COUNT)[1]}
    given = {"batch": 4, "steps": 30, "negatives": 2, "seed": 5, "with_scores": True, "with_positives": True}
    return SampledExamples(TrainingData("examples", packed, queries, MemoryCorpus(COUNT)), **given | changes)


def test_scores_match_the_sampled_passages():
    known = {}
    for example in make_examples(COUNT):
        for side, ids in (("positives", example.positives), ("negatives", example.negatives)):
            known |= {(example.query_id, side, id): score for id, score in zip(ids, example.scores[side], strict=True)}
    for number in range(40):
        drawn = sample_epochs()[number]
        query_id = drawn.key[2]
        assert drawn.passages[0].id in {"q1": ("d1", "d7"), "q5": ("d0", "d5")}.get(query_id, ("d" + query_id[1:],))
        first, *others = [passage.id for passage in drawn.passages]
        expected = [known[query_id, "positives", first], *(known[query_id, "negatives", id] for id in others)]
        assert list(drawn.scores) == pytest.approx(expected, abs=2e-6)  # kept in single precision


def find_positives(query_id: str, **changes: Any) -> list[str]:
    """Return the positive of a query in each of ten epochs."""
    seen = (sample_epochs(**changes)[number] for number in range(30 * 4))
    return [each.passages[0].id for each in seen if each.key[2] == query_id]


def test_positives_take_turns_or_the_first_is_the_one():
    assert find_positives("q1") == ["d7", "d1"] * 5  # seed 5: (0 + 5) mod 2 = 1 comes first
    assert find_positives("q1", positive_sampling="first") == ["d1"] * 10


def test_tensors_are_padded_to_the_longest_row(tmp_path: Path):
    tower = load_towers(str(save_tiny_encoder(tmp_path / "m")), overrides={}, untied=False)["passage"]
    tokenizers = {f"{role}_tokenizer": tower.get_tokenizer(role) for role in ("query", "passage")}
    samples = sample_epochs()
    batch = collate(
        [next(samples[n] for n in range(COUNT) if samples[n].key[2] == id) for id in ("q1", "q2")], **tokenizers
    )
    assert batch["positives"].shape == (2, 2)  # q1 has two answers
    assert int(batch["positives"][1, 1]) == -1  # q2 one
    assert int(batch["positives"][1, 0]) == int(batch["passage_indices"][3])  # its positive
    assert batch["teacher"].shape == (2, 3)
    batch = collate([sample_epochs(with_scores=False, with_positives=False)[0]], **tokenizers)
    assert not {"positives", "teacher"} & set(batch)


def test_answers_are_those_of_all_lines_of_a_query():
    lines = [*make_examples(COUNT), make_examples(COUNT)[3].__class__("q3", ("d9",), ("d1", "d2"))]
    packed = PackedExamples(lines)
    assert [packed.passage_ids[number] for number in packed.group_positives_by_query()["q3"]] == ["d3", "d9"]


def test_examples_of_one_query_sample_negatives_of_their_own():
    lines = [Example("q3", ("d3",), ("d1", "d2", "d4"))] * 2
    data = TrainingData("examples", PackedExamples(lines), {"q3": "which"}, MemoryCorpus(COUNT))
    examples = SampledExamples(data, batch=2, steps=1, negatives=3, seed=5, negative_sampling="shuffle")
    first, second = ([examples.load(row, epoch, step=epoch).indices for epoch in range(9)] for row in (0, 1))
    assert first != second
