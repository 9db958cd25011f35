"""Output folders: resuming, atomic replacement, and protection of folders that drtk did not make."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime import folder_job
from drtk.runtime.atomic import lock
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.manifest import is_current, read_manifest
from tests.run_commands import make_torchrun_variables, open_pipe


def check(path: Path, **options: Any) -> FolderJob:
    """Return a job that has checked its output folder."""
    job = FolderJob("index", "index", str(path), options.pop("settings", {"depth": 3}), **options)
    job.check()
    return job


def begin(path: Path, **options: Any) -> FolderJob:
    """Begin a folder and write a file to it."""
    job = check(path, **options)
    (job.begin() / "half.bin").write_bytes(b"x")
    return job


def make(path: Path, **options: Any) -> None:
    job = check(path, **options)
    (job.begin() / "parts").mkdir()
    for name in ("ids.txt", "parts/0.bin"):
        (job.path / name).write_bytes(b"x")
    job.counts["passages"] = 2
    job.finish(type="flat")


def leave_unfinished(path: Path, **options: Any) -> None:
    begin(path, **options).release()


def check_starts_over(path: Path, **options: Any) -> None:
    job = check(path, **options)
    assert not job.is_resuming
    assert list_files(job.begin()) == ["meta.json.part"]
    job.release()


def list_files(path: Path) -> list[str]:
    return sorted(str(item.relative_to(path)) for item in path.rglob("*") if item.is_file())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_finished_folder_has_a_manifest_and_is_replaced_only_with_force(tmp_path, out):
    make(out)
    manifest = read_manifest(out, kind="index")
    assert (manifest["type"], manifest["program"], manifest["counts"]) == ("flat", "index", {"passages": 2})
    entry = {"bytes": 1, "digest": hashlib.blake2b(b"x", digest_size=16).hexdigest()}
    times = {name: (out / name).stat().st_mtime_ns for name in ("ids.txt", "parts/0.bin")}
    assert manifest["files"] == {name: entry | {"mtime_ns": time} for name, time in times.items()}
    assert is_current(str(out), {"depth": 3}, program="index")
    with pytest.raises(DrtkError, match="exists already; `force` replaces it"):
        make(out)
    job = begin(out, force=True)
    assert read_manifest(out)["counts"] == {"passages": 2}
    assert list_files(out) == ["ids.txt", "meta.json", "parts/0.bin"]
    job.finish()
    assert list_files(tmp_path) == ["out/half.bin", "out/meta.json"]


def test_an_unfinished_folder_is_resumed_or_started_over_only_on_request(out):
    leave_unfinished(out)
    for resumable, advice in ((False, ""), (True, "`resume` to continue it or ")):
        with pytest.raises(DrtkError, match=f"interrupted run; use {advice}`force` to start over"):
            check(out, resumable=resumable)
    resumed = check(out, resume=True)
    assert resumed.is_resuming
    assert list_files(resumed.begin()) == ["half.bin", "meta.json.part"]
    resumed.release()
    check_starts_over(out, force=True)


def test_resuming_with_other_settings_or_files_is_rejected_and_force_starts_over(tmp_path, out):
    (tmp_path / "qrels.tsv").write_bytes(b"1")
    settings = {"depth": 3, "qrels": str(tmp_path / "qrels.tsv")}
    leave_unfinished(out, settings=settings)
    for name in ("depth", "width"):  # the interrupted run had no width
        with pytest.raises(MismatchError, match=rf"other settings or files \({name}\)"):
            check(out, resume=True, settings=settings | {name: 4})
    (tmp_path / "qrels.tsv").write_bytes(b"22")
    with pytest.raises(MismatchError, match=r"other settings or files \(.*qrels\.tsv\)"):
        check(out, resume=True, settings=settings)
    check_starts_over(out, resume=True, force=True, settings=settings)


def test_settings_that_may_differ_are_replaced_and_their_changes_recorded(out):
    begun = {"depth": 3, "rate": 0.3, "micro": None, "log": True}
    free = ("rate", "micro", "log")
    leave_unfinished(out, settings=begun)
    with pytest.raises(MismatchError, match=r"other settings or files \(depth\)"):
        check(out, resume=True, settings=begun | {"depth": 4, "rate": 0.1}, may_differ=free)
    for _ in range(2):
        leave_unfinished(out, resume=True, settings=begun | {"rate": 0.1, "micro": 2}, may_differ=free)
    begin(out, resume=True, settings=begun | {"rate": 0.1, "micro": 1}, may_differ=free).finish()
    manifest = read_manifest(out)
    changes = [{"rate": [0.3, 0.1], "micro": [None, 2]}, {"micro": [2, 1]}]
    assert [change["settings"] for change in manifest["changes"]] == changes
    assert (manifest["settings"]["rate"], manifest["settings"]["micro"]) == (0.1, 1)


def test_resuming_with_another_stream_is_rejected_and_force_starts_over(out):
    def read(content: bytes, **options: Any) -> FolderJob:
        job = check(out, **options)
        with open_pipe(content) as name:
            assert [line for _, line in job.tracker.iter_lines(name)]
        for entry in job.tracker.inputs:
            entry["path"] = "/dev/fd/63"  # the number that a shell gives its first pipe each time
        return job

    first = read(b"a\nb\n")
    (first.begin() / "half.bin").write_bytes(b"x")
    first.release()
    other = read(b"a\nc\n", resume=True)
    with pytest.raises(MismatchError, match=r"started with different records from /dev/fd/63; use `force` to start"):
        other.begin()
    other.release()
    same = read(b"a\nb\n", resume=True)
    assert (same.begin() / "half.bin").exists()
    same.release()
    forced = read(b"a\nc\n", resume=True, force=True)
    assert not forced.is_resuming
    assert not (forced.begin() / "half.bin").exists()


def test_a_run_with_a_changed_source_is_resumed_unless_force_is_set(tmp_path, out):
    settings = {"source": str(tmp_path / "corpus.jsonl")}
    (tmp_path / "corpus.jsonl").write_bytes(b"torn")
    leave_unfinished(out, settings=settings)
    (tmp_path / "corpus.jsonl").write_bytes(b"repaired")
    for force in (False, True):
        assert check(out, resume=True, force=force, settings=settings).is_resuming is not force


@pytest.mark.parametrize("content", [b"{}", b"[]", b'{"settings": {}, "command": "make all"}'])
@pytest.mark.parametrize(
    "place", ["out/meta.json", "out/meta.json.part", "out.part/meta.json", "out.part/meta.json.part"]
)
def test_a_folder_with_another_programs_manifest_is_not_replaced(tmp_path, place, content):
    folder = (tmp_path / place).parent
    folder.mkdir()
    (tmp_path / place).write_bytes(content)
    (folder / "thesis.tex").write_bytes(b"precious")
    with pytest.raises(DrtkError, match=r"was not written by drtk|was not made by drtk"):
        check(tmp_path / "out", force=True, resume=True)
    assert list_files(folder) == [Path(place).name, "thesis.tex"]


def test_a_damaged_manifest_of_the_output_is_an_error_that_can_be_resolved(tmp_path, out):
    make(out)
    leave_unfinished(tmp_path / "other")
    for damaged in (out / "meta.json", tmp_path / "other.part" / "meta.json.part"):
        damaged.write_bytes(b"{")
        with pytest.raises(DrtkError, match=rf"^{damaged}: not JSON: .*; remove the folder, or choose another$"):
            check(tmp_path / damaged.parent.stem, force=True)


def test_inputs_of_the_run_and_targets_of_links_are_not_deleted(tmp_path, out):
    make(out)
    for source in (out, out / "ids.txt"):
        with pytest.raises(UsageError, match="would delete the input"):
            check(out, force=True, settings={"source": str(source)})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_bytes(b"x")
    job = check(out, force=True)
    (job.begin() / "link").symlink_to(tmp_path / "elsewhere")
    job.finish()
    make(out, force=True)
    assert list_files(tmp_path) == ["elsewhere/precious", "out/ids.txt", "out/meta.json", "out/parts/0.bin"]


def test_a_folder_that_was_being_emptied_is_not_resumed(out, monkeypatch):
    def kill(_: Path) -> None:
        raise KeyboardInterrupt

    leave_unfinished(out)
    job = check(out, force=True, settings={"depth": 4})
    monkeypatch.setattr(folder_job, "_delete_item", kill)
    with pytest.raises(KeyboardInterrupt):
        job.begin()
    monkeypatch.undo()
    job.release()
    check_starts_over(out, resume=True, settings={"depth": 4})


def test_a_finished_folder_that_may_not_replace_the_old_one_is_kept_for_the_next_command(tmp_path, out):
    job = begin(out)
    out.mkdir()
    (out / "thesis.tex").write_bytes(b"precious")
    with pytest.raises(DrtkError, match=r"was not made by drtk; .*; the finished folder is kept as .*out\.part"):
        job.finish()
    job.discard()
    job.release()
    with pytest.raises(DrtkError, match="was not made by drtk"):
        check(out, force=True)
    (out / "thesis.tex").unlink()
    handle = os.open(job.path, os.O_RDONLY)
    assert lock(handle)
    assert not FolderJob("index", "index", str(out)).recover()  # another run is writing the folder
    os.close(handle)
    assert FolderJob("index", "index", str(out)).recover()
    assert list_files(tmp_path) == ["out/half.bin", "out/meta.json"]


def test_the_current_folder_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (Path("."), tmp_path):
        with pytest.raises(DrtkError, match="is the current folder"):
            check(name)


def test_two_runs_do_not_write_one_folder(out):
    first, second = begin(out), check(out, force=True)
    with pytest.raises(DrtkError, match="out: another run is writing it"):
        second.begin()
    first.finish()
    second.begin()
    second.finish()


def test_only_the_first_of_several_processes_creates_and_finishes_the_folder(out, monkeypatch):
    first = begin(out)
    for name, value in make_torchrun_variables(rank=1, processes=2).items():
        monkeypatch.setenv(name, value)
    other = check(out)
    assert other.begin() == out.with_name("out.part")
    other.finish()
    assert list_files(other.path) == ["half.bin", "meta.json.part"]
    first.finish()
    assert list_files(out) == ["half.bin", "meta.json"]


def test_the_durations_of_all_sessions_of_a_run_are_added(out, monkeypatch):
    # Two sessions were killed: the first wrote its last file 500 s after it began, the second 70 s after.
    now = 1_000_000.0
    monkeypatch.setattr(folder_job.time, "time", lambda: now)
    for name, seconds in (("half.bin", 500), ("more/deeper.bin", 70)):
        job = check(out, resume=True)
        file = job.begin() / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
        job.release()
        for item in job.path.rglob("*"):
            os.utime(item, (now, now))
        os.utime(file, (now + seconds, now + seconds))
        now += 9000  # no run in this time
    job = check(out, resume=True)
    job.begin()
    job.finish()
    manifest = read_manifest(out)
    assert 570 <= manifest["seconds"] < 600
    assert "stretch" not in manifest
