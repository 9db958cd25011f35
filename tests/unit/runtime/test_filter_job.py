"""Filters: resuming, replacing outputs, counts and manifests."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime import manifest
from drtk.runtime.filter_job import FilterJob, Journal
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import is_current
from drtk.runtime.streams import open_input, read_lines

BATCH_SIZE = 10
RECORDS = [{"_id": f"d{number}", "text": "x" * (number % 7)} for number in range(35)]  # three batches and a half


Work = Callable[[list[dict[str, Any]]], Iterable[bytes]]


class Interrupted(Exception):
    pass


def copy(batch: list[dict[str, Any]], stop: str = "") -> Iterator[bytes]:
    """Yield two lines per record, so that a torn batch shows; raise at the record `stop`."""
    for record in batch:
        if record["_id"] == stop:
            raise Interrupted
        yield from [orjson.dumps(record) + b"\n"] * 2


def stop_at(count: int) -> Work:
    return lambda batch: copy(batch, f"d{count}")


def job(output: Path | str, **given: Any) -> FilterJob:
    return FilterJob("copy", "corpus", str(output), given.pop("settings", {"depth": 3}), batch_size=BATCH_SIZE, **given)


def run(output: Path, work: Work = copy, records: Iterable[dict[str, Any]] = RECORDS, **given: Any) -> None:
    made = job(output, **given)
    made.check()
    made.run(records, work)


def interrupt(output: Path, *, at: int = 25, **given: Any) -> None:
    with pytest.raises(Interrupted):
        run(output, stop_at(at), **given)


def content(path: Path) -> bytes:
    return b"".join(line + b"\n" for _, line in read_lines(open_input(str(path))[0], "x"))


WHOLE = b"".join(copy(RECORDS))


@pytest.mark.parametrize(("suffix", "at"), [("", 9), ("", 10), ("", 34), (".gz", 25), (".zst", 11)])
def test_interrupted_then_resumed_equals_uninterrupted(tmp_path, suffix, at):
    output = tmp_path / f"out{suffix}"
    interrupt(output, at=at)
    assert not output.exists()
    finished = at // BATCH_SIZE * BATCH_SIZE
    journal = Journal.load(Path(f"{output}.part.json"))
    assert (journal.records if journal else 0) == finished  # the unfinished batch is dropped
    assert Path(f"{output}.part").exists() == (finished > 0)
    if finished:
        with open(f"{output}.part", "ab") as part:
            part.write(b"torn" * 1000)  # a crash between the flush of a batch and its entry in the journal
    worked: list[int] = []
    run(output, lambda batch: (worked.append(len(batch)), *copy(batch))[1:], resume=True)
    assert content(output) == WHOLE
    assert sum(worked) == len(RECORDS) - finished  # and nothing finished is done again
    assert sorted(os.listdir(tmp_path)) == [output.name, f"{output.name}.meta.json"]


def test_the_durations_of_all_starts_of_a_run_are_added(tmp_path, monkeypatch):
    # Every record takes 2 s. The run is killed in the third batch, and again in the fourth.
    now = 100.0
    monkeypatch.setattr(manifest.time, "monotonic", lambda: now)

    def slow(at: int) -> Work:
        def work(batch: list[dict[str, Any]]) -> Iterator[bytes]:
            nonlocal now
            for line in copy(batch, f"d{at}"):
                now += 1  # two lines per record
                yield line

        return work

    for at, finished in ((25, 20), (34, 30)):
        with pytest.raises(Interrupted):
            run(tmp_path / "out", slow(at), resume=True)
        assert read_json(tmp_path / "out.part.json")["seconds"] == 2 * finished  # of finished batches only
        now += 1000  # no run in this time
    run(tmp_path / "out", slow(99), resume=True)
    assert read_json(tmp_path / "out.meta.json")["seconds"] == 2 * 35


@pytest.mark.parametrize(
    "problem",
    ["is truncated .*", r"settings or files \(depth\)", r"settings or files \(width\)", r"files \(.*qrels\.tsv\)"],
)
def test_resuming_with_another_part_setting_or_file_is_rejected_and_force_starts_over(tmp_path, problem):
    qrels = tmp_path / "qrels.tsv"
    qrels.write_bytes(b"1")
    settings = {"depth": 3, "qrels": str(qrels)}
    interrupt(tmp_path / "out", settings=settings)
    if problem == "is truncated .*":
        os.truncate(tmp_path / "out.part", 3)
    elif "depth" in problem:
        settings["depth"] = 4
    elif "width" in problem:
        settings["width"] = 1  # not among the settings of the interrupted run
    else:
        qrels.write_bytes(b"22")
    with pytest.raises(MismatchError, match=rf"out\.part: .*{problem}; use `force` to start over"):
        run(tmp_path / "out", resume=True, settings=settings)
    run(tmp_path / "out", resume=True, force=True, settings=settings)
    assert content(tmp_path / "out") == WHOLE


def test_resuming_with_another_input_is_rejected(tmp_path):
    interrupt(tmp_path / "out")
    for other in ([*RECORDS[:5], {"_id": "changed"}, *RECORDS[6:]], RECORDS[:15]):  # one record changed; too few
        with pytest.raises(MismatchError, match="started with another input"):
            run(tmp_path / "out", resume=True, records=other)
        assert (tmp_path / "out.part.json").exists()  # the run with the first input can still resume
    run(tmp_path / "out", resume=True, records=RECORDS)
    assert content(tmp_path / "out") == WHOLE


def test_a_folder_replaced_during_a_run_is_recorded_as_it_was_at_the_beginning(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_bytes(b"{}")
    (model / "model.safetensors").write_bytes(b"old")
    before, settings = manifest.describe_folder(model), {"model": str(model)}

    def make_replacer(stop: str) -> Work:
        return lambda batch: (model / "model.safetensors").write_bytes(b"new") and copy(batch, stop)

    run(tmp_path / "whole", make_replacer(""), settings=settings)
    assert before in read_json(tmp_path / "whole.meta.json")["inputs"]
    assert not is_current(str(tmp_path / "whole"), settings, program="copy")
    (model / "model.safetensors").write_bytes(b"old")
    with pytest.raises(Interrupted):
        run(tmp_path / "out", make_replacer("d25"), settings=settings)
    with pytest.raises(MismatchError, match=r"other settings or files \(.*model\)"):
        run(tmp_path / "out", resume=True, settings=settings)


def test_with_force_and_resume_an_unchanged_source_resumes_and_a_changed_one_begins_again(tmp_path):
    source, worked = tmp_path / "in", []
    source.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in RECORDS))

    def count(batch: list[dict[str, Any]]) -> Iterator[bytes]:
        worked.append(len(batch))
        return copy(batch)

    def attempt(work: Work, **given: Any) -> None:
        made = job(tmp_path / "out", settings={"paths": [str(source)]}, **given)
        made.check()
        made.run((orjson.loads(line) for _, line in made.tracker.iter_lines(str(source))), work)

    with pytest.raises(Interrupted):
        attempt(stop_at(25))
    attempt(count, resume=True, force=True)
    assert sum(worked) == 15
    worked.clear()
    with pytest.raises(Interrupted):
        attempt(stop_at(25), force=True)
    source.write_bytes(source.read_bytes() + b'{"_id": "more"}\n')
    attempt(count, resume=True, force=True)
    assert sum(worked) == 36
    assert content(tmp_path / "out") == WHOLE + 2 * b'{"_id":"more"}\n'


def test_an_input_read_before_the_records_may_be_touched_but_not_changed(tmp_path):
    judged = tmp_path / "qrels.tsv"
    judged.write_bytes(b"1\n")

    def attempt(work: Work, **given: Any) -> None:
        made = job(tmp_path / "out", **given)
        made.check()
        assert len(list(made.tracker.iter_lines(str(judged)))) == 1
        made.run(RECORDS, work)

    with pytest.raises(Interrupted):
        attempt(stop_at(25))
    os.utime(judged, ns=(1, 1))
    with pytest.raises(Interrupted):
        attempt(stop_at(25), resume=True)
    judged.write_bytes(b"2\n")
    with pytest.raises(MismatchError, match=r"other settings or files \(.*qrels\.tsv\)"):
        attempt(copy, resume=True)


def test_a_finished_output_is_replaced_only_with_force_and_by_a_finished_one(tmp_path):
    run(tmp_path / "out", records=RECORDS[:1])
    old = content(tmp_path / "out")
    with pytest.raises(DrtkError, match="out: exists already; `force` replaces it"):
        run(tmp_path / "out")
    modified = (tmp_path / "out").stat().st_mtime_ns
    interrupt(tmp_path / "out", force=True)
    assert content(tmp_path / "out") == old
    (tmp_path / "out").write_bytes(b"precious")
    with pytest.raises(DrtkError, match="out: exists already; `force` replaces it"):
        run(tmp_path / "out", resume=True)
    (tmp_path / "out").write_bytes(old)
    os.utime(tmp_path / "out", ns=(modified, modified))
    run(tmp_path / "out", resume=True)
    assert content(tmp_path / "out") == WHOLE


def test_a_device_gets_neither_part_nor_manifest_and_cannot_resume(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")  # if this fails, the link is replaced and not the device
    run(tmp_path / "null")
    assert os.listdir(tmp_path) == ["null"]
    assert (tmp_path / "null").is_symlink()
    for output in ("-", str(tmp_path / "null")):
        with pytest.raises(UsageError, match="`resume` requires a file name"):
            job(output, resume=True).check()


def test_unusable_outputs_and_journals_are_rejected(tmp_path):
    (tmp_path / "out.part.json").write_bytes(b'{"mine": 1}')
    (tmp_path / "cut.part.json").write_bytes(b'{"mine')
    for output, problem in (
        (tmp_path, "is a folder; expected a file"),
        (tmp_path / "none" / "out", "does not exist; create it"),
        (tmp_path / "out", "not the journal of an interrupted run"),
        (tmp_path / "cut", "not the journal of an interrupted run"),
    ):
        with pytest.raises(DrtkError, match=problem):
            job(output).check()


def test_a_useless_output_is_an_error_and_removed(tmp_path):
    with pytest.raises(DrtkError, match="70 lines are useless"):
        run(tmp_path / "out", find_problem=lambda lines: f"{lines} lines are useless")
    assert os.listdir(tmp_path) == []
