"""Labeled candidates: selection for training, search depth of the labels, and rejected files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.query_expansion.candidates import ExpansionList, load_queries
from drtk.query_expansion.config import QueryRerankerConfig
from drtk.query_expansion.labeled_candidates import LabeledCandidates, load_labeled_candidates
from drtk.records import Expansion, Query
from drtk.runtime.inputs import InputTracker
from tests.expansion_collection import label_expansions, read_rows, write_collection, write_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_collection(tmp_path_factory.mktemp("labels"))
    label_expansions(folder)
    return folder


def load(
    data: Path, source: Path, *, kind: str | None = None, training: bool = True, **settings: Any
) -> LabeledCandidates:
    return load_labeled_candidates(
        str(source),
        load_queries(str(data / "queries.jsonl"), InputTracker()),
        QueryRerankerConfig(**settings),
        kind=kind,
        for_training=training,
        tracker=InputTracker(),
    )


def all_ranks(lists: LabeledCandidates) -> list[list[int]]:
    return [lists.get_ranks(number).tolist() for number in range(len(lists))]


def relabel_rows(data: Path, output: Path, depth: int, max_rank: int) -> Path:
    files = f"{data}/expansions.jsonl --queries {data}/queries.jsonl --index {data}/bm25s -o {output} -q"
    app(f"rerank-queries label {files} --depth {depth} --set max_rank={max_rank}".split(), standalone_mode=False)
    return output


def candidates(number: int, *ranks: int, texts: str = "") -> ExpansionList:
    words = texts.split("|") if texts else [f"text {at}" for at in range(len(ranks))]
    top1 = {"title": "t", "text": "p"}
    expansions = [
        Expansion(f"e{number}.{at}", f"q{number}", "answer", word, rank=rank, depth=100, top1=top1)
        for at, (word, rank) in enumerate(zip(words, ranks, strict=True))
    ]
    return ExpansionList(Query(f"q{number}", f"question {number}"), "answer", tuple(expansions))


def test_ranks_beyond_the_depth_become_max_rank_and_tied_lists_are_dropped():
    lists = [candidates(0, 3, 101, 250), candidates(1, 101, 250), candidates(2, 1, 2, 3, 4)]
    kept = LabeledCandidates(lists, max_rank=250, max_candidates=3)
    assert (len(kept), kept.num_candidates, kept.num_tied, kept.num_questions) == (2, 6, 1, 3)
    assert all_ranks(kept) == [[3, 250, 250], [1, 2, 3]]  # of the last its first three
    assert [tuple(each) for each in kept[1].candidates][2] == ("question 2", "text 2", "t", "p")
    assert len(LabeledCandidates(lists, max_rank=101, keep_ties=True)) == 3


def test_a_candidate_has_its_own_depth():
    shallow = candidates(1, 1, 2, 2)
    own = replace(shallow, expansions=tuple(replace(each, depth=1) for each in shallow.expansions))
    both = LabeledCandidates([candidates(0, 1, 2, 3), own], max_rank=101)
    assert all_ranks(both) == [[1, 2, 3], [1, 101, 101]]
    assert both.depth == [1, 100]
    assert LabeledCandidates([own], max_rank=101).depth == 1
    mixed = replace(shallow, expansions=(*own.expansions[:1], *shallow.expansions[1:]))
    with pytest.raises(UsageError, match="'q1': candidates of kind 'answer' were labeled with the depths 1 and 100"):
        LabeledCandidates([mixed], max_rank=101)


def test_repeated_candidates_count_once_in_training_and_evaluation():
    repeated = candidates(0, 7, 7, 2, 9, 2, texts="a b|a  b |c|d|c")
    lists = LabeledCandidates([repeated], max_rank=101, max_candidates=3)
    assert all_ranks(lists) == [[7, 2, 9]]  # a b, c and d
    assert [each.text for each in lists[0].candidates] == ["a b", "c", "d"]
    assert lists.num_repeated == 2
    # two candidates of one text and one rank teach nothing
    first = replace(repeated, expansions=repeated.expansions[:2])
    assert len(LabeledCandidates([first], max_rank=101)) == 0


def test_lists_of_one_rank_are_dropped_and_counted(data, tmp_path):
    rows = read_rows(data / "labeled.jsonl")
    for row in rows[:12]:  # q0, all three kinds
        row["rank"] = 101
    lists = load(data, write_rows(tmp_path / "in", rows))
    # 24 questions with three kinds each: 72 lists
    assert (lists.num_questions, len(lists), lists.num_candidates, lists.num_tied) == (24, 69, 276, 3)
    assert load(data, tmp_path / "in", candidates=2).num_candidates < 276
    held = load(data, tmp_path / "in", training=False, candidates=2)  # all are evaluated with
    assert (len(held), held.num_candidates, held.num_tied) == (72, 288, 0)
    write_rows(tmp_path / "in", [row | {"rank": 7} for row in rows])
    problem = "in: in each of the 72 lists, all candidates have the same rank; label more candidates per query"
    with pytest.raises(DrtkError, match=problem):
        load(data, tmp_path / "in")


def test_the_search_depth_is_read_from_the_labels(data, tmp_path):
    # Of a question's four candidates one finds its answer at rank 1, one at 2, two nowhere. Searched to rank 1 only, three
    # find none and are labeled 2, which is a real rank with the default depth of 100.
    shallow = relabel_rows(data, tmp_path / "shallow.jsonl", 1, 2)
    assert {row["rank"] for row in read_rows(shallow)} == {1, 2}
    lists = load(data, shallow)
    assert lists.depth == 1
    assert {rank for ranks in all_ranks(lists) for rank in ranks} == {1, 101}
    deep = relabel_rows(data, tmp_path / "deep.jsonl", 200, 250)
    with pytest.raises(UsageError, match="`max_rank` 101: must be above the depth of the labels, 200"):
        load(data, deep)
    assert load(data, deep, max_rank=250).depth == 200


def test_ranks_of_labels_without_a_depth_are_below_max_rank(data, tmp_path):
    rows = [row | {"rank": {101: 250, 2: 150}.get(row["rank"], 1)} for row in read_rows(data / "labeled.jsonl")]
    for row in rows:
        del row["depth"]
    source = write_rows(tmp_path / "in", rows)
    assert {rank for ranks in all_ranks(load(data, source)) for rank in ranks} == {1, 101}
    lists = load(data, source, max_rank=250)
    assert lists.depth == 249
    assert {rank for ranks in all_ranks(lists) for rank in ranks} == {1, 150, 250}


def test_joined_labels_keep_the_depth_of_each_kind(data, tmp_path):
    # The answers were searched to rank 1 only, where 2 means none found.
    parts = {"answer": relabel_rows(data, tmp_path / "shallow.jsonl", 1, 2), "title": data / "labeled.jsonl"}
    rows = [row for kind, file in parts.items() for row in read_rows(file) if row["kind"] == kind]
    joined = write_rows(tmp_path / "joined", rows)
    assert load(data, joined).depth == [1, 100]
    assert {rank for ranks in all_ranks(load(data, joined, kind="answer")) for rank in ranks} == {1, 101}
    with pytest.raises(UsageError, match="`max_rank` 90: must be above the depth of the labels, 100"):
        load(data, joined, max_rank=90)
    assert load(data, joined, kind="answer", max_rank=90).depth == 1  # titles are not read
    unlabeled = [row | {"rank": None} if row["kind"] == "title" else row for row in rows]
    assert len(load(data, write_rows(tmp_path / "in", unlabeled), kind="answer")) == 24


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("rank", "in:9: 'q0#title#00' has no rank; run `drtk rerank-queries label` first"),
        ("top1", "in:9: 'q0#title#00' has no 'top1', which `variant=rd` requires"),
    ],
)
def test_invalid_candidates_are_reported(data, tmp_path, field, message):
    rows = read_rows(data / "labeled.jsonl")
    del rows[8][field]
    with pytest.raises(RecordError, match=message):
        load(data, write_rows(tmp_path / "in", rows), variant="rd")
