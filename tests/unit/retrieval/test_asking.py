"""Questions through the encoder that made the index, and through no other."""

import shutil

import numpy as np
import pytest

from drtk.errors import MismatchError
from drtk.retrieval.asking import QueryEncoder
from drtk.retrieval.collection import Collection
from drtk.retrieval.encode import Embedder
from drtk.settings.encoding import EncodeSettings
from drtk.settings.retrieval import SearchSettings
from tests.running import command
from tests.tiny import tiny_model, write_collection


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asking")
    tiny_model(folder / "model")
    tiny_model(folder / "other", seed=2)
    write_collection(folder, 40)
    return folder


@pytest.fixture
def index(place, capfd):
    if not (place / "dense").exists():
        command(capfd, "encode", place / "corpus.jsonl", "--model", place / "model", "-o", place / "vectors")
        command(capfd, "index", place / "vectors", "--type", "exact", "-o", place / "dense")
    return place / "dense"


def collection(index):
    return Collection([str(index)], SearchSettings())


def test_queries_are_encoded_as_the_index_says_and_as_encode_would(index, place, capfd):
    found = command(capfd, "search", index, place / "queries.jsonl", "-k", "5")
    queries = ["encode", place / "queries.jsonl", "--model", place / "model", "--role", "query", "-o", place / "q"]
    command(capfd, *queries)
    stored = command(capfd, "search", index, place / "q", "-k", "5")
    assert [line.split()[:4] for line in found.splitlines()] == [line.split()[:4] for line in stored.splitlines()]
    assert len(found.splitlines()) == 40 * 5


def test_pooling_chosen_when_encoding_is_the_queries_pooling_too(place, tmp_path, capfd):
    plain = shutil.copytree(place / "model", tmp_path / "plain")
    (plain / "1_Pooling" / "config.json").unlink()  # without it the folder says nothing about pooling
    for name in ("modules.json", "config_sentence_transformers.json"):
        (plain / name).unlink(missing_ok=True)
    command(capfd, "encode", place / "corpus.jsonl", "--model", plain, "--pooling", "max", "-o", tmp_path / "v")
    command(capfd, "index", tmp_path / "v", "--type", "exact", "-o", tmp_path / "i")
    texts = ["rivers riving", "castled"]
    wanted = Embedder(str(plain), role="query", settings=EncodeSettings(pooling="max"))(texts)
    np.testing.assert_array_equal(QueryEncoder(collection(tmp_path / "i"), SearchSettings())(texts), wanted)


def test_a_copy_of_the_model_may_encode_and_another_model_may_not(index, place):
    texts = ["rivers"]
    known = QueryEncoder(collection(index), SearchSettings())(texts)
    copy = place / "copy"
    if not copy.exists():
        shutil.copytree(place / "model", copy)
    np.testing.assert_array_equal(QueryEncoder(collection(index), SearchSettings(), str(copy))(texts), known)
    with pytest.raises(MismatchError, match=r"other: is not the model that made the vectors of .*dense"):
        QueryEncoder(collection(index), SearchSettings(), str(place / "other"))(texts)


def test_a_question_to_a_dense_index_is_answered_with_texts(index, capfd):
    page = command(capfd, "search", index, "--query", "rivers", "-k", "2").splitlines()
    assert [line.split()[0] for line in page if line[:3].strip()] == ["1", "2"]
