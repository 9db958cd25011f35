"""Shards of the input, and the variables of torchrun."""

import argparse
import os
import sys
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.runtime import sharding
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.sharding import (
    get_rank,
    get_world_size,
    is_distributed,
    parse_shard,
    sample_evenly,
    select_shard,
    start_torchrun,
)
from tests.run_commands import make_torchrun_variables


def test_a_shard_takes_every_nth_batch():
    # batches of 3 of 0 … 10: 0-2 3-5 6-8 9-10; of two parts the first has the first and the third
    assert list(select_shard(range(11), (1, 2), batch_size=3)) == [0, 1, 2, 6, 7, 8]
    assert list(select_shard(range(11), (2, 2), batch_size=3)) == [3, 4, 5, 9, 10]
    assert list(select_shard(range(11), (1, 1), batch_size=3)) == list(range(11))
    assert list(select_shard(range(3), (2, 2), batch_size=3)) == []


def test_samples_are_evenly_spaced():
    # 4 of 10: those at which 4(n + 1)/10 passes a whole number: 1.2, 2.0, 3.2, 4.0 at 2, 4, 7, 9
    assert list(sample_evenly(range(10), 4, total=10)) == [2, 4, 7, 9]
    assert list(sample_evenly(range(10), 99, total=10)) == list(range(10))
    for number in range(1, 31):
        sample = list(sample_evenly(range(30), number, total=30))
        assert len(sample) == number
        assert {after - before for before, after in pairwise(sample)} <= {30 // number, 30 // number + 1}
    assert list(sample_evenly([], 3, total=0)) == []


def test_stray_variables_of_torchrun_have_no_effect(tmp_path, monkeypatch):
    whole = make_torchrun_variables(rank=1, processes=2)
    needed = [name for name in whole if name != "LOCAL_WORLD_SIZE"]
    job = FolderJob("make", "model", str(tmp_path / "m"))
    job.begin()
    job.finish()
    for names in (chosen for size in range(1, 6) for chosen in combinations(needed, size)):
        with monkeypatch.context() as given:
            for name in needed:
                given.delenv(name, raising=False)
            for name in names:
                given.setenv(name, whole[name])
            assert is_distributed() == (len(names) == 5)
            assert (get_rank(), get_world_size()) == ((1, 2) if len(names) == 5 else (0, 1))
            if len(names) < 5:
                with pytest.raises(DrtkError, match="exists already"):
                    FolderJob("make", "model", str(tmp_path / "m")).check()
    for name, value in make_torchrun_variables(rank=0, processes=1).items():
        monkeypatch.setenv(name, value)
    assert not is_distributed()


@pytest.mark.parametrize("text", ["0/4", "5/4", "x", "1", "1/", "-1/2", "1/0", "1/2/3", "1/²"])
def test_malformed_shards_are_rejected(text):
    with pytest.raises(UsageError, match="is not of the form I/N"):
        parse_shard(text)


def copy(output: Path, count: int, *, torn: int | None = None, part: str = "2/3", **options: bool) -> FilterJob:
    """Write the numbers below `count` of a shard; reading fails at the number `torn`."""

    def numbers():
        for number in range(count):
            if number == torn:
                raise RecordError(f"in:{number}", "torn")
            yield number

    job = FilterJob("copy", "numbers", str(output), {"shard": part}, shard=parse_shard(part), batch_size=2, **options)
    job.check()
    job.run(numbers(), lambda batch: (b"%d\n" % number for number in batch))
    return job


def test_a_resumed_shard_equals_an_uninterrupted_one(tmp_path):
    with pytest.raises(RecordError):
        copy(tmp_path / "out", 20, torn=15)
    assert (tmp_path / "out.part").read_text().split() == ["2", "3", "8", "9"]
    with pytest.raises(MismatchError, match=r"other settings or files \(shard\)"):
        copy(tmp_path / "out", 20, part="3/3", resume=True)
    copy(tmp_path / "out", 20, resume=True)
    # batches of 2: the second of three begins at 2, 8 and 14
    assert (tmp_path / "out").read_text().split() == ["2", "3", "8", "9", "14", "15"]


def test_gpus_starts_the_command_again_under_torchrun(monkeypatch):
    launches: list[tuple[str, list[str], str]] = []

    def launch(options: argparse.Namespace) -> None:
        command = [options.training_script, *options.training_script_args]
        launches.append((options.nproc_per_node, command, os.environ["OMP_NUM_THREADS"]))

    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sharding, "count_cores", lambda: 7)
    monkeypatch.setattr("torch.distributed.run.run", launch)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(sys, "argv", ["drtk", "pretrain", "a.jsonl", "--gpus", "2"])
    with pytest.raises(SystemExit):
        start_torchrun(2)
    assert launches == [("2", ["drtk", "pretrain", "a.jsonl", "--gpus", "2"], "3")]
    with pytest.raises(DrtkError, match="`gpus` 3: 2 CUDA GPUs are available; use fewer"):
        start_torchrun(3)
    monkeypatch.setattr(sys, "argv", ["drtk", "train-retriever", "-", "--gpus", "2"])
    with pytest.raises(UsageError, match="several processes cannot share stdin"):
        start_torchrun(2)
    for name, value in make_torchrun_variables(rank=0, processes=2).items():
        monkeypatch.setenv(name, value)
    start_torchrun(2)  # in a process of torchrun
    assert len(launches) == 1
