"""Files and folders are flushed to disk before they are renamed, and their parent folder afterwards."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from drtk.data.corpus_store import CorpusStore
from drtk.data.embeddings import ShardWriter
from drtk.runtime.atomic import commit, get_file_manifest_path, identify_file, lock, recover, write_json
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.integrity import read_json
from drtk.text.sentences import PunktModel, save_model


def inodes(path: Path) -> set[int]:
    """Return the inodes of a file, or of a folder and everything in it."""
    return {path.stat().st_ino} | ({item.stat().st_ino for item in path.rglob("*")} if path.is_dir() else set())


@pytest.fixture
def renames(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the targets of renames, and check that each source was flushed."""
    flushed: set[int] = set()
    waiting: list[tuple[Path, int]] = []
    names: list[str] = []

    def fsync(handle: int) -> None:
        flushed.add(os.fstat(handle).st_ino)
        waiting[:] = [each for each in waiting if each[1] != os.fstat(handle).st_ino]

    def check_rename(rename: Callable[..., None]) -> Callable[..., None]:
        def rename_checked(source: Any, target: Any) -> None:
            if ".part.old" not in str(target):  # it is deleted
                assert inodes(Path(source)) <= flushed, f"{source} was not flushed"
                waiting.append((Path(target), Path(target).parent.stat().st_ino))
                names.append(Path(target).name)
            rename(source, target)

        return rename_checked

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, check_rename(getattr(os, name)))
    yield names
    assert not waiting, "the folder was not flushed"


def test_a_filters_output_its_manifest_and_journal_are_flushed(tmp_path, renames):
    job = FilterJob("copy", "corpus", str(tmp_path / "out"), {}, batch_size=1)
    job.run(["a", "b"], lambda batch: (f"{line}\n".encode() for line in batch))
    assert renames == ["out.part.json", "out.part.meta.json", "out", "out.part.meta.json", "out.meta.json"]


def test_the_part_is_flushed_before_its_journal(tmp_path, monkeypatch):
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_size))
    job = FilterJob("copy", "corpus", str(tmp_path / "out"), {}, batch_size=1)
    side_output: Any = SimpleNamespace(sync=lambda: flushed.append(-1))
    job.side_outputs.append(side_output)

    def fail(batch: list[str]) -> Iterator[bytes]:
        if batch == ["c"]:
            raise KeyboardInterrupt
        yield f"{batch[0]}\n".encode()

    with pytest.raises(KeyboardInterrupt):
        job.run(["a", "b", "c"], fail)
    assert orjson.loads((tmp_path / "out.part.json").read_bytes())["offset"] == 4
    for size in (4, -1):  # the part and the side output, before the journal
        assert size in flushed
        assert flushed.index(size) < len(flushed) - 1


def test_a_folder_is_flushed_with_its_contents(tmp_path, renames):
    for _ in range(2):
        job = FolderJob("encode", "embeddings", str(tmp_path / "out"), {}, force=True)
        writer = ShardWriter(job.begin(), dimension=1, dtype="float32")
        writer.write(["a"], np.zeros((1, 1)), digest="")
        (writer.folder / "more").mkdir()
        (writer.folder / "more" / "notes.txt").write_text("x")
        job.finish()
    assert renames.count("out") == 2


def test_small_files_and_caches_are_flushed(tmp_path, renames, monkeypatch):
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "cache"))
    write_json(tmp_path / "facts.json", {})
    save_model(PunktModel((), (), (), {}), tmp_path / "punkt.json")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "b"}\n')
    CorpusStore.open(tmp_path / "corpus.jsonl").close()
    assert len(renames) == 5  # the digest of the corpus and the record of the cached files are kept, too


def test_the_manifest_of_a_removed_part_is_not_given_to_another_file(tmp_path):
    part, final = tmp_path / "out.part", tmp_path / "out"
    final.write_bytes(b"old")
    write_json(get_file_manifest_path(part), {"bytes": 99})
    assert not recover(final)
    assert os.listdir(tmp_path) == ["out"]


def test_a_finished_part_replaces_only_the_file_that_its_commit_found(tmp_path):
    part, final = tmp_path / "out.part", tmp_path / "out"
    part.write_bytes(b"new")
    final.write_bytes(b"old")
    write_json(get_file_manifest_path(part), {"bytes": 3, "replaces": identify_file(final)})
    final.write_bytes(b"precious")
    assert not recover(final)
    assert final.read_bytes() == b"precious"
    write_json(get_file_manifest_path(part), {"bytes": 3, "replaces": identify_file(final)})
    with open(part, "rb") as file:
        assert lock(file.fileno())
        assert not recover(final)  # another run is writing the part
    assert recover(final)
    assert sorted(os.listdir(tmp_path)) == ["out", "out.meta.json"]
    assert read_json(tmp_path / "out.meta.json") == {"bytes": 3}
    commit(final, tmp_path / "moved")
    assert (tmp_path / "moved").read_bytes() == b"new"
    part.write_bytes(b"new")
    write_json(get_file_manifest_path(part), {"bytes": 3, "replaces": {"bytes": 3, "mtime_ns": 1}})
    assert recover(final)  # the old output was removed in the meantime
