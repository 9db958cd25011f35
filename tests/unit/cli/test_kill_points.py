"""Kill a filter and a folder command before each of their calls that change files; the next command must recover.

tests/contract/test_kill_points.py does the same to real commands.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from drtk.cli.decorators import filter_command, folder_command
from drtk.data.embeddings import ShardWriter, digest_records
from drtk.errors import DrtkError
from drtk.runtime import filter_job as filtering
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from tests.contract.forkserver import die_at
from tests.contract.run_drtk import make_environment
from tests.run_commands import read_files

REJECTED = re.compile("exists already; `force` replaces it|contains an interrupted run; use `")


def read(source: str, job: FilterJob | FolderJob) -> list[str]:
    return [line.decode() for _, line in job.tracker.iter_lines(source)]


@filter_command("corpus")
def copy(source: str, output: str = "-", times: int = 1, *, job: FilterJob) -> None:
    job.batch_size = 2
    job.run(read(source, job), lambda batch: [f"{line}\n".encode() * times for line in batch])


@folder_command("embeddings", resume=True)
def shelve(source: str, output: str, times: int = 1, *, job: FolderJob) -> None:
    lines = read(source, job)
    writer = ShardWriter(job.begin(), dimension=2, dtype="float32")
    for number, line in enumerate(lines):
        digest = digest_records([line])
        if not writer.is_finished(number, digest):
            writer.write([line], np.full((1, 2), times), digest=digest)
    job.counts["rows"] = writer.num_rows
    job.finish(shards=writer.entries, dimension=2)


@folder_command("index")
def index(source: str, output: str, times: int = 1, *, job: FolderJob) -> None:
    lines = read(source, job)
    folder = job.begin()
    (folder / "parts").mkdir()
    for line in lines:
        (folder / "parts" / line).write_text(line * times)
    job.finish()


def run(function: Callable[..., Any], folder: Path, *flags: str, times: int = 1) -> None:
    common = dict.fromkeys(function.common_flags, False) | {"skip_bad": 0}  # type: ignore[attr-defined]
    os.chdir(folder)
    function(source="in", output="out", times=times, **common | dict.fromkeys(flags, True))


def is_killed_at(number: int, act: Callable[[], None]) -> bool:
    """Run `act` in a fork that is killed before its `number`-th call; return False if it made fewer calls."""
    child = os.fork()
    if child == 0:
        die_at(number)
        act()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def recover_from_every_kill(name: str, home: Path) -> None:
    """Kill a command at each call, for a new and for an existing output; run it again with several flags."""
    function, content = COMMANDS[name]
    for over in (False, True):
        place = home / f"over-{over}"
        begin, killed, again = place / "begin", place / "killed", place / "again"
        begin.mkdir(parents=True)
        (begin / "in").write_bytes(content)
        if over:
            run(function, begin, times=2)
        old = read_files(begin)
        shutil.copytree(begin, again)
        run(function, again, "force")
        whole = read_files(again)
        shutil.rmtree(again)
        resume = [flag for flag in ("resume",) if flag in function.common_flags]
        for number in count(1):
            shutil.copytree(begin, killed)
            if not is_killed_at(number, lambda: run(function, killed, *["force"] * over)):  # noqa: B023
                break
            found = read_files(killed)
            if found.get("out") != old.get("out"):  # replaced, so its old manifest must be gone
                assert found.get("out.meta.json") in (None, whole["out.meta.json"]), f"killed before call {number}"
            for flags in (resume, ["force"], ["skip_done", *resume, "force"]):
                shutil.copytree(killed, again)
                rejected, where = "", f"killed before call {number}, then {flags}"
                try:
                    run(function, again, *flags)
                except DrtkError as error:
                    rejected = str(error)
                found = read_files(again)
                if rejected:
                    assert "force" not in flags, f"{where}: {rejected}"
                    assert REJECTED.search(rejected), f"{where}: {rejected}"
                    left = {name for name in found if name.startswith("out.part")}
                    assert {name: found[name] for name in found.keys() - left} in (whole, old), where
                    assert not left & {"out.part/meta.json", "out.part.meta.json"}, where
                    assert not resume or not left & {"out.part.json", "out.part/meta.json.part"}, where
                else:
                    assert found == whole, where
                shutil.rmtree(again)
            shutil.rmtree(killed)
        assert number > 15  # enough calls are counted


COMMANDS = {"copy": (copy, b"a\nb\nc\n"), "shelve": (shelve, b"a\nb\n"), "index": (index, b"a\nb\n")}  # and the input


def test_a_kill_at_any_call_is_recovered_from(tmp_path):
    # In a process of its own: forks of this one, which may have imported torch, are slow.
    command = [sys.executable, "-m", __spec__.name]
    actual = subprocess.run(command, cwd=tmp_path, env=make_environment(), capture_output=True, text=True)
    assert actual.returncode == 0, actual.stderr


if __name__ == "__main__":
    os.fsync = lambda handle: None
    filtering.JOURNAL_EVERY = 0.0
    for place in [Path.cwd() / name for name in COMMANDS]:
        recover_from_every_kill(place.name, place)
