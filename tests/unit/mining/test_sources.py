"""Where candidates come from: runs read side by side, indexes asked directly, examples mined anew, and ids that lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.mining.sources import Aligned
from tests.running import command, write
from tests.tiny import tiny_model, write_collection

QRELS = "".join(f"q{q}\td{q}\t1\n" for q in range(40))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of forty, an index of its words, its vectors with an index of each dense type, and vectors of the queries."""
    folder = tmp_path_factory.mktemp("made")
    write_collection(folder, 40)
    write(folder / "qrels.tsv", QRELS)
    model = str(tiny_model(folder / "model"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for call in (
            "index corpus.jsonl --type bm25s -o bm25",
            f"encode corpus.jsonl --model {model} -o vectors",
            f"encode queries.jsonl --model {model} --role query -o asked",
            "index vectors --type exact -o exact",
            "index vectors --type flat -o flat",
            "search bm25 queries.jsonl -k 12 -o bm25.run",
            "search exact queries.jsonl -k 12 -o exact.run",
        ):
            app(call.split(), standalone_mode=False)
    return folder


@pytest.fixture
def world(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


COMMON = ["--qrels", "qrels.tsv", "--policy", "tevatron", "--depth", "12"]


def mined(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    return command(capfd, "mine-negatives", "-q", *arguments, *COMMON)


def test_an_index_gives_what_its_run_gives(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for index, options in (("bm25", []), ("exact", []), ("exact", ["--query-vectors", "asked"]), ("flat", [])):
        run = "bm25.run" if index == "bm25" else "exact.run"
        asked = mined(capfd, f"x={index}", "--queries", "queries.jsonl", *options)
        if index == "flat":  # sums in another order: the last hits may differ
            assert asked.count("\n") == 40
        else:
            assert asked == mined(capfd, f"x={run}")


def test_batches_change_nothing(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = mined(capfd, "bm25", "exact", "--queries", "queries.jsonl")
    assert mined(capfd, "bm25", "exact", "--queries", "queries.jsonl", "--batch", "7") == whole


def test_an_index_and_a_run_are_mixed_in_the_order_they_are_named(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    by_index = mined(capfd, "b=bm25.run", "e=exact", "--queries", "queries.jsonl")
    assert by_index == mined(capfd, "b=bm25.run", "e=exact.run")
    assert by_index != mined(capfd, "e=exact.run", "b=bm25.run")
    sources = {source for line in by_index.splitlines() for source in json.loads(line)["sources"]["negatives"]}
    assert sources == {"b", "e"}


def test_an_index_of_words_and_one_of_vectors_are_asked_with_texts_and_vectors(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    both = ["--queries", "queries.jsonl", "--query-vectors", "asked"]
    assert mined(capfd, "bm25", "exact", *both) == mined(capfd, "bm25", "exact", "--queries", "queries.jsonl")
    with pytest.raises(UsageError, match="one of words is asked with --queries FILE"):
        mined(capfd, "bm25", "exact", "--query-vectors", "asked")
    with pytest.raises(UsageError, match="bm25: an index is asked with --queries FILE or --query-vectors DIR"):
        mined(capfd, "bm25")
    with pytest.raises(UsageError, match="--query-vectors asks an index; there is none"):
        mined(capfd, "bm25.run", "--query-vectors", "asked")
    with pytest.raises(MismatchError, match="vectors: is of kind 'embeddings'; expected 'index'"):
        mined(capfd, "vectors")


def test_options_of_an_encoder_are_refused_where_no_text_is_encoded(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = "only with an index of vectors that is asked with --queries, not --query-vectors"
    for sources in (["exact", "--query-vectors", "asked"], ["bm25", "--queries", "queries.jsonl"]):
        for option in (["--model", "model"], ["--prompt", "ask: "], ["--max-length", "9"]):
            with pytest.raises(UsageError, match=f"^{option[0]}: {told}$"):
                mined(capfd, *sources, *option)
    prompted = mined(capfd, "exact", "--queries", "queries.jsonl", "--prompt", "ask: ", "--model", "model")
    assert prompted.count("\n") == 40


def test_only_judged_queries_are_asked(world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path / "few.tsv", "q3\td3\t1\nq99\td1\t1\n")
    out = tmp_path / "out.jsonl"
    call = ["mine-negatives", "bm25", "--queries", "queries.jsonl", "--qrels", tmp_path / "few.tsv"]
    command(capfd, *call, "-o", out)
    assert [json.loads(line)["query_id"] for line in out.read_text().splitlines()] == ["q3"]
    counts = json.loads(Path(f"{out}.meta.json").read_text())["counts"]
    assert (counts["without_judgements"], counts["not_retrieved"]) == (39, 1)


def test_queries_of_a_run_that_the_queries_lack_are_counted(
    world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = (world / "queries.jsonl").read_text().splitlines(keepends=True)
    write(tmp_path / "some.jsonl", "".join(lines[:30]))
    out = tmp_path / "out.jsonl"
    command(capfd, "mine-negatives", "exact", "bm25.run", *COMMON, "--queries", tmp_path / "some.jsonl", "-o", out)
    counts = json.loads(Path(f"{out}.meta.json").read_text())["counts"]
    assert (counts["in"], counts["not_in_queries"]) == (30, 10)


def test_runs_are_read_side_by_side_and_only_what_comes_too_early_is_held() -> None:
    items = Aligned(iter([("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]), only={"a", "b", "c", "e"})
    assert items.take("a") == 1
    assert items._held == {}
    assert items.take("c") == 3
    assert items._held == {"b": 2}
    assert (items.take("b"), items.take("b")) == (2, None)
    assert list(items.rest()) == ["e"]
    other = Aligned(iter([("a", 1), ("d", 4), ("e", 5)]), only={"a", "e"})
    assert list(other.rest()) == ["a", "e"]
    assert (other.take("e"), other.take("a")) == (5, 1)


def test_the_order_of_a_second_run_does_not_matter(
    world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = (world / "exact.run").read_text().splitlines(keepends=True)
    shuffled = [line for start in range(39 * 12, -1, -12) for line in lines[start : start + 12]]
    write(tmp_path / "exact.run", "".join(shuffled))
    assert mined(capfd, "bm25.run", str(tmp_path / "exact.run")) == mined(capfd, "bm25.run", "exact.run")


def test_all_unknown_ids_of_a_file_are_counted(world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = tmp_path / "x.run"
    text = (world / "exact.run").read_text().replace(" d7 ", " zz ").replace(" d9 ", " yy ")
    write(run, text)
    lines = [number for number, line in enumerate(text.splitlines(), 1) if " zz " in line or " yy " in line]
    told = (
        rf"x\.run:{lines[0]}: passage '(zz|yy)' is not in the corpus; 2 such ids at {len(lines)} places of this file; "
        r"--skip-bad N leaves out so many$"
    )
    with pytest.raises(RecordError, match=told):
        mined(capfd, str(run), "--corpus", "corpus.jsonl")
    assert mined(capfd, str(run), "--corpus", "corpus.jsonl", "--skip-bad", str(len(lines))).count("\n") == 40
    write(tmp_path / "bad.tsv", "q1\td1\t1\nq2\tzz\t1\nq3\tzz\t1\n")
    with pytest.raises(
        RecordError, match=r"bad\.tsv:2: passage 'zz' is not in the corpus; 1 such id at 2 places of this"
    ):
        command(capfd, "mine-negatives", "bm25.run", "--qrels", tmp_path / "bad.tsv", "--corpus", "corpus.jsonl")


def test_an_index_of_another_corpus_is_noticed(world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = (world / "corpus.jsonl").read_text().splitlines(keepends=True)
    other = write(tmp_path / "other.jsonl", "".join(lines[:39]))
    judged = write(tmp_path / "few.tsv", "q1\td1\t1\n")
    call = ["mine-negatives", "-q", "exact", "--queries", "queries.jsonl", "--qrels", judged, "--corpus", other]
    with pytest.raises(
        MismatchError, match=r"exact: was made from another corpus \(corpus\.jsonl, digest [0-9a-f]{8}\)"
    ):
        command(capfd, *call)
    with pytest.raises(MismatchError, match="exact: passage 'd39', found for query 'q1', is not in the corpus"):
        command(capfd, *call, "--another-corpus", "--depth", "40")
    assert command(capfd, *call[:3], *call[3:-1], "corpus.jsonl").count("\n") == 1
    with pytest.raises(MismatchError, match=r"exact\.run: was made from another corpus"):  # run, index, vectors, corpus
        command(capfd, "mine-negatives", "exact.run", "--qrels", judged, "--corpus", other)


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty chunks that say "apple" three times, and two of "doc", one of which says it once: it is found at rank 31."""
    folder = tmp_path_factory.mktemp("chunks")
    texts = {f"o{at}#0": "apple apple apple" for at in range(30)}
    texts |= {"doc#0": "apple and so much else that is no fruit at all", "doc#1": "nothing"}
    write(folder / "corpus.jsonl", "".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items()))
    write(folder / "queries.jsonl", '{"_id": "q1", "text": "apple"}\n{"_id": "q2", "text": "apple"}\n')
    write(folder / "qrels.tsv", "q1\tdoc\t1\nq2\to3\t1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        app(["index", "corpus.jsonl", "--type", "bm25s", "-o", "bm25"], standalone_mode=False)
        app(["search", "bm25", "queries.jsonl", "-k", "100", "-o", "bm25.run"], standalone_mode=False)
    return folder


BY_SOURCE = ["--qrels", "qrels.tsv", "--positives", "source", "--policy", "tevatron", "--depth", "10"]


def test_an_index_gives_what_its_run_gives_where_judgements_name_documents(
    chunks: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(chunks)
    # A score 100 above the positive's would go, and all where no score of a positive is known: it lies below the depth.
    for options in ([], ["--batch", "1"], ["--margin", "-100", "--corpus", "corpus.jsonl"]):
        asked = command(capfd, "mine-negatives", "-q", "x=bm25", "--queries", "queries.jsonl", *BY_SOURCE, *options)
        of_run = [] if "--batch" in options else options
        assert asked == command(capfd, "mine-negatives", "-q", "x=bm25.run", *BY_SOURCE, *of_run)
        first, second = map(json.loads, asked.splitlines())
        assert first["positives"] == ["doc#0"]
        assert len(first["negatives"]) == 10  # those of the first ten ranks, and no more
        assert second["positives"] == ["o3#0"]
        assert len(second["negatives"]) == 9


def test_documents_without_a_positive_are_named_where_no_query_makes_an_example(
    chunks: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(chunks)
    write(tmp_path / "a.run", "q1 Q0 o1#0 1 1 t\n")
    call = ["mine-negatives", tmp_path / "a.run", *BY_SOURCE, "-o", tmp_path / "out.jsonl"]
    with pytest.raises(DrtkError, match=r"^no query makes an example: 1 without positives \(1 positives not found\)$"):
        command(capfd, *call)


EXAMPLE = {
    "query_id": "q1",
    "positives": ["d1"],
    "negatives": ["d2", "d3"],
    "sources": {"negatives": ["a", "b"]},
    "x": 1,
}


def test_examples_are_mined_anew_with_their_sources_and_fields(
    world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path / "old.jsonl", json.dumps(EXAMPLE | {"scores": {"positives": [2], "negatives": [1.5, 0.5]}}) + "\n")
    call = ["mine-negatives", "-q", str(tmp_path / "old.jsonl"), "--policy", "tevatron"]
    row = json.loads(command(capfd, *call))
    assert dict(zip(row["negatives"], row["sources"]["negatives"], strict=True)) == {"d2": "a", "d3": "b"}
    assert row["x"] == 1
    assert dict(zip(row["negatives"], row["scores"]["negatives"], strict=True)) == {"d2": 1.5, "d3": 0.5}
    row = json.loads(command(capfd, *call, "--ce-margin", "1"))
    assert (row["negatives"], row["scores"]) == (["d3"], {"positives": [2.0], "negatives": [0.5]})


def test_judgements_take_further_positives_out_of_examples(
    world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = write(tmp_path / "old.jsonl", json.dumps(EXAMPLE) + "\n")
    judged = write(tmp_path / "qrels", "q1 0 d3 1\n")
    row = json.loads(command(capfd, "mine-negatives", "-q", old, "--qrels", judged, "--policy", "tevatron"))
    assert (row["positives"], row["negatives"]) == (["d3", "d1"], ["d2"])


def test_examples_and_a_run_are_mixed(world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", json.dumps(EXAMPLE) + "\n")
    run = write(tmp_path / "new.run", "q1 Q0 d2 1 2 t\nq1 Q0 d5 2 1 t\nq1 Q0 d1 3 0 t\n")
    row = json.loads(command(capfd, "mine-negatives", "-q", old, f"new={run}", "--policy", "tevatron"))
    assert row["positives"] == ["d1"]
    assert dict(zip(row["negatives"], row["sources"]["negatives"], strict=True)) == {"d2": "a", "d3": "b", "d5": "new"}


def test_filters_by_rank_and_score_are_not_for_examples(
    world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = write(tmp_path / "old.jsonl", json.dumps(EXAMPLE) + "\n")
    call = ["mine-negatives", str(old), "--policy", "tevatron"]
    for flag in ("--max-score", "--min-score", "--margin", "--max-share"):
        with pytest.raises(
            UsageError, match=f"^{flag} goes by scores of a retriever, which examples lack: name its run"
        ):
            command(capfd, *call, flag, "1")
    with pytest.raises(
        UsageError, match=r"^--from-rank goes by ranks, which examples lack: the negatives of query 'q1'"
    ):
        command(capfd, *call, "--from-rank", "2")
    # sentence-transformers' lists are in the order in which their systems ranked them: rank 1 of both goes
    hard = write(
        tmp_path / "hard.jsonl", '{"qid": "q1", "pos": ["d1"], "neg": {"a": ["d2", "d3"], "b": ["d4", "d5"]}}\n'
    )
    found = command(capfd, "mine-negatives", "-q", hard, "--policy", "tevatron", "--from-rank", "2")
    assert sorted(json.loads(found)["negatives"]) == ["d3", "d5"]


def test_beside_a_run_they_go_by_the_run_and_that_is_said(
    world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # the run puts d5 first (9), the positive second (5), d6 third (4.5), d7 last (1): rank 1 goes, and what has more than 4
    old = write(tmp_path / "old.jsonl", json.dumps(EXAMPLE) + "\n")
    run = write(tmp_path / "new.run", "q1 Q0 d5 1 9 t\nq1 Q0 d1 2 5 t\nq1 Q0 d6 3 4.5 t\nq1 Q0 d7 4 1 t\n")
    call = ["mine-negatives", str(old), f"new={run}", "--policy", "tevatron", "--from-rank", "2", "--margin", "1"]
    app([*call, "--audit", str(tmp_path / "audit.jsonl")], standalone_mode=False)
    out, told = capfd.readouterr()
    assert sorted(json.loads(out)["negatives"]) == ["d2", "d3", "d7"]
    assert told.count("--from-rank, --margin go by what runs and indexes say, not examples") == 1
    kept = json.loads((tmp_path / "audit.jsonl").read_text())["kept"]
    assert {one["id"]: one.get("rank") for one in kept} == {"d2": None, "d3": None, "d7": 4}
    with pytest.raises(UsageError, match="--margin: there is no source 'a' among new"):
        command(capfd, *call, "--margin", "a=1")


def test_faults_of_examples_have_their_place(world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", "\n" + json.dumps(EXAMPLE | {"negatives": ["d2", "zz"]}) + "\n")
    with pytest.raises(RecordError, match=r"old\.jsonl:2: passage 'zz' is not in the corpus$"):
        command(capfd, "mine-negatives", old, "--corpus", "corpus.jsonl")
    write(old, json.dumps(EXAMPLE) + "\n" + json.dumps(EXAMPLE | {"query_id": "qq"}) + "\n")
    call = ["--policy", "nq", "--queries", "queries.jsonl", "--corpus", "corpus.jsonl"]
    with pytest.raises(RecordError, match=r"old\.jsonl:2: query 'qq' is not in the queries$"):
        command(capfd, "mine-negatives", old, *call)
    write(old, '{"query": "what", "pos": ["text"], "neg": ["other"]}\n')
    with pytest.raises(DrtkError, match="holds texts, not ids; make a corpus and queries of them first: drtk convert"):
        command(capfd, "mine-negatives", old)
    write(old, '{"query_id": "q1"}\n')
    with pytest.raises(RecordError, match=r"old\.jsonl:1: no training example"):
        command(capfd, "mine-negatives", old)
    write(old, json.dumps(EXAMPLE | {"positives": []}) + "\n")
    with pytest.raises(RecordError, match=r"old\.jsonl:1: 'positives' is empty"):
        command(capfd, "mine-negatives", old)
    write(old, '{"query_id": "q1", "query": "what", "positive_document_ids": [], "negative_document_ids": ["d2"]}\n')
    with pytest.raises(DrtkError, match=r"^no query makes an example: 1 without positives$"):
        command(capfd, "mine-negatives", old, "-o", tmp_path / "out.jsonl")


def test_scores_that_are_no_numbers_are_refused(world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = write(tmp_path / "x.run", "q1 Q0 d1 1 2 t\nq1 Q0 d2 2 nan t\n")
    with pytest.raises(RecordError, match=r"x\.run:2: score 'nan' is not finite"):
        mined(capfd, str(run))
    write(tmp_path / "old.jsonl", '{"qid": 1, "pos": [{"pid": 1, "ce-score": NaN}], "neg": {}}\n')
    with pytest.raises(RecordError, match=r"old\.jsonl:1: not JSON"):
        command(capfd, "mine-negatives", tmp_path / "old.jsonl", "--policy", "sbert")


def test_a_run_that_was_begun_with_another_index_is_not_gone_on_with(
    world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drtk.mining.mine import Mining

    class KilledError(BaseException):
        pass

    mine = Mining.examples
    windows: list[int] = []

    def twice(self: Mining, window: Any, **options: Any) -> Any:
        windows.append(len(window))
        if len(windows) == 3:
            raise KilledError
        return mine(self, window, **options)

    call = ["--queries", "queries.jsonl", *COMMON, "--batch", "10", "-o", str(tmp_path / "out.jsonl")]
    with monkeypatch.context() as patch:
        patch.setattr(Mining, "examples", twice)
        with pytest.raises(KilledError):
            command(capfd, "mine-negatives", "x=exact", *call)
    with pytest.raises(MismatchError, match=r"was begun with other settings or files \(candidates\)"):
        command(capfd, "mine-negatives", "x=bm25", *call, "--resume")
    command(capfd, "mine-negatives", "x=exact", *call, "--resume")
    assert (tmp_path / "out.jsonl").read_text() == mined(capfd, "x=exact", "--queries", "queries.jsonl")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"_id": "q1", "text": "why?"}\n{"_id": "q2", "text": "how?"}\n', "queries or passages;.*--queries FILE"),
        (
            '{"_id": "q1", "text": "why?", "answers": ["so"]}\n{"_id": "q2", "text": "how?"}\n',
            "queries;.*--queries FILE",
        ),
        ('{"_id": "d1", "title": "t", "text": "x"}\n', "passages;.*passages: --corpus FILE"),
        ('{"query_id": "q1", "answer": "so"}\n', "predicted answers;"),
        ('{"_id": "e1", "query_id": "q1", "kind": "title", "text": "x"}\n', "expansions of questions;"),
        ("query-id\tcorpus-id\tscore\nq1\td1\t1\n", "judgements;.*judgements: --qrels FILE"),
        ("q1 0 d1 1\nq1 0 d2 0\n", "judgements;.*judgements: --qrels FILE"),
        ("q1\td1\t1\nq1\td2\t2\n", "ranked pairs or triples;.*drtk convert FILE --as run"),
        ("7\t70\t15\n7\t70\t16\n", "ranked pairs or triples;.*drtk convert FILE --as examples"),
        ("7\t15\twhy?\tSo.\n7\t16\twhy?\tNot so.\n", "top-1000 candidates;.*drtk convert FILE --as run"),
        ("q1\twhy is it so?\nq2\thow?\n", "queries or passages;"),
    ],
)
def test_a_file_that_is_nothing_to_mine_is_called_what_it_seems_to_be(
    world: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, content: str, told: str
) -> None:
    with pytest.raises(MismatchError, match=f"given: seems to hold .*{told}") as fault:
        mined(capfd, str(write(tmp_path / "given", content)))
    assert "what is mined is a TREC run (drtk search), an index folder or training examples" in str(fault.value)


def test_a_run_given_as_judgements_is_called_a_run(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError, match=r"bm25\.run:1: expected 4 columns .* a file of hits of a TREC run"):
        command(capfd, "mine-negatives", "bm25.run", "--qrels", "bm25.run")
