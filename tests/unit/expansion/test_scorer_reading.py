"""doc2query --scorer and keep-queries read titles as their re-ranker was trained to, and score as score and rerank do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drtk.errors import MismatchError, UsageError
from drtk.models.cross_encoder import Scorer
from tests.running import command, write
from tests.tiny import collection, tiny_crossencoder, tiny_writer, write_collection

WRITTEN = ["rivers", "engines engineed and rivers"]  # of each passage
TEXTS = {
    "colon": lambda row: f"{row['title']}: {row['text']}",
    "join": lambda row: f"{row['title']} {row['text']}",
    "none": lambda row: row["text"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Re-rankers trained with each way of reading titles, one that does not say (with a sigmoid), and a writer."""
    from drtk.cli.main import app

    folder = tmp_path_factory.mktemp("models")
    corpus, queries, _ = write_collection(folder, 24)
    rows = [{"query_id": f"q{at}", "positives": [f"d{at}"], "negatives": [f"d{23 - at}"]} for at in range(12)]
    write(folder / "examples.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    tiny_crossencoder(folder / "silent")
    tiny_writer(folder / "t5", "t5")
    call = ["train-reranker", str(folder / "examples.jsonl"), "--corpus", corpus, "--queries", queries]
    call += ["--model", str(folder / "silent"), "--steps", "1", "--batch", "4", "--negatives", "1", "--lr", "0", "-q"]
    for title in TEXTS:
        more = ["--title", title, "--max-length", "64", "--device", "cpu", "-o", str(folder / title)]
        app([*call, *more], standalone_mode=False)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """12 passages with the same two queries each, and the same pairs for rerank and score."""
    monkeypatch.chdir(tmp_path)
    passages = collection(24)[0][:12]
    save("written.jsonl", [row | {"queries": WRITTEN} for row in passages])
    save("corpus.jsonl", passages)
    save("queries.jsonl", [{"_id": f"w{at}", "text": text} for at, text in enumerate(WRITTEN)])
    ids = [row["_id"] for row in passages]
    save("pairs.jsonl", [{"query_id": f"w{at}", "positives": ids, "negatives": []} for at in range(len(WRITTEN))])
    lines = [f"w{at} Q0 {id} {rank} {-rank} t" for at in range(len(WRITTEN)) for rank, id in enumerate(ids, start=1)]
    write(tmp_path / "pairs.run", "\n".join(lines) + "\n")
    return tmp_path


def save(name: str, rows: list[dict[str, Any]]) -> None:
    write(Path(name), "".join(json.dumps(row) + "\n" for row in rows))


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def kept(capfd: pytest.CaptureFixture[str], model: Path, *more: str) -> dict[tuple[str, str], float]:
    """(query, passage): score, of `keep-queries`."""
    rows = rows_of(command(capfd, "keep-queries", "written.jsonl", "--scorer", model, "--scores", "-q", *more))
    return {
        (f"w{at}", row["_id"]): score for row in rows for at, score in enumerate(row["query_scores"])
    }  # fmt: skip


def scored(capfd: pytest.CaptureFixture[str], model: Path, *more: str) -> dict[tuple[str, str], float]:
    """The same of `score`."""
    texts = ["--corpus", "corpus.jsonl", "--queries", "queries.jsonl"]
    rows = rows_of(command(capfd, "score", "pairs.jsonl", *texts, "--model", model, "-q", *more))
    pairs = ((row, zip(row["positives"], row["scores"]["positives"], strict=True)) for row in rows)
    return {(row["query_id"], id): score for row, found in pairs for id, score in found}


def reranked(capfd: pytest.CaptureFixture[str], model: Path, *more: str) -> dict[tuple[str, str], float]:
    """The same of `rerank`."""
    texts = ["--corpus", "corpus.jsonl", "--queries", "queries.jsonl"]
    lines = command(capfd, "rerank", "pairs.run", *texts, "--model", model, "-q", *more).splitlines()
    return {(query, id): float(score) for query, _, id, _, score, _ in map(str.split, lines)}


@pytest.mark.parametrize("title", TEXTS)
def test_passages_are_read_as_the_re_ranker_was_trained(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], title: str
) -> None:
    model = models / title
    found = kept(capfd, model)
    pairs = [(query, TEXTS[title](row)) for row in collection(24)[0][:12] for query in WRITTEN]
    assert list(found.values()) == pytest.approx(Scorer(str(model), device="cpu")(pairs).tolist(), abs=5e-5)
    for other in set(TEXTS) - {title}:  # all three have the same weights: what they read makes the difference
        assert list(kept(capfd, models / other).values()) != pytest.approx(list(found.values()), abs=1e-2)
    assert found == pytest.approx(scored(capfd, model), abs=5e-5)
    assert found == pytest.approx(reranked(capfd, model), abs=5e-5)
    assert max(map(abs, found.values())) > 1  # logits


@pytest.mark.parametrize("title", ["colon", "none"])
def test_what_is_written_and_scored_in_one_call_has_the_scores_of_keep_queries(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], title: str
) -> None:
    # The writer joins titles, whatever the re-ranker does.
    call = ["doc2query", "corpus.jsonl", "--model", models / "t5", "--n", "3", "--max-new-tokens", "6", "-q"]
    at_once = rows_of(command(capfd, *call, "--scorer", models / title, "--scores"))
    command(capfd, *call, "-o", "queried.jsonl")
    later = rows_of(command(capfd, "keep-queries", "queried.jsonl", "--scorer", models / title, "--scores", "-q"))
    for one, other in zip(at_once, later, strict=True):
        assert one["queries"] == other["queries"]
        assert one["query_scores"] == pytest.approx(other["query_scores"], abs=5e-5)
    pairs = [(query, TEXTS[title](row)) for row in at_once for query in row["queries"]]
    expected = Scorer(str(models / title), device="cpu")(pairs).tolist()
    assert [score for row in at_once for score in row["query_scores"]] == pytest.approx(expected, abs=5e-5)


def test_a_model_that_does_not_say_is_told_and_its_sigmoid_left_out_where_logits_are_wished_for(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    silent = models / "silent"
    for wish in ("colon", "join", "none"):
        mine, theirs = kept(capfd, silent, "--scorer-title", wish), scored(capfd, silent, "--title", wish)
        assert mine == pytest.approx(theirs, abs=5e-5)
        assert all(0 < score < 1 for score in mine.values())
    assert kept(capfd, silent) == pytest.approx(kept(capfd, silent, "--scorer-title", "join"), abs=0)
    logits = kept(capfd, silent, "--scorer-logits")
    assert logits == pytest.approx(scored(capfd, silent, "--logits"), abs=5e-5)
    assert max(map(abs, logits.values())) > 1


def test_a_title_that_contradicts_training_is_refused(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wish = ["--scorer", models / "colon", "--scorer-title", "join", "--scores", "-q", "-o", "x.jsonl"]
    for call in (["doc2query", "corpus.jsonl", "--model", models / "t5"], ["keep-queries", "written.jsonl"]):
        with pytest.raises(MismatchError, match="colon: was trained with `title` colon; join contradicts it"):
            command(capfd, *call, *wish)
        for more in (["--scorer-title", "none"], ["--scorer-logits"]):
            with pytest.raises(UsageError, match=f"{more[0]}: only with --scorer"):
                command(capfd, *call, *more, "-q")
    assert not list(here.glob("x.jsonl*"))


def test_another_re_ranker_in_the_folders_place_makes_scores_stale(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tiny_crossencoder(here / "scorer")
    for call in (
        ["doc2query", "corpus.jsonl", "--model", models / "t5", "--n", "1", "--max-new-tokens", "4"],
        ["keep-queries", "written.jsonl"],
    ):
        call += ["--scorer", model, "--scores", "-o", f"{call[0]}.jsonl", "--skip-done", "--force"]
        made = []
        for _ in range(2):
            command(capfd, *call)
            made.append(Path(f"{call[0]}.jsonl").stat().st_ino)
        write(model / "meta.json", json.dumps({"of": call[0]}))
        command(capfd, *call)
        made.append(Path(f"{call[0]}.jsonl").stat().st_ino)
        assert made[0] == made[1] != made[2]
