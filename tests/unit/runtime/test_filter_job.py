"""Filters resume where they were interrupted, replace only what they may, and account for what they did."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime import manifest
from drtk.runtime.filter_job import Done, FilterJob, Journal
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import is_done
from drtk.runtime.streams import open_input, read_lines

WINDOW = 10
RECORDS = [{"_id": f"d{number}", "text": "x" * (number % 7)} for number in range(35)]  # three windows and a half


class Interrupted(Exception):
    pass


def copied(window: list[dict[str, Any]]) -> Iterator[bytes]:
    """Two lines a record, so that a torn window shows."""
    for record in window:
        yield orjson.dumps(record) + b"\n"
        yield orjson.dumps(record) + b"\n"


def stopping_at(count: int) -> Callable[[list[dict[str, Any]]], Iterator[bytes]]:
    """`copied`, until the record `count` would be worked on."""

    def work(window: list[dict[str, Any]]) -> Iterator[bytes]:
        for record in window:
            if record["_id"] == f"d{count}":
                raise Interrupted
            yield from copied([record])

    return work


def job(output: Path | str, **given: Any) -> FilterJob:
    return FilterJob("copy", "corpus", str(output), given.pop("settings", {"depth": 3}), window=WINDOW, **given)


def run(
    output: Path,
    work: Callable[[list[dict[str, Any]]], Iterable[bytes]] = copied,
    records: Iterable[dict[str, Any]] = RECORDS,
    **given: Any,
) -> FilterJob:
    made = job(output, **given)
    made.check()
    made.run(records, work)
    return made


def interrupted(output: Path, *, at: int = 25, **given: Any) -> None:
    with pytest.raises(Interrupted):
        run(output, stopping_at(at), **given)


def content(path: Path) -> bytes:
    return b"".join(line + b"\n" for _, line in read_lines(open_input(str(path))[0], "x"))


WHOLE = b"".join(copied(RECORDS))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("at", [0, 9, 10, 11, 25, 34])
def test_interrupted_then_resumed_equals_uninterrupted(tmp_path: Path, suffix: str, at: int) -> None:
    output = tmp_path / f"out{suffix}"
    interrupted(output, at=at)
    assert not output.exists()
    finished = at // WINDOW * WINDOW
    journal = Journal.read(Path(f"{output}.part.json"))
    assert (journal.records if journal else 0) == finished  # the unfinished window is dropped
    assert Path(f"{output}.part").exists() == (finished > 0)
    worked: list[int] = []
    run(output, lambda window: (worked.append(len(window)), *copied(window))[1:], resume=True)
    assert content(output) == WHOLE
    assert sum(worked) == len(RECORDS) - finished  # and nothing finished is done again
    assert sorted(os.listdir(tmp_path)) == [output.name, f"{output.name}.meta.json"]


def test_the_seconds_of_all_stretches_of_a_run_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock of its own: every record takes 2 s. Killed within the third window, and again within the fourth.
    now = 100.0
    monkeypatch.setattr(manifest.time, "monotonic", lambda: now)

    def slow(at: int) -> Callable[[list[dict[str, Any]]], Iterator[bytes]]:
        def work(window: list[dict[str, Any]]) -> Iterator[bytes]:
            nonlocal now
            for line in stopping_at(at)(window):
                now += 1  # two lines a record
                yield line

        return work

    for at, finished in ((25, 20), (34, 30)):
        with pytest.raises(Interrupted):
            run(tmp_path / "out", slow(at), resume=True)
        assert read_json(tmp_path / "out.part.json")["seconds"] == 2 * finished  # of what is done, and kept
        now += 1000  # in which nothing runs
    run(tmp_path / "out", slow(99), resume=True)
    assert read_json(tmp_path / "out.meta.json")["seconds"] == 2 * 35


@pytest.mark.parametrize("torn", [b"torn", b"torn" * 1000])
def test_output_flushed_after_the_last_journal_entry_is_dropped(tmp_path: Path, torn: bytes) -> None:
    interrupted(tmp_path / "out")
    with open(tmp_path / "out.part", "ab") as part:
        part.write(torn)  # a crash between the flush of a window and its entry in the journal
    run(tmp_path / "out", resume=True)
    assert content(tmp_path / "out") == WHOLE


def test_a_part_shorter_than_its_journal_is_refused_and_force_begins_again(tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    os.truncate(tmp_path / "out.part", 3)
    with pytest.raises(MismatchError, match=r"out\.part: is shorter than its journal says; `force` begins again"):
        run(tmp_path / "out", resume=True)
    run(tmp_path / "out", resume=True, force=True)
    assert content(tmp_path / "out") == WHOLE


def test_an_interrupted_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    with pytest.raises(DrtkError, match=r"holds 20 finished records .* `resume` continues from there, `force` begins"):
        run(tmp_path / "out")
    run(tmp_path / "out", force=True)
    assert content(tmp_path / "out") == WHOLE
    assert not (tmp_path / "out.part.json").exists()


def test_resuming_with_other_settings_is_refused_and_force_begins_again(tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    with pytest.raises(MismatchError, match=r"other settings or files \(depth\)"):
        run(tmp_path / "out", resume=True, settings={"depth": 4})
    run(tmp_path / "out", resume=True, force=True, settings={"depth": 4})
    assert content(tmp_path / "out") == WHOLE


def test_resuming_with_another_input_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    other = [*RECORDS[:5], {"_id": "changed"}, *RECORDS[6:]]
    with pytest.raises(MismatchError, match="was begun with another input"):
        run(tmp_path / "out", resume=True, records=other)
    assert (tmp_path / "out.part.json").exists()  # the first input may still be gone on with
    with pytest.raises(MismatchError, match="was begun with another input"):
        run(tmp_path / "out", resume=True, records=RECORDS[:15])  # ends before the place to go on from
    run(tmp_path / "out", resume=True, records=RECORDS)
    assert content(tmp_path / "out") == WHOLE


def test_a_file_named_by_a_setting_that_changed_is_another_input(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_bytes(b"1")
    settings = {"qrels": str(tmp_path / "qrels.tsv")}
    interrupted(tmp_path / "out", settings=settings)
    (tmp_path / "qrels.tsv").write_bytes(b"22")
    with pytest.raises(MismatchError, match=r"other settings or files \(.*qrels\.tsv\)"):
        run(tmp_path / "out", resume=True, settings=settings)
    run(tmp_path / "out", resume=True, force=True, settings=settings)
    assert content(tmp_path / "out") == WHOLE


def test_a_folder_replaced_during_a_run_is_recorded_as_it_was_at_the_beginning(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_bytes(b"{}")
    (model / "model.safetensors").write_bytes(b"old")
    before = manifest.folder_entry(model)

    def replacing(work: Callable[[list[dict[str, Any]]], Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        def replace(window: list[dict[str, Any]]) -> Iterable[bytes]:
            (model / "model.safetensors").write_bytes(b"new")
            return work(window)

        return replace

    settings = {"model": str(model)}
    run(tmp_path / "whole", replacing(copied), settings=settings)
    assert before in read_json(tmp_path / "whole.meta.json")["inputs"]
    assert not is_done(str(tmp_path / "whole"), settings, program="copy")
    (model / "model.safetensors").write_bytes(b"old")
    with pytest.raises(Interrupted):
        run(tmp_path / "out", replacing(stopping_at(25)), settings=settings)
    with pytest.raises(MismatchError, match=r"other settings or files \(.*model\)"):
        run(tmp_path / "out", resume=True, settings=settings)


def reading(made: FilterJob, source: Path) -> Iterator[dict[str, Any]]:
    return (orjson.loads(line) for _, line in made.intake.lines(str(source)))


def test_force_and_resume_go_on_with_an_unchanged_source_and_begin_again_with_a_changed_one(tmp_path: Path) -> None:
    source, worked = tmp_path / "in", []
    source.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in RECORDS))

    def count(window: list[dict[str, Any]]) -> Iterator[bytes]:
        worked.append(len(window))
        return copied(window)

    def attempt(work: Callable[..., Iterator[bytes]], **given: Any) -> None:
        made = job(tmp_path / "out", settings={"paths": [str(source)]}, **given)
        made.check()
        made.run(reading(made, source), work)

    with pytest.raises(Interrupted):
        attempt(stopping_at(25))
    attempt(count, resume=True, force=True)
    assert sum(worked) == 15
    worked.clear()
    with pytest.raises(Interrupted):
        attempt(stopping_at(25), force=True)
    source.write_bytes(source.read_bytes() + b'{"_id": "more"}\n')
    attempt(count, resume=True, force=True)
    assert sum(worked) == 36
    assert content(tmp_path / "out") == WHOLE + 2 * b'{"_id":"more"}\n'


def test_an_input_read_before_the_records_may_be_touched_but_not_changed(tmp_path: Path) -> None:
    judged = tmp_path / "qrels.tsv"
    judged.write_bytes(b"1\n")

    def attempt(work: Callable[..., Iterator[bytes]], **given: Any) -> None:
        made = job(tmp_path / "out", **given)
        made.check()
        assert len(list(made.intake.lines(str(judged)))) == 1
        made.run(RECORDS, work)

    with pytest.raises(Interrupted):
        attempt(stopping_at(25))
    os.utime(judged, ns=(1, 1))
    with pytest.raises(Interrupted):
        attempt(stopping_at(25), resume=True)
    judged.write_bytes(b"2\n")
    with pytest.raises(MismatchError, match=r"other settings or files \(.*qrels\.tsv\)"):
        attempt(copied, resume=True)


def test_a_crash_after_the_rename_leaves_a_journal_that_does_no_harm(tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    journal = (tmp_path / "out.part.json").read_bytes()
    run(tmp_path / "out", resume=True)
    (tmp_path / "out.part.json").write_bytes(journal)
    (tmp_path / "out.meta.json").unlink()
    with pytest.raises(DrtkError, match="exists already"):
        run(tmp_path / "out", resume=True)
    run(tmp_path / "out", resume=True, force=True)
    assert content(tmp_path / "out") == WHOLE
    assert sorted(os.listdir(tmp_path)) == ["out", "out.meta.json"]


def test_an_old_manifest_never_vouches_for_a_new_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "out")
    assert is_done(str(tmp_path / "out"), {"depth": 3})
    made = job(tmp_path / "out", settings={"depth": 4}, force=True)
    # Killed right after the rename:
    monkeypatch.setattr(FilterJob, "_log_summary", lambda *_: (_ for _ in ()).throw(Interrupted))
    with pytest.raises(Interrupted):
        made.run(RECORDS, copied)
    assert not is_done(str(tmp_path / "out"), {"depth": 3})


def test_a_journal_of_something_else_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "out.part.json").write_bytes(b'{"mine": 1}')
    with pytest.raises(DrtkError, match="is not the journal of an interrupted run"):
        run(tmp_path / "out")


def test_a_finished_output_is_replaced_only_with_force_and_only_when_the_new_one_is_whole(tmp_path: Path) -> None:
    run(tmp_path / "out", records=RECORDS[:1])
    old = content(tmp_path / "out")
    with pytest.raises(DrtkError, match="out: exists already; `force` replaces it"):
        run(tmp_path / "out")
    interrupted(tmp_path / "out", force=True)
    assert content(tmp_path / "out") == old
    run(tmp_path / "out", resume=True, force=True)
    assert content(tmp_path / "out") == WHOLE


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_no_records_give_an_empty_output_with_a_manifest(tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"out{suffix}"
    run(output, records=[])
    assert content(output) == b""
    assert read_json(Path(f"{output}.meta.json"))["counts"] == {"in": 0, "out": 0}


def test_a_stream_to_a_device_has_neither_part_nor_manifest_nor_anything_to_resume(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")  # should this fail, the link is replaced and not the device
    run(tmp_path / "null")
    assert os.listdir(tmp_path) == ["null"]
    assert (tmp_path / "null").is_symlink()
    for output in ("-", str(tmp_path / "null")):
        with pytest.raises(UsageError, match="`resume` needs a named output"):
            job(output, resume=True).check()


def test_what_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DrtkError, match="is a folder; expected a file"):
        job(tmp_path).check()
    with pytest.raises(DrtkError, match="there is no folder"):
        job(tmp_path / "none" / "out").check()


def test_a_second_pass_sees_all_lines_and_a_fault_in_it_costs_nothing_of_the_first(tmp_path: Path) -> None:
    worked: list[str] = []

    def pump(windows: Iterator[list[dict[str, Any]]]) -> Iterator[Done]:
        for window in windows:
            worked.extend(record["_id"] for record in window)
            yield Done(orjson.dumps(record) + b"\n" for record in window)

    def numbered(lines: Callable[[], Iterator[bytes]]) -> Iterator[Done]:
        total = sum(1 for _ in lines())
        for line in lines():
            yield Done([b"%d %s\n" % (total, line)], {"seen": 1})

    def failing(lines: Callable[[], Iterator[bytes]]) -> Iterator[Done]:
        for number, done in enumerate(numbered(lines)):
            if number == 12:
                raise Interrupted
            yield done

    for suffix in ("", ".gz"):
        output = tmp_path / f"out{suffix}"
        with pytest.raises(Interrupted):
            job(output).run_windows(iter(RECORDS), pump, revise=failing)
        assert sorted(item.name for item in tmp_path.glob(f"out{suffix}.*")) == [
            f"out{suffix}.part",
            f"out{suffix}.part.json",
        ]
        worked.clear()
        resumed = job(output, resume=True)
        resumed.run_windows(iter(RECORDS), pump, revise=numbered)
        assert worked == []
        assert content(output) == b"".join(b"35 " + orjson.dumps(record) + b"\n" for record in RECORDS)
        assert resumed.counts == {"seen": 35}
        assert sorted(item.name for item in tmp_path.glob(f"out{suffix}*")) == [
            f"out{suffix}",
            f"out{suffix}.meta.json",
        ]
        for item in tmp_path.iterdir():
            item.unlink()
