"""Cross-encoders in training: what they may start from, and that the folder they end in gives the same scores elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from drtk.errors import MismatchError
from drtk.models.cross_encoder import (
    CrossEncoder,
    PairScorer,
    Scorer,
    load_crossencoder,
    resolve_title,
    save_crossencoder,
    start_crossencoder,
)
from drtk.models.generator_input import format_passage
from drtk.records import Passage
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_json
from drtk.text.batching import PairTokenizer
from tests.tiny import collection, tiny_crossencoder, tiny_model, tiny_writer


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "encoder")


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_crossencoder(tmp_path_factory.mktemp("models") / "scorer")


def pairs(count: int = 30) -> list[tuple[str, str]]:
    """Queries with passages of many lengths, the last longer than the models read."""
    passages, queries, _ = collection(count)
    found = [(query["text"], passage["text"]) for query, passage in zip(queries, passages[::-1], strict=True)]
    return [*found, ("rivers", " ".join(["rivered"] * 90))]


def start(model: Path, **given: object) -> CrossEncoder:
    return start_crossencoder(str(model), **{"max_length": None, "seed": 1, "default": 48} | given)


def test_an_encoder_keeps_its_body_and_gets_a_head_that_the_seed_decides(encoder: Path) -> None:
    first, same, other = (start(encoder, seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert all(bool((first[name] == same[name]).all()) for name in first)
    changed = {name for name in first if bool((first[name] != other[name]).any())}
    assert "classifier.weight" in changed
    assert all(name.startswith("classifier.") or ".pooler." in name for name in changed)
    state = torch.get_rng_state()
    start(encoder)
    assert bool((torch.get_rng_state() == state).all())  # the generator of others is left alone


def test_a_cross_encoder_keeps_its_head(scorer: Path) -> None:
    mine, theirs = start(scorer).model.state_dict(), load_crossencoder(scorer).model.state_dict()
    assert all(bool((mine[name] == theirs[name]).all()) for name in theirs)


def test_the_encoder_of_passages_is_taken_of_a_pair_of_towers(encoder: Path, tmp_path: Path) -> None:
    for role in ("query", "passage"):
        tiny_model(tmp_path / "pair" / role, seed={"query": 5, "passage": 6}[role])
    mine, theirs = (start(path).model.state_dict() for path in (tmp_path / "pair", tmp_path / "pair" / "passage"))
    assert all(bool((mine[name] == theirs[name]).all()) for name in mine)


def test_the_length_is_the_default_or_what_is_asked_for_or_what_the_model_can_read(encoder: Path) -> None:
    assert start(encoder).max_length == 48
    assert start(encoder, max_length=20).max_length == 20
    assert start(encoder, default=192).max_length == 64  # its positions
    with pytest.raises(MismatchError, match="encoder: reads at most 64 tokens; 65 were asked for"):
        start(encoder, max_length=65)


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    tiny_writer(tmp_path / "writer", "t5")
    tiny_crossencoder(tmp_path / "nli", labels=3)
    (tmp_path / "empty").mkdir()
    for name, told in (
        ("writer", r"writes \(t5\); an encoder such as BERT is needed"),
        ("nli", "gives 3 labels to a pair; a model with one is needed"),
        ("empty", "is no model folder"),
    ):
        with pytest.raises(MismatchError, match=f"{name}: {told}"):
            start(tmp_path / name)


def test_groups_of_like_length_give_the_logits_and_gradients_of_one_batch(scorer: Path) -> None:
    loaded = start(scorer)
    tokenizing = PairTokenizer(loaded.tokenizer, max_length=48)
    padded = tokenizing(pairs()).pad(range(len(pairs())), pad=tokenizing.pad)
    inputs = {name: torch.from_numpy(array) for name, array in padded.items()}
    found = []
    for tokens in (None, 100):
        model = PairScorer(loaded.model, group_tokens=tokens)
        model.zero_grad()
        logits = model(**inputs)
        logits.square().sum().backward()
        found.append((logits.detach(), [each.grad.clone() for each in model.parameters() if each.grad is not None]))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("old", [{}, {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}])
def test_a_saved_folder_gives_its_logits_in_sentence_transformers(tmp_path: Path, old: dict[str, object]) -> None:
    library = pytest.importorskip("sentence_transformers")
    loaded = start(tiny_crossencoder(tmp_path / "start", **old), max_length=20)
    save_crossencoder(loaded, tmp_path / "saved")
    scores = Scorer(str(tmp_path / "saved"))(pairs())
    theirs = library.CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(pairs(), batch_size=1)
    np.testing.assert_allclose(scores, theirs, atol=5e-5)
    assert scores.min() < 0  # no sigmoid
    assert scores.std() > 0.05
    assert Scorer(str(tmp_path / "saved")).max_length == 20


def test_vectors_are_the_last_layers_at_the_first_position(scorer: Path) -> None:
    mine = Scorer(str(scorer))
    prepared = mine.prepare([*pairs(), pairs()[0]])
    scores, vectors = mine.scores_and_vectors(prepared)
    assert vectors.shape == (len(pairs()) + 1, 32)
    np.testing.assert_allclose(scores, mine.scores(prepared), atol=1e-5)
    assert (vectors[0] == vectors[-1]).all()
    loaded = load_crossencoder(scorer)
    encoded = loaded.tokenizer(*pairs()[3], return_tensors="pt", truncation=True, max_length=64)
    with torch.no_grad():
        hidden = loaded.model.bert(**encoded).last_hidden_state
        logit = loaded.model.classifier(loaded.model.bert.pooler(hidden))
    np.testing.assert_allclose(vectors[3], hidden[0, 0].numpy(), atol=5e-5)
    assert scores[3] == pytest.approx(float(torch.sigmoid(logit)), abs=1e-5)


def test_logits_are_what_the_activation_is_given(scorer: Path) -> None:
    logits = Scorer(str(scorer), logits=True)(pairs())
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), Scorer(str(scorer))(pairs()), atol=1e-5)


def test_padding_on_the_left_moves_the_first_position_along(scorer: Path, tmp_path: Path) -> None:
    shutil.copytree(scorer, tmp_path / "left")
    path = tmp_path / "left" / "tokenizer_config.json"
    write_json(path, read_json(path) | {"padding_side": "left"})
    mine = Scorer(str(tmp_path / "left"))
    mine._model.bert.embeddings.position_embeddings = nn.Embedding.from_pretrained(  # so that places do not matter
        torch.zeros_like(mine._model.bert.embeddings.position_embeddings.weight)
    )
    alone = [mine.scores_and_vectors(mine.prepare([pair]))[1][0] for pair in pairs()[:6]]
    together = mine.scores_and_vectors(mine.prepare(pairs()[:6]))[1]
    np.testing.assert_allclose(together, np.stack(alone), atol=5e-5)


@pytest.mark.parametrize("title", ["join", "colon"])
def test_a_blank_title_is_no_title(title: str) -> None:
    assert format_passage(Passage("1", "text", title=" "), title) == "text"


def test_titles_are_put_before_a_model_as_it_was_trained(scorer: Path, tmp_path: Path) -> None:
    assert resolve_title(str(scorer), None, strict=True) == "join"
    assert resolve_title(str(scorer), "none", strict=True) == "none"
    shutil.copytree(scorer, tmp_path / "ours")
    stated = {"command": "drtk train-reranker", "settings": {}, "inputs": [], "pairing": {"title": "colon"}}
    write_json(tmp_path / "ours" / "meta.json", stated)
    assert resolve_title(str(tmp_path / "ours"), None, strict=True) == "colon"
    assert resolve_title(str(tmp_path / "ours"), "none", strict=False) == "none"
    with pytest.raises(MismatchError, match="ours: was trained with --title colon; join contradicts it"):
        resolve_title(str(tmp_path / "ours"), "join", strict=True)
