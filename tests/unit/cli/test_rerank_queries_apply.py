"""drtk rerank-queries apply: a model with planted knowledge reaches the oracle, query files, resume, rejected input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.data.trec import load_run
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import get_manifest_path
from tests.expansion_collection import KINDS, label_expansions, make_collection, read_rows, write_collection, write_rows
from tests.run_commands import run_command
from tests.tiny_models import save_tiny_encoder

ANSWERS = "Answer@1 Answer@5"


class Killed(BaseException):
    """What no command catches."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world, its labels, and a model that has learned what gives good candidates away."""
    folder = write_collection(tmp_path_factory.mktemp("apply"))
    label_expansions(folder)
    # Taught that rank 2 is rank 50: beside 101, one rank is too small a margin to be sure of after so few steps.
    taught = [
        row | {"rank": {1: 1, 2: 50}.get(row["rank"], row["rank"])} for row in read_rows(folder / "labeled.jsonl")
    ]
    source = write_rows(folder / "taught.jsonl", taught)
    call = f"rerank-queries train {source} --queries {folder}/queries.jsonl --model {save_tiny_encoder(folder / 'encoder')} -q"
    more = "--max-length 24 --device cpu --max-steps 200 --set schedule=linear --set max_lr=2e-3 --set warmup=10 --batch-size 8"
    app([*f"{call} {more} -o {folder}/planted".split()], standalone_mode=False)
    return folder


def call(place: Path, output: Path, *more: str, source: Path | None = None) -> Path:
    named = ["--queries", str(place / "queries.jsonl"), "-o", str(output), "-q"]
    app(["rerank-queries", "apply", str(source or place / "labeled.jsonl"), *named, *more], standalone_mode=False)
    return output


def ranks(folder: Path) -> list[int]:
    """The label of what was chosen for each question and kind."""
    return [row["ranks"][0] for row in read_rows(folder / "choices.jsonl")]


def test_a_model_with_planted_knowledge_reaches_the_oracle_end_to_end(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    accuracy: dict[str, str] = {}
    for select in ("scorer", "oracle", "first"):
        more = ["--model", str(place / "planted"), "--device", "cpu"] if select == "scorer" else ["--select", select]
        folder = call(place, tmp_path / select, *more)
        runs = []
        for kind in KINDS:
            runs.append(tmp_path / f"{select}.{kind}.run")
            run_command(
                capfd, "search", place / "bm25s", folder / f"{kind}.jsonl", "-k", "10", "-o", runs[-1], "--quiet"
            )
        fused = tmp_path / f"{select}.run"
        run_command(capfd, "fuse", *runs, "--method", "round-robin", "--top", "10", "-o", fused, "-q")
        named = ["--answers", place / "queries.jsonl", "--corpus", place / "corpus.jsonl", "--measures", ANSWERS]
        accuracy[select] = run_command(capfd, "eval", f"x={fused}", *named, "-q")
    assert ranks(tmp_path / "scorer") == ranks(tmp_path / "oracle") == [1] * 72
    assert accuracy["scorer"].split()[-2:] == ["1.0000", "1.0000"]
    assert accuracy["scorer"] == accuracy["oracle"] != accuracy["first"]
    estimates = read_rows(tmp_path / "scorer" / "choices.jsonl")[0]["estimates"]
    assert len(estimates) == 1


def test_candidates_are_ordered_by_rising_estimates(place: Path, tmp_path: Path) -> None:
    folder = call(place, tmp_path / "all", "--model", str(place / "planted"), "--n-best", "4")
    for row in read_rows(folder / "choices.jsonl"):
        assert row["estimates"] == sorted(row["estimates"])
        assert row["ranks"] == [1, 2, 101, 101]


def test_the_oracle_is_never_worse_than_any_selection(place: Path, tmp_path: Path) -> None:
    best = ranks(call(place, tmp_path / "oracle", "--select", "oracle"))
    others = [call(place, tmp_path / "first", "--select", "first")]
    others.append(call(place, tmp_path / "scorer", "--model", str(place / "planted")))
    few = ["--select", "oracle", "--set"]
    others += [call(place, tmp_path / f"m{at}", *few, f"max_candidates={at}") for at in (1, 2, 3, 4)]
    for other in others:
        assert all(mine <= theirs for mine, theirs in zip(best, ranks(other), strict=True)), other
    assert sum(best) < sum(ranks(others[0]))


def test_query_files_keep_ids_and_answers_and_hold_the_expanded_question(place: Path, tmp_path: Path) -> None:
    folder = call(place, tmp_path / "out", "--select", "oracle")
    rows = read_rows(folder / "answer.jsonl")
    assert [row["_id"] for row in rows] == [f"q{n}" for n in range(24)]
    good = {row["query_id"]: row for row in make_collection()[2] if row["kind"] == "answer" and row["made"] == "good"}
    assert rows[3] == {
        "_id": "q3",
        "text": f"which thing was meant3 ? {good['q3']['text']}",
        "answers": ["Ans3"],
        "expansion": good["q3"]["_id"],
    }
    assert sorted(path.name for path in folder.iterdir()) == [
        *("answer.jsonl", "choices.jsonl", "meta.json", "sentence.jsonl", "title.jsonl")
    ]
    assert read_json(folder / "meta.json")["queries"] == {f"{kind}.jsonl": 24 for kind in KINDS} | {"asked alone": 0}


def test_several_queries_of_a_question_are_written_by_their_place_searched_and_fused(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in read_rows(place / "labeled.jsonl") if row["kind"] == "title"]
    rows = [row for row in rows if not (row["query_id"] == "q1" and row["made"] != "good")]  # one candidate alone
    folder = call(
        place, tmp_path / "out", "--select", "oracle", "--n-best", "3", source=write_rows(tmp_path / "in", rows)
    )
    names = ["title.1.jsonl", "title.2.jsonl", "title.3.jsonl"]
    assert sorted(path.name for path in folder.glob("title*")) == names
    files = [{row["_id"]: row["expansion"] for row in read_rows(folder / name)} for name in names]
    assert [len(each) for each in files] == [24, 23, 23]
    made = {row["_id"]: row["made"] for row in rows}
    assert [made[each["q0"]] for each in files[:2]] == ["good", "middling"]
    # The lists of the first two in turn: what either finds first is among the first two.
    runs = [tmp_path / "1.run", tmp_path / "2.run"]
    for name, run in zip(names, runs, strict=False):
        run_command(capfd, "search", place / "bm25s", folder / name, "-k", "10", "-o", run, "--quiet")
    run_command(capfd, "fuse", *runs, "--method", "round-robin", "-o", tmp_path / "fused.run", "-q")
    first, second, fused = (load_run(str(path)) for path in (*runs, tmp_path / "fused.run"))
    assert (len(first), len(second), len(fused)) == (24, 23, 24)
    for question, found in fused.items():
        lists = [run[question] for run in (first, second) if question in run]
        assert {ranking[0][0] for ranking in lists} <= {id for id, _ in found[:2]}
    assert [id for id, _ in fused["q1"]] == [id for id, _ in first["q1"]]


def test_repeated_candidates_are_one_and_ties_go_to_the_first(place: Path, tmp_path: Path) -> None:
    texts = ["a b", "a  b ", "c", "d"]
    rows = [
        {"_id": f"e{n}", "query_id": "q0", "kind": "answer", "text": text, "rank": 9 - n}
        for n, text in enumerate(texts)
    ]
    source = write_rows(tmp_path / "in", rows)
    folder = call(place, tmp_path / "out", "--select", "oracle", "--set", "max_candidates=2", source=source)
    assert read_rows(folder / "choices.jsonl")[0]["chosen"] == [["e2"]]  # e0 and e2 are the first two; e1 is e0
    counts = read_json(folder / "meta.json")["counts"]
    assert (counts["candidates"], counts["distinct"]) == (4, 2)
    equal = write_rows(tmp_path / "equal", [row | {"text": row["_id"], "rank": 7} for row in rows])
    folder = call(place, tmp_path / "tied", "--select", "oracle", source=equal)
    assert read_rows(folder / "choices.jsonl")[0]["chosen"] == [["e0"]]  # of equal ones the first


def test_greedy_takes_the_candidate_that_says_it_was_generated_so(place: Path, tmp_path: Path) -> None:
    rows = [{"_id": f"e{n}", "query_id": "q0", "kind": "answer", "text": f"t{n}"} for n in range(3)]
    with pytest.raises(DrtkError, match=r"/in: no candidate has \"decode\": \"greedy\""):
        call(place, tmp_path / "out", "--select", "greedy", source=write_rows(tmp_path / "in", rows))
    rows[1]["decode"] = "greedy"
    folder = call(place, tmp_path / "out", "--select", "greedy", "--force", source=write_rows(tmp_path / "in", rows))
    assert read_rows(folder / "answer.jsonl")[0]["text"] == "which thing was meant0 ? t1"


def test_where_the_greedy_text_was_blank_the_question_is_asked_alone(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # as expand-queries --decode greedy+sample leaves it: a blank text makes no candidate, its samples do
    rows = [{"_id": f"e{n}", "query_id": "q0", "kind": "answer", "text": f"t{n}", "decode": "greedy"} for n in range(1)]
    rows += [{"_id": f"f{n}", "query_id": "q1", "kind": "answer", "text": f"t{n}"} for n in range(3)]
    folder = call(place, tmp_path / "out", "--select", "greedy", source=write_rows(tmp_path / "in", rows))
    texts = {row["_id"]: row["text"] for row in read_rows(folder / "answer.jsonl")}
    assert len(texts) == 24
    assert (texts["q0"], texts["q1"]) == ("which thing was meant0 ? t0", "which thing was meant1 ?")
    assert (
        "23 pairs of question and kind have no candidate; these questions are written without an expansion"
        in capfd.readouterr().err
    )


def test_a_kind_that_would_overwrite_what_was_chosen_is_refused(place: Path, tmp_path: Path) -> None:
    rows = [{"_id": "e", "query_id": "q0", "kind": "choices", "text": "t"}]
    with pytest.raises(RecordError, match=r"in:1: 'kind' 'choices' is reserved: rerank-queries apply"):
        call(place, tmp_path / "out", "--select", "first", source=write_rows(tmp_path / "in", rows))


def test_concat_asks_with_all_candidates_and_counts_what_lucene_would_refuse(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = [" ".join(f"w{n}x{word}" for word in range(300)) for n in range(4)]
    rows = [{"_id": f"e{n}", "query_id": "q0", "kind": "answer", "text": text} for n, text in enumerate(texts)]
    source = write_rows(tmp_path / "in", rows)
    folder = call(place, tmp_path / "out", "--select", "concat", source=source)
    row, *_ = read_rows(folder / "answer.jsonl")
    assert row["text"] == f"which thing was meant0 ? {' '.join(texts)}"
    assert row["expansion"] == ["e0", "e1", "e2", "e3"]
    assert "1 queries have more than 1,024 distinct words: drtk search takes them" in capfd.readouterr().err
    run_command(capfd, "search", place / "bm25s", folder / "answer.jsonl", "-o", tmp_path / "run", "--quiet")
    folder = call(place, tmp_path / "cut", "--select", "concat", "--set", "max_clauses=1024", source=source)
    words = read_rows(folder / "answer.jsonl")[0]["text"].replace(" ?", "").split()
    assert len(set(words)) == 1024
    assert "1 queries were cut to 1,024 distinct words" in capfd.readouterr().err
    assert read_json(folder / "meta.json")["counts"]["cut"] == 1


def test_questions_without_answers_are_asked_too(place: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "asked", [{"_id": "q0", "text": "which?"}])
    source = write_rows(tmp_path / "in", [{"_id": "e", "query_id": "q0", "kind": "answer", "text": "a"}])
    folder = call(place, tmp_path / "out", "--select", "first", "--queries", str(tmp_path / "asked"), source=source)
    assert read_rows(folder / "answer.jsonl") == [{"_id": "q0", "text": "which ? a", "expansion": "e"}]


def test_a_question_without_candidates_of_a_kind_or_of_any_is_asked_alone(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row
        for row in make_collection()[2]
        if row["query_id"] in ("q0", "q1") and (row["query_id"], row["kind"]) != ("q0", "title")
    ]
    folder = call(place, tmp_path / "out", "--select", "first", source=write_rows(tmp_path / "in", rows))
    assert [(row["_id"], row["text"]) for row in read_rows(folder / "title.jsonl")] == [
        ("q1", f"which thing was meant1 ? {next(row['text'] for row in rows if row['kind'] == 'title')}"),
        ("q0", "which thing was meant0 ?"),
        *((f"q{n}", f"which thing was meant{n} ?") for n in range(2, 24)),
    ]
    assert [row["_id"] for row in read_rows(folder / "answer.jsonl")] == [f"q{n}" for n in range(24)]
    # q0 in the file of titles, and 22 questions in each of the three files
    assert capfd.readouterr().err == (
        "drtk: 67 pairs of question and kind have no candidate; these questions are written without an expansion; "
        "22 of 24 questions have no candidate at all\n"
    )
    manifest = read_json(folder / "meta.json")
    assert manifest["queries"] == {f"{kind}.jsonl": 24 for kind in KINDS} | {"asked alone": 67}
    assert (manifest["counts"]["questions"], manifest["counts"]["without a candidate"]) == (24, 22)
    # so that each file's run has all questions, and is judged like that of the questions themselves
    run_command(capfd, "search", place / "bm25s", folder / "title.jsonl", "-k", "5", "-o", tmp_path / "run", "--quiet")
    run_command(
        capfd, "search", place / "bm25s", place / "queries.jsonl", "-k", "5", "-o", tmp_path / "bm25", "--quiet"
    )
    asked = {line.split()[0]: line.split()[2] for line in (tmp_path / "bm25").open()}
    assert {line.split()[0] for line in (tmp_path / "run").open()} == set(asked) | {"q1"}
    # of several places the question alone takes the first
    folder = call(place, tmp_path / "two", "--select", "first", "--n-best", "2", source=tmp_path / "in")
    found = [{row["_id"]: row["text"] for row in read_rows(folder / f"title.{at}.jsonl")} for at in (1, 2)]
    assert found[0]["q9"] == "which thing was meant9 ?"
    assert list(found[1]) == ["q1"]


def test_a_file_without_candidates_is_rejected(place: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n")
    with pytest.raises(DrtkError, match="in: contains no candidates; run `drtk expand-queries` first"):
        call(place, tmp_path / "out", "--select", "first", source=tmp_path / "in")
    assert not (tmp_path / "out").exists()


def test_no_model_library_is_loaded_without_a_model(place: Path, tmp_path: Path) -> None:
    script = "import sys; from drtk.cli.main import app; app(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    files = [place / "labeled.jsonl", "--queries", place / "queries.jsonl", "-q", "-o", tmp_path / "out"]
    named = [sys.executable, "-c", script, "rerank-queries", "apply", *files, "--select", "oracle"]
    ran = subprocess.run(named, check=True, capture_output=True, text=True)
    assert not {"torch", "transformers"} & set(ran.stdout.split())
    assert (tmp_path / "out" / "answer.jsonl").exists()


def test_a_model_for_each_kind_and_an_index_where_first_passages_are_missing(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train = f"rerank-queries train {place}/labeled.jsonl --queries {place}/queries.jsonl --model {place}/encoder -q"
    more = f"--device cpu --set variant=rd --max-length 32 --max-steps 2 --batch-size 4 -o {tmp_path}/rd"
    app([*f"{train} {more}".split()], standalone_mode=False)
    named = [
        "--model",
        f"title={tmp_path / 'rd'}",
        "--model",
        str(place / "planted"),
        "--device",
        "cpu",
        "--n-best",
        "4",
    ]
    known = call(place, tmp_path / "known", *named)
    bare = [
        {key: value for key, value in row.items() if key not in ("top1", "rank")}
        for row in read_rows(place / "labeled.jsonl")
    ]
    source = write_rows(tmp_path / "in", bare)
    with pytest.raises(RecordError, match="in:9: 'q0#title#00' has no 'top1', which `variant=rd` requires"):
        call(place, tmp_path / "out", *named, source=source)
    found = call(place, tmp_path / "found", *named, "--index", str(place / "bm25s"), source=source)
    for mine, theirs in zip(read_rows(found / "choices.jsonl"), read_rows(known / "choices.jsonl"), strict=True):
        assert mine["chosen"] == theirs["chosen"]
        assert mine["estimates"] == pytest.approx(theirs["estimates"], abs=5e-5)
    with pytest.raises(
        RecordError, match=r"no model for kind 'sentence'; give `model=sentence=DIR`, or one model for all"
    ):
        call(place, tmp_path / "one", "--model", f"title={tmp_path / 'rd'}")
    # Where the index's passages have lost their texts, there is nothing to read. q{n} has 4 titles; of these one, "nowhere",
    # and one, the key of nobody, find nothing, which is no fault of the corpus.
    passages = read_rows(place / "corpus.jsonl")
    blank = write_rows(tmp_path / "blank.jsonl", [row | {"text": ""} for row in passages])
    index = ["--index", str(place / "bm25s"), "--corpus"]
    told = r"blank.jsonl: none of the 48 passages that were read has a text; check that it is the right file"
    with pytest.raises(DrtkError, match=told):
        call(place, tmp_path / "none", *named, *index, str(blank), source=source)
    assert not (tmp_path / "none").exists()
    half = write_rows(tmp_path / "half.jsonl", [row | {"text": row["text"] * (row["_id"] != "d0")} for row in passages])
    capfd.readouterr()
    call(place, tmp_path / "half", *named, *index, str(half), source=source)
    assert capfd.readouterr().err == f"drtk: {half}: 1 of the 48 passages that were read have no text\n"


@pytest.mark.parametrize("at", ["choosing", "writing", "finishing"])
def test_a_run_that_was_cut_short_goes_on_to_the_same_files(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    # Killed while candidates are scored, or while the query files are written: what is on disk then is what counts.
    from drtk.query_expansion import rerank as applying

    monkeypatch.setattr(applying, "WINDOW", 7)
    more = ["--model", str(place / "planted"), "--device", "cpu"]
    whole = call(place, tmp_path / "whole", *more)
    done = 0
    score = applying.QuerySelector.__call__

    def cut_short(self: object, window: object) -> object:
        nonlocal done
        done += 1
        if done == 4 and at == "choosing":
            raise Killed
        return score(self, window)  # type: ignore[arg-type]

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(applying.QuerySelector, "__call__", cut_short)
        if at != "choosing":
            patch.setattr(applying, "write_queries", killed)
        with pytest.raises(Killed):
            call(place, tmp_path / "out", *more)
    assert not (tmp_path / "out" / "meta.json").exists()
    with pytest.raises(DrtkError, match="contains an interrupted run; use `resume` to continue it"):
        call(place, tmp_path / "out", *more)
    if at == "finishing":  # killed when the manifest of the finished choices was removed
        get_manifest_path(tmp_path / "out.part" / "choices.jsonl").unlink()
    with monkeypatch.context() as patch:
        done = 100 if at == "choosing" else 0
        patch.setattr(applying.QuerySelector, "__call__", cut_short)
        call(place, tmp_path / "out", *more, "--resume")
    # 72 questions by kind are 11 windows of 7, three of which were done
    assert done == {"choosing": 108, "writing": 0, "finishing": 11}[at]
    for path in whole.iterdir():
        if path.name != "meta.json":
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert read_json(tmp_path / "out" / "meta.json")["counts"] == read_json(whole / "meta.json")["counts"]


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ([], UsageError, "--model and --select scorer must be given together"),
        (["--select", "first", "--model", "x"], UsageError, "--model and --select scorer must be given together"),
        (["--model", "a", "--model", "b"], UsageError, "--model: given twice for all kinds"),
        (["--model", "title=a", "--model", "title=b"], UsageError, "--model: given twice for kind title"),
        (["--select", "concat", "--n-best", "2"], UsageError, "`n_best` 2: `select` concat has one query"),
        (["--select", "first", "--set", "max_clauses=9"], UsageError, "--set max_clauses requires --select concat"),
        (["--select", "first", "--index", "x"], UsageError, "--index and --corpus require --model"),
        (["--model", "x", "--set", "k1=2"], UsageError, "--set k1 requires --index"),
        (["--select", "first", "--set", "b=0"], UsageError, "--set b requires --index"),
        (
            ["--model", "{encoder}"],
            MismatchError,
            "encoder: is not a query reranker; train one with `drtk rerank-queries train`",
        ),
    ],
)
def test_contradictory_options_are_rejected(
    place: Path, tmp_path: Path, more: list[str], error: type[DrtkError], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(place, tmp_path / "out", *(word.format(encoder=place / "encoder") for word in more))
    assert not (tmp_path / "out").exists()


def test_candidates_without_a_question_or_a_label_are_named(place: Path, tmp_path: Path) -> None:
    for row, message in (
        ({"query_id": "q99", "rank": 1}, "in:1: the queries have no 'q99'"),
        ({"query_id": "q1"}, "in:1: 'e' has no rank; run `drtk rerank-queries label` first"),
    ):
        source = write_rows(tmp_path / "in", [{"_id": "e", "kind": "answer", "text": "a", **row}])
        with pytest.raises(RecordError, match=message):
            call(place, tmp_path / "out", "--select", "oracle", source=source)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("ids", "line"),
    [(["q0", "q1", "q0"], 3), (["q0", "q1", "q0", "q0", "q0", "q2"], 3), (["q0", "q0", "q1", "q1", "q0", "q3"], 5)],
)
def test_candidates_of_a_question_must_be_adjacent(place: Path, tmp_path: Path, ids: list[str], line: int) -> None:
    rows = [{"_id": f"e{n}", "query_id": id, "kind": "answer", "text": f"a{n}"} for n, id in enumerate(ids)]
    told = f"in:{line}: candidates of query 'q0', kind 'answer', are not adjacent; sort the file by query"
    with pytest.raises(RecordError, match=told):
        call(place, tmp_path / "out", "--select", "first", source=write_rows(tmp_path / "in", rows))
    # the line is where the kind comes again, not where another one of the question begins
    between = [rows[line - 1] | {"_id": "t0", "kind": "title"}, *rows[line - 1 :]]
    with pytest.raises(RecordError, match=told.replace(f"in:{line}", f"in:{line + 1}")):
        call(
            place, tmp_path / "out", "--select", "first", source=write_rows(tmp_path / "in", rows[: line - 1] + between)
        )


def test_kinds_one_after_the_other_as_cat_joins_them(place: Path, tmp_path: Path) -> None:
    rows = [{"_id": f"e{n}", "query_id": f"q{n % 2}", "kind": "answer", "text": "a"} for n in range(3)]
    rows[2]["kind"] = "title"
    folder = call(place, tmp_path / "out", "--select", "first", source=write_rows(tmp_path / "in", rows))
    # q0 and q1 have an answer, q0 has a title; all others are asked alone in both
    assert json.loads((folder / "meta.json").read_text())["queries"] == {
        "answer.jsonl": 24,
        "title.jsonl": 24,
        "asked alone": 22 + 23,
    }
