"""Bi-encoders: batches grouped by length have equal outputs; shared and separate towers."""

from pathlib import Path

import pytest
import torch

from drtk.errors import MismatchError
from drtk.losses.contrastive import infonce
from drtk.models.biencoder import BiEncoder, load_towers, save_towers
from tests.tiny_models import make_passages, save_tiny_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_encoder(tmp_path_factory.mktemp("models") / "m"))


def make_inputs(towers, count: int = 12) -> dict[str, torch.Tensor]:
    batch = {}
    for role in ("query", "passage"):
        padded = towers["passage"].get_tokenizer(role)(make_passages(count)).pad(range(count), pad=0)
        batch |= {f"{role}_{name}": torch.from_numpy(array) for name, array in padded.items()}
    return batch


def test_groups_of_like_length_give_the_vectors_and_gradients_of_one_batch(folder: str):
    towers = load_towers(folder, overrides={}, untied=False)
    results = []
    for tokens in (None, 4):
        model = BiEncoder(towers["passage"].encoder, group_overhead=tokens)
        model.zero_grad()
        queries, found = model(**make_inputs(towers))
        infonce(queries, found, similarity="cosine", temperature=0.05).backward()
        gradients = [weights.grad.clone() for weights in model.parameters() if weights.grad is not None]
        results.append((queries.detach(), found.detach(), gradients))
    torch.testing.assert_close(results[0][:2], results[1][:2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[0][2], results[1][2], rtol=1e-3, atol=1e-5)


def test_untied_encoders_are_copies(folder: str):
    tied, untied = (load_towers(folder, overrides={}, untied=untied) for untied in (False, True))
    assert list(tied) == ["passage"]
    query, passage = (next(untied[role].encoder.parameters()) for role in ("query", "passage"))
    assert query is not passage
    assert bool((query == passage).all())
    frozen = [name for name, weights in tied["passage"].encoder.named_parameters() if not weights.requires_grad]
    assert frozen == ["backbone.pooler.dense.weight", "backbone.pooler.dense.bias"]


def test_the_query_encoder_encodes_queries_and_pairs_are_saved_and_found_again(folder: str, tmp_path: Path):
    towers = load_towers(folder, overrides={}, untied=True)
    with torch.no_grad():
        next(towers["query"].encoder.parameters()).neg_()
        queries, found = BiEncoder(towers["passage"].encoder, towers["query"].encoder).eval()(**make_inputs(towers))
        # query and passage have the same text
        both = BiEncoder(towers["passage"].encoder).eval()(**make_inputs(towers))
    torch.testing.assert_close(both[0], both[1])
    torch.testing.assert_close(found, both[1])
    assert not torch.allclose(queries, both[0], atol=1e-2)
    save_towers(towers, tmp_path / "pair")
    actual = load_towers(str(tmp_path / "pair"), overrides={}, untied=False)
    assert sorted(actual) == ["passage", "query"]
    for role in actual:
        saved, loaded = (next(side[role].encoder.parameters()) for side in (towers, actual))
        assert bool((saved == loaded).all())


def test_towers_of_different_widths_are_rejected(tmp_path: Path):
    save_tiny_encoder(tmp_path / "pair" / "query")
    save_tiny_encoder(tmp_path / "pair" / "passage", hidden=16)
    with pytest.raises(MismatchError, match=r"have different dimensions \(32 and 16\)"):
        load_towers(str(tmp_path / "pair"), overrides={}, untied=False)
