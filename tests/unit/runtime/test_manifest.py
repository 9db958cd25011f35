"""Manifests: their entries, and whether an output is up to date."""

import os
from pathlib import Path

import numpy as np
import orjson
import pytest

from drtk.errors import DrtkError
from drtk.runtime.atomic import write_json
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import (
    complete_manifest,
    create_manifest,
    describe_folder,
    find_inputs,
    get_manifest_path,
    is_current,
    is_unchanged,
    read_manifest,
    write_manifest,
)
from drtk.runtime.streams import digest_file

SETTINGS = {"policy": "words", "sizes": (1, 2), "model": None}


def write_output(tmp_path: Path) -> tuple[Path, Path]:
    """Write an input, and an output with its manifest."""
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"one\n")
    output.write_bytes(b"two\n")
    tracker = InputTracker()
    list(tracker.iter_lines(str(source)))
    manifest = create_manifest("corpus", SETTINGS, program="chunk")
    manifest = complete_manifest(manifest, inputs=tracker.inputs, counts={"in": 1}, seconds=0.5) | {"bytes": 4}
    write_json(get_manifest_path(output), manifest)
    return source, output


def test_a_manifest_records_command_settings_inputs_and_versions(tmp_path):
    _, output = write_output(tmp_path)
    manifest = read_json(get_manifest_path(output))
    expected = {"kind", "program", "command", "settings", "inputs", "counts", "versions", "started", "seconds", "bytes"}
    assert set(manifest) == expected
    assert manifest["settings"] == {"policy": "words", "sizes": [1, 2], "model": None}
    assert manifest["versions"]["python"].startswith("3.")
    assert is_current(str(output), SETTINGS, program="chunk")
    assert not is_current(str(output), SETTINGS, program="convert")
    assert not is_current(str(output), SETTINGS | {"policy": "chars"})


def test_a_changed_input_or_output_is_out_of_date_and_a_touched_input_is_compared_by_content(tmp_path):
    source, output = write_output(tmp_path)
    os.utime(source, ns=(1, 1))
    assert is_current(str(output), SETTINGS)
    for path, content in ((source, b"six\n"), (source, None), (output, b""), (output, None)):  # six: the same size
        before = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        assert not is_current(str(output), SETTINGS)
        path.write_bytes(before)
        assert is_current(str(output), SETTINGS)


def test_an_input_without_a_digest_is_compared_by_size_and_time_and_stdin_never_matches(tmp_path):
    source, output = write_output(tmp_path)
    manifest = read_json(get_manifest_path(output))
    manifest["inputs"][0]["digest"] = None
    write_json(get_manifest_path(output), manifest)
    assert is_current(str(output), SETTINGS)
    os.utime(source, ns=(1, 1))
    assert not is_current(str(output), SETTINGS)
    write_json(get_manifest_path(output), manifest | {"inputs": [{"path": "-", "bytes": 4, "digest": "x"}]})
    assert not is_current(str(output), SETTINGS)


WEIGHTS = "1_Dense/model.safetensors"


def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "1_Dense").mkdir(parents=True)
    (folder / "config.json").write_bytes(b"{}")
    (folder / WEIGHTS).write_bytes(b"1234")
    return folder


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_folder_is_unchanged_while_its_files_have_the_same_content(tmp_path, has_manifest):
    folder = model_folder(tmp_path)
    if has_manifest:
        (folder / "meta.json").write_bytes(b"{}")
    entry = describe_folder(folder)
    os.utime(folder / WEIGHTS, ns=(1, 1))  # as after a copy
    assert is_unchanged(entry)
    (folder / WEIGHTS).write_bytes(b"5678")
    assert not is_unchanged(entry)
    assert describe_folder(folder)["digest"] != entry["digest"]
    (folder / WEIGHTS).write_bytes(b"1234")
    (folder / "added_tokens.json").write_bytes(b"")
    assert not is_unchanged(entry)
    (folder / "added_tokens.json").unlink()
    (folder / ".hidden").write_bytes(b"")
    assert is_unchanged(entry)
    (folder / WEIGHTS).unlink()
    assert not is_unchanged(entry)


def test_recorded_digests_are_used_until_a_file_is_touched(tmp_path):
    folder = model_folder(tmp_path)
    files = {WEIGHTS: {"bytes": 4, "digest": "f" * 32, "mtime_ns": (folder / WEIGHTS).stat().st_mtime_ns}}
    write_json(folder / "meta.json", create_manifest("model", {}) | {"files": files})
    assert describe_folder(folder)["files"][WEIGHTS]["digest"] == "f" * 32
    (folder / WEIGHTS).write_bytes(b"5678")
    os.utime(folder / WEIGHTS, ns=(1, 1))  # an older file than the recorded one, as `cp -p` and `mv` leave it
    assert describe_folder(folder)["files"][WEIGHTS]["digest"] == digest_file(folder / WEIGHTS)


@pytest.mark.parametrize("has_record", [True, False])
def test_files_that_do_not_belong_to_a_model_do_not_count(tmp_path, has_record):
    folder = model_folder(tmp_path)
    (folder / "README.md").write_bytes(b"about")
    if has_record:
        write_manifest(folder, create_manifest("model", {}))
    entry = describe_folder(folder)
    assert entry["files"].keys() == {"config.json", WEIGHTS, *(["meta.json"] if has_record else [])}
    for name in (
        *("README.md", "NOTES.txt", "tf_model.h5", "training_args.bin", "onnx/model.onnx", "run.trec.meta.json"),
        *("checkpoint-100/model.safetensors", "emb/meta.json", "emb.part/config.json"),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"other")
    assert is_unchanged(entry)
    assert describe_folder(folder) == entry


def test_weights_and_tokenizer_files_of_a_model_count(tmp_path):
    folder = model_folder(tmp_path)
    (folder / "1_Pooling").mkdir()
    names = "model-00001-of-00002.safetensors pytorch_model.bin vocab.txt merges.txt spiece.model 1_Pooling/config.json"
    for name in names.split():
        (folder / name).write_bytes(b"1")
        entry = describe_folder(folder)
        (folder / name).write_bytes(b"2")
        os.utime(folder / name, ns=(1, 1))
        assert not is_unchanged(entry), name


def test_a_folder_among_the_inputs_is_compared_by_its_digest(tmp_path):
    _, output = write_output(tmp_path)
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "meta.json").write_bytes(b"{}")
    manifest = read_json(get_manifest_path(output))
    manifest["inputs"].append(describe_folder(folder))
    write_json(get_manifest_path(output), manifest)
    assert is_current(str(output), SETTINGS)
    (folder / "meta.json").write_bytes(b'{"kind": "index"}')
    assert not is_current(str(output), SETTINGS)
    (folder / "meta.json").unlink()
    folder.rmdir()
    folder.write_bytes(b"a file now")
    assert not is_current(str(output), SETTINGS)


def test_inputs_named_by_settings_are_the_paths_that_exist(tmp_path):
    (tmp_path / "file").write_bytes(b"one\n")
    (tmp_path / "folder").mkdir()
    paths = [str(tmp_path / "file"), str(tmp_path / "folder")]
    settings = {"source": "-", "corpus": paths[0], "with": [paths[1], "nowhere", "a\0b"], "depth": 3, "tag": ""}
    actual = find_inputs(settings)
    assert [entry["path"] for entry in actual] == paths
    assert actual[0]["bytes"] == 4


def test_json_is_written_atomically_with_numpy_values(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"n": np.int64(3), "x": np.float32(0.5)})
    assert read_json(path) == {"n": 3, "x": 0.5}
    with pytest.raises(TypeError):
        write_json(path, {"n": object()})
    assert read_json(path) == {"n": 3, "x": 0.5}
    assert os.listdir(tmp_path) == ["a.json"]
    with pytest.raises(DrtkError, match="No such file or directory"):
        write_json(tmp_path / "none" / "a.json", {})


def test_opening_a_folder_reports_what_is_wrong_with_it(tmp_path):
    folder = tmp_path / "index"

    def check(problem: str) -> None:
        with pytest.raises(DrtkError, match=problem):
            read_manifest(folder, kind="index")

    check("no such folder")
    folder.write_bytes(b"")
    check("is a file; expected a folder of kind 'index'")
    folder.unlink()
    folder.mkdir()
    check("not made by drtk")
    (folder / "meta.json.part").write_bytes(b"{}")
    check("unfinished")
    (folder / "meta.json").write_bytes(b"[]")
    check("expected a JSON object, got a list")
    (folder / "meta.json").write_bytes(orjson.dumps({"kind": "embeddings"}))
    check("is of kind 'embeddings'; expected 'index'")
    assert read_manifest(folder, kind="embeddings") == {"kind": "embeddings"}
