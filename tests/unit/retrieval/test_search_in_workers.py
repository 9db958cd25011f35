"""Searching index shards in workers: the run of a search in one process, byte by byte, and its errors."""

import multiprocessing
import os
import signal
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.config import SearchSettings
from drtk.records import parse_document_id
from drtk.retrieval.search import IndexGroup, RankingOptions, iter_rankings
from drtk.runtime.runners import BatchFunction, RunnerSettings
from drtk.runtime.worker_groups import _split_evenly, open_worker_group
from tests.embedding_folders import write_embeddings
from tests.expansion_collection import write_rows
from tests.run_commands import run_command

PROCESSES = ["--runner", "processes", "--set", "runner_workers=2", "--batch-size", "3"]  # three shards, three batches
WORDS = ["red", "blue", "green"]


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Change to a folder with the corpora and embeddings of three shards of 7, 7 and 6 passages, many of them equal."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    ids = [f"d{number}#0" for number in range(20)]
    vectors = random.integers(-1, 2, (20, 3))
    for shard in range(3):
        texts = [{"_id": id, "text": f"{WORDS[number % 3]} wing"} for number, id in enumerate(ids)]
        write_rows(Path(f"corpus{shard}"), texts[shard::3])
        write_embeddings(Path(f"vectors{shard}"), vectors[shard::3], ids[shard::3])
    write_rows(Path("queries.jsonl"), [{"_id": f"q{n}", "text": f"wing {WORDS[n % 3]}"} for n in range(8)])
    write_embeddings(Path("queries"), random.integers(-1, 2, (8, 3)), [f"q{n}" for n in range(8)], role="query")
    return tmp_path


def build(capfd, kind):
    """Index the shards; return the arguments that search them."""
    source, queries = ("vectors", "queries") if kind == "exact" else ("corpus", "queries.jsonl")
    for shard in range(3):
        run_command(capfd, "index", f"{source}{shard}", "--type", kind, "-o", f"index{shard}", "-q")
    return ["search", "index0", "index1", "index2", queries, "-k", "12", "-q"]


def test_workers_rank_as_one_process(shards, capfd):
    folders = build(capfd, "bm25s")[1:4]
    local = IndexGroup(folders, SearchSettings())
    texts = [f"wing {word}" for word in WORDS]
    with closing(IndexGroup(folders, SearchSettings(), RunnerSettings("processes", runner_workers=2))) as group:
        for k in (5, 12, 50):  # all scores are tied; a shard has 7 passages
            assert group.search(texts, k) == local.search(texts, k), k
        options = RankingOptions(5, parse_document_id)  # searches deeper
        assert [*iter_rankings(group, WORDS, texts, options)] == [*iter_rankings(local, WORDS, texts, options)]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kind", ["bm25s", pytest.param("exact", marks=pytest.mark.slow)])
def test_processes_write_the_run_of_one_process(shards, capfd, kind):
    call = build(capfd, kind)
    run = run_command(capfd, *call)
    assert run.count("\n") == 8 * 12
    assert run_command(capfd, *call, *PROCESSES) == run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bm25s", "exact"])
def test_ray_actors_write_the_run_of_one_process(shards, capfd, kind, ray):
    call = build(capfd, kind)
    run = run_command(capfd, *call)
    assert run.count("\n") == 8 * 12
    assert run_command(capfd, *call, *PROCESSES, "--runner", "ray") == run


@pytest.mark.parametrize("runner", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_an_error_of_a_worker_is_raised(shards, capfd, runner, request):
    if runner == "ray":
        request.getfixturevalue("ray")
    call = build(capfd, "bm25s")
    ids = shards / "index2" / "ids.txt"
    ids.write_bytes(ids.read_bytes()[:-1] + b"x")
    with pytest.raises(MismatchError, match=r"^index2/ids.txt: is truncated; rebuild the index$"):
        run_command(capfd, *call, *PROCESSES, "--runner", runner)
    assert multiprocessing.active_children() == []


class KillingFunction(BatchFunction):
    """Return the items; the first call kills the process."""

    def __init__(self, marker, items):
        self._marker, self._items = marker, items

    def __call__(self, batch):
        if not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._items


@pytest.mark.slow
def test_a_killed_ray_actor_is_replaced(tmp_path, ray):
    build = partial(KillingFunction, tmp_path / "killed")
    settings = RunnerSettings("ray", runner_workers=1)
    with closing(open_worker_group(build, "ab", settings, gpu=False)) as group:
        assert group.map([]) == ["ab"]
    assert (tmp_path / "killed").exists()


def test_a_killed_process_is_reported(tmp_path):
    build = partial(KillingFunction, tmp_path / "killed")
    settings = RunnerSettings("processes", runner_workers=1)
    with (
        closing(open_worker_group(build, "ab", settings, gpu=False)) as group,
        pytest.raises(DrtkError, match=r"^a worker process was killed, .* use fewer processes: `runner_workers`$"),
    ):
        group.map([])


def test_a_runner_without_effect_is_rejected(shards, capfd):
    call = build(capfd, "bm25s")[:2]
    with pytest.raises(UsageError, match=r"^--runner has no effect with --query or --tune"):
        run_command(capfd, *call, "--query", "wing", *PROCESSES)


def test_shards_are_split_evenly_in_order():
    assert _split_evenly("abcdefgh", 3) == ["ab", "cde", "fgh"]
    assert _split_evenly("ab", 3) == ["a", "b"]
