"""doc2query --keep and keep-queries: which queries stay, and that a killed run goes on as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.data.jsonl import dump
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.expansion import generate as judging
from drtk.expansion.keep_queries import lowest_to_stay
from drtk.models.cross_encoder import Scorer
from drtk.runtime.streams import open_input
from tests.running import command, write
from tests.tiny import passages, tiny_crossencoder, tiny_model, tiny_writer

Rows = list[dict[str, Any]]
SHORT = ["--max-new-tokens", "8", "--n", "4", "-q"]
SCORED = [
    {"_id": "a", "title": "", "text": "t", "queries": ["a1", "a2"], "colour": "red", "query_scores": [0.9, 0.1]},
    {
        "_id": "b",
        "title": "",
        "text": "t",
        "queries": ["b1", "b2", "b3"],
        "colour": "red",
        "query_scores": [0.5, 0.5, 0.2],
    },
    {"_id": "c", "title": "", "text": "t", "queries": ["c1"], "colour": "red", "query_scores": [0.5]},
]


class Planted:
    """A scorer that counts which words of the query the passage has: few values, so that there are many ties."""

    def __init__(self, model: str, **_: object) -> None:
        self.model = model

    def prepare(self, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return pairs

    def scores(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        return np.array([overlap(query, text) for query, text in pairs], dtype=np.float32)


def overlap(query: str, text: str) -> float:
    return len(set(query.split()) & set(text.split())) / 10


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_writer(folder / "t5", "t5")
    tiny_crossencoder(folder / "scorer")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "c.jsonl", b"".join(map(dump, passages(30))).decode())
    save(tmp_path / "scored.jsonl", SCORED)
    return tmp_path


def save(path: Path, rows: Rows) -> None:
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def load(text: str) -> Rows:
    return [json.loads(line) for line in text.splitlines()]


def content(path: Path) -> bytes:
    return open_input(str(path))[0].read()


def best(rows: Rows, number: int) -> Rows:
    """The rows with their `number` best queries, found by sorting: best first, of equals the earlier."""
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
    command(capfd, "keep-queries", "scored.jsonl", "--keep", "0.5", "-o", "kept.jsonl")
    found = load((here / "kept.jsonl").read_text())
    assert [row["queries"] for row in found] == [["a1"], ["b1", "b2"], []]
    assert [list(row) for row in found] == [["_id", "title", "text", "queries", "colour"]] * 3
    counts = json.loads((here / "kept.jsonl.meta.json").read_text())["counts"]
    assert counts == {"in": 3, "out": 3, "queries": 6, "kept": 3, "min_score": 0.5}
    assert sorted(item.name for item in here.glob("kept*")) == ["kept.jsonl", "kept.jsonl.meta.json"]


def test_the_second_pass_says_where_the_line_was_drawn(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from drtk.cli.main import app

    app(["keep-queries", "scored.jsonl", "--keep", "0.5"], standalone_mode=False)
    told = capfd.readouterr().err
    assert "drtk: keeping 3 of 6 queries; their lowest score is 0.5\n" in told
    assert "drtk: keep-queries: all records are processed before the first is written; they are kept in " in told
    assert "3 in, 3 out, 6 queries, 3 kept" in told


@pytest.mark.parametrize(("share", "number"), [("0.1", 1), ("0.7", 7), ("0.71", 8), ("1", 10), ("0.0001", 1)])
def test_the_share_is_rounded_up_to_whole_queries(
    here: Path, capfd: pytest.CaptureFixture[str], share: str, number: int
) -> None:
    # .7 of 10 queries are 7, though .7 in binary is a little more than .7
    save(
        here / "ten.jsonl", [{"_id": "d", "text": "t", "queries": list("abcdefghij"), "query_scores": list(range(10))}]
    )
    [row] = load(command(capfd, "keep-queries", "ten.jsonl", "--keep", share, "-q"))
    assert row["queries"] == list("abcdefghij")[10 - number :]


@pytest.mark.parametrize("values", [3, 10_000])
def test_what_stays_is_what_sorting_would_choose(here: Path, capfd: pytest.CaptureFixture[str], values: int) -> None:
    draw = random.Random(0)  # three values: nearly all are ties, across the windows of both passes
    rows = []
    for number in range(2300):
        scores = [draw.randrange(values) / 8 for _ in range(draw.randrange(4))]
        queries = [f"q{number}-{place}" for place in range(len(scores))]
        rows.append({"_id": f"d{number}", "title": "", "text": "t", "queries": queries, "query_scores": scores})
    save(here / "many.jsonl", rows)
    total = sum(len(row["queries"]) for row in rows)
    found = load(command(capfd, "keep-queries", "many.jsonl", "--keep", "0.375", "--scores", "-q"))
    assert found == best(rows, -(-total * 3 // 8))


def test_the_lowest_score_to_stay_and_its_ties() -> None:
    scores = np.array([2, 1, 2, 3, 2], dtype=np.float32)
    assert lowest_to_stay(scores.copy(), 1) == (3, 1)
    assert lowest_to_stay(scores.copy(), 3) == (2, 2)
    assert lowest_to_stay(scores.copy(), 5) == (1, 1)
    assert lowest_to_stay(scores.copy(), 0) == (np.inf, 0)
    assert lowest_to_stay(scores[:0], 0) == (np.inf, 0)


def test_a_threshold_keeps_what_reaches_it(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = load(command(capfd, "keep-queries", "scored.jsonl", "--min-score", "0.5", "--scores", "-q"))
    assert [row["queries"] for row in found] == [["a1"], ["b1", "b2"], ["c1"]]
    assert [row["query_scores"] for row in found] == [[0.9], [0.5, 0.5], [0.5]]
    bare = load(command(capfd, "keep-queries", "scored.jsonl", "--min-score", "0.51", "--bare", "-q"))
    assert bare == [{"_id": "a", "queries": ["a1"]}, {"_id": "b", "queries": []}, {"_id": "c", "queries": []}]


def test_queries_in_a_side_file_are_judged_too(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = [{name: row[name] for name in ("_id", "title", "text")} for row in SCORED]
    save(here / "plain.jsonl", plain)
    save(here / "side.jsonl", [{name: row[name] for name in ("_id", "queries", "query_scores")} for row in SCORED])
    call = ["keep-queries", "plain.jsonl", "--with", "side.jsonl", "--keep", "0.5", "-q"]
    assert [row["queries"] for row in load(command(capfd, *call))] == [["a1"], ["b1", "b2"], []]


def test_queries_are_generated_scored_and_kept_in_one_call(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "Scorer", Planted)
    (here / "planted").mkdir()
    monkeypatch.setattr("drtk.cli.doc2query.WINDOW", 8)
    call = ["doc2query", "c.jsonl", "--model", models / "t5", *SHORT]
    every = load(command(capfd, *call))
    for row in every:
        row["query_scores"] = [overlap(query, f"{row['title']} {row['text']}") for query in row["queries"]]
    assert len({score for row in every for score in row["query_scores"]}) > 1
    scored = load(command(capfd, *call, "--scorer", "planted", "--scores"))
    assert scored == every
    expected = best(every, 84)  # .7 of 30 x 4
    assert any(row["queries"] == [] for row in expected) or any(len(row["queries"]) < 4 for row in expected)
    assert load(command(capfd, *call, "--scorer", "planted", "--keep", "0.7", "--scores")) == expected
    assert load(command(capfd, *call, "--scorer", "planted", "--keep", "0.7")) == without_scores(expected)
    bare = load(command(capfd, *call, "--scorer", "planted", "--keep", "0.7", "--bare"))
    assert bare == [{"_id": row["_id"], "queries": row["queries"]} for row in expected]
    least = load(command(capfd, *call, "--scorer", "planted", "--min-score", "0.1"))
    assert [len(row["queries"]) for row in least] == [sum(x >= 0.1 for x in row["query_scores"]) for row in every]


def test_several_thresholds_without_generating_again(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["doc2query", "c.jsonl", "--model", models / "t5", *SHORT, "--scorer", models / "scorer"]
    command(capfd, *call, "--scores", "-o", "all.jsonl")
    for share in ("0.3", "0.8"):
        at_once = command(capfd, *call, "--keep", share)
        assert command(capfd, "keep-queries", "all.jsonl", "--keep", share, "-q") == at_once
        # The threshold that was found, given as one, keeps the same: there are no ties here.
        command(capfd, "keep-queries", "all.jsonl", "--keep", share, "-q", "-o", f"{share}.jsonl")
        least = json.loads((here / f"{share}.jsonl.meta.json").read_text())["counts"]["min_score"]
        assert command(capfd, "keep-queries", "all.jsonl", "--min-score", str(least), "-q") == at_once
    # Scored again they have the same scores, up to the sums of batches of another shape.
    again = load(command(capfd, "keep-queries", "all.jsonl", "--scorer", models / "scorer", "--scores", "-q"))
    for new, old in zip(again, load((here / "all.jsonl").read_text()), strict=True):
        assert new["queries"] == old["queries"]
        assert np.allclose(new["query_scores"], old["query_scores"], atol=1e-5)


def test_scores_are_those_of_the_cross_encoder_for_query_and_passage(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [
        json.loads(dump(passage)) | {"queries": ["rivers", "engines engineed", "rivers"]} for passage in passages(12)
    ]
    save(here / "written.jsonl", [*rows, rows[0] | {"_id": "none", "queries": []}])
    scorer = Scorer(str(models / "scorer"))
    for title in ("join", "none"):
        call = [
            "keep-queries",
            "written.jsonl",
            "--scorer",
            models / "scorer",
            "--scores",
            "--scorer-title",
            title,
            "-q",
        ]
        found = load(command(capfd, *call))
        texts = [f"{row['title']} {row['text']}" if title == "join" else row["text"] for row in rows]
        expected = scorer([(query, text) for text in texts for query in rows[0]["queries"]])
        assert np.allclose([score for row in found for score in row["query_scores"]], expected, atol=1e-5)
        assert all(row["query_scores"][0] == row["query_scores"][2] for row in found[:-1])  # equal, not nearly
        assert all(row["queries"] == ["rivers", "engines engineed", "rivers"] for row in found[:-1])
        assert found[-1]["queries"] == found[-1]["query_scores"] == []
    assert expected.std() > 0.01


def test_stale_scores_go_with_the_queries_they_were_for(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = load(command(capfd, "doc2query", "scored.jsonl", "--model", models / "t5", *SHORT))
    assert [list(row) for row in found] == [["_id", "title", "text", "queries", "colour"]] * 3
    found = load(
        command(capfd, "keep-queries", "scored.jsonl", "--scorer", models / "scorer", "--min-score", "0", "-q")
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
    keeping.judged = deadly(keeping.judged)
else:
    keeping.dump = deadly(keeping.dump)
app(sys.argv[3:], standalone_mode=False)
"""


def run_to_its_death(where: str, number: int, *arguments: str, stdin: bytes | None = None) -> None:
    program = [sys.executable, "-c", KILLING, where, str(number), *arguments]
    found = subprocess.run(program, input=stdin, capture_output=True, check=False)
    assert found.returncode == -signal.SIGKILL, found.stderr.decode()


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("where", "number"), [("first", 4), ("second", 35 + 4), ("second", 35 + 1), ("second", 35 + 35)]
)
def test_a_run_killed_in_either_pass_goes_on(
    here: Path, capfd: pytest.CaptureFixture[str], where: str, number: int, suffix: str
) -> None:
    rows = [row | {"_id": f"{row['_id']}{number}"} for number in range(12) for row in SCORED][:35]
    save(here / "many.jsonl", rows)
    call = ["keep-queries", "many.jsonl", "--keep", "0.4", "-q"]
    command(capfd, *call, "-o", f"whole{suffix}")
    assert 0 < content(here / f"whole{suffix}").count(b'"b1"') < 12  # the line is drawn among equals
    # The first pass writes 35 lines too: what is counted in the second begins with the 36th.
    run_to_its_death(where, number, *call, "-o", f"out{suffix}")
    assert not (here / f"out{suffix}").exists()
    assert (here / f"out{suffix}.part.new").exists() == (where == "second")
    with pytest.raises(
        DrtkError, match=r"holds \d+ finished records of an interrupted run; `resume` continues from there"
    ):
        command(capfd, *call, "-o", f"out{suffix}")
    command(capfd, *call, "-o", f"out{suffix}", "--resume")
    assert content(here / f"out{suffix}") == content(here / f"whole{suffix}")
    found = [json.loads((here / f"{name}{suffix}.meta.json").read_text())["counts"] for name in ("out", "whole")]
    assert found[0] == found[1]
    assert sorted(item.name for item in here.glob("out*")) == [f"out{suffix}", f"out{suffix}.meta.json"]


def test_a_killed_run_that_read_stdin_goes_on_with_it(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"_id": f"{row['_id']}{number}"} for number in range(12) for row in SCORED]
    save(here / "many.jsonl", rows)
    text = (here / "many.jsonl").read_bytes()
    call = ["keep-queries", "-", "--keep", "0.4", "-q"]
    run_to_its_death("second", 36 + 3, *call, "-o", "out", stdin=text)
    command(capfd, "keep-queries", "many.jsonl", "--keep", "0.4", "-q", "-o", "whole")
    program = [sys.executable, "-m", "drtk", *call, "-o", "out", "--resume"]
    other = subprocess.run(program, input=text.replace(b"b1", b"bx"), capture_output=True, check=False)
    assert other.returncode == 1
    assert b"out.part: was begun with another input" in other.stderr
    assert subprocess.run(program, input=text, check=False).returncode == 0
    assert (here / "out").read_bytes() == (here / "whole").read_bytes()


def test_what_is_replaced_stays_until_the_second_pass_is_done(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["keep-queries", "scored.jsonl", "-q", "-o", "out"]
    command(capfd, *call, "--keep", "1")
    before = (here / "out").read_bytes(), (here / "out.meta.json").read_bytes()
    run_to_its_death("second", 5, *call, "--keep", "0.5", "--force")
    assert ((here / "out").read_bytes(), (here / "out.meta.json").read_bytes()) == before
    command(capfd, *call, "--keep", "0.5", "--force", "--resume")
    assert [row["queries"] for row in load((here / "out").read_text())] == [["a1"], ["b1", "b2"], []]


def test_generating_goes_on_after_a_fault_between_windows(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drtk.cli.doc2query.WINDOW", 4)
    call = ["doc2query", "c.jsonl", "--model", models / "t5", *SHORT, "--scorer", models / "scorer", "--keep", "0.5"]
    command(capfd, *call, "-o", "whole.jsonl")
    judge, calls = judging.judged, []

    def failing(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise DrtkError("enough")
        return judge(*given, **named)

    monkeypatch.setattr(judging, "judged", failing)
    with pytest.raises(DrtkError, match="enough"):
        command(capfd, *call, "-o", "x.jsonl")
    assert json.loads((here / "x.jsonl.part.json").read_text())["records"] == 16
    command(capfd, *call, "-o", "x.jsonl", "--resume")
    assert (here / "x.jsonl").read_bytes() == (here / "whole.jsonl").read_bytes()
    counts = json.loads((here / "x.jsonl.meta.json").read_text())["counts"]
    assert (counts["texts"], counts["kept"]) == (120, 60)
    assert sum(len(row["queries"]) for row in load((here / "x.jsonl").read_text())) == 60


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"queries": None}, "'queries' must be a list of strings"),
        ({"queries": ["b1", 2, "b3"]}, "'queries' must be a list of strings"),
        ({"query_scores": [0.1, 0.2]}, "'query_scores' has 2 entries for 3 queries"),
        ({"query_scores": [0.1, None, 0.2]}, "'query_scores' must be a list of numbers"),
        ({"query_scores": "high"}, "'query_scores' must be a list of numbers"),
    ],
)
def test_passages_that_cannot_be_judged_are_named(
    here: Path, capfd: pytest.CaptureFixture[str], change: dict[str, Any], told: str
) -> None:
    save(here / "bad.jsonl", [SCORED[0], SCORED[1] | change, SCORED[2]])
    call = ["keep-queries", "bad.jsonl", "--keep", "0.9", "-q"]
    with pytest.raises(RecordError, match=rf"^bad\.jsonl:2: {told}"):
        command(capfd, *call)
    assert [row["_id"] for row in load(command(capfd, *call, "--skip-bad", "1"))] == ["a", "c"]


def test_what_is_missing_is_named_with_what_makes_it(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError, match=r"^c\.jsonl:1: 'queries' is missing; drtk doc2query writes it$"):
        command(capfd, "keep-queries", "c.jsonl", "--keep", "0.9", "-q")
    save(here / "unscored.jsonl", without_scores(SCORED))
    with pytest.raises(RecordError, match=r"^unscored\.jsonl:1: 'query_scores' is missing; --scorer MODEL makes it$"):
        command(capfd, "keep-queries", "unscored.jsonl", "--keep", "0.9", "-q")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--keep", "0.5"], "--keep needs a cross-encoder: --scorer MODEL"),
        (["--min-score", "0.5"], "--min-score needs a cross-encoder: --scorer MODEL"),
        (["--scores"], "--scores needs a cross-encoder: --scorer MODEL"),
        (["--scorer", "x"], "--scorer: say what the scores are for: --keep SHARE, --min-score X or --scores"),
        (["--scorer", "x", "--keep", "0"], "--keep 0: keeps nothing"),
        (["--scorer", "x", "--keep", "1.2"], "--keep: must be at most 1, is 1.2"),
        (["--scorer", "x", "--keep", "0.5", "--min-score", "1"], "--keep and --min-score: one of them decides"),
    ],
)
def test_wishes_that_cannot_be_meant_are_wrong_usage(
    here: Path, capfd: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        command(capfd, "doc2query", "c.jsonl", "--model", "nowhere", *options, "-q")


def test_keeping_nothing_in_particular_is_wrong_usage(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--scores"]):
        with pytest.raises(UsageError, match="nothing to do: --keep SHARE and --min-score X drop queries"):
            command(capfd, "keep-queries", "scored.jsonl", *options, "-q")


def test_a_folder_that_is_no_cross_encoder_is_refused(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = tiny_model(here / "encoder")
    for call in (
        ["doc2query", "c.jsonl", "--model", models / "t5", *SHORT],
        ["keep-queries", "scored.jsonl", "-q"],
    ):
        with pytest.raises(MismatchError, match="encoder: is a SentenceTransformer; a CrossEncoder is needed"):
            command(capfd, *call, "--scorer", encoder, "--keep", "0.5")
        with pytest.raises(DrtkError, match=r"\./nowhere: no such folder"):
            command(capfd, *call, "--scorer", "./nowhere", "--keep", "0.5")


def test_a_part_cannot_know_the_share_of_all(here: Path, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["c.jsonl", "--model", models / "t5", "--scorer", models / "judge", "--keep", "0.5", "--shard", "1/2"]
    with pytest.raises(UsageError, match="--keep takes a share of all queries, and a part does not know the others'"):
        command(capfd, "doc2query", *call)


@pytest.mark.parametrize("more", [["--scorer-batch-tokens", "64"], ["--scorer-dtype", "float32"]])
def test_what_the_scorer_alone_looks_at_is_refused_without_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str]
) -> None:
    source = write(tmp_path / "c", '{"_id": "a", "text": "t", "queries": ["q"], "query_scores": [1]}\n')
    for call in (["doc2query", "--model", "m"], ["keep-queries", "--keep", "0.5"]):
        with pytest.raises(UsageError, match=f"{more[0]}: only with --scorer"):
            command(capfd, *call, source, *more)
