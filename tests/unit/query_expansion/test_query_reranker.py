"""Training of query rerankers: learning-rate schedule, batches, gradient clipping, and losses of presets."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drtk.cli.main import app
from drtk.config import load_preset, merge_settings
from drtk.query_expansion.config import QueryRerankerConfig
from drtk.query_expansion.labeled_candidates import LabeledCandidates
from drtk.query_expansion.train_reranker import (
    collate,
    compute_inverse_sqrt_factor,
    make_learning_rate_factor,
    make_objective,
    plan_training,
)
from drtk.text.batching import TokenizedTexts
from drtk.training.fit import ProgressCallback
from tests.expansion_collection import label_expansions, read_rows, write_collection
from tests.reference import queries as slow
from tests.tiny_models import load_weights, save_tiny_encoder
from tests.unit.query_expansion.test_labeled_candidates import candidates


def settings_of(preset: str, **changes: object) -> QueryRerankerConfig:
    return merge_settings(QueryRerankerConfig, load_preset(preset).settings, changes)


def test_max_lr_2e_3_gives_a_peak_learning_rate_of_2e_5():
    factors = [make_learning_rate_factor(settings_of(preset)) for preset in ("ear-ri", "ear-rd")]
    for step, rate in ((100, 2e-7), (1000, 2e-6), (10_000, 2e-5), (20_000, 1.41421e-5), (40_000, 1e-5)):
        for factor in (partial(compute_inverse_sqrt_factor, warmup=10_000), *factors):
            assert factor is not None
            assert 2e-3 * factor(step) == pytest.approx(rate, rel=1e-5)


class Planted(torch.nn.Module):
    """Model that returns fixed scores."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = torch.tensor(scores)

    def forward(self, input_ids: Tensor) -> Tensor:
        assert len(input_ids) == len(self.scores)
        return self.scores


@pytest.mark.parametrize("preset", ["ear-ri", "ear-rd"])
def test_presets_minimize_the_loss_of_the_method_page(preset):
    inputs = {"input_ids": torch.zeros(4, 3, dtype=torch.long), "ranks": torch.tensor([[1, 15, 101, 101]])}
    inputs["present"] = torch.ones(1, 4, dtype=torch.bool)
    for changes, loss in (({}, 0.301667), ({"skip_ties": False}, 0.262778), ({"pair_weight": "sum"}, 1.61)):
        terms = make_objective(settings_of(preset, **changes))(Planted([0.10, 0.05, 0.40, 0.90]), inputs)
        assert {name: float(value) for name, value in terms.items()} == {"margin": pytest.approx(loss, abs=2e-6)}


def test_presets_have_the_settings_of_the_tables():
    # 58,880 questions of NQ (docs/methods/ear.md), one group each: 58,880 / 8 * 2 and 58,880 / 4 * 3 steps
    for preset, own, steps in (("ear-ri", ("ri", 64, 8, 2), 14_720), ("ear-rd", ("rd", 256, 4, 3), 44_160)):
        settings = settings_of(preset)
        assert (settings.variant, settings.max_length, settings.batch_size, settings.epochs) == own
        assert (settings.style, settings.candidates, settings.max_rank, settings.max_lr) == ("official", 50, 101, 2e-3)
        assert plan_training(58_880, settings).steps == steps


def test_a_batch_puts_the_ranks_of_each_question_into_a_row():
    class Tokenizing:
        pad, left = 0, False

        def __call__(self, candidates: Iterable[Any]) -> TokenizedTexts:
            return TokenizedTexts.from_lists([[1] * (2 + at) for at, _ in enumerate(candidates)], None)

    groups = LabeledCandidates([candidates(0, 5, 1), candidates(1, 7, 8, 9)], max_rank=101)
    batch = collate([groups[0], groups[1]], tokenizer=Tokenizing())  # type: ignore[arg-type]
    assert batch["input_ids"].shape == (5, 6)
    assert batch["ranks"].tolist() == [[5, 1, 0], [7, 8, 9]]
    assert batch["present"].tolist() == [[True, True, False], [True, True, True]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with labeled candidates and an encoder."""
    folder = write_collection(tmp_path_factory.mktemp("data"), 8)
    label_expansions(folder)
    save_tiny_encoder(folder / "model")
    return folder


def train(data: Path, output: Path, more: str) -> None:
    """Train a query reranker on the labeled candidates."""
    call = (
        f"rerank-queries train {data}/labeled.jsonl --queries {data}/queries.jsonl --model {data}/model -o {output} -q"
    )
    app(f"{call} --device cpu --max-length 24 --batch-size 4 {more}".split(), standalone_mode=False)


@pytest.mark.parametrize(("options", "clipped"), [("", False), ("--set trainer=max_grad_norm=1.0", True)])
def test_large_gradients_are_not_clipped(options, clipped, data, tmp_path, monkeypatch):
    norms: list[float] = []

    class Watching(ProgressCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            slopes = [weight.grad for weight in given["model"].parameters() if weight.grad is not None]
            norms.append(float(torch.stack([slope.norm() for slope in slopes]).norm()))

    def magnify(settings: QueryRerankerConfig) -> Any:
        return lambda model, inputs: {"margin": 1e4 * make_objective(settings)(model, inputs)["margin"]}

    monkeypatch.setattr("drtk.training.fit.ProgressCallback", Watching)
    monkeypatch.setattr("drtk.query_expansion.train_reranker.make_objective", magnify)
    train(data, tmp_path / "m", f"--max-steps 2 --set warmup=1 {options}")
    assert len(norms) == 2
    assert all(norm == pytest.approx(1.0, rel=1e-3) if clipped else norm > 10 for norm in norms)


def test_the_first_step_uses_the_first_learning_rate(data, tmp_path):
    # Adam's first step is the learning rate, for any gradient.
    train(data, output := tmp_path / "m", "--max-steps 1 --set log_steps=1 --set max_lr=2e-3 --set warmup=4")
    before, after = load_weights(data / "model"), load_weights(output)
    rate = slow.learning_rate(1, max_lr=2e-3, warmup=4)
    assert rate == pytest.approx(2.5e-4)
    compared = 0
    for name, weights in before.items():
        there = [each for each in after if each.endswith(name) and "layer" in name]
        if there and name.endswith("weight"):  # biases may have gradients that are not far above Adam's epsilon
            moved = (after[there[0]] - weights).abs()
            assert float(moved.max()) == pytest.approx(rate, rel=0.05), name
            compared += 1
    assert compared > 15
    log = read_rows(output / "log.jsonl")
    assert [entry["learning_rate"] for entry in log if "learning_rate" in entry] == [pytest.approx(rate)]
