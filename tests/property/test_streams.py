"""Runs that are interrupted several times and resumed write the output of an uninterrupted run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drtk.runtime.filter_job import FilterJob
from drtk.runtime.streams import open_input, read_lines


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    count=st.integers(0, 60),
    batch_size=st.integers(1, 12),
    copies=st.integers(0, 3),
    stops=st.lists(st.integers(0, 60), max_size=4),
    suffix=st.sampled_from(["", ".gz", ".zst"]),
)
def test_interrupted_and_resumed_runs_give_the_uninterrupted_output(
    count: int, batch_size: int, copies: int, stops: list[int], suffix: str
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

            job = FilterJob("copy", "corpus", str(output), {}, resume=True, batch_size=batch_size)
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
