"""keep-queries: which queries are kept, their scores, interrupted runs, and rejected input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.data.rows import dump
from drtk.errors import MismatchError, RecordError, UsageError
from drtk.expansion import keep_queries
from drtk.models.cross_encoder import PAIRING, CrossEncoderScorer
from drtk.runtime.integrity import read_json
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import fail_at_call, open_pipe, run_rows, write_text
from tests.tiny_models import make_passages, save_tiny_cross_encoder, save_tiny_generator

Rows = list[dict[str, Any]]
SHORT = "--max-new-tokens 8 --n 4 -q".split()
SCORED = [
    {"_id": id, "title": "", "text": "t", "queries": queries, "color": "red", "query_scores": scores}
    for id, queries, scores in (
        ("a", ["a1", "a2"], [0.9, 0.1]), ("b", ["b1", "b2", "b3"], [0.5, 0.5, 0.2]), ("c", ["c1"], [0.5]),
    )
]  # fmt: skip
TEXTS = {
    "colon": lambda row: f"{row['title']}: {row['text']}",
    "join": lambda row: f"{row['title']} {row['text']}",
    "none": lambda row: row["text"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator, a cross-encoder that records no title format, and one that records `colon`."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_generator(folder / "t5", "t5")
    for name in ("scorer", "colon"):
        save_tiny_cross_encoder(folder / name)
    manifest = {"command": "drtk train-reranker", "settings": {}, "inputs": [], PAIRING: {"title": "colon"}}
    write_text(folder / "colon" / "meta.json", json.dumps(manifest))
    return folder


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "c.jsonl", b"".join(map(dump, make_passages(30))).decode())
    write_rows(tmp_path / "scored.jsonl", SCORED)
    return tmp_path


def without_scores(rows: Rows) -> Rows:
    return [{name: value for name, value in row.items() if name != "query_scores"} for row in rows]


def test_a_share_of_all_queries_stays(cwd, capfd):
    # 6 queries, half of them: 3. The third has .5, as two others, so 4 stay.
    app("keep-queries scored.jsonl --keep 0.5 -o kept.jsonl".split(), standalone_mode=False)
    rows = read_rows(cwd / "kept.jsonl")
    assert [row["queries"] for row in rows] == [["a1"], ["b1", "b2"], ["c1"]]
    assert [list(row) for row in rows] == [["_id", "title", "text", "queries", "color"]] * 3
    counts = read_json(cwd / "kept.jsonl.meta.json")["counts"]
    assert counts == {"in": 3, "out": 3, "queries": 6, "kept": 4, "min_score": 0.5}
    assert sorted(item.name for item in cwd.glob("kept*")) == ["kept.jsonl", "kept.jsonl.meta.json"]
    expected = run_rows(capfd, "keep-queries scored.jsonl --keep 0.1 -q")
    with open_pipe((cwd / "scored.jsonl").read_bytes()) as pipe:
        assert run_rows(capfd, f"keep-queries {pipe} --keep 0.1 -q") == expected


def test_the_share_is_rounded_up_to_whole_queries(cwd, capfd):
    # .7 of 10 queries are 7, though .7 in binary is a little more than .7
    write_rows(cwd / "ten", [{"_id": "d", "text": "t", "queries": [*"abcdefghij"], "query_scores": [*range(10)]}])
    for share, number in ((0.1, 1), (0.7, 7), (0.71, 8), (1, 10), (0.0001, 1)):
        [row] = run_rows(capfd, f"keep-queries ten --keep {share} -q")
        assert row["queries"] == [*"abcdefghij"][10 - number :]
    write_rows(cwd / "none", [{"_id": "d", "text": "t", "queries": [], "query_scores": []}])
    assert run_rows(capfd, "keep-queries none --keep 0.5 -q")[0]["queries"] == []


def test_a_threshold_keeps_scores_equal_to_it(cwd, capfd):
    rows = run_rows(capfd, "keep-queries scored.jsonl --min-score 0.5 --scores -q")
    assert [row["queries"] for row in rows] == [["a1"], ["b1", "b2"], ["c1"]]
    assert [row["query_scores"] for row in rows] == [[0.9], [0.5, 0.5], [0.5]]
    bare = run_rows(capfd, "keep-queries scored.jsonl --min-score 0.51 --bare -q")
    assert bare == [{"_id": "a", "queries": ["a1"]}, {"_id": "b", "queries": []}, {"_id": "c", "queries": []}]


def test_scores_are_those_of_the_cross_encoder_for_query_and_passage(cwd, models, capfd):
    queries = ["rivers", "engines engineed", "rivers"]
    rows = [json.loads(dump(passage)) | {"queries": queries} for passage in make_passages(12)]
    write_rows(cwd / "queried", [*rows, rows[0] | {"_id": "none", "queries": []}])
    scorer = CrossEncoderScorer(str(models / "scorer"))
    call = f"keep-queries queried --scores -q --scorer {models}/"
    defaults = {"join": "scorer", "colon": "colon"}  # of a model that records no format, and the recorded one
    for title in TEXTS:
        scored = run_rows(capfd, f"{call}scorer --set scorer_title={title}")
        expected = scorer([(query, TEXTS[title](row)) for row in rows for query in queries])
        assert np.allclose([score for row in scored for score in row["query_scores"]], expected, atol=1e-5)
        assert all(row["query_scores"][0] == row["query_scores"][2] for row in scored[:-1])  # equal, not nearly
        assert all(row["queries"] == queries for row in scored[:-1])
        assert scored[-1]["queries"] == scored[-1]["query_scores"] == []
        if title in defaults:
            assert run_rows(capfd, call + defaults[title]) == scored
    assert expected.std() > 0.01
    logits = run_rows(capfd, f"{call}scorer --set scorer_title=none --set scorer_logits=true")
    values = np.array([score for row in logits for score in row["query_scores"]])
    assert np.allclose(1 / (1 + np.exp(-values)), expected, atol=1e-5)
    with pytest.raises(MismatchError, match="colon: was trained with `title` colon, not join"):
        run_rows(capfd, f"keep-queries queried --scorer {models}/colon --set scorer_title=join --scores -o x.jsonl -q")
    assert not list(cwd.glob("x.jsonl*"))


def test_another_re_ranker_in_the_same_folder_makes_scores_stale(cwd, capfd):
    model = save_tiny_cross_encoder(cwd / "scorer")
    inodes = []
    for state in ("first", "first", "second"):
        write_text(model / "meta.json", json.dumps({"of": state}))
        run_rows(capfd, "keep-queries scored.jsonl --scorer scorer --scores -o out --skip-done --force")
        inodes.append(Path("out").stat().st_ino)
    assert inodes[0] == inodes[1] != inodes[2]


def test_old_scores_are_removed_with_their_queries(cwd, models, capfd):
    rows = run_rows(capfd, f"doc2query scored.jsonl --model {models}/t5 {' '.join(SHORT)}")
    assert [list(row) for row in rows] == [["_id", "title", "text", "queries", "color"]] * 3
    rows = run_rows(capfd, f"keep-queries scored.jsonl --scorer {models}/scorer --min-score 0 -q")
    assert all("query_scores" not in row for row in rows)


def test_a_run_that_fails_resumes_with_the_same_threshold(cwd, capfd):
    rows = [row | {"_id": f"{row['_id']}{number}"} for number in range(400) for row in SCORED]
    write_rows(cwd / "many.jsonl", rows)
    run_rows(capfd, "keep-queries many.jsonl --keep 0.4 -q -o whole")
    with fail_at_call(1100, keep_queries, "dump"):
        run_rows(capfd, "keep-queries many.jsonl --keep 0.4 -q -o out")
    assert read_json(cwd / "out.part.json")["records"] == 1000
    write_rows(cwd / "many.jsonl", [*rows, rows[0] | {"_id": "new"}])
    with pytest.raises(MismatchError, match=r"started with other settings or files \(many\.jsonl\)"):
        run_rows(capfd, "keep-queries many.jsonl --keep 0.4 -q -o out --resume")
    write_rows(cwd / "many.jsonl", rows)
    run_rows(capfd, "keep-queries many.jsonl --keep 0.4 -q -o out --resume")
    assert (cwd / "out").read_bytes() == (cwd / "whole").read_bytes()
    counts = [read_json(cwd / f"{name}.meta.json")["counts"] for name in ("out", "whole")]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": ["b1", 2, "b3"]}, "'queries' must be a list of strings"),
        ({"query_scores": [0.1, 0.2]}, "'query_scores' has 2 numbers for 3 queries"),
        ({"query_scores": [0.1, None, 0.2]}, "'query_scores' must be a list of numbers"),
        ({"query_scores": "high"}, "'query_scores' must be a list of numbers"),
    ],
)
def test_invalid_queries_and_scores_are_reported(cwd, capfd, change, message):
    write_rows(cwd / "bad.jsonl", [SCORED[0], SCORED[1] | change, SCORED[2]])
    with pytest.raises(RecordError, match=rf"^bad\.jsonl:2: {message}"):
        run_rows(capfd, "keep-queries bad.jsonl --keep 0.9 -q")
    assert [row["_id"] for row in run_rows(capfd, "keep-queries bad.jsonl --keep 0.9 -q --skip-bad 1")] == ["a", "c"]


def test_missing_fields_are_reported_with_the_command_that_writes_them(cwd, capfd):
    write_rows(cwd / "unscored.jsonl", without_scores(SCORED))
    for file, message in (
        ("c.jsonl", "'queries' is missing; run `drtk doc2query` first"),
        ("unscored.jsonl", "'query_scores' is missing; give `scorer` to compute it"),
    ):
        with pytest.raises(RecordError, match=f"^{file}:1: {message}$"):
            run_rows(capfd, f"keep-queries {file} --keep 0.9 -q")


def test_contradictory_options_are_rejected(capfd):
    for call, message in (
        ("--scorer x", "give `keep` or `min_score` to drop queries, or `scorer` with `scores`"),
        ("--scores", "give `keep` or `min_score` to drop queries, or `scorer` with `scores`"),
        ("--keep 0", "--keep: must be at least 1e-06"),
        ("--keep 1.2", "--keep: must be at most 1, is 1.2"),
        ("--keep 0.5 --min-score 1", "`keep` and `min_score` cannot be combined; give one"),
        ("--keep 0.5 --scorer x", "`keep` requires the scores of all queries; write them first"),
        ("--keep 0.5 --set scorer_batch_tokens=64", "--set scorer_batch_tokens requires --scorer"),
    ):
        with pytest.raises(UsageError, match=message):
            run_rows(capfd, f"keep-queries {call} scored.jsonl -q")
