"""B-PROP weights: the attention of the first token against transformers, and the worked documents of docs/methods/term-weights.md."""

from __future__ import annotations

from math import exp, log2, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from drtk.errors import MismatchError
from drtk.expansion.term_weights.bprop import (
    FirstTokenAttention,
    contrast,
    gather_occurrences,
    normalize,
    saturate,
    softmax,
)
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
    size |= {"embedding_size": 16} if kind == "Albert" else {}
    torch.manual_seed(0)
    if kind != "Bert":
        config = getattr(transformers, f"{kind}Config")(**size)
        getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder(tmp_path_factory.mktemp("model") / "bert", "Bert")


def attend(folder: Path, *, batch_tokens: int = 2048, max_length: int | None = None) -> FirstTokenAttention:
    return FirstTokenAttention(folder, device="cpu", dtype="auto", max_length=max_length, batch_tokens=batch_tokens)


def pieces(folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


def expected_attention(folder: Path, *, masked: int | None = None) -> list[np.ndarray]:
    """What transformers gives for each text alone. masked: a token of the first text"""
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
def test_it_is_the_mean_of_the_last_layers_first_row(tmp_path: Path, kind: str) -> None:
    folder = encoder(tmp_path / "m", kind)
    expected = expected_attention(folder)
    for batch_tokens in (1, 2048):
        check_close(attend(folder, batch_tokens=batch_tokens)(pieces(folder)), expected)


def test_pieces_that_are_hidden_take_no_part(bert: Path) -> None:
    values = attend(bert)(pieces(bert), [[1], [], []])
    assert values[0][1] == 0
    check_close(values, expected_attention(bert, masked=2))  # [CLS] precedes the piece


def test_pieces_beyond_the_longest_input_have_no_attention(bert: Path) -> None:
    attention = attend(bert, max_length=6)
    assert attention.room == 4
    long = pieces(bert)[1]
    values, empty = attention([long, []])
    assert len(values) == len(long) > 4
    assert (values[:4] > 0).all()
    assert not values[4:].any()
    assert empty.tolist() == []


def test_models_without_the_needed_attention_are_rejected(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "m", "DebertaV2")
    with pytest.raises(MismatchError, match="unsupported attention implementation"):
        attend(folder)(pieces(folder))
    with pytest.raises(MismatchError, match="no special token before a text"):
        attend(save_tiny_generator(tmp_path / "t5", "t5"))


OCCURRENCES = [
    [("the", 0.02), ("heart", 0.06), ("disease", 0.04), ("of", 0.02), ("heart", 0.02)],
    [("the", 0.03), ("stock", 0.05), ("market", 0.04), ("of", 0.01)],
    [("the", 0.04), ("heart", 0.03), ("of", 0.02), ("stock", 0.01)],
]


def documents() -> list[dict[str, float]]:
    """Steps C and D of the three."""
    return [
        {word: saturate(value, "ratio") for word, value in gather_occurrences(occurrences).items()}
        for occurrences in OCCURRENCES
    ]


def collection() -> dict[str, float]:
    """Step F: sums over the documents, brought to a sum of 1."""
    sums: dict[str, float] = {}
    for document in documents():
        for word, value in document.items():
            sums[word] = sums.get(word, 0.0) + value
    return normalize(sums)


def scores(number: int) -> dict[str, float]:
    shares = collection()
    return contrast(normalize(documents()[number]), shares, "cross-entropy", unseen=min(shares.values()))


def test_occurrences_add_up_or_the_largest_counts() -> None:
    assert gather_occurrences(OCCURRENCES[0])["heart"] == pytest.approx(0.08)
    assert gather_occurrences(OCCURRENCES[0], by="max")["heart"] == pytest.approx(0.06)


def test_attention_saturates() -> None:
    expected = {"the": 0.666667, "heart": 0.888889, "disease": 0.8, "of": 0.666667}
    assert documents()[0] == pytest.approx(expected, abs=2e-6)
    assert saturate(0.04, "sqrt") == pytest.approx(sqrt(0.04))
    assert saturate(0.03, "sigmoid") == pytest.approx(1 / (1 + exp(-2)))  # -200 (.03 - .02) = -2


def test_the_collection_gives_each_word_its_share() -> None:
    expected = {
        "the": 0.257088,
        "heart": 0.190077,
        "disease": 0.092784,
        "of": 0.212629,
        "stock": 0.154639,
        "market": 0.092784,
    }
    assert collection() == pytest.approx(expected, abs=2e-6)


def test_a_document_gives_each_word_its_share() -> None:
    expected = {"the": 0.220588, "heart": 0.294118, "disease": 0.264706, "of": 0.220588}
    assert normalize(documents()[0]) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, {"the": 0.432280, "heart": 0.704512, "disease": 0.907938, "of": 0.492704}),
        (1, {"the": 0.509740, "of": 0.387328, "stock": 0.778330, "market": 0.951673}),
        (2, {"the": 0.577080, "heart": 0.661291, "of": 0.548120, "stock": 0.495648}),
    ],
)
def test_scores_are_shares_times_the_information_of_the_collection(number: int, expected: dict[str, float]) -> None:
    assert scores(number) == pytest.approx(expected, abs=2e-6)


def test_the_softmax_of_the_scores_is_flat() -> None:
    expected = {"the": 0.200632, "heart": 0.263408, "disease": 0.322831, "of": 0.213129}
    assert softmax(scores(0), temperature=1.0) == pytest.approx(expected, abs=2e-6)


def test_scores_by_their_maximum() -> None:
    found = scores(0)
    expected = {"the": 0.476111, "heart": 0.775948, "disease": 1.0, "of": 0.542662}
    assert {word: value / max(found.values()) for word, value in found.items()} == pytest.approx(expected, abs=2e-6)


def test_the_difference_keeps_words_more_frequent_in_the_document() -> None:
    here, there = {"the": 0.2, "heart": 0.8}, {"the": 0.5, "heart": 0.5}
    assert contrast(here, there, "difference", unseen=0.5) == pytest.approx({"the": 0.0, "heart": 0.3})


def test_an_unseen_word_is_as_rare_as_the_rarest_word() -> None:
    assert contrast({"new": 0.5}, {"old": 0.25}, "cross-entropy", unseen=0.25) == {"new": 0.5 * 2}  # -log2 .25 = 2


def test_words_with_other_signs_than_letters_weigh_nothing() -> None:
    found = contrast({"b2": 0.5, "heart": 0.5}, {"b2": 0.5, "heart": 0.5}, "cross-entropy", unseen=0.5)
    assert found == {"b2": 0.0, "heart": 0.5}
    assert softmax(found | {"lung": 0.5}, temperature=1.0) == {"b2": 0.0, "heart": 0.5, "lung": 0.5}


def test_no_score_is_above_a_hundred() -> None:
    assert contrast({"w": 1.0}, {"w": 1e-40}, "cross-entropy", unseen=1e-40) == {"w": 100.0}
    assert -log2(1e-40) > 100
