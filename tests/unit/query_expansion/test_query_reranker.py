"""Training of query re-rankers: the schedule's known answers, batches, clipping, and what presets minimize."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drtk.cli.main import app
from drtk.config import load_preset, merge
from drtk.query_expansion.candidates import Candidates
from drtk.query_expansion.config import QueryRerankerConfig
from drtk.query_expansion.train_reranker import (
    LabelledCandidates,
    collate,
    factor_of,
    inverse_sqrt,
    plan,
    query_objective,
)
from drtk.records import Expansion, Query
from drtk.training.fit import ShowProgress
from drtk.training.sampling import EpochDataset
from tests.expansions import labelled, write_world
from tests.tiny import tiny_model


def settings_of(preset: str, **changes: object) -> QueryRerankerConfig:
    return merge(QueryRerankerConfig, load_preset(preset).settings, changes)


@pytest.mark.parametrize(
    ("step", "rate"), [(100, 2e-7), (1000, 2e-6), (10_000, 2e-5), (20_000, 1.41421e-5), (40_000, 1e-5)]
)
def test_a_factor_of_2e_3_is_a_rate_of_2e_5_at_most(step: int, rate: float) -> None:
    assert 2e-3 * inverse_sqrt(step, warmup=10_000) == pytest.approx(rate, rel=1e-5)
    for preset in ("ear-ri", "ear-rd"):
        settings = settings_of(preset)
        factor = factor_of(settings)
        assert factor is not None
        assert settings.max_lr * factor(step) == pytest.approx(rate, rel=1e-5)


def test_a_factor_of_5e_3_peaks_at_5e_5() -> None:
    assert 5e-3 * max(inverse_sqrt(t, warmup=10_000) for t in range(1, 30_000, 3)) == pytest.approx(5e-5, rel=1e-9)


@pytest.mark.parametrize("preset", ["ear-ri", "ear-rd"])
def test_measuring_takes_a_fifth_of_the_training_on_natural_questions(preset: str) -> None:
    # ri: 58,880 * 2 / 8 = 14,720 steps, 8 measurements; rd: 58,880 * 3 / 4 = 44,160 steps, 12 of them. A candidate that is
    # trained on costs three forward passes, one that is measured a single one.
    settings = settings_of(preset)
    schedule = plan(58_880, settings)
    measured = -(-schedule.steps // settings.eval_every) * 8_757 * settings.candidates
    trained = schedule.steps * schedule.batch * settings.candidates
    assert measured <= 0.2 * 3 * trained
    assert schedule.steps // settings.eval_every >= 7  # and often enough to choose from


class Planted(torch.nn.Module):
    """Gives the scores it was made with, whatever it reads."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = torch.tensor(scores)

    def forward(self, input_ids: Tensor) -> Tensor:
        assert len(input_ids) == len(self.scores)
        return self.scores


@pytest.mark.parametrize("preset", ["ear-ri", "ear-rd"])
@pytest.mark.parametrize(
    ("changes", "loss"),
    [({}, 0.301667), ({"skip_ties": False}, 0.262778), ({"pair_weight": "sum"}, 1.61)],
)
def test_presets_minimise_the_loss_of_methods_7_5(preset: str, changes: dict, loss: float) -> None:
    inputs = {
        "input_ids": torch.zeros(4, 3, dtype=torch.long),
        "ranks": torch.tensor([[1, 15, 101, 101]]),
        "present": torch.ones(1, 4, dtype=torch.bool),
    }
    terms = query_objective(settings_of(preset, **changes))(Planted([0.10, 0.05, 0.40, 0.90]), inputs)
    assert {name: float(value) for name, value in terms.items()} == {"margin": pytest.approx(loss, abs=2e-6)}


@pytest.mark.parametrize(
    ("preset", "scorer", "length", "batch", "epochs"), [("ear-ri", "ri", 64, 8, 2), ("ear-rd", "rd", 256, 4, 3)]
)
def test_presets_have_the_settings_of_the_tables(
    preset: str, scorer: str, length: int, batch: int, epochs: float
) -> None:
    settings = settings_of(preset)
    assert (settings.scorer, settings.style, settings.max_length) == (scorer, "official", length)
    assert (settings.batch, settings.epochs, settings.candidates, settings.max_rank) == (batch, epochs, 50, 101)
    # 58,880 questions of NQ (methods, row 29), one group each: 58,880 / 8 * 2 and 58,880 / 4 * 3 steps
    assert plan(58_880, settings).steps == {"ri": 14_720, "rd": 44_160}[scorer]


def group(number: int, ranks: list[int]) -> Candidates:
    found = tuple(
        Expansion(f"e{number}.{at}", f"q{number}", "answer", f"text {at}", rank=rank, top1={"title": "t", "text": "p"})
        for at, rank in enumerate(ranks)
    )
    return Candidates(Query(f"q{number}", f"question {number}"), "answer", found)


def test_ranks_beyond_the_depth_become_max_rank_and_tied_groups_go() -> None:
    groups = [group(0, [3, 101, 250]), group(1, [101, 250]), group(2, [1, 2, 3, 4])]
    found = LabelledCandidates(groups, depth=100, max_rank=250, most=3)
    assert (len(found), found.candidates, found.tied) == (2, 6, 1)
    assert found.ranks(0).tolist() == [3, 250, 250]
    assert found.ranks(1).tolist() == [1, 2, 3]  # its first three
    assert [tuple(each) for each in found[1].candidates][2] == ("question 2", "text 2", "t", "p")
    assert len(LabelledCandidates(groups, depth=100, max_rank=101, ties=True)) == 3


def test_a_candidate_goes_by_its_own_depth_where_it_says_one() -> None:
    shallow = group(1, [1, 2, 2])
    own = Candidates(shallow.query, "answer", tuple(replace(each, depth=1) for each in shallow.expansions))
    found = LabelledCandidates([group(0, [1, 2, 3]), own], depth=100, max_rank=101)
    assert [found.ranks(number).tolist() for number in range(2)] == [[1, 2, 3], [1, 101, 101]]
    assert (found.depth, found.beyond) == ([1, 100], set())
    assert LabelledCandidates([own], depth=100, max_rank=101).depth == 1


def test_candidates_of_one_text_are_one_and_the_most_counts_different_ones() -> None:
    texts = ["a b", "a  b ", "c", "d", "c"]
    found = tuple(
        Expansion(f"e{at}", "q", "answer", text, rank=rank)
        for at, (text, rank) in enumerate(zip(texts, [7, 7, 2, 9, 2], strict=True))
    )
    groups = LabelledCandidates([Candidates(Query("q", "who?"), "answer", found)], depth=100, max_rank=101, most=3)
    assert groups.ranks(0).tolist() == [7, 2, 9]  # a b, c and d
    assert [each.text for each in groups[0].candidates] == ["a b", "c", "d"]
    assert groups.repeated == 2
    # two of one text and one rank teach nothing
    assert len(LabelledCandidates([Candidates(Query("q", "who?"), "answer", found[:2])], depth=9, max_rank=10)) == 0


def test_a_batch_puts_the_ranks_of_each_question_into_a_row() -> None:
    class TextTokenizer:
        pad, left = 0, False

        def __call__(self, candidates: object) -> object:
            from drtk.text.batching import Tokens

            return Tokens.of([[1] * (2 + at) for at, _ in enumerate(candidates)], None)  # type: ignore[arg-type]

    groups = LabelledCandidates([group(0, [5, 1]), group(1, [7, 8, 9])], depth=100, max_rank=101)
    batch = collate([groups[0], groups[1]], tokenizing=TextTokenizer())  # type: ignore[arg-type]
    assert batch["input_ids"].shape == (5, 6)
    assert batch["ranks"].tolist() == [[5, 1, 0], [7, 8, 9]]
    assert batch["present"].tolist() == [[True, True, False], [True, True, True]]


def test_an_epoch_sees_each_question_once_in_an_order_of_its_own() -> None:
    groups = LabelledCandidates([group(n, [1, 2]) for n in range(9)], depth=100, max_rank=101)
    steps = EpochDataset(groups, batch=4, steps=4, seed=3)
    seen = [steps[at].candidates[0].question for at in range(len(steps))]
    assert len(seen) == 16
    assert len(set(seen[:8])) == len(set(seen[8:])) == 8
    assert seen[:8] != seen[8:]
    again = EpochDataset(groups, batch=4, steps=4, seed=3)
    assert [again[at].candidates[0].question for at in (15, 0, 9)] == [seen[15], seen[0], seen[9]]
    assert np.array_equal(steps[0].ranks, [1, 2])


@pytest.mark.parametrize(("options", "clipped"), [([], False), (["--trainer", "max_grad_norm=1.0"], True)])
def test_large_gradients_are_not_clipped(
    options: list[str], clipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: list[float] = []

    class Watching(ShowProgress):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            slopes = [weight.grad for weight in given["model"].parameters() if weight.grad is not None]
            norms.append(float(torch.stack([slope.norm() for slope in slopes]).norm()))

    def magnified(settings: QueryRerankerConfig) -> Any:
        return lambda model, inputs: {"margin": 1e4 * query_objective(settings)(model, inputs)["margin"]}

    monkeypatch.setattr("drtk.training.fit.ShowProgress", Watching)
    monkeypatch.setattr("drtk.query_expansion.train_reranker.query_objective", magnified)
    write_world(tmp_path, 8)
    call = ["rerank-queries", "train", labelled(tmp_path), "--queries", tmp_path / "queries.jsonl", "-q", *options]
    call += ["--model", tiny_model(tmp_path / "model"), "--device", "cpu", "--max-length", "24", "--batch", "4"]
    app([str(each) for each in (*call, "--steps", 2, "--warmup", 1, "-o", tmp_path / "m")], standalone_mode=False)
    assert len(norms) == 2
    assert all(norm == pytest.approx(1.0, rel=1e-3) if clipped else norm > 10 for norm in norms)
