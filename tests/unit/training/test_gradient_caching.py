"""Gradient caching (methods: section 5.3): a step in parts is the step of the whole batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from tests.enriched import enriched_corpus
from tests.tiny import tiny_model

STEPS = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, an encoder, and the same encoder without dropout."""
    folder = tmp_path_factory.mktemp("caching")
    enriched_corpus(folder / "corpus.jsonl", tiny_model(folder / "dropping"))
    plain = tiny_model(folder / "plain")
    config = json.loads((plain / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (plain / "config.json").write_text(json.dumps(config))
    return folder


def trained(world: Path, out: Path, *more: str, model: str = "plain") -> tuple[dict[str, torch.Tensor], list[dict]]:
    """Weights and log after some steps of plain gradient descent, which shows gradients as they are."""
    call = [
        "pretrain",
        world / "corpus.jsonl",
        "--preset",
        "qac-cocondenser",
        "--model",
        world / model,
        "-q",
        "-o",
        out,
    ]
    call += [
        "--batch",
        "12",
        "--steps",
        STEPS,
        "--max-length",
        "32",
        "--lr",
        "0.1",
        "--warmup",
        "0",
        "--log-every",
        "1",
    ]
    call += ["--weight-decay", "0", "--trainer", "optim=sgd", "--trainer", "max_grad_norm=0", "--device", "cpu"]
    app([str(word) for word in (*call, *more)], standalone_mode=False)
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return load_file(out / "model.safetensors"), log


@pytest.fixture(scope="module")
def uncached(world: Path) -> tuple[dict[str, torch.Tensor], list[dict]]:
    return trained(world, world / "whole")


@pytest.mark.parametrize("micro", [1, 5])
def test_parts_of_any_size_take_the_step_of_the_whole_batch(
    world: Path, uncached: tuple[dict[str, torch.Tensor], list[dict]], tmp_path: Path, micro: int
) -> None:
    whole, log = uncached
    parts, parts_log = trained(world, tmp_path / "parts", "--micro-batch", str(micro))
    start = load_file(world / "plain" / "model.safetensors")
    for name in ("loss", "mlm", "head", "contrast"):
        # 12 examples in parts of 5 are 5, 5 and 2, with more and fewer hidden tokens: means of means would differ.
        assert [each[name] for each in parts_log] == pytest.approx([each[name] for each in log], abs=2e-5)
    moved = max((whole[name] - start[name]).abs().max().item() for name in start)
    assert moved > 1e-3
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, atol=1e-5, rtol=0)


def test_both_passes_of_a_part_draw_the_same_dropout(world: Path, tmp_path: Path, monkeypatch) -> None:
    # The vectors of the pass with a graph must be those whose gradients were cached.
    from drtk.objectives.network import Network

    seen: list[tuple[bool, dict[str, torch.Tensor]]] = []
    forward = Network.forward

    def noting(self, batch, counts=None, *, compared=False):
        found = forward(self, batch, counts, compared=compared)
        vectors = found if compared else found[1]
        seen.append((compared, {name: rows.detach().clone() for name, rows in vectors.items()}))
        return found

    monkeypatch.setattr(Network, "forward", noting)
    trained(world, tmp_path / "out", "--micro-batch", "4", model="dropping")
    assert len(seen) == STEPS * 2 * 3  # three parts, twice
    for step in range(STEPS):
        first, second = seen[6 * step : 6 * step + 3], seen[6 * step + 3 : 6 * step + 6]
        assert [compared for compared, _ in first] == [True] * 3
        assert [compared for compared, _ in second] == [False] * 3
        for (_, without), (_, with_graph) in zip(first, second, strict=True):
            for name in ("a", "b"):
                torch.testing.assert_close(without[name], with_graph[name], atol=1e-6, rtol=0)
    parts = [vectors["a"] for _, vectors in seen[:3]]
    assert not torch.allclose(parts[0], parts[1])
