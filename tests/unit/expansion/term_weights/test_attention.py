"""The attention of the first token: what transformers gives, with only a row of it held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from drtk.errors import MismatchError
from drtk.expansion.term_weights.bprop import FirstTokenAttention
from tests.tiny import tiny_model, tiny_writer

TEXTS = ["rivers riverward", "enginess violins planeting gardenal marketous winterish", "castles"]


def encoder(folder: Path, kind: str) -> Path:
    """An untrained encoder of some family with the tokenizer of the made-up collection."""
    from transformers import (
        AlbertConfig,
        AlbertModel,
        DebertaV2Config,
        DebertaV2Model,
        DistilBertConfig,
        DistilBertModel,
        ModernBertConfig,
        ModernBertModel,
    )

    tiny_model(folder)
    size: dict[str, Any] = {"vocab_size": 400, "pad_token_id": 0}
    torch.manual_seed(0)
    if kind == "distilbert":
        DistilBertModel(DistilBertConfig(**size, dim=32, n_layers=3, n_heads=2, hidden_dim=64)).save_pretrained(folder)
    if kind == "albert":  # one layer, gone through three times
        config = AlbertConfig(
            **size, embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64
        )
        AlbertModel(config).save_pretrained(folder)
    if kind == "deberta":
        config = DebertaV2Config(
            **size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
        DebertaV2Model(config).save_pretrained(folder)
    if kind == "modernbert":
        config = ModernBertConfig(
            **size, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64
        )
        ModernBertModel(config).save_pretrained(folder)
    return folder


def seen(folder: Path, *, batch_tokens: int = 2048, max_length: int | None = None) -> FirstTokenAttention:
    return FirstTokenAttention(folder, device="cpu", dtype="auto", max_length=max_length, batch_tokens=batch_tokens)


def pieces(folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert", "albert"])
@pytest.mark.parametrize("batch_tokens", [1, 2048])
def test_it_is_the_mean_of_the_last_layers_first_row(tmp_path: Path, kind: str, batch_tokens: int) -> None:
    folder = encoder(tmp_path / "m", kind)
    found = seen(folder, batch_tokens=batch_tokens)(pieces(folder))
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, attention in zip(TEXTS, found, strict=True):
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            maps = model(**inputs, output_attentions=True).attentions[-1]  # (1, heads, tokens, tokens)
        expected = maps[0, :, 0].mean(dim=0)[1:-1].numpy()
        np.testing.assert_allclose(attention, expected, rtol=1e-5, atol=2e-6)
        assert attention.sum() < 1  # [CLS] and [SEP] have the rest


def test_a_model_whose_attention_is_its_own_affair_is_refused(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "m", "deberta")
    with pytest.raises(MismatchError, match="its attention cannot be seen"):
        seen(folder)(pieces(folder))


def test_pieces_that_are_hidden_take_no_part(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "m", "bert")
    texts = pieces(folder)
    hidden = [[1], [], []]
    found = seen(folder)(texts, hidden)
    assert found[0][1] == 0
    assert found[1] == pytest.approx(seen(folder)(texts)[1], rel=1e-5, abs=2e-6)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    inputs["attention_mask"][0, 2] = 0  # [CLS] stands before the piece
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions[-1][0, :, 0].mean(dim=0)[1:-1].numpy()
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=2e-6)


def test_what_the_model_does_not_get_to_see_has_none(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "m", "bert")
    attention = seen(folder, max_length=6)
    assert attention.room == 4
    long = pieces(folder)[1]
    found = attention([long])[0]
    assert len(found) == len(long) > 4
    assert (found[:4] > 0).all()
    assert not found[4:].any()


def test_an_empty_text_has_no_attention_to_give(tmp_path: Path) -> None:
    assert seen(encoder(tmp_path / "m", "bert"))([[]])[0].tolist() == []


def test_a_model_without_a_first_token_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = tiny_writer(tmp_path / "t5", "t5")
    with pytest.raises(MismatchError, match="no special token before a text"):
        seen(folder)
