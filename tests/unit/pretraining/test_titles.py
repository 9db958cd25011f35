"""Titles in pre-training: pairs of segments, whose token types reach every embedding layer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drtk.records import Passage
from drtk.text.batching import TextTokenizer
from tests.backbone_families import save_random_masked_lm
from tests.pretraining_setup import PretrainingFiles, PretrainingSetup
from tests.tiny_models import make_topic_words

WORDS = make_topic_words("river")
# words of title and text; without a title, short beside long, and both longer than half of any input below
SIZES = [(0, 5), (1, 4), (2, 30), (5, 5), (9, 3), (20, 4), (15, 15), (16, 15), (15, 16), (3, 12)]
PASSAGES = [
    Passage(
        f"p{number}", " ".join(WORDS[(number + at) % 8] for at in range(text)), " ".join(WORDS[:8] * 3)[: title * 7]
    )
    for number, (title, text) in enumerate(SIZES)
]


def write_titled_corpus(files: PretrainingFiles, folder: Path, model: Path | None = None) -> PretrainingFiles:
    """Return the files with these passages as corpus, and with `model` as encoder if it is given."""
    rows = [{"_id": each.id, "title": each.title, "text": each.text} for each in PASSAGES]
    path = folder / "titled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return PretrainingFiles(model or files.model, files.generator, path)


def get_first_batch(stage: PretrainingSetup) -> list[Passage]:
    """Return the passages of the first batch, in order."""
    named = {each.id: each for each in PASSAGES}
    return [named[str(each.key[-1])] for each in stage.get_examples(*range(6))]


def tokenize_expected(stage: PretrainingSetup, passage: Passage) -> Any:
    """Tokenize a passage: title and text as a pair if there is a title."""
    pair = (passage.title, passage.text) if passage.title else (passage.text,)
    return stage.tokenizer(*pair, truncation=True, max_length=stage.data.settings.max_length)


def record_embedding_inputs(stage: PretrainingSetup) -> list[dict[str, Tensor]]:
    """Record the inputs of every embedding module of encoder, generator and decoders in a forward pass."""
    calls: list[dict[str, Tensor]] = []
    generator = stage.network.generator
    parts = [stage.network, *([] if generator is None else [generator])]
    tables = {module for part in parts for name, module in part.named_modules() if name.split(".")[-1] == "embeddings"}
    for module in tables:
        module.register_forward_pre_hook(lambda _, args, given: calls.append(given), with_kwargs=True)
    stage.terms(stage.batch())
    return calls


@pytest.mark.parametrize(
    ("family", "max_length"), [("bert", 8), ("bert", 9), ("bert", 64), ("roberta", 32), ("distilbert", 32)]
)
def test_title_segment_equals_the_tokenizers_pair_encoding(
    files: PretrainingFiles, tmp_path: Path, family: str, max_length: int
):
    """RoBERTa has two separators and one token type; DistilBERT has no token types."""
    if family != "bert":
        save_random_masked_lm(family, tmp_path / family)
    model = files.model if family == "bert" else tmp_path / family
    stage = write_titled_corpus(files, tmp_path, model).prepare("simlm-ae", max_length=max_length)
    encoder, *_ = record_embedding_inputs(stage)
    assert ("token_type_ids" in encoder) == (family == "bert")
    for row, passage in enumerate(get_first_batch(stage)):
        expected = tokenize_expected(stage, passage)
        size = len(expected["input_ids"])
        assert encoder["input_ids"][row, :size].tolist() == expected["input_ids"]
        assert stage.batch()["encoder"].attention[row].sum() == size
        if family == "bert":
            assert encoder["token_type_ids"][row, :size].tolist() == expected["token_type_ids"]
            assert not encoder["token_type_ids"][row, size:].any()


@pytest.mark.parametrize(
    ("preset", "calls", "changes"),
    [
        # the joint generator replaces tokens of two slots, and has a loss; encoder, decoder
        ("simlm", 5, ["generator.mode=joint", "generator.slot=encoder"]),
        ("retromae", 2, []),
        ("diffcse-sts-bert", 6, []),  # two views; the generator and the discriminator on two changed ones
        ("qac-cotmae-released", 2, ['slots.context={view="passage"}']),  # the causal decoder
    ],
)
def test_every_embedding_layer_gets_token_types(
    files: PretrainingFiles, tmp_path: Path, preset: str, calls: int, changes: list[str]
):
    stage = write_titled_corpus(files, tmp_path).prepare(preset, "title=segment", *changes)
    actual = record_embedding_inputs(stage)
    assert len(actual) == calls
    for row, passage in enumerate(get_first_batch(stage)):
        expected = tokenize_expected(stage, passage)["token_type_ids"]
        for given in actual:
            types = given["token_type_ids"][row].tolist()
            assert types == expected + [0] * (len(types) - len(expected))


@pytest.mark.parametrize("title", ["join", "sep", "segment", "none"])
def test_pretraining_and_encoding_format_titles_alike(files: PretrainingFiles, tmp_path: Path, title: str):
    stage = write_titled_corpus(files, tmp_path).prepare("simlm-ae", f"title={title}", max_length=40)
    tokenize = TextTokenizer(stage.tokenizer, prompt="", max_length=40, title=title, with_types=True)
    expected = tokenize(get_first_batch(stage)).pad(range(6), pad=0)
    slot = stage.batch()["encoder"]
    assert slot.input_ids.tolist() == expected["input_ids"].tolist()
    types = torch.zeros_like(slot.input_ids) if slot.types is None else slot.types
    assert types.tolist() == expected["token_type_ids"].tolist()
