"""doc2query --keep and keep-queries: which queries are kept, their scores, and runs killed in either pass."""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.data.rows import dump
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.expansion import generate
from drtk.expansion.keep_queries import find_threshold
from drtk.models.cross_encoder import PAIRING, CrossEncoderScorer
from drtk.runtime.streams import open_input
from tests.run_commands import run_command, write_text
from tests.tiny_models import make_passages, save_tiny_cross_encoder, save_tiny_encoder, save_tiny_generator

Rows = list[dict[str, Any]]
SHORT = ["--max-new-tokens", "8", "--n", "4", "-q"]
SCORED = [
    {"_id": id, "title": "", "text": "t", "queries": queries, "colour": "red", "query_scores": scores}
    for id, queries, scores in (
        ("a", ["a1", "a2"], [0.9, 0.1]), ("b", ["b1", "b2", "b3"], [0.5, 0.5, 0.2]), ("c", ["c1"], [0.5]),
    )
]  # fmt: skip


class Planted:
    """A scorer that counts the words that query and passage share: few values, so there are many ties."""

    def __init__(self, model: str, **_: object) -> None: ...

    def tokenize(self, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return pairs

    def scores(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        return np.array([overlap(query, text) for query, text in pairs], dtype=np.float32)


def overlap(query: str, text: str) -> float:
    return len(set(query.split()) & set(text.split())) / 10


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writer, and a reranker that records no way to read titles, or one of three."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_generator(folder / "t5", "t5")
    save_tiny_cross_encoder(folder / "scorer")
    for title in TEXTS:
        save_tiny_cross_encoder(folder / title)
        manifest = {"command": "drtk train-reranker", "settings": {}, "inputs": [], PAIRING: {"title": title}}
        write_text(folder / title / "meta.json", json.dumps(manifest))
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "c.jsonl", b"".join(map(dump, make_passages(30))).decode())
    save(tmp_path / "scored.jsonl", SCORED)
    return tmp_path


def save(path: Path, rows: Rows) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def load(text: str) -> Rows:
    return [json.loads(line) for line in text.splitlines()]


def content(path: Path) -> bytes:
    return open_input(str(path))[0].read()


def best(rows: Rows, number: int) -> Rows:
    """The rows with their `number` best queries by sorting; of equal ones the earlier."""
    every = [(score, at, place) for at, row in enumerate(rows) for place, score in enumerate(row["query_scores"])]
    chosen = {(at, place) for _, at, place in sorted(every, key=lambda entry: (-entry[0], entry[1:]))[:number]}
    return [
        row
        | {
            name: [value for place, value in enumerate(row[name]) if (at, place) in chosen]
            for name in ("queries", "query_scores")
        }
        for at, row in enumerate(rows)
    ]


def without_scores(rows: Rows) -> Rows:
    return [{name: value for name, value in row.items() if name != "query_scores"} for row in rows]


def test_a_share_of_all_queries_stays_and_of_equal_ones_the_first(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # 6 queries, half of them: 3. The best is .9; three have .5, of which the first two of the input stay.
    run_command(capfd, "keep-queries", "scored.jsonl", "--keep", "0.5", "-o", "kept.jsonl")
    found = load((here / "kept.jsonl").read_text())
    assert [row["queries"] for row in found] == [["a1"], ["b1", "b2"], []]
    assert [list(row) for row in found] == [["_id", "title", "text", "queries", "colour"]] * 3
    counts = json.loads((here / "kept.jsonl.meta.json").read_text())["counts"]
    assert counts == {"in": 3, "out": 3, "queries": 6, "kept": 3, "min_score": 0.5}
    assert sorted(item.name for item in here.glob("kept*")) == ["kept.jsonl", "kept.jsonl.meta.json"]


def test_the_second_pass_logs_the_lowest_score(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    app(["keep-queries", "scored.jsonl", "--keep", "0.5"], standalone_mode=False)
    logged = capfd.readouterr().err
    assert "drtk: keeping 3 of 6 queries, with scores of at least 0.5\n" in logged
    assert "drtk: keep-queries: processing all records before writing the first; temporary folder " in logged
    assert "3 in, 3 out, 6 queries, 3 kept" in logged


def test_the_share_is_rounded_up_to_whole_queries(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # .7 of 10 queries are 7, though .7 in binary is a little more than .7
    row = {"_id": "d", "text": "t", "queries": list("abcdefghij"), "query_scores": list(range(10))}
    save(here / "ten.jsonl", [row])
    for share, number in (("0.1", 1), ("0.7", 7), ("0.71", 8), ("1", 10), ("0.0001", 1)):
        [row] = load(run_command(capfd, "keep-queries", "ten.jsonl", "--keep", share, "-q"))
        assert row["queries"] == list("abcdefghij")[10 - number :]


def test_a_share_equals_that_of_sorting(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(0)  # three values: nearly all are ties, across the windows of both passes
    rows = []
    for number in range(1300):
        scores = [draw.randrange(3) / 8 for _ in range(draw.randrange(4))]
        queries = [f"q{number}-{place}" for place in range(len(scores))]
        rows.append({"_id": f"d{number}", "title": "", "text": "t", "queries": queries, "query_scores": scores})
    save(here / "many.jsonl", rows)
    total = sum(len(row["queries"]) for row in rows)
    found = load(run_command(capfd, "keep-queries", "many.jsonl", "--keep", "0.375", "--scores", "-q"))
    assert found == best(rows, -(-total * 3 // 8))


def test_find_the_lowest_kept_score_and_its_ties() -> None:
    scores = np.array([2, 1, 2, 3, 2], dtype=np.float32)
    assert find_threshold(scores.copy(), 1) == (3, 1)
    assert find_threshold(scores.copy(), 3) == (2, 2)
    assert find_threshold(scores.copy(), 5) == (1, 1)
    assert find_threshold(scores.copy(), 0) == (np.inf, 0)
    assert find_threshold(scores[:0], 0) == (np.inf, 0)


def test_a_threshold_keeps_scores_equal_to_it(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = load(run_command(capfd, "keep-queries", "scored.jsonl", "--min-score", "0.5", "--scores", "-q"))
    assert [row["queries"] for row in found] == [["a1"], ["b1", "b2"], ["c1"]]
    assert [row["query_scores"] for row in found] == [[0.9], [0.5, 0.5], [0.5]]
    bare = load(run_command(capfd, "keep-queries", "scored.jsonl", "--min-score", "0.51", "--bare", "-q"))
    assert bare == [{"_id": "a", "queries": ["a1"]}, {"_id": "b", "queries": []}, {"_id": "c", "queries": []}]


def test_queries_in_a_side_file_are_judged_too(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = [{name: row[name] for name in ("_id", "title", "text")} for row in SCORED]
    save(here / "plain.jsonl", plain)
    save(here / "side.jsonl", [{name: row[name] for name in ("_id", "queries", "query_scores")} for row in SCORED])
    call = ["keep-queries", "plain.jsonl", "--with", "side.jsonl", "--keep", "0.5", "-q"]
    assert [row["queries"] for row in load(run_command(capfd, *call))] == [["a1"], ["b1", "b2"], []]


def test_queries_are_generated_scored_and_kept_in_one_call(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drtk.models.cross_encoder.CrossEncoderScorer", Planted)
    (here / "planted").mkdir()
    monkeypatch.setattr("drtk.cli.doc2query.WINDOW", 8)
    call = ["doc2query", "c.jsonl", "--model", models / "t5", *SHORT]
    every = load(run_command(capfd, *call))
    for row in every:
        row["query_scores"] = [overlap(query, f"{row['title']} {row['text']}") for query in row["queries"]]
    assert len({score for row in every for score in row["query_scores"]}) > 1
    scored = load(run_command(capfd, *call, "--scorer", "planted", "--scores"))
    assert scored == every
    expected = best(every, 84)  # .7 of 30 x 4
    assert any(row["queries"] == [] for row in expected) or any(len(row["queries"]) < 4 for row in expected)
    assert load(run_command(capfd, *call, "--scorer", "planted", "--keep", "0.7", "--scores")) == expected
    assert load(run_command(capfd, *call, "--scorer", "planted", "--keep", "0.7")) == without_scores(expected)
    bare = load(run_command(capfd, *call, "--scorer", "planted", "--keep", "0.7", "--bare"))
    assert bare == [{"_id": row["_id"], "queries": row["queries"]} for row in expected]
    least = load(run_command(capfd, *call, "--scorer", "planted", "--min-score", "0.1"))
    assert [len(row["queries"]) for row in least] == [sum(x >= 0.1 for x in row["query_scores"]) for row in every]


def test_several_thresholds_without_generating_again(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["doc2query", "c.jsonl", "--model", models / "t5", *SHORT, "--scorer", models / "scorer"]
    run_command(capfd, *call, "--scores", "-o", "all.jsonl")
    for share in ("0.3", "0.8"):
        at_once = run_command(capfd, *call, "--keep", share)
        assert run_command(capfd, "keep-queries", "all.jsonl", "--keep", share, "-q") == at_once
        # The threshold that was found, given as one, keeps the same: there are no ties here.
        run_command(capfd, "keep-queries", "all.jsonl", "--keep", share, "-q", "-o", f"{share}.jsonl")
        least = json.loads((here / f"{share}.jsonl.meta.json").read_text())["counts"]["min_score"]
        assert run_command(capfd, "keep-queries", "all.jsonl", "--min-score", str(least), "-q") == at_once
    # Scored again they have the same scores, up to the sums of batches of another shape.
    again = load(run_command(capfd, "keep-queries", "all.jsonl", "--scorer", models / "scorer", "--scores", "-q"))
    for new, old in zip(again, load((here / "all.jsonl").read_text()), strict=True):
        assert new["queries"] == old["queries"]
        assert np.allclose(new["query_scores"], old["query_scores"], atol=1e-5)


TEXTS = {
    "colon": lambda row: f"{row['title']}: {row['text']}",
    "join": lambda row: f"{row['title']} {row['text']}",
    "none": lambda row: row["text"],
}


def test_scores_are_those_of_the_cross_encoder_for_query_and_passage(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [
        json.loads(dump(passage)) | {"queries": ["rivers", "engines engineed", "rivers"]}
        for passage in make_passages(12)
    ]
    save(here / "written.jsonl", [*rows, rows[0] | {"_id": "none", "queries": []}])
    scorer = CrossEncoderScorer(str(models / "scorer"))
    call = ["keep-queries", "written.jsonl", "--scorer", models / "scorer", "--scores", "-q"]
    for title in TEXTS:
        scored = load(run_command(capfd, *call, "--set", f"scorer_title={title}"))
        expected = scorer([(query, TEXTS[title](row)) for row in rows for query in rows[0]["queries"]])
        assert np.allclose([score for row in scored for score in row["query_scores"]], expected, atol=1e-5)
        assert all(row["query_scores"][0] == row["query_scores"][2] for row in scored[:-1])  # equal, not nearly
        assert all(row["queries"] == ["rivers", "engines engineed", "rivers"] for row in scored[:-1])
        assert scored[-1]["queries"] == scored[-1]["query_scores"] == []
        if title == "join":
            assert load(run_command(capfd, *call)) == scored  # the default of a model that records nothing
    assert expected.std() > 0.01
    assert ((expected > 0) & (expected < 1)).all()
    logits = load(run_command(capfd, *call, "--set", "scorer_title=none", "--set", "scorer_logits=true"))
    values = np.array([score for row in logits for score in row["query_scores"]])
    assert np.allclose(1 / (1 + np.exp(-values)), expected, atol=1e-5)


def test_passages_are_read_as_the_re_ranker_was_trained(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(dump(passage)) | {"queries": ["rivers", "engines engineed"]} for passage in make_passages(12)]
    save(here / "written.jsonl", rows)
    generating = ["doc2query", "c.jsonl", "--model", models / "t5", "--n", "2", "--max-new-tokens", "4", "-q"]
    for title, text_of in TEXTS.items():
        scorer = CrossEncoderScorer(str(models / title), device="cpu", logits=True)
        for call in (["keep-queries", "written.jsonl", "-q"], generating):
            scored = load(
                run_command(capfd, *call, "--scorer", models / title, "--scores", "--set", "scorer_logits=true")
            )
            expected = scorer([(query, text_of(row)) for row in scored for query in row["queries"]])
            assert [score for row in scored for score in row["query_scores"]] == pytest.approx(expected, abs=5e-5)
    wish = ["--scorer", models / "colon", "--set", "scorer_title=join", "--scores", "-o", "x.jsonl"]
    for call in (["keep-queries", "written.jsonl", "-q"], generating):
        with pytest.raises(MismatchError, match="colon: was trained with `title` colon; join contradicts it"):
            run_command(capfd, *call, *wish)
    assert not list(here.glob("x.jsonl*"))


def test_another_re_ranker_in_the_same_folder_makes_scores_stale(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny_cross_encoder(here / "scorer")
    generating = ["doc2query", "scored.jsonl", "--model", models / "t5", "--n", "1", "--max-new-tokens", "2"]
    for call in (["keep-queries", "scored.jsonl"], generating):
        made = []
        for state in ("first", "first", "second"):
            write_text(model / "meta.json", json.dumps({"of": f"{call[0]} {state}"}))
            run_command(capfd, *call, "--scorer", model, "--scores", "-o", call[0], "--skip-done", "--force")
            made.append(Path(call[0]).stat().st_ino)
        assert made[0] == made[1] != made[2]


def test_stale_scores_go_with_the_queries_they_were_for(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = load(run_command(capfd, "doc2query", "scored.jsonl", "--model", models / "t5", *SHORT))
    assert [list(row) for row in found] == [["_id", "title", "text", "queries", "colour"]] * 3
    found = load(
        run_command(capfd, "keep-queries", "scored.jsonl", "--scorer", models / "scorer", "--min-score", "0", "-q")
    )
    assert all("query_scores" not in row for row in found)


KILLING = """
import os, signal, sys
from drtk.cli.main import app
from drtk.expansion import keep_queries as keeping
from drtk.runtime import filter_job as filtering

keeping._WINDOW = 10
check = filtering.FilterJob.check

def in_windows_of_ten(job):
    job.window = 10
    check(job)

filtering.FilterJob.check = in_windows_of_ten
where, number = sys.argv[1], int(sys.argv[2])
calls = 0

def deadly(function):
    def called(*given, **named):
        global calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named)
    return called

if where == "first":
    keeping.drop_queries = deadly(keeping.drop_queries)
else:
    keeping.dump = deadly(keeping.dump)
app(sys.argv[3:], standalone_mode=False)
"""


def run_to_its_death(where: str, number: int, *arguments: str, stdin: bytes | None = None) -> None:
    program = [sys.executable, "-c", KILLING, where, str(number), *arguments]
    found = subprocess.run(program, input=stdin, capture_output=True, check=False)
    assert found.returncode == -signal.SIGKILL, found.stderr.decode()


@pytest.mark.parametrize(
    ("where", "number", "suffix"), [("first", 4, ".gz"), ("second", 35 + 1, ""), ("second", 35 + 35, ".gz")]
)
def test_a_run_killed_in_either_pass_resumes(
    here: Path, capfd: pytest.CaptureFixture[str], where: str, number: int, suffix: str
) -> None:
    rows = [row | {"_id": f"{row['_id']}{number}"} for number in range(12) for row in SCORED][:35]
    save(here / "many.jsonl", rows)
    call = ["keep-queries", "many.jsonl", "--keep", "0.4", "-q"]
    run_command(capfd, *call, "-o", f"whole{suffix}")
    assert 0 < content(here / f"whole{suffix}").count(b'"b1"') < 12  # the line is drawn among equals
    # The first pass writes 35 lines too: what is counted in the second begins with the 36th.
    run_to_its_death(where, number, *call, "-o", f"out{suffix}")
    assert not (here / f"out{suffix}").exists()
    assert (here / f"out{suffix}.part.new").exists() == (where == "second")
    with pytest.raises(
        DrtkError, match=r"contains \d+ finished records of an interrupted run; use `resume` to continue it"
    ):
        run_command(capfd, *call, "-o", f"out{suffix}")
    run_command(capfd, *call, "-o", f"out{suffix}", "--resume")
    assert content(here / f"out{suffix}") == content(here / f"whole{suffix}")
    found = [json.loads((here / f"{name}{suffix}.meta.json").read_text())["counts"] for name in ("out", "whole")]
    assert found[0] == found[1]
    assert sorted(item.name for item in here.glob("out*")) == [f"out{suffix}", f"out{suffix}.meta.json"]


def test_a_killed_run_that_read_stdin_resumes_with_the_same_input_only(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row | {"_id": f"{row['_id']}{number}"} for number in range(12) for row in SCORED]
    save(here / "many.jsonl", rows)
    text = (here / "many.jsonl").read_bytes()
    call = ["keep-queries", "-", "--keep", "0.4", "-q"]
    run_to_its_death("second", 36 + 3, *call, "-o", "out", stdin=text)
    run_command(capfd, "keep-queries", "many.jsonl", "--keep", "0.4", "-q", "-o", "whole")

    def resume(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        run_command(capfd, *call, "-o", "out", "--resume")

    with pytest.raises(DrtkError, match=r"out\.part: started with another input"):
        resume(text.replace(b"b1", b"bx"))
    resume(text)
    assert (here / "out").read_bytes() == (here / "whole").read_bytes()


def test_the_old_output_remains_until_the_second_pass_is_done(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["keep-queries", "scored.jsonl", "-q", "-o", "out"]
    run_command(capfd, *call, "--keep", "1")
    before = (here / "out").read_bytes(), (here / "out.meta.json").read_bytes()
    run_to_its_death("second", 5, *call, "--keep", "0.5", "--force")
    assert ((here / "out").read_bytes(), (here / "out.meta.json").read_bytes()) == before
    run_command(capfd, *call, "--keep", "0.5", "--force", "--resume")
    assert [row["queries"] for row in load((here / "out").read_text())] == [["a1"], ["b1", "b2"], []]


def test_generation_resumes_after_a_fault_between_windows(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drtk.cli.doc2query.WINDOW", 4)
    call = ["doc2query", "c.jsonl", "--model", models / "t5", *SHORT, "--scorer", models / "scorer", "--keep", "0.5"]
    run_command(capfd, *call, "-o", "whole.jsonl")
    drop, calls = generate.drop_queries, []

    def failing(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise DrtkError("enough")
        return drop(*given, **named)

    monkeypatch.setattr(generate, "drop_queries", failing)
    with pytest.raises(DrtkError, match="enough"):
        run_command(capfd, *call, "-o", "x.jsonl")
    assert json.loads((here / "x.jsonl.part.json").read_text())["records"] == 16
    run_command(capfd, *call, "-o", "x.jsonl", "--resume")
    assert (here / "x.jsonl").read_bytes() == (here / "whole.jsonl").read_bytes()
    counts = json.loads((here / "x.jsonl.meta.json").read_text())["counts"]
    assert (counts["texts"], counts["kept"]) == (120, 60)
    assert sum(len(row["queries"]) for row in load((here / "x.jsonl").read_text())) == 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": None}, "'queries' must be a list of strings"),
        ({"queries": ["b1", 2, "b3"]}, "'queries' must be a list of strings"),
        ({"query_scores": [0.1, 0.2]}, "'query_scores' has 2 numbers for 3 queries"),
        ({"query_scores": [0.1, None, 0.2]}, "'query_scores' must be a list of numbers"),
        ({"query_scores": "high"}, "'query_scores' must be a list of numbers"),
    ],
)
def test_bad_queries_and_scores_are_named(
    here: Path, capfd: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    save(here / "bad.jsonl", [SCORED[0], SCORED[1] | change, SCORED[2]])
    call = ["keep-queries", "bad.jsonl", "--keep", "0.9", "-q"]
    with pytest.raises(RecordError, match=rf"^bad\.jsonl:2: {message}"):
        run_command(capfd, *call)
    assert [row["_id"] for row in load(run_command(capfd, *call, "--skip-bad", "1"))] == ["a", "c"]


def test_missing_fields_are_named_with_what_makes_them(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError, match=r"^c\.jsonl:1: 'queries' is missing; run `drtk doc2query` first$"):
        run_command(capfd, "keep-queries", "c.jsonl", "--keep", "0.9", "-q")
    save(here / "unscored.jsonl", without_scores(SCORED))
    with pytest.raises(
        RecordError, match=r"^unscored\.jsonl:1: 'query_scores' is missing; give `scorer` to compute it$"
    ):
        run_command(capfd, "keep-queries", "unscored.jsonl", "--keep", "0.9", "-q")


GENERATE, KEEP = ["doc2query", "c.jsonl", "--model", "nowhere"], ["keep-queries", "scored.jsonl"]


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (GENERATE, ["--keep", "0.5"], "`keep`, `min_score` and `scores` require `scorer`"),
        (GENERATE, ["--min-score", "0.5"], "`keep`, `min_score` and `scores` require `scorer`"),
        (GENERATE, ["--scores"], "`keep`, `min_score` and `scores` require `scorer`"),
        (GENERATE, ["--scorer", "x"], "`scorer` requires `keep`, `min_score` or `scores`"),
        (GENERATE, ["--scorer", "x", "--keep", "0"], "--keep: must be at least 1e-06"),
        (GENERATE, ["--scorer", "x", "--keep", "1.2"], "--keep: must be at most 1, is 1.2"),
        (
            GENERATE,
            ["--scorer", "x", "--keep", "0.5", "--min-score", "1"],
            "`keep` and `min_score` cannot be combined; give one",
        ),
        (GENERATE, ["--scorer", "x", "--keep", "0.5", "--shard", "1/2"], "--keep requires the scores of all queries"),
        (GENERATE, ["--set", "scorer_precision=float32"], "--set scorer_precision requires --scorer"),
        (KEEP, ["--keep", "0.5", "--set", "scorer_batch_tokens=64"], "--set scorer_batch_tokens requires --scorer"),
        (KEEP, ["--keep", "0.5", "--set", "scorer_logits=true"], "--set scorer_logits requires --scorer"),
        (KEEP, ["--keep", "0.5", "--set", "scorer_title=none"], "--set scorer_title requires --scorer"),
        (KEEP, [], "nothing to do; give `keep` or `min_score` to drop queries"),
        (KEEP, ["--scores"], "nothing to do; give `keep` or `min_score` to drop queries"),
    ],
)
def test_contradictory_options_are_rejected(
    here: Path, capfd: pytest.CaptureFixture[str], call: list[str], options: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run_command(capfd, *call, *options, "-q")


def test_a_folder_that_is_no_cross_encoder_is_rejected(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = save_tiny_encoder(here / "encoder")
    for call in (["doc2query", "c.jsonl", "--model", models / "t5", *SHORT], [*KEEP, "-q"]):
        with pytest.raises(MismatchError, match="encoder: expected a CrossEncoder, got a SentenceTransformer"):
            run_command(capfd, *call, "--scorer", encoder, "--keep", "0.5")
        with pytest.raises(DrtkError, match=r"\./nowhere: no such folder"):
            run_command(capfd, *call, "--scorer", "./nowhere", "--keep", "0.5")
