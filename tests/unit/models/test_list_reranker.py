"""List reranker (HLATR): dependence of its logits, and its folder."""

from pathlib import Path

import pytest
import torch

from drtk.errors import DrtkError
from drtk.models.list_reranker import (
    ListReranker,
    ListRerankerConfig,
    init_list_reranker,
    load_list_reranker,
    save_list_reranker,
)
from drtk.models.model_folder import is_list_reranker

CONFIG = ListRerankerConfig(width=12, depth=8, hidden=16, layers=2, heads=2, feedforward=32)


@pytest.fixture
def model() -> ListReranker:
    return init_list_reranker(CONFIG, seed=1).eval()


def make_lists(queries: int = 3, n: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return vectors, ranks and the mask of present candidates."""
    vectors = torch.randn(queries, n, 12, generator=torch.Generator().manual_seed(0))
    return vectors, torch.arange(n).repeat(queries, 1), torch.ones(queries, n, dtype=torch.bool)


def test_layers_are_initialized_independently() -> None:
    one, same, other = (init_list_reranker(CONFIG, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(bool((one[name] == same[name]).all()) for name in one)
    assert bool((one["project.weight"] != other["project.weight"]).any())
    matrices = [name for name in one if name.startswith("layers.layers.0.") and one[name].dim() == 2]
    assert len(matrices) == 4  # attention in and out, feed-forward in and out
    for name in matrices:
        assert bool((one[name] != one[name.replace("layers.0.", "layers.1.")]).any()), name


def test_saved_model_has_the_same_logits_and_a_damaged_folder_is_rejected(model: ListReranker, tmp_path: Path) -> None:
    save_list_reranker(model, tmp_path / "h")
    assert is_list_reranker(tmp_path / "h")
    assert not is_list_reranker(tmp_path)
    again = load_list_reranker(tmp_path / "h")
    assert again.settings == CONFIG
    with torch.no_grad():
        assert bool((again(*make_lists()) == model(*make_lists())).all())
    (tmp_path / "h" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(DrtkError, match="h: cannot be loaded as a list reranker: "):
        load_list_reranker(tmp_path / "h")
    (tmp_path / "h" / "listreranker.json").write_text('{"colour": 3}')
    with pytest.raises(DrtkError, match=r"listreranker\.json: expected 'width' to be an integer"):
        load_list_reranker(tmp_path / "h")
