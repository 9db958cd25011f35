"""The one place where faults become exit codes, as a shell sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from drtk import __version__

RAISING = """
import sys
import typer
from drtk import errors
from drtk.cli import main
from drtk.cli.jobs import plain_command

@plain_command
def trip() -> None:
    "Trip."
    {body}

main.app.command("trip")(trip)
main.run()
"""


def tripping(body: str, *arguments: str, **given: object) -> subprocess.CompletedProcess[str]:
    """A process whose command `trip` does `body`."""
    program = RAISING.replace("{body}", textwrap.indent(textwrap.dedent(body), "    ").strip())
    command = [sys.executable, "-c", program, "trip", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **given)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("pass", 0, ""),
        ("raise errors.DrtkError('no')", 1, "drtk: no\n"),
        ("raise errors.RecordError('a.tsv:17', 'expected 3 columns')", 1, "drtk: a.tsv:17: expected 3 columns\n"),
        ("raise errors.UsageError('no')", 2, "drtk: no\n"),
        ("raise errors.OutputClosed('no')", 141, ""),
        ("raise BrokenPipeError(32, 'Broken pipe')", 141, ""),
        ("raise KeyboardInterrupt", 130, "drtk: interrupted\n"),
        ("open('/no/such/file')", 1, "drtk: /no/such/file: No such file or directory\n"),
        ("raise OSError(28, 'No space left on device')", 1, "drtk: No space left on device\n"),
        ("raise typer.Exit(3)", 3, ""),
    ],
)
def test_each_fault_has_its_status_and_its_line(body: str, status: int, told: str) -> None:
    found = tripping(body)
    assert (found.returncode, found.stderr) == (status, told)


@pytest.mark.parametrize("body", ["1 / 0", "raise EOFError", "raise OSError('no number')"])
def test_a_bug_shows_its_traceback(body: str) -> None:
    found = tripping(body)
    assert found.returncode == 1
    assert "Traceback" in found.stderr


def test_verbose_shows_the_traceback_of_a_fault_and_keeps_its_status() -> None:
    found = tripping("raise errors.UsageError('no')", "-v")
    assert found.returncode == 2
    assert "Traceback" in found.stderr
    assert found.stderr.endswith("drtk: no\n")


def test_a_plain_print_to_a_reader_that_went_away_is_141() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        found = tripping("sys.stdout.write('x' * 1_000_000)", stdout=closed)
        assert (found.returncode, found.stderr) == (141, "")
        found = tripping("sys.stdout.write('x')", stdout=closed)  # fails when flushed at the end
        assert (found.returncode, found.stderr) == (141, "")


def test_a_plain_print_to_a_full_disk_is_1_and_says_so() -> None:
    with open("/dev/full", "wb") as full:
        found = tripping("sys.stdout.write('x')", stdout=full)
    assert found.returncode == 1
    assert found.stderr.startswith("drtk: ")
    assert found.stderr.endswith("No space left on device\n")


def test_a_full_stderr_does_not_change_the_status() -> None:
    program = RAISING.replace("{body}", "raise errors.UsageError('no')")
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", program, "trip"]
        assert subprocess.run(command, stderr=full, check=False).returncode == 2


@pytest.mark.parametrize(("closed", "status"), [("<&-", 1), (">&-", 1), ("2>&-", 0), ("2>&- <&-", 1)])
def test_a_closed_standard_stream_is_a_fault_where_it_is_needed(closed: str, status: int) -> None:
    line = f'echo \'{{"_id": "a", "text": "b"}}\' | "{sys.executable}" -m drtk chunk --policy words --no-sentences {closed}'
    found = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert found.returncode == status
    assert (found.stdout != "") == (status == 0)
    if status and "2" not in closed:
        assert found.stderr.endswith(f"drtk: {'<stdin>' if '<' in closed else 'standard output'}: is closed\n")


def test_wrong_usage_with_stderr_closed_leaves_stdout_empty() -> None:
    line = f'"{sys.executable}" -m drtk chunk --no-such-option 2>&-'
    found = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")


@pytest.mark.parametrize("arguments", [["no-such-command"], ["chunk", "--no-such-option"], ["chunk", "a", "b"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    found = subprocess.run([sys.executable, "-m", "drtk", *arguments], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stdout == ""
    assert "Usage: drtk" in found.stderr


def test_the_version_is_printed() -> None:
    found = subprocess.run([sys.executable, "-m", "drtk", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout == f"drtk {__version__}\n"
