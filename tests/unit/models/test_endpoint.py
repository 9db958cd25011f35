"""Embeddings from an endpoint: a local server answers out of order, in two encodings, and fails."""

from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.data.embeddings import ShardWriter, read_shards
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.models import endpoint
from drtk.models.config import EncodeSettings
from drtk.models.endpoint import API_KEY, EndpointEmbedder
from drtk.models.model_folder import resolve_model_folder
from drtk.records import Passage, Query
from drtk.runtime.integrity import read_json
from tests.embedding_server import Server, compute_vector, run_server
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, fail_at_call, run_command


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv(API_KEY, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    with run_server() as server:
        yield server


def make(server: Server, **settings: Any) -> EndpointEmbedder:
    return EndpointEmbedder(server.model, role="passage", settings=EncodeSettings(**settings))


def test_vectors_are_in_the_order_of_the_texts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr("drtk.models.endpoint.log", messages.append)
    texts = [f"word{number} word{number % 7}" for number in range(70)]
    server.failures.append((429, {}))
    embedder = make(server)  # the first request fails
    assert embedder.dimension == 16
    server.failures.append((503, {}))
    np.testing.assert_array_equal(embedder(texts), [compute_vector(text) for text in texts])
    sizes = sorted(len(body["input"]) for body, _ in server.requests[2:])
    assert sum(sizes) - 70 in sizes  # one request was repeated
    assert max(sizes) == 32
    assert embedder([]).shape == (0, 16)
    assert len(messages) == 1  # a rate limit may fail every request


def test_settings_are_used_and_the_key_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Passage("a", "text", "Title"), Query("q", "text"), "text", ""]
    assert make(server, prompt="p: ").tokenize(items) == ["p: Title text", "p: text", "p: text", "p: "]
    assert make(server, title="none").tokenize(items) == ["text", "text", "text", " "]
    (vector,) = make(server, dimensions=4, normalize=True)(["a b c"])
    expected = compute_vector("a b c")[:4]
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-6)
    monkeypatch.setenv(API_KEY, "secret")
    make(server)
    assert [key for _, key in server.requests] == [None] * 4 + ["Bearer secret"]


def test_a_lost_connection_is_tried_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, delays = make(server), []
    answers = iter([ConnectionResetError(), IncompleteRead(b"{")])
    connect = endpoint._OPENER.open

    def fail_twice(*given: Any, **options: Any) -> Any:
        for error in answers:
            raise error
        return connect(*given, **options)

    monkeypatch.setattr(endpoint._OPENER, "open", fail_twice)
    monkeypatch.setattr("time.sleep", delays.append)
    np.testing.assert_array_equal(embedder(["a b"]), [compute_vector("a b")])
    assert delays == [1, 2]


def test_a_failure_is_an_error(server: Server) -> None:
    embedder = make(server)
    for status, answer, message in (
        (401, {"error": {"message": "bad key"}}, "/v1/embeddings: 401 Unauthorized: .*bad key.*; set OPENAI_API_KEY$"),
        (404, {"message": "no `model` x"}, "404 Not Found: .*no 'model' x.*; check the model name and the URL, which often ends in /v1$"),
        (422, {"detail": "y" * 400}, "422 .*: .*y{200}$"),
        (302, {}, "302 Found: {}$"),
        (500, {}, "500 Internal Server Error: {}$"),
        (200, {"data": [{"index": 0}]}, "not a list of embeddings"),
        (200, ["x"], "not a list of embeddings"),
        (200, {"data": [{"index": 1, "embedding": [1.0]}]}, "1 vectors for 1 texts"),
        (200, {"data": [{"index": 0, "embedding": [1.0]}]}, "dimension 1, but had 16 before"),
    ):  # fmt: skip
        server.failures[:] = [(status, answer)] * (8 if status == 500 else 1)
        with pytest.raises(DrtkError, match=message):
            embedder(["text"])


def test_unusable_models_and_settings_are_rejected(server: Server) -> None:
    for model, message in (
        (server.model.replace("hashes", "other"), "404 Not Found: .*no model other"),
        ("http://127.0.0.1:1/v1#m", "cannot be reached"),
    ):
        with pytest.raises(DrtkError, match=message):
            EndpointEmbedder(model, role="query", settings=EncodeSettings())
    with pytest.raises(UsageError, match="has no model name; write URL#NAME"):
        EndpointEmbedder("http://127.0.0.1/v1", role="query", settings=EncodeSettings())
    with pytest.raises(DrtkError, match="begin an endpoint with http://"):
        resolve_model_folder("localhost:7997#m")
    for settings in ({"pooling": "cls"}, {"max_length": 9}, {"precision": "float16"}, {"title": "sep"}):
        with pytest.raises(UsageError, match="has no effect on an endpoint"):
            make(server, **settings)


def test_encode_index_and_search(server: Server, folder: Path, capfd: Capture) -> None:
    texts = [f"word{number} word{number + 1}" for number in range(10)]
    write_rows(folder / "c.jsonl", [{"_id": f"d{number}", "text": text} for number, text in enumerate(texts)])
    write_rows(folder / "q.jsonl", [{"_id": "q", "text": texts[3]}])
    call = ["encode", "c.jsonl", "--model", server.model, "-o", "vectors", "--set", "shard_size=4"]
    with fail_at_call(2, ShardWriter, "write"):
        run_command(capfd, *call)
    server.requests.clear()
    run_command(capfd, *call, "--resume")
    assert sorted(text for body, _ in server.requests for text in body["input"]) == sorted([*texts[4:], "dimension"])
    vectors = np.concatenate([shard.vectors for shard in read_shards("vectors")])
    np.testing.assert_array_equal(vectors, [compute_vector(text) for text in texts])
    assert read_json(folder / "vectors" / "meta.json")["encoder"]["model"] == server.model
    run_command(capfd, "index", "vectors", "--type", "exact", "-o", "index")
    (query_id, _, id, rank, score, _) = run_command(capfd, "search", "index", "q.jsonl", "-k", "1").split()
    assert (query_id, id, rank) == ("q", "d3", "1")
    assert float(score) == pytest.approx(1, abs=1e-6)  # cosine
    other = server.model.replace("127.0.0.1", "localhost")  # the same model at another address
    run_command(capfd, "search", "index", "q.jsonl", "--model", other)
    server.failures.append((200, {"data": [{"index": 0, "embedding": [1.0] * 5}]}))
    with pytest.raises(MismatchError, match="weights or pooling"):
        run_command(capfd, "search", "index", "q.jsonl", "--model", other)
