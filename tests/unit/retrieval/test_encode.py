"""Vectors do not depend on batches, shards or interruptions."""

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from drtk.cli.main import app
from drtk.data.embeddings import ShardWriter
from drtk.errors import DrtkError, MismatchError
from drtk.models.config import EncodeSettings
from drtk.records import Passage, Query
from drtk.retrieval.encode import Embedder, encode_records
from drtk.runtime.integrity import read_json
from drtk.runtime.runners import RunnerSettings
from drtk.runtime.sharding import select_shard
from drtk.text.batching import TokenizedTexts
from tests.expansion_collection import write_rows
from tests.run_commands import run_command
from tests.tiny_models import make_passages, save_tiny_encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_encoder(tmp_path_factory.mktemp("model") / "m"))


def embedder(model: str, **settings: object) -> Embedder:
    return Embedder(model, role="passage", settings=EncodeSettings(**settings))


def encode(model: str, folder: Path, records: list[Passage], part: tuple[int, int] = (1, 1)) -> ShardWriter:
    folder.mkdir(exist_ok=True)
    writer = ShardWriter(folder, dimension=32, dtype="float32")
    encoder, selected = embedder(model, shard_size=16), select_shard(records, part, batch_size=16)
    encode_records(selected, encoder, writer, runner_settings=RunnerSettings())
    return writer


def rows(folder: Path) -> dict[str, np.ndarray]:
    return {
        id: vector
        for path in sorted(folder.glob("*.npy"))
        for id, vector in zip(path.with_suffix(".ids").read_text().split(), np.load(path), strict=True)
    }


def test_a_vector_does_not_depend_on_its_batch(model, monkeypatch):
    records = make_passages(40)
    embed = embedder(model)
    assert embed([]).shape == (0, 32)
    alone = np.concatenate([embed([record]) for record in records])
    texts = [f"{record.title} {record.text}" for record in records[:5]]
    np.testing.assert_array_equal(embed(records[:5]), embed(texts))
    queries = Embedder(model, role="query")
    np.testing.assert_array_equal(queries([Query("q", text) for text in texts]), queries(texts))
    monkeypatch.setattr("drtk.retrieval.encode.TOKENIZE_BATCH_SIZE", 7)
    for tokens in (1, 10_000):
        np.testing.assert_allclose(embedder(model, batch_tokens=tokens)(records), alone, atol=1e-5)
    shuffled = np.random.default_rng(0).permutation(len(records))
    together = embed([records[place] for place in shuffled])
    np.testing.assert_allclose(together, alone[shuffled], atol=1e-5)


def test_shards_and_parts_hold_every_record_once(model, tmp_path):
    records = make_passages(70)
    writer = encode(model, tmp_path / "whole", records)
    assert [entry["rows"] for entry in writer.entries] == [16, 16, 16, 16, 6]
    whole = rows(tmp_path / "whole")
    assert list(whole) == [record.id for record in records]
    np.testing.assert_allclose(np.stack(list(whole.values())), embedder(model)(records), atol=1e-5)
    num_rows_of_parts = [encode(model, tmp_path / f"{n}", records, part=(n, 3)).num_rows for n in (1, 2, 3)]
    assert num_rows_of_parts == [32, 22, 16]  # shards 0 and 3, 1 and 4, and 2
    parts = [rows(tmp_path / f"{n}") for n in (1, 2, 3)]
    merged = parts[0] | parts[1] | parts[2]
    assert sum(map(len, parts)) == len(merged) == 70
    for id, vector in whole.items():
        np.testing.assert_array_equal(merged[id], vector)


def test_passages_without_text_are_reported(model, folder, capfd):
    rows = [{"_id": "a", "text": "rivers"}, {"_id": "b", "title": "T", "text": ""}, {"_id": "c", "text": " "}]
    write_rows(folder / "corpus.jsonl", rows)
    call = ["encode", "corpus.jsonl", "--model", model, "-q", "--device", "cpu"]
    warning = "drtk: corpus.jsonl: {} of 3 passages have no text; their vectors are meaningless\n"
    for options, said in (
        (["-o", "v"], warning.format(1)),  # a title is text to encode
        (["--set", "title=none", "-o", "bare"], warning.format(2)),
        (["--shard", "2/2", "-o", "second"], ""),  # an empty shard
    ):
        app([*call, *options], standalone_mode=False)
        assert capfd.readouterr().err == said
    assert read_json(folder / "v" / "meta.json")["counts"]["passages"] == 3


def test_an_interrupted_run_resumes_with_the_same_records_only(model, tmp_path):
    records = make_passages(40)
    encode(model, tmp_path / "whole", records)
    encode(model, tmp_path / "again", records[:32])
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "again").glob("*.npy")}
    with pytest.raises(MismatchError, match="made from other records"):
        encode(model, tmp_path / "again", [dataclasses.replace(records[0], text="other"), *records[1:]])
    encode(model, tmp_path / "again", records)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "again").glob("*.npy")}
    assert before.items() <= after.items()
    assert len(after) == 3


def test_batches_prepared_in_a_thread_give_the_same_vectors(model, monkeypatch):
    records = make_passages(40)
    expected = embedder(model, batch_tokens=100)(records)
    pinned = []
    monkeypatch.setattr("drtk.models.device._ASYNCHRONOUS", ("cpu",))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(threading.get_ident()) or tensor)
    np.testing.assert_array_equal(embedder(model, batch_tokens=100)(records), expected)
    assert pinned
    assert threading.get_ident() not in pinned
    threads, broken = threading.active_count(), embedder(model, batch_tokens=100)
    tokens = broken.tokenize(records)
    monkeypatch.setattr(broken, "_encoder", lambda **_: pytest.fail("stops at the first batch"))
    with pytest.raises(pytest.fail.Exception):
        broken.encode_tokens(tokens)
    assert threading.active_count() == threads


def test_an_error_of_writing_ends_the_run_while_the_next_shard_is_encoded(model, tmp_path, monkeypatch):
    failed, write, encode_tokens = threading.Event(), ShardWriter.write, Embedder.encode_tokens
    shards = 0

    def fail_at_the_second(writer: ShardWriter, *given: object, **options: object) -> None:
        if not writer.entries:
            write(writer, *given, **options)
            return
        failed.set()
        raise DrtkError("disk full")

    def wait_in_the_third(encoder: Embedder, tokens: TokenizedTexts, report: Callable[[int], None]) -> np.ndarray:
        nonlocal shards
        shards += 1
        assert shards < 3 or failed.wait(10)
        return encode_tokens(encoder, tokens, report)

    monkeypatch.setattr(ShardWriter, "write", fail_at_the_second)
    monkeypatch.setattr(Embedder, "encode_tokens", wait_in_the_third)
    with pytest.raises(DrtkError, match="disk full"):
        encode(model, tmp_path / "v", make_passages(70))
    assert shards == 3
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == ["00000.ids", "00000.npy", "shards.json.part"]


def test_out_of_memory_is_one_line(model, monkeypatch):
    full = embedder(model, batch_tokens=1000)

    def forward(**_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(full, "_encoder", forward)
    with pytest.raises(DrtkError, match=r"cpu: out of memory at [0-9,]+ tokens; lower `batch_tokens`$"):
        full(make_passages(5))


def test_half_precision_is_close_on_the_cpu(model):
    expected = embedder(model)(make_passages(20))
    actual = embedder(model, precision="bfloat16")(make_passages(20))
    assert actual.dtype == np.float32
    cosine = (actual * expected).sum(1) / np.linalg.norm(actual, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosine.min() > 0.99
    assert np.abs(actual - expected).max() > 0


def test_truncated_texts_are_reported_also_after_resuming(model, tmp_path, monkeypatch, capfd):
    records = [Passage(f"d{number}", "rivers " * number) for number in range(1, 41)]
    write_rows(tmp_path / "c.jsonl", [{"_id": record.id, "text": record.text} for record in records])
    call = ["encode", str(tmp_path / "c.jsonl"), "--model", model, "--device", "cpu", "--max-length", "12"]
    split = "; split them with `drtk chunk --tokenizer MODEL --max-tokens N`"
    for role, unit, advice in (("passage", "passages", split), ("query", "queries", "")):
        app([*call, "--role", role, "-o", str(tmp_path / role)], standalone_mode=False)
        assert f"encode: 30 of 40 {unit} were truncated to 12 tokens{advice}\n" in capfd.readouterr().err
        assert read_json(tmp_path / role / "meta.json")["counts"]["truncated"] == 30
    (tmp_path / "shards").mkdir()
    for count in (32, 40):  # two shards of 16 records, then the rest
        writer = ShardWriter(tmp_path / "shards", dimension=32, dtype="float32")
        encoder = embedder(model, shard_size=16, max_length=12)
        encode_records(records[:count], encoder, writer, runner_settings=RunnerSettings())
    assert [entry.get("truncated") for entry in writer.entries] == [6, 16, 8]
    assert writer.num_truncated == 30


def test_an_index_that_is_built_in_another_folder_finds_the_corpus(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "c.jsonl", [{"_id": "d", "text": "wing"}])
    run_command(capfd, "encode", "c.jsonl", "--model", save_tiny_encoder(tmp_path / "model"), "-o", "vectors")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    run_command(capfd, "index", "../vectors", "--type", "exact", "-o", "index")
    assert "wing" in run_command(capfd, "search", "index", "--query", "lift")
