"""A list re-ranker: what its logits depend on, and its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drtk.errors import DrtkError, UsageError
from drtk.models.list_reranker import (
    ListReranker,
    ListShape,
    init_list_reranker,
    load_list_reranker,
    save_list_reranker,
)
from drtk.models.model_folder import is_list_reranker

SHAPE = ListShape(width=12, depth=8, hidden=16, layers=2, heads=2, feedforward=32)


@pytest.fixture
def model() -> ListReranker:
    return init_list_reranker(SHAPE, seed=1).eval()


def lists(queries: int = 3, n: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Vectors, ranks and presence."""
    vectors = torch.randn(queries, n, 12, generator=torch.Generator().manual_seed(0))
    return vectors, torch.arange(n).repeat(queries, 1), torch.ones(queries, n, dtype=torch.bool)


@torch.no_grad()
def test_items_permuted_with_their_ranks_permute_the_logits(model: ListReranker) -> None:
    vectors, ranks, present = lists()
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    plain = model(vectors, ranks, present)
    torch.testing.assert_close(model(vectors[:, order], ranks[:, order], present), plain[:, order])


@torch.no_grad()
def test_vectors_permuted_alone_change_the_logits(model: ListReranker) -> None:
    vectors, ranks, present = lists()
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    plain = model(vectors, ranks, present)
    alone = model(vectors[:, order], ranks, present)
    assert float((alone - plain[:, order]).abs().max()) > 1e-3


@torch.no_grad()
def test_a_logit_depends_on_the_other_candidates(model: ListReranker) -> None:
    vectors, ranks, present = lists()
    changed = vectors.clone()
    changed[:, 5] += 1
    assert float((model(changed, ranks, present) - model(vectors, ranks, present))[:, 0].abs().min()) > 1e-4


@torch.no_grad()
def test_padding_changes_nothing(model: ListReranker) -> None:
    vectors, ranks, present = lists()
    padded, places = torch.randn(3, 8, 12), torch.arange(8).repeat(3, 1)
    padded[:, :6] = vectors
    there = torch.zeros(3, 8, dtype=torch.bool)
    there[:, :6] = True
    plain = model(vectors, ranks, present)
    torch.testing.assert_close(model(padded, places, there)[:, :6], plain, rtol=1e-5, atol=1e-5)


def test_a_folder_gives_the_same_logits(model: ListReranker, tmp_path: Path) -> None:
    save_list_reranker(model, tmp_path / "h")
    assert is_list_reranker(tmp_path / "h")
    assert not is_list_reranker(tmp_path)
    again = load_list_reranker(tmp_path / "h")
    assert again.shape == SHAPE
    with torch.no_grad():
        assert bool((again(*lists()) == model(*lists())).all())


def test_the_seed_decides_the_weights() -> None:
    one, same, other = (init_list_reranker(SHAPE, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(bool((one[name] == same[name]).all()) for name in one)
    assert bool((one["project.weight"] != other["project.weight"]).any())


def test_layers_begin_with_weights_of_their_own() -> None:
    made = init_list_reranker(SHAPE, seed=3).state_dict()
    drawn = [name for name in made if name.startswith("layers.layers.0.") and made[name].dim() == 2]
    assert len(drawn) == 4  # attention in and out, feed-forward in and out
    for name in drawn:
        assert bool((made[name] != made[name.replace("layers.0.", "layers.1.")]).any()), name


def test_what_cannot_be_built_or_read_is_refused(model: ListReranker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--heads 3 does not divide --hidden 16"):
        ListReranker(ListShape(width=12, hidden=16, heads=3))
    save_list_reranker(model, tmp_path / "h")
    (tmp_path / "h" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(DrtkError, match="h: cannot be loaded as a list re-ranker: "):
        load_list_reranker(tmp_path / "h")
    (tmp_path / "h" / "listreranker.json").write_text('{"colour": 3}')
    with pytest.raises(DrtkError, match=r"listreranker\.json: expected 'width' to be an integer"):
        load_list_reranker(tmp_path / "h")
