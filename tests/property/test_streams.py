"""Round trips of streams with random lines, compression, frames and interruptions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drtk.errors import RecordError
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import GZIP, ZSTD, Output, digest_file, open_input, read_lines

suffixes = st.sampled_from(["", ".gz", ".zst"])
lines = st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"").rstrip(b"\r")), max_size=40)


@given(lines=lines, suffix=suffixes, frame=st.integers(1, 10))
def test_lines_round_trip(lines: list[bytes], suffix: str, frame: int) -> None:
    if lines and lines[0].startswith(b"\xef\xbb\xbf"):
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf") or b"x"  # would be read as a byte order mark
    if lines and not suffix and lines[0].startswith((GZIP, ZSTD)):
        lines[0] = b"x" + lines[0]  # would be detected as compressed
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"out{suffix}"
        with Output(str(path)) as output:
            for number, line in enumerate(lines, start=1):
                output.write(line + b"\n")
                if number % frame == 0:
                    output.end_frame()
        tracker = InputTracker()
        expected = list(
            enumerate(
                (line.removeprefix(b"\xef\xbb\xbf") if not number else line for number, line in enumerate(lines)), 1
            )
        )
        assert list(tracker.iter_lines(str(path))) == expected
        assert tracker.inputs[0]["digest"] == digest_file(path)


@given(
    data=st.binary(min_size=1, max_size=3000),
    suffix=st.sampled_from([".gz", ".zst"]),
    cut=st.floats(0, 1, exclude_max=True),
)
def test_a_truncated_compressed_file_is_an_error(data: bytes, suffix: str, cut: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"out{suffix}"
        with Output(str(path)) as output:
            output.write(data)
        whole = path.read_bytes()
        length = int(len(whole) * cut)
        if length < 4:  # too short to be detected as compressed
            return
        path.write_bytes(whole[:length])
        with pytest.raises(RecordError):
            list(read_lines(open_input(str(path))[0], "out"))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    count=st.integers(0, 60),
    window=st.integers(1, 12),
    copies=st.integers(0, 3),
    stops=st.lists(st.integers(0, 60), max_size=4),
    suffix=suffixes,
)
def test_interrupted_and_resumed_runs_give_the_uninterrupted_output(
    count: int, window: int, copies: int, stops: list[int], suffix: str
) -> None:
    records = [{"_id": f"d{number}"} for number in range(count)]
    expected = b"".join(orjson.dumps(record) + b"\n" for record in records for _ in range(copies))

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / f"out{suffix}"

        def attempt(stop: int | None) -> None:
            def work(batch: list[dict[str, str]]) -> Iterator[bytes]:
                for record in batch:
                    if record["_id"] == f"d{stop}":
                        raise InterruptedError
                    yield from [orjson.dumps(record) + b"\n"] * copies

            job = FilterJob("copy", "corpus", str(output), {}, resume=True, window=window)
            job.check()
            job.run(records, work)

        for stop in [*stops, None]:
            if output.exists():
                break
            try:
                attempt(stop)
            except InterruptedError:
                continue
        assert b"".join(line + b"\n" for _, line in read_lines(open_input(str(output))[0], "out")) == expected
        assert sorted(path.name for path in Path(folder).iterdir()) == [output.name, f"{output.name}.meta.json"]
