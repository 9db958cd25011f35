"""drtk encode: resuming after kills, additional outputs, queries, and rejected input."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.data.embeddings import ShardWriter, read_shards
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import find_changes
from tests.run_commands import fail_at_call
from tests.tiny_models import save_tiny_encoder, write_collection


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encode")
    write_collection(folder, 300)
    save_tiny_encoder(folder / "model")
    return folder


def encode(data: Path, output: Path, *more: object, source: str = "corpus.jsonl") -> None:
    run("encode", data / source, "--model", data / "model", "-o", output, *more)


def run(*given: object) -> None:
    app([*map(str, given), "--quiet"], standalone_mode=False)


def test_a_run_is_not_resumed_after_files_of_the_model_changed(data, tmp_path):
    model, output = shutil.copytree(data / "model", tmp_path / "model"), tmp_path / "out"
    weights, other = model / "model.safetensors", save_tiny_encoder(tmp_path / "other", seed=2) / "model.safetensors"
    more = ["--model", model, "--set", "shard_size=100"]
    with fail_at_call(2, ShardWriter, "write"):
        encode(data, output, *more)
    os.utime(weights, ns=(1, 1))
    shutil.copy(other, weights)
    with pytest.raises(MismatchError, match=r"started with other settings or files \(.*model\)"):
        encode(data, output, *more, "--resume")
    shutil.copy(data / "model" / "model.safetensors", weights)  # the old content at another time
    encode(data, output, *more, "--resume")
    assert find_changes(str(output), read_json(output / "meta.json")["settings"]) == []
    shutil.copy(other, weights)
    assert find_changes(str(output), read_json(output / "meta.json")["settings"]) == [str(model)]


def test_the_manifest_records_encoder_settings_and_shards(data, tmp_path):
    encode(data, tmp_path / "v", "--vector-dtype", "float16", "--set", "shard_size=128")
    manifest = read_json(tmp_path / "v" / "meta.json")
    assert (manifest["kind"], manifest["dimension"], manifest["dtype"]) == ("embeddings", 32, "float16")
    assert (manifest["counts"], manifest["role"]) == ({"passages": 300}, "passage")
    assert [shard["rows"] for shard in manifest["shards"]] == [128, 128, 44]
    assert manifest["encoder"]["model"] == str(data / "model")
    assert len(manifest["encoder"]["digest"]) == 32
    assert [shard.vectors.dtype for shard in read_shards(tmp_path / "v")] == [np.float16] * 3


@pytest.mark.parametrize(
    ("options", "names"),
    [(["--prompt", "B: "], "passage prompt"), (["--set", "title=none", "--max-length", "8"], "passage length, title")],
)
def test_parts_encoded_with_other_options_are_not_indexed_together(data, tmp_path, options, names):
    parts = [tmp_path / "1", tmp_path / "2"]
    for part, more in zip(parts, ([], options), strict=True):
        encode(data, part, "--shard", f"{part.name}/2", *more)
    with pytest.raises(MismatchError, match=rf"model or settings differ from .* \({names}\)"):
        run("index", *parts, "--type", "flat", "-o", tmp_path / "i")


def test_parts_encoded_with_the_same_prompt_are_indexed_wherever_it_came_from(data, tmp_path):
    model = shutil.copytree(data / "model", tmp_path / "m")
    parts = [tmp_path / "1", tmp_path / "2"]
    for part, prompt in zip(parts, (["--prompt", "A: "], []), strict=True):
        encode(data, part, "--model", model, "--shard", f"{part.name}/2", *prompt)
        recommend(model, document="A: ")
    run("index", *parts, "--type", "flat", "-o", tmp_path / "i")


def test_queries_encoded_with_a_chosen_prompt_are_searched_after_the_models_own_changed(data, tmp_path):
    model = shutil.copytree(data / "model", tmp_path / "m")
    run("encode", data / "corpus.jsonl", "--model", model, "-o", tmp_path / "v")
    run("index", tmp_path / "v", "--type", "flat", "-o", tmp_path / "i")
    recommend(model, query="Q: ")
    given = ["encode", data / "queries.jsonl", "--role", "query", "--model", model]
    run(*given, "--prompt", "", "-o", tmp_path / "q")
    run("search", tmp_path / "i", tmp_path / "q", "-o", tmp_path / "run")
    run(*given, "-o", tmp_path / "other")
    with pytest.raises(MismatchError, match=r"the encoder differs from .* \(query prompt\)"):
        run("search", tmp_path / "i", tmp_path / "other", "-o", tmp_path / "none")


def recommend(model: Path, **prompts: str) -> None:
    path = model / "config_sentence_transformers.json"
    path.write_text(json.dumps(read_json(path) | {"prompts": prompts}))


def test_invalid_options_and_records_are_rejected(data, tmp_path):
    with pytest.raises(UsageError, match="`shard`: '5/4'"):
        encode(data, tmp_path / "v", "--shard", "5/4")
    with pytest.raises(UsageError, match="unknown pooling 'median'"):
        encode(data, tmp_path / "v", "--pooling", "median")
    assert not (tmp_path / "v").exists()
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"_id": "a", "text": "rivers"}\n{"_id": "b"}\n')
    with pytest.raises(RecordError, match=r"bad\.jsonl:2: 'text' is missing"):
        encode(data, tmp_path / "v", source=str(bad))
    encode(data, tmp_path / "v", "--force", "--skip-bad", "1", source=str(bad))
    assert read_shards(tmp_path / "v")[0].ids == ["a"]
    (tmp_path / "empty.jsonl").touch()
    for role, unit in (("passage", "passages"), ("query", "queries")):
        with pytest.raises(DrtkError, match=rf"empty\.jsonl: contains no {unit}; check the input"):
            encode(data, tmp_path / "v", "--force", "--role", role, source=str(tmp_path / "empty.jsonl"))
    assert read_shards(tmp_path / "v")[0].ids == ["a"]  # is not replaced


def test_vectors_can_be_truncated_and_queries_are_truncated_alike(data, tmp_path):
    for name, more in (("whole", []), ("cut", ["--set", "dimensions=5"])):
        encode(data, tmp_path / name, *more)
    whole, cut = (np.load(tmp_path / name / "00000.npy") for name in ("whole", "cut"))
    np.testing.assert_allclose(cut, whole[:, :5], atol=1e-5)
    run("index", tmp_path / "cut", "--type", "exact", "-o", tmp_path / "index")
    run("search", tmp_path / "index", data / "queries.jsonl", "-k", "3", "-o", tmp_path / "run")
    encode(data, tmp_path / "asked", "--role", "query", source="queries.jsonl")
    asked = np.load(tmp_path / "asked" / "00000.npy")[:, :5]
    left, right = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (asked, cut))  # by cosine
    best = (left @ right.T).max(axis=1)
    rows = [line.split() for line in (tmp_path / "run").read_text().splitlines()]
    first = [float(row[4]) for row in rows if row[3] == "1"]
    np.testing.assert_allclose(first, best, atol=1e-5)
    with pytest.raises(MismatchError, match=r"`dimensions=500` must be at most 32, the dimension of"):
        encode(data, tmp_path / "x", "--set", "dimensions=500")
