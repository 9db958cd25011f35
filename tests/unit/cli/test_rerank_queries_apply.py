"""drtk rerank-queries apply: a model that knows the labels equals the oracle, query files, resume, rejected input."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.query_expansion import rerank
from drtk.runtime import filter_job
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import get_manifest_path
from tests.expansion_collection import KINDS, label_expansions, make_collection, read_rows, write_collection, write_rows
from tests.run_commands import fail_at_call, run_command
from tests.tiny_models import save_tiny_encoder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, its labels, and a query reranker that has learned which words good expansions have."""
    folder = write_collection(tmp_path_factory.mktemp("apply"))
    # Rank 2 is taught as rank 50: next to 101, one rank is too small a margin to learn in so few steps.
    rows = read_rows(label_expansions(folder))
    write_rows(folder / "taught", [row | {"rank": 50 if row["rank"] == 2 else row["rank"]} for row in rows])
    files = f"{folder}/taught --queries {folder}/queries.jsonl --model {save_tiny_encoder(folder / 'encoder')}"
    more = "--max-length 24 --device cpu --max-steps 200 --set schedule=linear --set max_lr=2e-3 --set warmup=10 -q"
    app(f"rerank-queries train {files} {more} --batch-size 8 -o {folder}/planted".split(), standalone_mode=False)
    return folder


def call(data: Path, output: Path, more: str, source: Path | list[dict] | None = None) -> Path:
    """Run drtk rerank-queries apply on labeled.jsonl, another file, or rows; return the output folder."""
    if isinstance(source, list):
        source = write_rows(output.parent / "in", source)
    files = f"{source or data / 'labeled.jsonl'} --queries {data}/queries.jsonl -o {output} -q"
    app(f"rerank-queries apply {files} {more}".split(), standalone_mode=False)
    return output


def make_rows(*texts: str) -> list[dict]:
    """Return answers e0, e1, … of query q0."""
    return [{"_id": f"e{n}", "query_id": "q0", "kind": "answer", "text": text} for n, text in enumerate(texts)]


def ranks(folder: Path) -> list[int]:
    """Return the label of the selected candidate of each question and kind."""
    return [row["ranks"][0] for row in read_rows(folder / "choices.jsonl")]


def test_a_model_with_planted_knowledge_reaches_the_oracle_end_to_end(data, tmp_path, capfd):
    accuracy: dict[str, str] = {}
    for row in read_rows(call(data, tmp_path / "all", f"--model {data}/planted --n-best 4") / "choices.jsonl"):
        assert row["estimates"] == sorted(row["estimates"])
        assert row["ranks"] == [1, 2, 101, 101]
    for select, more in (("scorer", f"--model {data}/planted --device cpu"), ("oracle", ""), ("first", "")):
        folder = call(data, tmp_path / select, f"--select {select} {more}")
        for kind in KINDS:
            search = f"search {data}/bm25s {folder}/{kind}.jsonl -k 10 -o {tmp_path}/{select}.{kind}.run -q"
            run_command(capfd, *search.split())
        runs = " ".join(f"{tmp_path}/{select}.{kind}.run" for kind in KINDS)
        run_command(capfd, *f"fuse {runs} --method round-robin --top 10 -o {tmp_path}/{select}.run -q".split())
        files = f"--answers {data}/queries.jsonl --corpus {data}/corpus.jsonl -q --measures"
        accuracy[select] = run_command(capfd, *f"eval x={tmp_path}/{select}.run {files}".split(), "Answer@1 Answer@5")
    assert ranks(tmp_path / "scorer") == ranks(tmp_path / "oracle") == [1] * 72
    assert accuracy["scorer"].split()[-2:] == ["1.0000", "1.0000"]
    assert accuracy["scorer"] == accuracy["oracle"] != accuracy["first"]


def test_the_progress_counts_lists_of_candidates_not_lines(data, tmp_path, monkeypatch):
    progress = Mock(wraps=filter_job.Progress)
    monkeypatch.setattr(filter_job, "Progress", progress)
    call(data, tmp_path / "out", "--select oracle")
    assert progress.call_args.kwargs["total"] == 24 * len(KINDS) < len(read_rows(data / "labeled.jsonl"))


def test_query_files_keep_ids_and_answers_and_hold_the_expanded_question(data, tmp_path):
    folder = call(data, tmp_path / "out", "--select oracle")
    rows = read_rows(folder / "answer.jsonl")
    assert [row["_id"] for row in rows] == [f"q{n}" for n in range(24)]
    good = {row["query_id"]: row for row in make_collection()[2] if row["kind"] == "answer" and row["made"] == "good"}
    assert rows[3] == {
        "_id": "q3",
        "text": f"which thing was meant3 ? {good['q3']['text']}",
        "answers": ["Ans3"],
        "expansion": good["q3"]["_id"],
    }
    names = [path.name for path in folder.iterdir()]
    assert sorted(names) == ["answer.jsonl", "choices.jsonl", "meta.json", "sentence.jsonl", "title.jsonl"]
    assert read_json(folder / "meta.json")["queries"] == {f"{kind}.jsonl": 24 for kind in KINDS} | {"unexpanded": 0}


def test_several_queries_of_a_question_are_written_by_rank(data, tmp_path, capfd):
    rows = [row for row in read_rows(data / "labeled.jsonl") if row["kind"] == "title"]
    rows = [row for row in rows if not (row["query_id"] == "q1" and row["made"] != "good")]  # one candidate alone
    folder = call(data, tmp_path / "out", "--select oracle --n-best 3", rows)
    names = ["title.1.jsonl", "title.2.jsonl", "title.3.jsonl"]
    assert sorted(path.name for path in folder.glob("title*")) == names
    files = [{row["_id"]: row["expansion"] for row in read_rows(folder / name)} for name in names]
    assert [len(each) for each in files] == [24, 23, 23]
    made = {row["_id"]: row["made"] for row in rows}
    assert [made[each["q0"]] for each in files[:2]] == ["good", "middling"]


def test_repeated_candidates_count_as_one(data, tmp_path):
    rows = [row | {"rank": 9 - n} for n, row in enumerate(make_rows("a b", "a  b ", "c", "d"))]
    folder = call(data, tmp_path / "out", "--select oracle --set max_candidates=2", rows)
    assert read_rows(folder / "choices.jsonl")[0]["chosen"] == [["e2"]]  # e0 and e2 are the first two; e1 is e0
    counts = read_json(folder / "meta.json")["counts"]
    assert (counts["candidates"], counts["distinct"]) == (4, 2)


def test_greedy_selects_the_greedily_decoded_candidate_or_the_question(data, tmp_path, capfd):
    rows = make_rows("t0", "t1", "t2", "t3")
    rows[3]["query_id"] = "q1"
    with pytest.raises(DrtkError, match=r"/in: no candidate has \"decode\": \"greedy\""):
        call(data, tmp_path / "out", "--select greedy", rows)
    rows[1]["decode"] = "greedy"  # the greedy text of q1 was blank
    folder = call(data, tmp_path / "out", "--select greedy --force", rows)
    texts = {row["_id"]: row["text"] for row in read_rows(folder / "answer.jsonl")}
    assert len(texts) == 24
    assert (texts["q0"], texts["q1"]) == ("which thing was meant0 ? t1", "which thing was meant1 ?")
    message = "23 pairs of question and kind have no candidate; these questions are written without an expansion"
    assert message in capfd.readouterr().err


def test_concat_joins_all_candidates_in_a_query_longer_than_lucenes_default_limit(data, tmp_path, capfd):
    texts = [" ".join(f"w{n}x{word}" for word in range(300)) for n in range(4)]
    folder = call(data, tmp_path / "out", "--select concat", make_rows(*texts))
    row, *_ = read_rows(folder / "answer.jsonl")
    assert row["text"] == f"which thing was meant0 ? {' '.join(texts)}"
    assert row["expansion"] == ["e0", "e1", "e2", "e3"]
    run_command(capfd, "search", data / "bm25s", folder / "answer.jsonl", "-o", tmp_path / "run", "-q")


def test_a_question_without_candidates_is_written_unexpanded(data, tmp_path, capfd):
    rows = [row for row in make_collection()[2] if row["query_id"] in ("q0", "q1")]
    rows = [row for row in rows if (row["query_id"], row["kind"]) != ("q0", "title")]
    folder = call(data, tmp_path / "out", "--select first", rows)
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
    assert manifest["queries"] == {f"{kind}.jsonl": 24 for kind in KINDS} | {"unexpanded": 67}
    assert (manifest["counts"]["questions"], manifest["counts"]["without a candidate"]) == (24, 22)
    # With several files, a question without candidates is in the first.
    folder = call(data, tmp_path / "two", "--select first --n-best 2", rows)
    files = [{row["_id"]: row["text"] for row in read_rows(folder / f"title.{at}.jsonl")} for at in (1, 2)]
    assert files[0]["q9"] == "which thing was meant9 ?"
    assert list(files[1]) == ["q1"]


def test_no_model_library_is_loaded_without_a_model(data, tmp_path):
    script = "import sys; from drtk.cli.main import app; app(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    files = [data / "labeled.jsonl", "--queries", data / "queries.jsonl", "-q", "-o", tmp_path / "out"]
    named = [sys.executable, "-c", script, "rerank-queries", "apply", *files, "--select", "oracle"]
    ran = subprocess.run(named, check=True, capture_output=True, text=True)
    assert not {"torch", "transformers"} & set(ran.stdout.split())
    assert (tmp_path / "out" / "answer.jsonl").exists()


def test_apply_takes_a_model_per_kind_and_searches_missing_first_passages(data, tmp_path, capfd):
    train = f"rerank-queries train {data}/labeled.jsonl --queries {data}/queries.jsonl --model {data}/encoder -q"
    more = f"--device cpu --set variant=rd --max-length 32 --max-steps 2 --batch-size 4 -o {tmp_path}/rd"
    app(f"{train} {more}".split(), standalone_mode=False)
    named = f"--model title={tmp_path}/rd --model {data}/planted --device cpu --n-best 4"
    known = call(data, tmp_path / "known", named)
    rows = read_rows(data / "labeled.jsonl")
    bare = [{key: value for key, value in row.items() if key not in ("top1", "rank")} for row in rows]
    with pytest.raises(RecordError, match="in:9: 'q0#title#00' has no 'top1', which `variant=rd` requires"):
        call(data, tmp_path / "out", named, bare)
    found = call(data, tmp_path / "found", f"{named} --index {data}/bm25s", bare)
    for actual, theirs in zip(read_rows(found / "choices.jsonl"), read_rows(known / "choices.jsonl"), strict=True):
        assert actual["chosen"] == theirs["chosen"]
        assert actual["estimates"] == pytest.approx(theirs["estimates"], abs=5e-5)
    with pytest.raises(RecordError, match="no model for kind 'sentence'; give `model=sentence=DIR`, or one model"):
        call(data, tmp_path / "one", f"--model title={tmp_path}/rd")
    # Two of the 4 titles of a question retrieve nothing; without texts, the passages of the others cannot be read.
    passages = read_rows(data / "corpus.jsonl")
    blank = write_rows(tmp_path / "blank.jsonl", [row | {"text": ""} for row in passages])
    half = write_rows(tmp_path / "half.jsonl", [row | {"text": row["text"] * (row["_id"] != "d0")} for row in passages])
    message = r"blank.jsonl: none of the 48 passages that were read has a text; check that it is the right file"
    with pytest.raises(DrtkError, match=message):
        call(data, tmp_path / "none", f"{named} --index {data}/bm25s --corpus {blank}", bare)
    assert not (tmp_path / "none").exists()
    capfd.readouterr()
    call(data, tmp_path / "half", f"{named} --index {data}/bm25s --corpus {half}", bare)
    assert capfd.readouterr().err == f"drtk: {half}: 1 of the 48 passages that were read have no text\n"


@pytest.mark.parametrize("stage", ["selecting", "writing", "finishing"])
def test_an_interrupted_run_resumes_with_the_same_files(data, tmp_path, monkeypatch, stage):
    monkeypatch.setattr(rerank, "LISTS_PER_BATCH", 7)
    more = f"--model {data}/planted --device cpu"
    whole, output = call(data, tmp_path / "whole", more), tmp_path / "out"
    function = (4, rerank.QuerySelector, "__call__") if stage == "selecting" else (1, rerank, "write_queries")
    with fail_at_call(*function):
        call(data, output, more)
    assert not output.exists()
    with pytest.raises(DrtkError, match="contains an interrupted run; use `resume` to continue it"):
        call(data, output, more)
    if stage == "finishing":  # interrupted after the manifest of the selected candidates was removed
        get_manifest_path(tmp_path / "out.part" / "choices.jsonl").unlink()
    select, calls = rerank.QuerySelector.__call__, []
    monkeypatch.setattr(rerank.QuerySelector, "__call__", lambda *batch: calls.append(1) or select(*batch))
    call(data, output, f"{more} --resume")
    # 72 lists of candidates are 11 batches of 7, of which three were finished
    assert len(calls) == {"selecting": 8, "writing": 0, "finishing": 11}[stage]
    for path in whole.iterdir():
        if path.name != "meta.json":
            assert (output / path.name).read_bytes() == path.read_bytes()
    assert read_json(output / "meta.json")["counts"] == read_json(whole / "meta.json")["counts"]


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ("", UsageError, "--select scorer, the default, requires --model"),
        ("--select first --model x", UsageError, "--model requires --select scorer"),
        ("--model a --model b", UsageError, "--model: given twice for all kinds"),
        ("--model title=a --model title=b", UsageError, "--model: given twice for kind title"),
        ("--select concat --n-best 2", UsageError, "`n_best` 2: `select` concat returns one query"),
        ("--select first --index x", UsageError, "--index and --corpus require --model"),
        ("--model x --set k1=2", UsageError, "--set k1 requires --index"),
        ("--model {encoder}", MismatchError, "encoder: is not a query reranker; train one with `drtk rerank-queries"),
    ],
)
def test_contradictory_options_are_rejected(data, tmp_path, more, error, message):
    with pytest.raises(error, match=message):
        call(data, tmp_path / "out", more.format(encoder=data / "encoder"))
    assert not (tmp_path / "out").exists()


def test_invalid_candidates_are_reported(data, tmp_path):
    rows = [row | {"query_id": id} for row, id in zip(make_rows(*"abcde"), ["q0", "q0", "q1", "q0", "q3"], strict=True)]
    # The error names the line where the kind is repeated, not the line where other kinds of the question begin.
    between = [*rows[:3], rows[3] | {"_id": "t0", "kind": "title"}, *rows[3:]]
    apart = "candidates of query 'q0', kind 'answer', are not adjacent; sort the file by query"
    for source, select, message in (
        (rows, "first", f"in:4: {apart}"),
        (between, "first", f"in:5: {apart}"),
        ([rows[0] | {"query_id": "q99", "rank": 1}], "oracle", "in:1: the queries have no 'q99'"),
        ([rows[0]], "oracle", "in:1: 'e0' has no rank; run `drtk rerank-queries label` first"),
        ([rows[0] | {"kind": "choices"}], "first", "in:1: 'kind' 'choices' is reserved: rerank-queries apply"),
        ([], "first", "in: contains no candidates; run `drtk expand-queries` first"),
    ):
        with pytest.raises(DrtkError, match=message):
            call(data, tmp_path / "out", f"--select {select}", source)
        assert not (tmp_path / "out").exists()


def test_files_of_several_kinds_can_be_concatenated(data, tmp_path):
    rows = [row | {"query_id": f"q{n % 2}"} for n, row in enumerate(make_rows("a", "a", "a"))]
    rows[2]["kind"] = "title"
    folder = call(data, tmp_path / "out", "--select first", rows)
    # q0 and q1 have an answer, q0 has a title; all others are written without an expansion
    queries = {"answer.jsonl": 24, "title.jsonl": 24, "unexpanded": 22 + 23}
    assert read_json(folder / "meta.json")["queries"] == queries
