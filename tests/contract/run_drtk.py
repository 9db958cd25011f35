"""Run drtk in this process, or as a separate process."""

import io
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from drtk.cli import main


@dataclass(frozen=True)
class Outcome:
    status: int
    out: bytes
    err: str


def run_in_process(*arguments: str, stdin: bytes = b"") -> Outcome:
    """Run `drtk ARGUMENTS` in this process through its entry point. Exceptions that are bugs reach the test."""
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        source.write(stdin)
        source.seek(0)
        stderr = io.StringIO()
        sys.argv = ["drtk", *arguments]
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(source), io.TextIOWrapper(target), stderr
        status: object = None
        try:
            main.run()
        except SystemExit as exit:
            status = exit.code
        finally:
            sys.stdin.detach()
            sys.stdout.flush()
            sys.stdout.detach()
            sys.argv, sys.stdin, sys.stdout, sys.stderr = before
        target.seek(0)
        assert isinstance(status, int)
        return Outcome(status, target.read(), stderr.getvalue())


def run_successfully(*arguments: str, stdin: bytes = b"") -> Outcome:
    """Run `drtk ARGUMENTS` in this process; fail unless the exit status is 0."""
    outcome = run_in_process(*arguments, stdin=stdin)
    assert outcome.status == 0, outcome.err
    return outcome


def build_command(*arguments: str) -> list[str]:
    """Return the command line of a process."""
    return [sys.executable, "-m", "drtk", *arguments]


def make_environment() -> dict[str, str]:
    """Return the environment of processes, in which drtk is the checkout's."""
    root = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}


def run_shell(*arguments: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `sh ARGUMENTS` in the folder of the fixture `workplace`.

    settings: environment variables
    """
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = make_environment() | {"PATH": path} | settings
    return subprocess.run(["sh", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
