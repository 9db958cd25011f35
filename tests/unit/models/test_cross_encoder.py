"""Cross-encoders: scores equal sentence-transformers, for all folder layouts; initialization, training and saving."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from drtk.errors import DrtkError, MismatchError
from drtk.models import cross_encoder
from drtk.models.config import CrossEncoderSettings
from drtk.models.cross_encoder import (
    CrossEncoder,
    CrossEncoderScorer,
    PairClassifier,
    init_cross_encoder,
    load_cross_encoder,
    resolve_title_format,
    save_cross_encoder,
)
from drtk.models.generator_input import format_passage
from drtk.records import Passage
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_json
from drtk.text.batching import PairTokenizer
from tests.tiny_models import make_collection, save_tiny_cross_encoder, save_tiny_encoder, save_tiny_generator

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_cross_encoder(tmp_path_factory.mktemp("models") / "scorer")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("models") / "encoder")


@pytest.fixture(scope="module")
def scores(folder: Path) -> np.ndarray:
    return CrossEncoderScorer(str(folder))(make_pairs())


def make_pairs(count: int = 40) -> list[tuple[str, str]]:
    """Return pairs of various lengths, some too long for the model, some with extra white space or an empty text."""
    passages, queries, _ = make_collection(count)
    rows = [(query["text"], passage["text"]) for query, passage in zip(queries, passages[::-1], strict=True)]
    return [*rows, (" rivers  rivered ", "engines\n"), ("", "rivers"), ("rivers", " ".join(["rivered"] * 90))]


def change_config(path: Path, **entries: object) -> None:
    """Change entries of a JSON file."""
    write_json(path, read_json(path) | entries)


def reference(folder: Path) -> np.ndarray:
    """Return the scores of sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    return library.CrossEncoder(str(folder), device="cpu").predict(make_pairs(), batch_size=1)


def start_training(model: Path, **given: object) -> CrossEncoder:
    return init_cross_encoder(str(model), **{"max_length": None, "seed": 1, "default_length": 48} | given)


def test_scores_of_the_old_layout_equal_the_library(folder: Path, scores: np.ndarray, tmp_path: Path) -> None:
    assert (scores.dtype, scores.shape) == (np.float32, (43,))
    assert scores.std() > 0.05
    assert np.allclose(scores, reference(folder), atol=3e-5)
    assert ((scores > 0) & (scores < 1)).all()  # sigmoid, the default
    logits = CrossEncoderScorer(str(folder), logits=True)(make_pairs())
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), scores, atol=1e-5)
    configs = ({"sbert_ce_default_activation_function": IDENTITY}, {"sentence_transformers": {"activation_fn": TANH}})
    for number, config in enumerate(configs):
        other = save_tiny_cross_encoder(tmp_path / str(number), **config)
        actual = CrossEncoderScorer(str(other))(make_pairs())
        assert actual.min() < 0
        assert np.allclose(actual, reference(other), atol=3e-5)


def test_scores_of_the_new_layout_equal_the_library(folder: Path, scores: np.ndarray, tmp_path: Path) -> None:
    library, new = pytest.importorskip("sentence_transformers"), tmp_path / "new"
    model = library.CrossEncoder(str(folder), device="cpu", max_length=24, activation_fn=nn.Identity())
    model.save_pretrained(str(new))
    actual = CrossEncoderScorer(str(new))(make_pairs())
    assert np.allclose(actual, reference(new), atol=3e-5)
    assert not np.allclose(actual, scores, atol=1e-2)  # another activation and length
    shared, settings = new / "config_sentence_transformers.json", new / "sentence_bert_config.json"
    for file, entries in (
        (shared, {"activation_fn": TANH}),
        (shared, {"prompts": {"query": "winters "}, "default_prompt_name": "query"}),
        (settings, {"max_seq_length": 12}),
        (settings, {"processing_kwargs": {"text": {"max_length": 10}}}),
    ):
        before = actual
        change_config(file, **entries)
        actual = CrossEncoderScorer(str(new))(make_pairs())
        assert np.allclose(actual, reference(new), atol=3e-5), entries
        assert not np.allclose(actual, before, atol=1e-4), entries


def test_scores_do_not_depend_on_batches(folder: Path, scores: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens in (1, 200):
        settings = CrossEncoderSettings(batch_tokens=tokens)
        assert np.allclose(CrossEncoderScorer(str(folder), settings=settings)(make_pairs()), scores, atol=3e-5)
    monkeypatch.setattr(cross_encoder, "TOKENIZE_BATCH_SIZE", 7)
    scorer = CrossEncoderScorer(str(folder), settings=CrossEncoderSettings(batch_tokens=64))
    assert np.allclose(scorer(make_pairs()), scores, atol=3e-5)
    assert scorer([]).shape == (0,)
    # equal pairs are scored once
    tokenized = scorer.tokenize([*make_pairs(5), *make_pairs(5)[::-1]])
    assert len(tokenized.tokens) == len(set(make_pairs(5)))
    actual = scorer.compute_scores(tokenized)
    assert (actual[: len(actual) // 2] == actual[len(actual) // 2 :][::-1]).all()


def test_length_and_precision_of_the_settings(folder: Path, scores: np.ndarray) -> None:
    scorer = CrossEncoderScorer(str(folder), settings=CrossEncoderSettings(max_length=9))
    assert scorer.tokenize(make_pairs()).tokens.lengths.max() == 9
    with pytest.raises(MismatchError, match="cannot read 65 tokens; use at most 64"):
        CrossEncoderScorer(str(folder), settings=CrossEncoderSettings(max_length=65))
    half = CrossEncoderScorer(str(folder), settings=CrossEncoderSettings(precision="bfloat16"))(make_pairs())
    assert half.dtype == np.float32
    assert np.corrcoef(half, scores)[0, 1] > 0.98


def test_an_unknown_activation_becomes_a_sigmoid(
    tmp_path: Path, scores: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    strange = save_tiny_cross_encoder(tmp_path / "strange", sbert_ce_default_activation_function="my.module.Scale")
    assert (CrossEncoderScorer(str(strange))(make_pairs()) == scores).all()
    assert "activation my.module.Scale is not supported; use one of torch.nn; using a sigmoid" in caplog.text


def test_other_models_are_rejected(tmp_path: Path, folder: Path, encoder: Path) -> None:
    (tmp_path / "empty").mkdir()
    save_tiny_cross_encoder(tmp_path / "nli", labels=3)
    shutil.copytree(encoder, tmp_path / "encoder")
    save_tiny_generator(tmp_path / "writer", "t5")
    shutil.copytree(encoder, tmp_path / "plain", ignore=shutil.ignore_patterns("modules.json"))
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    change_config(tmp_path / "plain" / "config.json", architectures=None, **labels)
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"not weights")
    for load, name, message in (
        (load_cross_encoder, "empty", r"not a model folder \(neither modules.json nor config.json\)"),
        (load_cross_encoder, "nli", "expected a classifier with one label, got 3 labels"),
        (load_cross_encoder, "encoder", "expected a CrossEncoder, got a SentenceTransformer"),
        (load_cross_encoder, "writer", "expected a cross-encoder, got T5ForConditionalGeneration"),
        (load_cross_encoder, "plain", r"not a cross-encoder \(no weights for classifier\.bias"),
        (load_cross_encoder, "damaged", "cannot be loaded as a cross-encoder: "),
        (start_training, "writer", r"expected an encoder such as BERT, got an encoder-decoder \(t5\)"),
        (start_training, "nli", "expected a classifier with one label"),
        (start_training, "empty", "not a model folder"),
    ):
        with pytest.raises(DrtkError, match=f"{name}: {message}"):
            load(tmp_path / name)
    # other modules and tasks of sentence-transformers
    other = shutil.copytree(folder, tmp_path / "x")
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.Transformer"}
    write_json(other / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    for modules, message in (
        ([module, {"path": "1", "type": "a.Dense"}], r"modules.json: module a\.Dense is not supported"),
        ([module, {"path": "1", "type": "a.LogitScore"}], "expected task text-generation, got sequence-classification"),
        ([module], "expected task sequence-classification, got text-generation"),
    ):
        write_json(other / "modules.json", modules)
        if len(modules) == 1:
            write_json(other / "sentence_bert_config.json", {"transformer_task": "text-generation"})
        with pytest.raises(MismatchError, match=message):
            load_cross_encoder(other)


def test_a_score_that_is_not_finite_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = CrossEncoderScorer(str(folder))
    monkeypatch.setattr(scorer, "_activation", lambda logits: logits / 0)
    with pytest.raises(DrtkError, match=r"scorer: a score is NaN or infinite in torch\.float32"):
        scorer(make_pairs())


def test_only_an_encoder_gets_a_random_head(encoder: Path, folder: Path, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    first, same, other = (start_training(encoder, seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert bool((torch.get_rng_state() == state).all())
    assert all(bool((first[name] == same[name]).all()) for name in first)
    changed = {name for name in first if bool((first[name] != other[name]).any())}
    assert "classifier.weight" in changed
    assert all(name.startswith("classifier.") or ".pooler." in name for name in changed)
    save_tiny_encoder(tmp_path / "pair" / "query", seed=5)  # of untied encoders, that of passages
    passage = save_tiny_encoder(tmp_path / "pair" / "passage", seed=6)
    for actual, expected in (
        (start_training(folder), load_cross_encoder(folder)),
        (start_training(tmp_path / "pair"), start_training(passage)),
    ):
        torch.testing.assert_close(actual.model.state_dict(), expected.model.state_dict(), rtol=0, atol=0)


def test_the_length_is_the_default_the_request_or_the_longest_input(encoder: Path) -> None:
    assert start_training(encoder).max_length == 48
    assert start_training(encoder, max_length=20).max_length == 20
    assert start_training(encoder, default_length=192).max_length == 64  # its positions
    with pytest.raises(MismatchError, match="encoder: cannot read 65 tokens; use at most 64"):
        start_training(encoder, max_length=65)


def test_groups_of_similar_length_give_the_logits_and_gradients_of_one_batch(folder: Path) -> None:
    loaded = start_training(folder)
    tokenizing = PairTokenizer(loaded.tokenizer, max_length=48)
    padded = tokenizing(make_pairs()).pad(range(len(make_pairs())), pad=tokenizing.pad)
    inputs = {name: torch.from_numpy(array) for name, array in padded.items()}
    results = []
    for tokens in (None, 100):
        model = PairClassifier(loaded.model, group_tokens=tokens)
        model.zero_grad()
        logits = model(**inputs)
        logits.square().sum().backward()
        results.append((logits.detach(), [each.grad.clone() for each in model.parameters() if each.grad is not None]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_a_saved_folder_gives_its_logits_in_sentence_transformers(tmp_path: Path) -> None:
    old = {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}
    loaded = start_training(save_tiny_cross_encoder(tmp_path / "start", **old), max_length=20)
    save_cross_encoder(loaded, tmp_path / "saved")
    scorer = CrossEncoderScorer(str(tmp_path / "saved"))
    logits = scorer(make_pairs())
    np.testing.assert_allclose(logits, reference(tmp_path / "saved"), atol=5e-5)
    assert logits.min() < 0  # no sigmoid
    assert logits.std() > 0.05
    assert scorer.max_length == 20


def test_vectors_are_the_last_layers_at_the_first_position(folder: Path) -> None:
    mine = CrossEncoderScorer(str(folder))
    tokenized = mine.tokenize([*make_pairs(), make_pairs()[0]])
    actual, vectors = mine.compute_scores_and_vectors(tokenized)
    assert vectors.shape == (len(make_pairs()) + 1, 32)
    np.testing.assert_allclose(actual, mine.compute_scores(tokenized), atol=1e-5)
    assert (vectors[0] == vectors[-1]).all()
    loaded = load_cross_encoder(folder)
    encoded = loaded.tokenizer(*make_pairs()[3], return_tensors="pt", truncation=True, max_length=64)
    with torch.no_grad():
        hidden = loaded.model.bert(**encoded).last_hidden_state
        logit = loaded.model.classifier(loaded.model.bert.pooler(hidden))
    np.testing.assert_allclose(vectors[3], hidden[0, 0].numpy(), atol=5e-5)
    assert actual[3] == pytest.approx(float(torch.sigmoid(logit)), abs=1e-5)


def test_padding_on_the_left_does_not_change_vectors(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "left")
    change_config(tmp_path / "left" / "tokenizer_config.json", padding_side="left")
    mine = CrossEncoderScorer(str(tmp_path / "left"))
    table = mine._model.bert.embeddings.position_embeddings
    nn.init.zeros_(table.weight)  # so that positions do not matter
    alone = [mine.compute_scores_and_vectors(mine.tokenize([pair]))[1][0] for pair in make_pairs()[:6]]
    together = mine.compute_scores_and_vectors(mine.tokenize(make_pairs()[:6]))[1]
    np.testing.assert_allclose(together, np.stack(alone), atol=5e-5)


def test_titles_are_formatted_as_in_training(folder: Path, tmp_path: Path) -> None:
    titled, blank = Passage("1", "text", title="T"), Passage("1", "text", title=" ")
    assert [format_passage(titled, how) for how in ("join", "colon", "none")] == ["T text", "T: text", "text"]
    assert [format_passage(blank, how) for how in ("join", "colon")] == ["text", "text"]
    assert resolve_title_format(str(folder), None, strict=True) == "join"
    assert resolve_title_format(str(folder), "none", strict=True) == "none"
    ours = shutil.copytree(folder, tmp_path / "ours")
    stated = {"command": "drtk train-reranker", "settings": {}, "inputs": [], "pairing": {"title": "colon"}}
    write_json(ours / "meta.json", stated)
    assert resolve_title_format(str(ours), None, strict=True) == "colon"
    assert resolve_title_format(str(ours), "none", strict=False) == "none"
    with pytest.raises(MismatchError, match="ours: was trained with `title` colon, not join"):
        resolve_title_format(str(ours), "join", strict=True)
