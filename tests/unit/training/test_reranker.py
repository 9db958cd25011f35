"""Reranker training: known losses of the shipped presets, and selection of training passages."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drtk.config import load_preset, merge_settings
from drtk.data.embeddings import PairVectors
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.records import Example, Passage
from drtk.runtime.inputs import InputTracker
from drtk.training.config import RerankerConfig
from drtk.training.dataset import JudgedPairs
from drtk.training.examples import PackedExamples, TrainingData
from drtk.training.list_reranker import collate, plan_list_schedule, read_candidate_lists
from drtk.training.reranker import (
    build_reranker_objective,
    compute_bce_terms,
    compute_listwise_terms,
    plan_reranker_schedule,
)
from drtk.training.sampling import EpochDataset
from tests.unit.data.test_embeddings import pair_folder

FIRST, SECOND = [2.0, 1.0, 0.5, -1.0], [1.5, 1.2, 0.5, -0.5]
HOPELESS = -1e4  # a logit with no share of any softmax


class Planted(nn.Module):
    """Model whose logit depends on the first token of a pair; the second half of a doubled batch has other logits."""

    def __init__(self, first: list[float], second: list[float] | None = None) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor(first))
        self.second = nn.Parameter(torch.tensor(second or first))
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        numbers = input_ids[:, 0]
        self.calls.append((len(numbers), self.training, torch.is_grad_enabled()))
        half = len(numbers) // 2
        doubled = len(numbers) > 1 and bool((numbers[:half] == numbers[half:]).all())
        if not doubled:
            return self.first[numbers]
        return torch.cat([self.first[numbers[:half]], self.second[numbers[half:]]])


def make_batch(passages: int) -> dict[str, Tensor]:
    """Return one query with this number of passages; the first token of passage i is i."""
    ids = torch.arange(passages).unsqueeze(1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def load_preset_settings(name: str) -> RerankerConfig:
    return merge_settings(RerankerConfig, load_preset(name).settings, {})


def test_the_listwise_presets_give_the_known_answer() -> None:
    # softmax over 2 1 .5 -1 and passages without a share: ln(e^2 + e + e^.5 + e^-1) - 2 = .495182
    model = Planted(FIRST + [HOPELESS] * 60)
    terms = build_reranker_objective(load_preset_settings("simlm-reranker"))(model, make_batch(64))
    assert {key: value.item() for key, value in terms.items()} == {"cross_entropy": pytest.approx(0.495182, abs=2e-6)}
    assert model.calls == [(64, True, True)]
    # with R-Drop: .5 * .495182 + .5 * .808275 = .651728, and the divergence
    rest = [HOPELESS - step for step in range(60)]
    model = Planted(FIRST + rest, SECOND + rest)
    terms = build_reranker_objective(load_preset_settings("simlm-reranker-official"))(model, make_batch(64))
    expected = {"cross_entropy": pytest.approx(0.651728, abs=2e-6), "r_drop": pytest.approx(0.059042, abs=2e-6)}
    assert {key: value.item() for key, value in terms.items()} == expected
    # All are scored without dropout and gradients; then 16 go through twice, with both.
    assert model.calls == [(64, False, False), (32, True, True)]
    assert model.training


def test_only_the_positive_and_the_best_negatives_get_gradients() -> None:
    # two queries of five; the positive is the worst of the first, and kept all the same
    model = Planted([-3.0, 1.0, 4.0, 2.0, 3.0, 0.5, 0.1, 0.4, 0.2, 0.3])
    compute_listwise_terms(model, make_batch(10), num_passages=5, backward=3, use_r_drop=False)[
        "cross_entropy"
    ].backward()
    assert (model.first.grad != 0).nonzero().flatten().tolist() == [0, 2, 4, 5, 7, 9]


def test_the_passage_reranker_preset_trains_on_single_pairs() -> None:
    # right 2, wrong 1: (ln(1 + e^-2) + ln(1 + e)) / 2 = (.126928 + 1.313262) / 2 = .720095
    objective = build_reranker_objective(load_preset_settings("bert-passage-reranker"))
    assert objective is compute_bce_terms
    actual = objective(Planted([2.0, 1.0]), make_batch(2) | {"labels": torch.tensor([1.0, 0.0])})
    assert actual["cross_entropy"].item() == pytest.approx(0.720095, abs=2e-6)


def test_dropout_differs_between_the_two_passes() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.dropout(input_ids[:, 0].float() + 1)

    torch.manual_seed(0)
    terms = compute_listwise_terms(Dropping(), make_batch(8), num_passages=8, backward=None, use_r_drop=True)
    assert terms["r_drop"].item() > 1e-3  # exactly 0 where both passes drop alike


def make_examples(count: int = 5) -> PackedExamples:
    return PackedExamples(
        Example(f"q{at}", (f"d{at}", f"p{at}"), tuple(f"n{at}-{place}" for place in range(at))) for at in range(count)
    )


class Echo:
    """A corpus whose passage texts are their ids."""

    def get_many(self, ids: Any) -> list[Passage]:
        return [Passage(id, f"text {id}") for id in ids]


def test_each_epoch_has_every_pair_once_with_its_label() -> None:
    # 5 examples of 2 positives and 0 + 1 + 2 + 3 + 4 negatives: 20 pairs, 5 steps of 4
    packed = make_examples()
    pairs = JudgedPairs(TrainingData("examples", packed, {f"q{at}": f"query {at}" for at in range(5)}, Echo()))
    assert len(pairs) == 20
    draws = EpochDataset(pairs, batch=4, steps=10, seed=1)
    assert len(draws) == 40
    epochs = [[draws[at] for at in range(start, start + 20)] for start in (0, 20)]
    expected = {(f"query {at}", f"{kind}{at}", True) for at in range(5) for kind in "dp"}
    expected |= {(f"query {at}", f"n{at}-{place}", False) for at in range(5) for place in range(at)}
    for epoch in epochs:
        assert {(item.query, item.passage.id, item.is_relevant) for item in epoch} == expected
    assert [item.passage.id for item in epochs[0]] != [item.passage.id for item in epochs[1]]
    assert draws[7] == EpochDataset(pairs, batch=4, steps=2, seed=1)[7]


def test_plans_count_queries_or_pairs() -> None:
    # 5 queries: 2 steps of 2 in an epoch; 20 pairs: 5 steps of 4
    assert plan_reranker_schedule(make_examples(), RerankerConfig(batch_size=2, epochs=2)).steps == 4
    assert plan_reranker_schedule(make_examples(), RerankerConfig(loss="bce", batch_size=4, epochs=2)).steps == 10
    with pytest.raises(DrtkError, match="20 pairs do not fill one batch"):
        plan_reranker_schedule(make_examples(), RerankerConfig(loss="bce"))


def test_settings_that_contradict_each_other_are_rejected() -> None:
    with pytest.raises(UsageError, match="`hidden` 128: must be a multiple of `heads` 3"):
        RerankerConfig(kind="hlatr", heads=3).check()
    with pytest.raises(UsageError, match="`backward` 16: must be at most 8"):
        RerankerConfig(negatives=7, backward=16).check()


def test_a_list_without_a_vector_is_reported_with_its_line(tmp_path: Path) -> None:
    vectors = PairVectors(str(pair_folder(tmp_path / "v", {"q1": ["a", "b"], "q2": ["c"], "q3": ["a"]})))
    run = tmp_path / "run"
    run.write_text("q1 Q0 b 1 2.0 t\nq1 Q0 a 2 1.0 t\nq3 Q0 a 1 1.0 t\nq2 Q0 c 1 3.0 t\nq2 Q0 d 2 2.0 t\n")
    judged = {"q1": {"a": 1}, "q2": {"c": 1}, "q3": {"z": 1}}

    def read(depth: int, **options: int) -> Any:
        tracker = InputTracker(**options)
        return read_candidate_lists(str(run), vectors=vectors, judgments=judged, depth=depth, tracker=tracker)

    with pytest.raises(RecordError, match=r"run:5: .*v has no vector of 'd' for query 'q2'"):
        read(5)
    lists = read(1)
    assert (len(lists.lists), lists.num_without_relevant) == (1, 2)  # at depth 1 only q2 has its positive
    lists = read(5, skip_bad=1)
    assert (len(lists.lists), lists.num_without_relevant) == (2, 1)
    judged["q2"] = {"d": 1}  # its only positive has no vector
    without = read(5, skip_bad=1)
    assert (len(without.lists), without.num_without_relevant) == (1, 2)
    made = collate(lists.lists, vectors)
    assert made["present"].tolist() == [[True, True], [True, False]]
    assert made["labels"].tolist() == [[0, 1], [1, 0]]
    assert made["vectors"][:, 0, 0].tolist() == [1.0, 2.0]  # the rows of b and c
    assert made["ranks"].tolist() == [[0, 1], [0, 1]]


def test_runs_without_training_signal_are_rejected_with_the_reason(tmp_path: Path) -> None:
    vectors = PairVectors(str(pair_folder(tmp_path / "v", {"q1": ["a", "b"], "q2": ["c"]})))
    run, settings = tmp_path / "run", merge_settings(RerankerConfig, load_preset("hlatr").settings, {"depth": 2})

    def get_error(lines: str, judged: dict[str, dict[str, int]]) -> str:
        run.write_text(lines)
        lists = read_candidate_lists(str(run), vectors=vectors, judgments=judged, depth=2, tracker=InputTracker())
        with pytest.raises(DrtkError) as fault:
            plan_list_schedule(lists, settings)
        return str(fault.value)

    two = "q1 Q0 a 1 2.0 t\nq2 Q0 c 1 3.0 t\n"
    none = f"{run}: there are no lists with a positive among the first 2 documents to train on; check the file"
    assert get_error("", {"q1": {"a": 1}}) == none
    assert get_error(two, {"q9": {"a": 1}}) == f"{run}: none of its 2 queries is judged; check the qrels file"
    assert get_error(two, {"q1": {"b": 1}, "q2": {"c": 0}}) == none
    few = "1 lists with a positive among the first 2 documents do not fill one batch of 256; use `batch_size` 1 or less"
    assert get_error(two, {"q1": {"a": 1}}) == few
