"""B-PROP weights: the attention of the first token against transformers, and the worked documents of docs/methods/term-weights.md."""

from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from drtk.errors import MismatchError
from drtk.expansion.term_weights import bprop
from drtk.expansion.term_weights.bprop import FirstTokenAttention, compute_contrasts, saturate
from drtk.models import packing
from tests.packed_attention import allow_packing_on_a_cpu
from tests.tiny_models import save_tiny_encoder, save_tiny_generator

TEXTS = ["rivers riverward", "enginess violins planeting gardenal marketous winterish", "castles"]


def encoder(folder: Path, kind: str) -> Path:
    """Make an untrained encoder with the tokenizer of the tiny models."""
    import transformers

    save_tiny_encoder(folder)
    size: dict[str, Any] = {"vocab_size": 400, "pad_token_id": 0}
    if kind == "DistilBert":
        size |= {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 64}
    else:  # ALBERT applies one layer three times
        size |= {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    size |= {"embedding_size": 16} if kind == "Albert" else {"local_attention": 4} if kind == "ModernBert" else {}
    torch.manual_seed(0)
    if kind != "Bert":
        config = getattr(transformers, f"{kind}Config")(**size)
        getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    return folder


def attend(folder: Path, *, batch_tokens: int = 2048, max_length: int | None = None) -> FirstTokenAttention:
    return FirstTokenAttention(folder, device="cpu", dtype="auto", max_length=max_length, batch_tokens=batch_tokens)


def pieces(folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


def expected_attention(folder: Path, *, masked: int | None = None) -> list[np.ndarray]:
    """Return the attention computed by transformers, text by text. masked: a token of the first text"""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for number, text in enumerate(TEXTS):
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        if masked is not None and number == 0:
            inputs["attention_mask"][0, masked] = 0
        with torch.no_grad():
            maps = model(**inputs, output_attentions=True).attentions[-1]  # (1, heads, tokens, tokens)
        expected.append(maps[0, :, 0].mean(dim=0)[1:-1].numpy())
    return expected


def check_close(values: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for mine, theirs in zip(values, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)
        assert mine.sum() < 1  # [CLS] and [SEP] have the rest


@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "ModernBert", "Albert"])
def test_attention_is_the_mean_of_the_last_layers_first_row(tmp_path, kind, monkeypatch):
    folder = encoder(tmp_path / "m", kind)
    expected, expected_masked = expected_attention(folder), expected_attention(folder, masked=2)
    texts = pieces(folder)

    def check(attention: FirstTokenAttention) -> None:
        check_close(attention(texts), expected)
        values = attention(texts, [[1], [], []])  # [CLS] precedes the piece
        assert values[0][1] == 0
        check_close(values, expected_masked)

    for batch_tokens in (1, 2048):
        check(attend(folder, batch_tokens=batch_tokens))
    if kind in ("Bert", "DistilBert"):
        allow_packing_on_a_cpu(monkeypatch)
        attention = attend(folder)
        assert packing.is_packed(attention._model)
        check(attention)


def test_pieces_beyond_the_longest_input_have_no_attention(tmp_path):
    bert = encoder(tmp_path / "m", "Bert")
    attention = attend(bert, max_length=6)
    assert attention.room == 4
    long = pieces(bert)[1]
    values, empty = attention([long, []])
    assert len(values) == len(long) > 4
    assert (values[:4] > 0).all()
    assert not values[4:].any()
    assert empty.tolist() == []


def test_models_without_the_needed_attention_are_rejected(tmp_path):
    folder = encoder(tmp_path / "m", "DebertaV2")
    with pytest.raises(MismatchError, match="unsupported attention implementation"):
        attend(folder)(pieces(folder))
    with pytest.raises(MismatchError, match="no special token before a text"):
        attend(save_tiny_generator(tmp_path / "t5", "t5"))


def test_other_aggregations_and_saturations():
    occurrences = [("the", 0.02), ("heart", 0.06), ("heart", 0.02)]
    assert bprop.gather_occurrences(occurrences, by="max")["heart"] == pytest.approx(0.06)
    assert saturate(0.04, "sqrt") == pytest.approx(sqrt(0.04))
    assert saturate(0.03, "sigmoid") == pytest.approx(1 / (1 + exp(-2)))  # -200 (.03 - .02) = -2


def test_contrast_with_rare_unseen_and_nonalphabetic_words():
    document, collection = {"the": 0.2, "heart": 0.8}, {"the": 0.5, "heart": 0.5}
    differences = compute_contrasts(document, collection, "difference", unseen=0.5)
    assert differences == pytest.approx({"the": 0.0, "heart": 0.3})
    # an unseen word is as rare as the rarest word: -log2 .25 = 2
    assert compute_contrasts({"new": 0.5}, {"old": 0.25}, "cross-entropy", unseen=0.25) == {"new": 0.5 * 2}
    scores = compute_contrasts({"b2": 0.5, "heart": 0.5}, {"b2": 0.5, "heart": 0.5}, "cross-entropy", unseen=0.5)
    assert scores == {"b2": 0.0, "heart": 0.5}
    assert bprop.softmax(scores | {"lung": 0.5}, temperature=1.0) == {"b2": 0.0, "heart": 0.5, "lung": 0.5}
    assert compute_contrasts({"w": 1.0}, {"w": 1e-40}, "cross-entropy", unseen=1e-40) == {"w": 100.0}  # the maximum
