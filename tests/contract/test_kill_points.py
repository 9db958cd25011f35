"""Kill commands before each of their calls that change files; the next command must resume or clean up.

tests/unit/cli/test_kill_points.py does the same to a small filter and a small folder command that load no libraries.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.collection import make_documents
from tests.contract.forkserver import DIE_AT, Forkserver
from tests.run_commands import read_files

SIGKILLED = 128 + 9
REJECTED = re.compile(r"exists already; (--force|`force`) replaces it|contains an interrupted run; use (--|`)")
FINISHED = re.compile(r"\.part[./]meta\.json$")  # the manifest of a finished part
RESUMABLE = re.compile(r"^out\.part(\.json|/meta\.json\.part)$")  # of the main output


@dataclass(frozen=True)
class Killed:
    """A command line to kill. {NAME} is an entry of the collection; `in` contains documents, `out` is the output.

    other: options of the existing output, which is replaced
    resumes: whether the command has --resume
    every: kill before every n-th call only
    """

    arguments: str
    other: str
    resumes: bool = True
    every: int = 1


KILLED = {
    "filter": Killed("chunk in --max-words 30 --set punkt_mb=0.01 -o out", "--max-words 20"),
    "vectors": Killed("index {vectors} --type flat -o out", "--type exact", resumes=False),
    "words": Killed("index in --type bm25s -o out", "--stemmer none", resumes=False),
    "encode": Killed("encode in --model {model} --set shard_size=30 -o out", "--set shard_size=40"),
    "rerank": Killed(
        "rerank {first.run} --corpus {documents.jsonl} --queries {queries.jsonl} --model {crossencoder} --max-length 16 "
        "--depth 2 --save-vectors vectors -o out",
        "--depth 1",
    ),
    "train": Killed(
        "train-retriever {examples.jsonl} --corpus {documents.jsonl} --queries {queries.jsonl} --model {model} --max-steps 2 "
        "--set save_steps=1 --batch-size 4 --negatives 1 --device cpu -o out",
        "--seed 2",
        every=10,
    ),
}


@dataclass
class Runs:
    """Run one command in copies of a folder."""

    arguments: list[str]
    forkserver: Forkserver
    place: Path

    def __call__(self, folder: Path, *more: str, **variables: object) -> int:
        running = self.forkserver.start([*self.arguments, *more], folder, self.place / "log", **variables)
        status = running.status()
        assert status is not None
        return status

    @property
    def log(self) -> str:
        return (self.place / "log").read_text()

    def iter_killed(self, begin: Path, flags: list[str], *, every: int = 1) -> Iterator[tuple[int, Path]]:
        """Yield copies of `begin` in which the command was killed before its first call, its second, and so on.

        every: interval of these calls
        """
        number = 1
        while True:
            folder = self.place / "killed"
            shutil.copytree(begin, folder)
            status = self(folder, *flags, **{DIE_AT: number})
            assert status in (0, SIGKILLED), self.log
            if status == 0:
                assert number > 15  # enough calls are counted
                return
            yield number, folder
            shutil.rmtree(folder)
            number += every


@pytest.mark.slow
@pytest.mark.parametrize("over", [False, True], ids=["new", "replacing"])
@pytest.mark.parametrize("name", KILLED)
def test_killed_at_every_call(name, over, collection, forkserver, tmp_path):
    call, place = KILLED[name], tmp_path
    begin = place / "begin"
    begin.mkdir()
    (begin / "in").write_bytes(make_documents(100))
    arguments = re.sub(r"\{(.+?)\}", lambda part: str(collection[part[1]]), call.arguments).split()
    run = Runs(arguments, forkserver, place)
    if over:
        assert Runs([*arguments, *call.other.split()], forkserver, place)(begin) == 0
    old = read_files(begin)
    shutil.copytree(begin, place / "whole")
    assert run(place / "whole", "--force") == 0, run.log
    whole = read_files(place / "whole")
    assert whole != old
    resume = ["--resume"] * call.resumes
    for number, folder in run.iter_killed(begin, ["--force"] * over, every=call.every):
        for flags in (resume, ["--force"], ["--skip-done", *resume, "--force"]):
            shutil.copytree(folder, place / "again")
            status = run(place / "again", *flags)
            where = f"killed before call {number}, then {flags}: {run.log}"
            files = read_files(place / "again")
            if status == 1 and "--force" not in flags and REJECTED.search(run.log):
                left = {name for name in files if ".part" in name}
                assert {name: files[name] for name in files.keys() - left} in (whole, old), where
                # Without --resume a finished part waits for --force, which may replace the old output.
                assert not resume or not any(FINISHED.search(name) or RESUMABLE.search(name) for name in left), where
            else:
                assert status == 0, where
                assert files == whole, where
            shutil.rmtree(place / "again")
