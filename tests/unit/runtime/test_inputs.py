"""Inputs: manifest entries, streams that are read twice, and skipped records."""

import hashlib
import io
import sys
from pathlib import Path

import pytest
import zstandard

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import find_inputs, is_unchanged
from drtk.runtime.streams import digest_file
from tests.run_commands import open_pipe


def make_stdin(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]


def test_the_digest_of_an_input_is_recorded_after_its_last_line(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"one\ntwo\n"))
    facts, partly, tracker = path.stat(), InputTracker(), InputTracker()
    assert next(partly.iter_lines(str(path))) == (1, b"one")
    assert [(entry["bytes"], entry["digest"]) for entry in partly.inputs] == [(facts.st_size, None)]
    assert list(tracker.iter_lines(str(path))) == [(1, b"one"), (2, b"two")]
    entry = {"path": str(path), "bytes": facts.st_size, "digest": digest_file(path), "mtime_ns": facts.st_mtime_ns}
    assert tracker.inputs == [entry]


def test_a_pipe_is_recorded_like_stdin_and_can_be_only_one_input():
    tracker = InputTracker()
    with open_pipe(b"one\ntwo\n") as pipe:
        assert tracker.peek(pipe).startswith(b"one\n")
        assert [line for _, line in tracker.iter_lines(pipe)] == [b"one", b"two"]
        digest = hashlib.blake2b(b"one\ntwo\n", digest_size=16).hexdigest()
        assert tracker.inputs == [{"path": pipe, "bytes": 8, "digest": digest}]
        assert not is_unchanged(tracker.inputs[0])
        assert find_inputs({"with": [pipe]}) == []
        with pytest.raises(UsageError, match=f"{pipe} can be read only once"):
            next(tracker.iter_lines(pipe))


def test_a_closed_stdin_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DrtkError, match="standard input is closed"):
        next(InputTracker().iter_lines("-"))


def test_blocks_are_the_bytes_and_their_errors_have_a_line(tmp_path):
    path = tmp_path / "a"
    whole = zstandard.ZstdCompressor().compress(b"one\n" * 100_000)
    path.write_bytes(whole)
    tracker = InputTracker()
    assert b"".join(tracker.iter_blocks(str(path), size=1000)) == b"one\n" * 100_000
    assert tracker.inputs[0]["digest"] == digest_file(path)
    path.write_bytes(whole[:-4])
    with pytest.raises(RecordError, match=r"a:\d+: compressed data ends early"):
        list(InputTracker().iter_blocks(str(path)))


def test_bad_records_are_skipped_up_to_the_limit():
    tracker = InputTracker(skip_bad=2)
    for number in (1, 2):
        tracker.skip_or_raise(RecordError(f"a:{number}", "not JSON"))
    assert tracker.bad == 2
    with pytest.raises(RecordError, match="a:3: not JSON"):
        tracker.skip_or_raise(RecordError("a:3", "not JSON"))
    assert tracker.bad == 2


@pytest.mark.parametrize("packed", [False, True])
def test_a_peeked_stream_is_copied_completely_and_can_be_read_again(monkeypatch, packed):
    content = b"one\ntwo\n" * 5000
    monkeypatch.setattr(sys, "stdin", make_stdin(zstandard.ZstdCompressor().compress(content) if packed else content))
    tracker = InputTracker()
    assert tracker.peek("-").startswith(b"one\ntwo")
    with pytest.raises(UsageError, match="stdin cannot be given for two inputs"):
        tracker.copy_streams("-", "-")
    tracker.copy_streams("a file", "-")
    for _ in range(2):
        assert [line for _, line in tracker.iter_lines("-")] == [b"one", b"two"] * 5000
    (entry,) = tracker.inputs
    assert (entry["path"], entry["bytes"]) == ("-", len(content))
    assert entry["digest"]
    copy = Path(tracker.copies["-"])
    del tracker
    assert not copy.exists()
