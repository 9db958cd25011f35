"""Output folders: resuming, atomic replacement, and protection of folders that drtk did not make."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime import folder_job as folders
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import is_done, read_manifest
from tests.run_commands import make_torchrun_variables, open_pipe


def job(path: Path, **given: Any) -> FolderJob:
    return FolderJob("index", "index", str(path), given.pop("settings", {"depth": 3}), **given)


def make(path: Path, *, names: tuple[str, ...] = ("ids.txt", "parts/0.bin"), **given: Any) -> None:
    made = job(path, **given)
    made.check()
    folder = made.begin()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    made.counts["passages"] = len(names)
    made.finish(type="flat")


def begin(path: Path, **given: Any) -> FolderJob:
    """Begin a folder and write a file into it, unless the run resumes."""
    made = job(path, **given)
    made.check()
    (made.begin() / "half.bin").write_bytes(b"x")
    return made


def leave_unfinished(path: Path, **given: Any) -> None:
    begin(path, **given).release()


def begin_again(path: Path, **given: Any) -> None:
    """Check that a run begins again, with an empty folder."""
    made = job(path, **given)
    made.check()
    assert not made.is_resuming
    assert files(made.begin()) == ["meta.json.part"]
    made.release()


def files(path: Path) -> list[str]:
    return sorted(str(item.relative_to(path)) for item in path.rglob("*") if item.is_file())


def test_a_finished_folder_has_a_manifest_of_its_files(tmp_path: Path) -> None:
    make(tmp_path / "out")
    manifest = read_manifest(tmp_path / "out", kind="index")
    assert (manifest["type"], manifest["program"], manifest["counts"]) == ("flat", "index", {"passages": 2})
    entry = {"bytes": 1, "digest": hashlib.blake2b(b"x", digest_size=16).hexdigest()}
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in ("ids.txt", "parts/0.bin")}
    assert manifest["files"] == {name: entry | {"mtime_ns": time} for name, time in times.items()}
    assert files(tmp_path / "out") == ["ids.txt", "meta.json", "parts/0.bin"]
    assert is_done(str(tmp_path / "out"), {"depth": 3}, program="index")


def test_a_finished_folder_is_replaced_only_with_force_and_by_a_finished_one(tmp_path: Path) -> None:
    make(tmp_path / "out")
    with pytest.raises(DrtkError, match="exists already; `force` replaces it"):
        make(tmp_path / "out")
    made = begin(tmp_path / "out", force=True)
    assert read_manifest(tmp_path / "out")["counts"] == {"passages": 2}
    assert files(tmp_path / "out") == ["ids.txt", "meta.json", "parts/0.bin"]
    made.finish()
    assert files(tmp_path) == ["out/half.bin", "out/meta.json"]


def test_an_unfinished_folder_is_resumed_or_begun_again_only_on_request(tmp_path: Path) -> None:
    leave_unfinished(tmp_path / "out")
    with pytest.raises(DrtkError, match="interrupted run; use `force` to start over"):
        job(tmp_path / "out").check()
    with pytest.raises(DrtkError, match="use `resume` to continue it or `force` to start over"):
        job(tmp_path / "out", resumable=True).check()
    resumed = job(tmp_path / "out", resume=True)
    resumed.check()
    assert resumed.is_resuming
    assert files(resumed.begin()) == ["half.bin", "meta.json.part"]
    resumed.release()
    begin_again(tmp_path / "out", force=True)


def test_resuming_with_other_settings_or_files_is_rejected_and_force_begins_again(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_bytes(b"1")
    settings = {"depth": 3, "qrels": str(tmp_path / "qrels.tsv")}
    leave_unfinished(tmp_path / "out", settings=settings)
    with pytest.raises(MismatchError, match=r"other settings or files \(depth\)"):
        job(tmp_path / "out", resume=True, settings=settings | {"depth": 4}).check()
    (tmp_path / "qrels.tsv").write_bytes(b"22")
    with pytest.raises(MismatchError, match=r"other settings or files \(.*qrels\.tsv\)"):
        job(tmp_path / "out", resume=True, settings=settings).check()
    begin_again(tmp_path / "out", resume=True, force=True, settings=settings)


def test_settings_that_may_differ_are_replaced_and_their_changes_recorded(tmp_path: Path) -> None:
    begun = {"depth": 3, "rate": 0.3, "micro": None, "log": True}
    free = ("rate", "micro", "log")
    leave_unfinished(tmp_path / "out", settings=begun)
    with pytest.raises(MismatchError, match=r"other settings or files \(depth\)"):
        job(tmp_path / "out", resume=True, settings=begun | {"depth": 4, "rate": 0.1}, may_differ=free).check()
    for _ in range(2):
        leave_unfinished(tmp_path / "out", resume=True, settings=begun | {"rate": 0.1, "micro": 2}, may_differ=free)
    begin(tmp_path / "out", resume=True, settings=begun | {"rate": 0.1, "micro": 1}, may_differ=free).finish()
    manifest = read_manifest(tmp_path / "out")
    assert [change["settings"] for change in manifest["changes"]] == [
        {"rate": [0.3, 0.1], "micro": [None, 2]},
        {"micro": [2, 1]},
    ]
    assert (manifest["settings"]["rate"], manifest["settings"]["micro"]) == (0.1, 1)


def test_resuming_with_another_stream_is_rejected_and_force_begins_again(tmp_path: Path) -> None:
    def read(content: bytes, **given: Any) -> FolderJob:
        made = job(tmp_path / "out", **given)
        made.check()
        with open_pipe(content) as name:
            assert [line for _, line in made.tracker.iter_lines(name)]
        for entry in made.tracker.inputs:
            entry["path"] = "/dev/fd/63"  # the number that a shell gives its first pipe each time
        return made

    first = read(b"a\nb\n")
    (first.begin() / "half.bin").write_bytes(b"x")
    first.release()
    other = read(b"a\nc\n", resume=True)
    with pytest.raises(MismatchError, match=r"started with other records from /dev/fd/63; use `force` to start over"):
        other.begin()
    other.release()
    same = read(b"a\nb\n", resume=True)
    assert (same.begin() / "half.bin").exists()
    same.release()
    anew = read(b"a\nc\n", resume=True, force=True)
    assert not anew.is_resuming
    assert not (anew.begin() / "half.bin").exists()


def test_a_changed_source_may_be_resumed_unless_force_is_set(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(b"torn")
    settings = {"source": str(tmp_path / "corpus.jsonl")}
    leave_unfinished(tmp_path / "out", settings=settings)
    (tmp_path / "corpus.jsonl").write_bytes(b"repaired")
    for force in (False, True):
        again = job(tmp_path / "out", resume=True, force=force, settings=settings)
        again.check()
        assert again.is_resuming is not force


@pytest.mark.parametrize("content", [b"{}", b"[]", b'{"settings": {}, "command": "make all"}'])
@pytest.mark.parametrize(
    "place", ["out/meta.json", "out/meta.json.part", "out.part/meta.json", "out.part/meta.json.part"]
)
def test_a_folder_with_another_programs_manifest_is_not_replaced(tmp_path: Path, place: str, content: bytes) -> None:
    folder = (tmp_path / place).parent
    folder.mkdir()
    (tmp_path / place).write_bytes(content)
    (folder / "thesis.tex").write_bytes(b"precious")
    with pytest.raises(DrtkError, match=r"was not written by drtk|was not made by drtk"):
        job(tmp_path / "out", force=True, resume=True).check()
    assert files(folder) == [Path(place).name, "thesis.tex"]


def test_a_damaged_manifest_of_the_output_is_an_error_that_can_be_resolved(tmp_path: Path) -> None:
    make(tmp_path / "out")
    leave_unfinished(tmp_path / "other")
    for damaged in (tmp_path / "out" / "meta.json", tmp_path / "other.part" / "meta.json.part"):
        damaged.write_bytes(b"{")
        with pytest.raises(DrtkError, match=rf"^{damaged}: not JSON: .*; remove the folder, or choose another$"):
            job(tmp_path / damaged.parent.stem, force=True).check()


def test_a_folder_is_not_replaced_by_what_is_made_from_it(tmp_path: Path) -> None:
    make(tmp_path / "out")
    for source in (tmp_path / "out", tmp_path / "out" / "ids.txt"):
        with pytest.raises(UsageError, match="would delete the input"):
            job(tmp_path / "out", force=True, settings={"source": str(source)}).check()
    assert files(tmp_path / "out") == ["ids.txt", "meta.json", "parts/0.bin"]


def test_a_link_inside_a_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_bytes(b"x")
    made = job(tmp_path / "out")
    made.check()
    (made.begin() / "link").symlink_to(tmp_path / "elsewhere")
    made.finish()
    make(tmp_path / "out", force=True)
    assert files(tmp_path / "elsewhere") == ["precious"]
    assert not (tmp_path / "out" / "link").exists()


def test_a_folder_that_was_being_cleared_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(_: Path) -> None:
        raise KeyboardInterrupt

    leave_unfinished(tmp_path / "out")
    anew = job(tmp_path / "out", force=True, settings={"depth": 4})
    anew.check()
    monkeypatch.setattr(folders, "_delete", kill)
    with pytest.raises(KeyboardInterrupt):
        anew.begin()
    anew.release()
    monkeypatch.undo()
    begin_again(tmp_path / "out", resume=True, settings={"depth": 4})


def test_a_finished_folder_that_may_not_replace_the_old_one_is_kept_for_the_next_command(tmp_path: Path) -> None:
    made = begin(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_bytes(b"precious")
    with pytest.raises(DrtkError, match=r"was not made by drtk; .*; the finished folder is kept as .*out\.part"):
        made.finish()
    made.discard()
    made.release()
    with pytest.raises(DrtkError, match="was not made by drtk"):
        job(tmp_path / "out", force=True).check()
    (tmp_path / "out" / "thesis.tex").unlink()
    assert job(tmp_path / "out").recover()
    assert files(tmp_path) == ["out/half.bin", "out/meta.json"]


def test_the_current_folder_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".", tmp_path):
        with pytest.raises(DrtkError, match="is the current folder"):
            job(Path(name)).check()


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    first = begin(tmp_path / "out")
    second = job(tmp_path / "out", force=True)
    second.check()
    with pytest.raises(DrtkError, match="out: another run is writing it"):
        second.begin()
    first.finish()
    second.begin()
    second.finish()


def test_only_the_first_of_several_processes_creates_and_finishes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(tmp_path / "out")
    for name, value in make_torchrun_variables(rank=1, processes=2).items():
        monkeypatch.setenv(name, value)
    other = job(tmp_path / "out")
    other.check()
    assert other.begin() == tmp_path / "out.part"
    other.finish()
    assert files(tmp_path / "out.part") == ["half.bin", "meta.json.part"]
    first.finish()
    assert files(tmp_path / "out") == ["half.bin", "meta.json"]


def test_the_durations_of_all_starts_of_a_folder_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two starts were killed: the first wrote its last file 500 s after it began, the second 70 s after.
    now = 1_000_000.0
    monkeypatch.setattr(folders.time, "time", lambda: now)
    for name, seconds in (("half.bin", 500), ("more/deeper.bin", 70)):
        made = job(tmp_path / "out", resume=True)
        made.check()
        folder = made.begin()
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
        made.release()
        for item in folder.rglob("*"):
            os.utime(item, (now, now))
        os.utime(folder / name, (now + seconds, now + seconds))
        now += 9000  # no run in this time
    made = job(tmp_path / "out", resume=True)
    made.check()
    made.begin()
    made.finish()
    manifest = read_manifest(tmp_path / "out")
    assert 570 <= manifest["seconds"] < 600
    assert "stretch" not in manifest


@pytest.mark.parametrize(
    "damage",
    [{"inputs": ["x"]}, {"inputs": [{"path": 3}]}, {"streams": []}, {"stretch": {}}, {"stretch": [1]},
     {"stretch": {"began": "x", "before": 0}}, {"started": None}, {"changes": {}}, {"settings": []}],
)  # fmt: skip
def test_an_unfinished_manifest_with_fields_of_wrong_types_is_rejected(tmp_path: Path, damage: dict[str, Any]) -> None:
    leave_unfinished(tmp_path / "out", resumable=True)
    place = tmp_path / "out.part" / "meta.json.part"
    place.write_bytes(orjson.dumps(read_json(place) | damage))
    again = job(tmp_path / "out", resumable=True, resume=True)
    for act in (again.check, again.begin):
        with pytest.raises(DrtkError, match=r"meta\.json\.part: (is damaged|was not written by drtk)"):
            act()
