"""Cross-encoders: the scores of sentence-transformers from every layout of a folder, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from drtk.errors import DrtkError, MismatchError
from drtk.models import cross_encoder as crossencoder
from drtk.models.config import ScoringSettings
from drtk.models.cross_encoder import Scorer, load_crossencoder
from tests.tiny import collection, tiny_crossencoder, tiny_model, tiny_writer

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_crossencoder(tmp_path_factory.mktemp("models") / "scorer")


def pairs(count: int = 40) -> list[tuple[str, str]]:
    """Queries with passages of many lengths, some longer than the model reads; white space and an empty text among them."""
    passages, queries, _ = collection(count)
    found = [(query["text"], passage["text"]) for query, passage in zip(queries, passages[::-1], strict=True)]
    return [*found, (" rivers  rivered ", "engines\n"), ("", "rivers"), ("rivers", " ".join(["rivered"] * 90))]


def change(path: Path, **entries: object) -> None:
    """Change entries of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def reference(folder: Path) -> np.ndarray:
    """What sentence-transformers gives for the pairs."""
    library = pytest.importorskip("sentence_transformers")
    return library.CrossEncoder(str(folder), device="cpu").predict(pairs(), batch_size=1)


def test_scores_of_the_old_layout_are_those_of_sentence_transformers(folder: Path) -> None:
    found = Scorer(str(folder))(pairs())
    assert found.dtype == np.float32
    assert found.shape == (43,)
    assert found.std() > 0.05  # apart enough for the comparison to mean something
    assert np.allclose(found, reference(folder), atol=3e-5)
    assert (found > 0).all()
    assert (found < 1).all()  # sigmoid, where the folder says nothing


@pytest.mark.parametrize(
    "config",
    [{"sbert_ce_default_activation_function": IDENTITY}, {"sentence_transformers": {"activation_fn": TANH}}],
)
def test_the_activation_of_the_old_layouts_is_read_from_the_config(tmp_path: Path, config: dict[str, object]) -> None:
    scorer = tiny_crossencoder(tmp_path / "scorer", **config)
    found = Scorer(str(scorer))(pairs())
    assert found.min() < 0
    assert np.allclose(found, reference(scorer), atol=3e-5)


def test_scores_of_the_new_layout_are_those_of_sentence_transformers(folder: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    library.CrossEncoder(str(folder), device="cpu", max_length=24, activation_fn=torch.nn.Identity()).save_pretrained(
        str(tmp_path / "new")
    )
    found = Scorer(str(tmp_path / "new"))(pairs())
    assert np.allclose(found, reference(tmp_path / "new"), atol=3e-5)
    assert not np.allclose(found, Scorer(str(folder))(pairs()), atol=1e-2)  # other activation, other length
    shared, settings = (
        tmp_path / "new" / f"{name}.json" for name in ("config_sentence_transformers", "sentence_bert_config")
    )
    for file, entries in (
        (shared, {"activation_fn": TANH}),
        (shared, {"prompts": {"query": "winters "}, "default_prompt_name": "query"}),
        (settings, {"max_seq_length": 12}),
        (settings, {"processing_kwargs": {"text": {"max_length": 10}}}),
    ):
        before = found
        change(file, **entries)
        found = Scorer(str(tmp_path / "new"))(pairs())
        assert np.allclose(found, reference(tmp_path / "new"), atol=3e-5), entries
        assert not np.allclose(found, before, atol=1e-4), entries


def test_scores_do_not_depend_on_batches_or_neighbours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Scorer(str(folder))(pairs())
    for tokens in (1, 200, 10_000):
        assert np.allclose(
            Scorer(str(folder), settings=ScoringSettings(batch_tokens=tokens))(pairs()), whole, atol=3e-5
        )
    monkeypatch.setattr(crossencoder, "WINDOW", 7)
    assert np.allclose(Scorer(str(folder))(pairs()), whole, atol=3e-5)
    assert Scorer(str(folder))([]).shape == (0,)


def test_equal_pairs_are_scored_once_and_equally(folder: Path) -> None:
    scorer = Scorer(str(folder), settings=ScoringSettings(batch_tokens=64))
    prepared = scorer.prepare([*pairs(5), *pairs(5)[::-1]])
    assert len(prepared.tokens) == len(set(pairs(5)))
    found = scorer.scores(prepared)
    assert (found[: len(found) // 2] == found[len(found) // 2 :][::-1]).all()


def test_a_pair_is_cut_where_the_settings_say(folder: Path) -> None:
    scorer = Scorer(str(folder), settings=ScoringSettings(max_length=9))
    assert scorer.prepare(pairs()).tokens.lengths.max() == 9
    with pytest.raises(MismatchError, match="reads at most 64 tokens; 65 were asked for"):
        Scorer(str(folder), settings=ScoringSettings(max_length=65))


def test_half_precision_comes_near_and_gives_float32(folder: Path) -> None:
    found = Scorer(str(folder), settings=ScoringSettings(dtype="bfloat16"))(pairs())
    assert found.dtype == np.float32
    assert np.corrcoef(found, Scorer(str(folder))(pairs()))[0, 1] > 0.98


def test_an_activation_nobody_knows_gives_way_to_a_sigmoid(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(crossencoder, "warn", told.append)
    strange = tiny_crossencoder(tmp_path / "strange", sbert_ce_default_activation_function="my.module.Scale")
    assert (Scorer(str(strange))(pairs()) == Scorer(str(folder))(pairs())).all()
    assert len(told) == 1
    assert "the activation my.module.Scale is none of torch.nn; a sigmoid takes its place" in told[0]


def test_what_is_no_cross_encoder_is_refused_by_name(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    tiny_crossencoder(tmp_path / "nli", labels=3)
    tiny_model(tmp_path / "encoder")
    tiny_writer(tmp_path / "writer", "t5")
    shutil.copytree(tmp_path / "encoder", tmp_path / "plain", ignore=shutil.ignore_patterns("modules.json"))
    change(tmp_path / "plain" / "config.json", architectures=None, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"not weights")
    for name, fault, told in (
        ("empty", MismatchError, "is no model folder: it has neither modules.json nor config.json"),
        ("nli", MismatchError, "gives 3 labels to a pair; a model with one is needed"),
        ("encoder", MismatchError, "is a SentenceTransformer; a CrossEncoder is needed"),
        ("writer", MismatchError, "is no cross-encoder but a T5ForConditionalGeneration"),
        ("plain", MismatchError, r"is no cross-encoder: it has no weights for classifier\.bias"),
        ("damaged", DrtkError, "cannot be loaded as a cross-encoder: "),
    ):
        with pytest.raises(fault, match=f"{name}: {told}"):
            load_crossencoder(tmp_path / name)


def test_modules_beyond_a_classifier_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "x")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.Transformer"}]
    (tmp_path / "x" / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    (tmp_path / "x" / "modules.json").write_text(json.dumps([*modules, {"path": "1", "type": "a.LogitScore"}]))
    with pytest.raises(MismatchError, match=r"modules.json: holds a module drtk cannot run there: a\.LogitScore"):
        load_crossencoder(tmp_path / "x")
    (tmp_path / "x" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "x" / "sentence_bert_config.json").write_text('{"transformer_task": "text-generation"}')
    with pytest.raises(MismatchError, match="x: scores by text-generation; a sequence classifier is needed"):
        load_crossencoder(tmp_path / "x")


def test_a_score_that_is_no_number_is_a_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Scorer(str(folder))
    monkeypatch.setattr(scorer, "_activation", lambda logits: logits / 0)
    with pytest.raises(DrtkError, match=r"scorer: gave a score that is no finite number, computing in torch\.float32"):
        scorer(pairs())
