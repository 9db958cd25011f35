"""Log messages and progress bars on stderr."""

import gzip
import io
import logging
import sys
import time
from collections.abc import Iterator

import pytest

from drtk.data.runs import get_query_id
from drtk.runtime import streams
from drtk.runtime.progress import Progress, log, log_detail, name_options, set_verbosity, warn
from drtk.runtime.streams import count_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _level_as_before() -> Iterator[None]:
    logger = logging.getLogger("drtk")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield
    logger.level, logger.propagate, logger.handlers = before
    logger._cache.clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("quiet", "verbose", "messages"),
    [(False, False, ["seen", "warned"]), (True, False, ["warned"]), (False, True, ["seen", "more", "warned"])],
)
def test_quiet_keeps_warnings_and_verbose_adds_detail(capfd, quiet, verbose, messages):
    set_verbosity(quiet=quiet, verbose=verbose)
    log("seen"), log_detail("more"), warn("warned")
    actual = capfd.readouterr()
    assert actual.err.splitlines() == [f"drtk: {message}" for message in messages]
    assert actual.out == ""


def test_without_a_terminal_there_is_a_plain_line_every_thirty_seconds(capfd, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    set_verbosity(quiet=False, verbose=False)
    with Progress("chunk", total=200, unit="documents", initial=100) as bar:
        for second in range(1, 91):
            now[0] = float(second)
            bar.add()
    # 30, 60 and 90 documents in as many seconds, after the 100 that were there: 1 a second
    assert capfd.readouterr().err.splitlines() == [
        f"drtk: chunk: {done} of 200 documents, 1.0/s, 0:0{left} left"
        for done, left in ((130, "1:10"), (160, "0:40"), (190, "0:10"))
    ]


def test_lines_of_jsonl_files_are_counted_unless_it_takes_long(tmp_path, monkeypatch):
    for name in ("corpus.jsonl", "run.trec"):
        (tmp_path / name).write_bytes(b"{}\n" * 7)
    packed = gzip.compress(b"{}\n" * 7)
    (tmp_path / "corpus.jsonl.gz").write_bytes(packed)
    (tmp_path / "damaged.jsonl.gz").write_bytes(packed[:-9])
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        assert count_lines(str(tmp_path / name)) == 7
        assert count_lines(str(tmp_path / name), shards=2) == 3
    assert [count_lines(str(tmp_path / name)) for name in ("run.trec", "damaged.jsonl.gz", "none.jsonl")] == [None] * 3
    assert count_lines("-") is None
    (tmp_path / "run.trec").write_bytes(b"q1 Q0 a 1 2 t\nq1 Q0 b 2 1 t\n\nq2 Q0 a 1 2 t\n")
    (tmp_path / "run.parquet").write_bytes(b"PAR1\xff\xfe\n")
    assert count_lines(str(tmp_path / "run.trec"), group=get_query_id) == 2
    assert count_lines(str(tmp_path / "run.parquet"), group=get_query_id) is None
    monkeypatch.setattr(streams, "MAX_COUNTED_BYTES", 10)
    assert count_lines(str(tmp_path / "corpus.jsonl.gz")) is None


def test_a_terminal_gets_a_bar_with_messages_above_it(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    set_verbosity(quiet=False, verbose=False)
    with Progress("chunk", total=10) as bar:
        bar.add(3)
        log("a message")
    shown = terminal.getvalue()
    assert "chunk" in shown
    assert "drtk: a message\n" in shown.replace("\r", "\n")


def test_a_closed_or_missing_stderr_is_ignored(monkeypatch):
    set_verbosity(quiet=False, verbose=False)
    closed = io.StringIO()
    closed.close()
    for stderr in (closed, None):
        monkeypatch.setattr(sys, "stderr", stderr)
        log("nobody hears this")
    with Progress("chunk") as bar:
        bar.add()
    assert bar.done == 1


def test_fields_in_backquotes_are_printed_as_options(monkeypatch):
    message = "`max_rank=5` is above `depth`; see `drtk doctor`"
    monkeypatch.setattr("drtk.runtime.progress.OPTION_NAMES", {})
    assert name_options(message) == "--max-rank 5 is above --depth; see `drtk doctor`"
    monkeypatch.setattr("drtk.runtime.progress.OPTION_NAMES", {"max_rank": "--set max_rank"})
    assert name_options(message) == "--set max_rank=5 is above --depth; see `drtk doctor`"
