"""Mining: what becomes a positive, what a negative, and on what the draws depend."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.data.ids import CorpusIds
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.mining import MINING
from drtk.mining.policies import MSMARCO, TEVATRON, Policy
from drtk.mining.pool import Asked, Ranked
from drtk.mining.sampler import RANDOM, Miner, Stages
from drtk.records import Example, Passage
from tests.running import command, write

EVERYTHING = Policy(keep=1000)


def corpus_of(*ids: str) -> CorpusIds:
    return CorpusIds(Passage(id, "text") for id in ids)


def example_of(
    miner: Miner, rankings: dict[str, list[str]], grades: dict[str, int], query: str = "q"
) -> Example | None:
    pool = miner.pool(Asked(query, {name: Ranked(ids) for name, ids in rankings.items()}), grades)
    Stages(miner)([pool], lambda _: grades)
    return miner.example(pool)


def mined(miner: Miner, ranking: list[str], grades: dict[str, int], query: str = "q") -> Example:
    example = example_of(miner, {"run": ranking}, grades, query)
    assert example is not None
    return example


def miner(policy: Policy = EVERYTHING, *, depth: int | None = 200, **options: Any) -> Miner:
    return Miner(replace(policy, depth=depth), options.pop("seed", 1), **options)


def test_every_labelled_positive_is_kept_out_of_the_negatives() -> None:
    example = mined(miner(), ["d1", "d2", "d3", "d4"], {"d2": 1, "d4": 2, "d3": 0, "d9": 1})
    assert example.positives == ("d4", "d2", "d9")  # the higher grade first, then the order of the judgements
    assert set(example.negatives) == {"d1", "d3"}
    assert example.sources == {"negatives": ["run", "run"]}


def test_only_the_first_ranks_are_looked_at() -> None:
    example = mined(miner(depth=2), ["d1", "p", "d2", "d3"], {"p": 1})
    assert example.negatives == ("d1",)


def test_draws_depend_on_seed_and_query_alone() -> None:
    ranking = [f"d{at}" for at in range(50)]
    first = mined(miner(Policy(10)), ranking, {"p": 1})
    assert mined(miner(Policy(10)), ranking, {"p": 1}) == first
    assert mined(miner(Policy(10), seed=2), ranking, {"p": 1}).negatives != first.negatives
    assert mined(miner(Policy(10)), ranking, {"p": 1}, query="other").negatives != first.negatives


def test_the_shuffle_favours_no_rank() -> None:
    # each of 20 candidates has a chance of 1/2 to be among the 10 kept: over 400 queries about 200 times (sd 10)
    ranking = [f"d{at}" for at in range(20)]
    kept = dict.fromkeys(ranking, 0)
    for query in range(400):
        for id in mined(miner(Policy(10)), ranking, {"p": 1}, query=f"q{query}").negatives:
            kept[id] += 1
    assert all(150 < count < 250 for count in kept.values())


@pytest.mark.parametrize(
    ("policy", "retrieved", "from_run", "random"),
    [(MSMARCO, 300, 200, 10), (MSMARCO, 50, 50, 160), (TEVATRON, 300, 128, 0), (TEVATRON, 50, 50, 0)],
)
def test_policies_keep_and_fill_as_published(policy: Policy, retrieved: int, from_run: int, random: int) -> None:
    ranking = [f"d{at}" for at in range(retrieved)]
    corpus = corpus_of(*(f"d{at}" for at in range(2000)), "p")
    example = mined(miner(policy, depth=300, corpus=corpus), ranking, {"p": 1})
    assert example.sources is not None
    sources = example.sources["negatives"]
    assert (sources.count("run"), sources.count(RANDOM)) == (from_run, random)
    assert len(set(example.negatives)) == len(example.negatives)
    assert "p" not in example.negatives


def test_a_small_corpus_fills_with_all_there_is() -> None:
    corpus = corpus_of("p", "d1", "d2", "d3")
    example = mined(miner(MSMARCO, corpus=corpus), ["d1", "p"], {"p": 1})
    assert set(example.negatives) == {"d1", "d2", "d3"}


def test_random_negatives_are_none_of_the_positives_documents() -> None:
    corpus = corpus_of(*(f"a#{at}" for at in range(50)), *(f"b#{at}" for at in range(50)))
    example = mined(miner(Policy(0, 60), corpus=corpus, by_source=True), ["a#3", "b#1"], {"a": 1})
    assert set(example.negatives) == {f"b#{at}" for at in range(50)} - {"b#1"}  # b#1 was retrieved, and not drawn


@pytest.mark.parametrize("size", [24, 2000])  # few passages are listed, of many one after the other is drawn
def test_a_candidate_that_was_not_drawn_does_not_come_back_as_a_random_one(size: int) -> None:
    # 12 retrieved within the depth, 4 drawn; at most so many random ones as the corpus has besides the 12 and the positive
    ranking = [f"d{at}" for at in range(20)]
    corpus = corpus_of("p", *(f"d{at}" for at in range(size)))
    example = mined(miner(Policy(4, 40), depth=12, corpus=corpus), ranking, {"p": 1})
    assert example.sources is not None
    by_source = list(zip(example.negatives, example.sources["negatives"], strict=True))
    random = {id for id, source in by_source if source == RANDOM}
    assert len(random) == min(size - 12, 40 - 4)
    assert not random & set(ranking[:12])


@pytest.mark.parametrize("floor", [15, 60])
def test_a_judged_document_that_owns_most_of_the_corpus_leaves_its_query_what_there_is_besides(floor: int) -> None:
    # 20 of 6,020 passages are of another document, of which one was retrieved and not drawn: 19 are there for the taking
    corpus = corpus_of(*(f"book#{at}" for at in range(6000)), *(f"other#{at}" for at in range(20)))
    free = {f"other#{at}" for at in range(20)} - {"other#1"}
    found = mined(miner(Policy(0, floor), corpus=corpus, by_source=True), ["book#3", "other#1"], {"book": 1})
    assert set(found.negatives) <= free
    assert len(set(found.negatives)) == len(found.negatives) == min(floor, 19)
    again = mined(miner(Policy(0, floor), corpus=corpus, by_source=True), ["book#3", "other#1"], {"book": 1})
    assert again == found
    if floor < 19:
        kept = [
            mined(miner(Policy(0, floor), corpus=corpus, by_source=True), ["book#3", "other#1"], {"book": 1}, f"q{at}")
            for at in range(60)
        ]
        # each of the 19 has a chance of 15/19: over 60 queries about 47 times (sd 3.2)
        assert all(32 < sum(id in one.negatives for one in kept) <= 60 for id in free)


def test_a_query_that_is_filled_by_drawing_gets_what_it_always_got() -> None:
    # drawn one by one, what is taken passed over; nothing but seed and query decides
    corpus = corpus_of(*(f"a#{at}" for at in range(300)), *(f"b#{at}" for at in range(300)))
    rng = Random("1\0q\0fill")
    expected: list[str] = []
    while len(expected) < 5:
        id = corpus.ids[rng.randrange(600)]
        if id.startswith("b") and id not in (*expected, "b#1"):
            expected.append(id)
    example = mined(miner(Policy(0, 5), corpus=corpus, by_source=True), ["a#3", "b#1"], {"a": 1})
    assert list(example.negatives) == expected


def test_the_best_ranked_passage_of_a_judged_document_is_the_positive() -> None:
    example = mined(miner(by_source=True, depth=2), ["b#0", "a#7", "a#2", "c#1"], {"a": 1, "c": 1})
    assert example.positives == ("a#7", "c#1")  # positives are found at any depth
    assert example.negatives == ("b#0",)  # a#2 is of a positive document, c#1 too


def test_a_judged_document_that_was_not_retrieved_is_positive_where_it_is_one_passage() -> None:
    corpus = corpus_of("a#0", "a#1", "b#0", "c#0")
    made = miner(by_source=True, corpus=corpus)
    assert mined(made, ["c#0"], {"a": 1, "b": 1}).positives == ("b#0",)
    assert made.counts == {"positives_not_found": 1}


def test_queries_that_make_no_example_are_counted() -> None:
    made = miner()
    assert example_of(made, {"run": ["d1"]}, {"d1": 0}) is None
    assert example_of(made, {"run": ["d1"]}, {"d1": 1}) is None
    assert made.counts == {"without_positives": 1, "without_negatives": 1}


def test_several_runs_are_mixed_and_each_negative_says_which_it_is_from() -> None:
    example = example_of(miner(), {"bm25": ["d1", "d2"], "dense": ["d2", "d3"]}, {"p": 1})
    assert example is not None
    assert example.sources is not None
    assert dict(zip(example.negatives, example.sources["negatives"], strict=True)) == {
        "d1": "bm25",
        "d2": "bm25",
        "d3": "dense",
    }


def test_every_policy_loads() -> None:
    assert all(isinstance(MINING.load(name), Policy) for name in MINING)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [
        f"q{query} Q0 d{(query * 7 + rank) % 40} {rank} {20 - rank} t\n" for query in range(6) for rank in range(20)
    ]
    write(tmp_path / "bm25.run", "".join(lines))
    write(tmp_path / "train.tsv", "".join(f"q{query}\td{query * 7 + 1}\t1\n" for query in range(5)) + "q9\td1\t1\n")
    write(tmp_path / "corpus.jsonl", "".join(json.dumps({"_id": f"d{at}", "text": "t"}) + "\n" for at in range(40)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_examples_and_counts_what_it_left_out(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["mine-negatives", "bm25.run", "--qrels", "train.tsv", "--keep", "5", "-o", "train.jsonl"]
    command(capfd, *arguments)
    rows = [json.loads(line) for line in (world / "train.jsonl").read_text().splitlines()]
    assert [row["query_id"] for row in rows] == ["q0", "q1", "q2", "q3", "q4"]
    assert rows[1]["positives"] == ["d8"]
    assert len(rows[1]["negatives"]) == 5
    assert rows[1]["sources"] == {"negatives": ["bm25"] * 5}
    counts = json.loads((world / "train.jsonl.meta.json").read_text())["counts"]
    assert (counts["without_judgements"], counts["not_retrieved"]) == (1, 1)


def test_the_order_of_queries_does_not_change_an_example(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--qrels", "train.tsv", "--corpus", "corpus.jsonl", "--keep", "3", "--floor", "5"]
    forward = command(capfd, "mine-negatives", "-q", "bm25.run", *options).splitlines()
    lines = (world / "bm25.run").read_text().splitlines(keepends=True)
    write(world / "bm25.run", "".join(lines[60:] + lines[:60]))
    assert sorted(command(capfd, "mine-negatives", "-q", "bm25.run", *options).splitlines()) == sorted(forward)


def test_a_single_run_can_be_given_a_name(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--qrels", "train.tsv", "--keep", "1", "--source-name", "stage-1"]
    printed = command(capfd, "mine-negatives", "-q", "bm25.run", *options)
    assert json.loads(printed.splitlines()[0])["sources"] == {"negatives": ["stage-1"]}
    with pytest.raises(UsageError, match="one name for several runs"):
        command(capfd, "mine-negatives", "bm25.run", "x=bm25.run", *options)


def test_ids_the_corpus_lacks_are_faults_with_their_place(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--qrels", "train.tsv", "--corpus", "corpus.jsonl"]
    run = (world / "bm25.run").read_text()
    write(world / "bm25.run", run.replace("q1 Q0 d9 2", "q1 Q0 zz 2"))
    with pytest.raises(RecordError, match=r"^bm25\.run:23: passage 'zz' is not in the corpus$"):
        command(capfd, "mine-negatives", "bm25.run", *options)
    assert command(capfd, "mine-negatives", "-q", "bm25.run", *options, "--skip-bad", "1").count("\n") == 5
    write(world / "bm25.run", run)
    write(world / "train.tsv", "q0\td1\t1\nq0\tzz\t1\n")
    with pytest.raises(RecordError, match=r"^train\.tsv:2: passage 'zz' is not in the corpus$"):
        command(capfd, "mine-negatives", "bm25.run", *options)
    with pytest.raises(RecordError, match=r"^train\.tsv:2: document 'zz' is not in the corpus$"):
        command(capfd, "mine-negatives", "bm25.run", *options, "--positives", "source")


def test_faults_of_the_request_are_named(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--floor fills up with random passages"):
        command(capfd, "mine-negatives", "bm25.run", "--qrels", "train.tsv", "--floor", "5")
    write(world / "none.tsv", "")
    with pytest.raises(DrtkError, match=r"none\.tsv: holds no judgements"):
        command(capfd, "mine-negatives", "bm25.run", "--qrels", "none.tsv")
    write(world / "other.tsv", "x\td1\t1\n")
    with pytest.raises(
        MismatchError, match=r"no query of the runs has judgements \(runs: 'q0', judgements: 'x'\); pass the judgements"
    ):
        command(capfd, "mine-negatives", "bm25.run", "--qrels", "other.tsv")


def test_an_empty_run_makes_no_examples(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "empty.run", "")
    assert command(capfd, "mine-negatives", "empty.run", "--qrels", "train.tsv") == ""


def test_queries_that_stay_short_of_random_passages_are_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ids = [*(f"book#{at}" for at in range(2000)), *(f"other#{at}" for at in range(20))]
    write(tmp_path / "corpus.jsonl", "".join(json.dumps({"_id": id, "text": "t"}) + "\n" for id in ids))
    write(tmp_path / "a.run", "q1 Q0 book#7 1 2 t\nq1 Q0 other#3 2 1 t\n")
    write(tmp_path / "qrels.tsv", "q1\tbook\t1\n")
    call = ["a.run", "--qrels", "qrels.tsv", "--corpus", "corpus.jsonl", "--positives", "source", "-o", "out.jsonl"]
    app(["mine-negatives", *call], standalone_mode=False)
    assert "drtk: random: 19 of the 20 negatives, to fill lists up to --floor 210\n" in capfd.readouterr().err
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row["positives"] == ["book#7"]
    assert set(row["negatives"]) == {f"other#{at}" for at in range(20)}  # msmarco wants 210
    assert json.loads((tmp_path / "out.jsonl.meta.json").read_text())["counts"]["below_floor"] == 1


def test_judgements_of_documents_are_noticed_in_a_corpus_of_passages(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "corpus.jsonl", "".join(json.dumps({"_id": f"d{n}#0", "text": "t"}) + "\n" for n in range(3)))
    write(tmp_path / "a.run", "q1 Q0 d1#0 1 2 t\nq1 Q0 d2#0 2 1 t\n")
    write(tmp_path / "qrels.tsv", "q1\td1\t1\n")
    with pytest.raises(RecordError, match=r"qrels\.tsv:1: 'd1' is a document .*; use --positives source$"):
        command(capfd, "mine-negatives", "a.run", "--qrels", "qrels.tsv", "--corpus", "corpus.jsonl")


def test_judgements_of_documents_are_noticed(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "chunks.run", "q0 Q0 d1#0 1 2 t\nq0 Q0 d2#0 2 1 t\n")
    with pytest.raises(DrtkError, match="the judgements are of documents: --positives source"):
        app(["mine-negatives", "-q", "chunks.run", "--qrels", "train.tsv"], standalone_mode=False)
    write(world / "chunks.run", "q0 Q0 d1#0 1 2 t\nq0 Q0 d1 2 1 t\n")  # one judged document is there
    app(["mine-negatives", "-q", "chunks.run", "--qrels", "train.tsv"], standalone_mode=False)
    assert "judgements name documents, not passages: --positives source" in capfd.readouterr().err
