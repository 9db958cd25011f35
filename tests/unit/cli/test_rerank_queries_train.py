"""drtk rerank-queries train: resuming, selection, the model folder, depths of labels, and rejected inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.query_expansion.query_reranker import QueryScorer
from drtk.query_expansion.query_reranker_input import Candidate
from drtk.runtime.integrity import read_json
from tests.expansions import labelled, rows_of, write_rows, write_world
from tests.running import killed_at
from tests.tiny import tiny_crossencoder, tiny_model

QUICK = ["--batch", "4", "--max-length", "24", "--device", "cpu", "--max-lr", "2e-2", "--warmup", "20"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("train"))
    labelled(folder)
    tiny_model(folder / "model")
    return folder


def arguments(place: Path, output: Path, *more: str, source: Path | None = None) -> list[str]:
    named = ["--queries", str(place / "queries.jsonl"), "--model", str(place / "model"), "-o", str(output), *QUICK]
    return ["rerank-queries", "train", str(source or place / "labelled.jsonl"), *named, *more]


def run(place: Path, output: Path, *more: str, source: Path | None = None) -> None:
    app([*arguments(place, output, *more, source=source), "-q"], standalone_mode=False)


def train(place: Path, output: Path, *more: str, source: Path | None = None) -> dict:
    run(place, output, *more, source=source)
    return weights(output)


def weights(folder: Path) -> dict:
    return load_file(folder / "model.safetensors")


def entries(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def distance(mine: dict, theirs: dict) -> float:
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(place: Path, tmp_path: Path) -> None:
    more = ["--steps", "12", "--log-every", "2", "--save-every", "4", "--scorer", "rd", "--eval-every", "4"]
    more += ["--micro-batch", "2"]  # the best of each kind travels with the checkpoints
    for kind in ("title", "answer"):
        more += ["--dev", f"{kind}={place / 'labelled.jsonl'}"]
    output = tmp_path / "killed"
    killed_at(Path(f"{output}.part") / "checkpoints" / "checkpoint-8" / "complete", *arguments(place, output, *more))
    assert not (output / "meta.json").exists()
    with pytest.raises(MismatchError, match=r"other settings .*\(alpha\)"):
        run(place, output, *more, "--resume", "--alpha", "0.5")
    run(place, output, *more, "--resume")
    run(place, tmp_path / "whole", *more)
    for kind in ("title", "answer"):
        assert distance(weights(output / kind), weights(tmp_path / "whole" / kind)) == 0.0
    assert read_json(output / "meta.json")["best"] == read_json(tmp_path / "whole" / "meta.json")["best"]
    assert entries(output) == entries(tmp_path / "whole")
    assert not (output / "checkpoints").exists()


@pytest.fixture(scope="module")
def scorer(place: Path) -> Path:
    train(place, place / "ri", "--steps", "5")
    return place / "ri"


def test_the_folder_records_its_input_and_that_lower_is_better(place: Path, tmp_path: Path, scorer: Path) -> None:
    train(place, tmp_path / "rd", "--steps", "1", "--scorer", "rd", "--style", "thesis")
    found = [read_json(folder / "meta.json") for folder in (scorer, tmp_path / "rd")]
    assert [each["kind"] for each in found] == ["model", "model"]
    assert [each["query_reranker"] for each in found] == [
        {"scorer": "ri", "style": "official", "max_length": 24, "better": "lower"},
        {"scorer": "rd", "style": "thesis", "max_length": 24, "better": "lower"},
    ]


def test_the_folder_gives_the_same_numbers_in_sentence_transformers(place: Path, scorer: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    rows = rows_of(place / "labelled.jsonl")[:20]
    question = {row["_id"]: row["text"] for row in rows_of(place / "queries.jsonl")}
    pairs = [(question[row["query_id"]], row["text"]) for row in rows]
    mine = QueryScorer(str(scorer), device="cpu")([Candidate(*pair) for pair in pairs])
    theirs = library.CrossEncoder(str(scorer), device="cpu").predict(pairs)
    np.testing.assert_allclose(mine, theirs, atol=5e-5)


def test_no_command_that_wants_higher_scores_takes_the_folder(place: Path, tmp_path: Path, scorer: Path) -> None:
    (tmp_path / "run").write_text("q1 Q0 d1 1 1.0 t\n")
    write_rows(tmp_path / "examples.jsonl", [{"query_id": "q1", "positives": ["d1"], "negatives": ["d2"]}])
    files = ["--corpus", f"{place}/corpus.jsonl", "--queries", f"{place}/queries.jsonl", "--model", str(scorer)]
    message = "ri: is a query re-ranker, whose lower scores are better; it is for drtk rerank-queries apply"
    for command, source in (("rerank", "run"), ("score", "examples.jsonl"), ("train-reranker", "examples.jsonl")):
        with pytest.raises(MismatchError, match=message):
            app([command, f"{tmp_path}/{source}", *files, "-o", f"{tmp_path}/out", "-q"], standalone_mode=False)


def test_the_weights_with_the_lowest_mean_rank_are_kept(place: Path, tmp_path: Path) -> None:
    more = ["--steps", "12", "--eval-every", "3", "--dev", str(place / "labelled.jsonl"), "--dev-kind", "answer"]
    train(place, tmp_path / "m", *more)
    found = [entry for entry in entries(tmp_path / "m") if "mean rank" in entry]
    best = read_json(tmp_path / "m" / "meta.json")["best"]
    assert [entry["step"] for entry in found] == [3, 6, 9, 12]
    assert best == min(
        ({"step": entry["step"], "mean rank": entry["mean rank"]} for entry in found),
        key=lambda entry: entry["mean rank"],
    )
    ranks = {row["_id"]: row["rank"] for row in rows_of(place / "labelled.jsonl")}
    chosen = choices(place, tmp_path, tmp_path / "m", "answer")  # what was measured is what applying the model chooses
    assert best["mean rank"] == pytest.approx(sum(ranks[id] for id in chosen) / len(chosen))


def test_one_training_keeps_the_best_weights_for_each_kind(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ranks by kind and step; planted, so that each kind is at its best at a step of its own
    planted = {"mean rank (answer)": [4.0, 2.0, 3.0], "mean rank (title)": [1.5, 7.0, 7.0]}
    asked: dict[str, list[dict]] = {name: [] for name in planted}

    def measured(self: Any) -> dict[str, float]:
        state = {name: value.detach().clone() for name, value in self._model.classifier.state_dict().items()}
        asked[self.name].append(state)
        return {self.name: planted[self.name][len(asked[self.name]) - 1]}

    monkeypatch.setattr("drtk.query_expansion.train_reranker.MeasuredRank.__call__", measured)
    files = [f"{kind}={place / 'labelled.jsonl'}" for kind in ("answer", "title")]
    run(place, tmp_path / "m", "--steps", "6", "--eval-every", "2", "--dev", files[0], "--dev", files[1])
    meta = read_json(tmp_path / "m" / "meta.json")
    best = {"answer": {"step": 4, "mean rank (answer)": 2.0}, "title": {"step": 2, "mean rank (title)": 1.5}}
    assert (meta["kind"], meta["kinds"], meta["best"]) == ("query re-rankers", ["answer", "title"], best)
    assert not (tmp_path / "m" / "model.safetensors").exists()
    for kind, place_of_best in (("answer", 1), ("title", 0)):
        folder = tmp_path / "m" / kind
        assert distance(weights(folder), asked[f"mean rank ({kind})"][place_of_best]) == 0.0
        mine = read_json(folder / "meta.json")
        assert (mine["kind"], mine["best"], mine["query_reranker"]["better"]) == ("model", best[kind], "lower")
        QueryScorer(str(folder), device="cpu")
    call = ["rerank-queries", "apply", str(place / "labelled.jsonl"), "--queries", str(place / "queries.jsonl"), "-q"]
    with pytest.raises(
        MismatchError, match=r"contains a query re-ranker for each kind; name them: answer=.*m/answer title="
    ):
        app([*call, "--model", str(tmp_path / "m"), "-o", str(tmp_path / "out")], standalone_mode=False)


def test_measuring_with_questions_that_are_trained_on_is_told(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows, questions = rows_of(place / "labelled.jsonl"), rows_of(place / "queries.jsonl")
    # q20 to q23 under other ids, and written otherwise; they are 4 questions, though of three kinds
    asked = [row | {"_id": f"x{row['_id']}", "text": row["text"].upper()} for row in questions]
    mine = [row | {"query_id": f"x{row['query_id']}"} for row in rows if int(row["query_id"][1:]) >= 20]
    dev, named = write_rows(tmp_path / "dev", mine), write_rows(tmp_path / "asked", asked)
    first = write_rows(tmp_path / "first", [row for row in rows if int(row["query_id"][1:]) < 22])
    more = ["--steps", "1", "--dev-queries", str(named)]
    devs = [each for kind in ("answer", "title") for each in ("--dev", f"{kind}={dev}")]
    capfd.readouterr()
    run(place, tmp_path / "m", *more, *devs, source=first)
    told = f"drtk: {dev}: 2 of its 4 questions are in {first} too, so the best weights overfit them"
    assert capfd.readouterr().err.count(told) == 1
    rest = write_rows(tmp_path / "rest", [row for row in rows if int(row["query_id"][1:]) < 20])
    run(place, tmp_path / "n", *more, "--dev", str(dev), source=rest)
    assert "too" not in capfd.readouterr().err


def test_measuring_by_kind_is_measuring_each_kind_alone(place: Path, tmp_path: Path) -> None:
    labels, more = place / "labelled.jsonl", ["--steps", "2", "--eval-every", "1"]
    run(place, tmp_path / "both", *more, "--dev", f"answer={labels}", "--dev", f"title={labels}")
    for kind in ("answer", "title"):
        train(place, tmp_path / kind, *more, "--dev", str(labels), "--dev-kind", kind)
        assert distance(weights(tmp_path / "both" / kind), weights(tmp_path / kind)) == 0.0
        alone = [entry["mean rank"] for entry in entries(tmp_path / kind) if "mean rank" in entry]
        name = f"mean rank ({kind})"
        assert [entry[name] for entry in entries(tmp_path / "both") if name in entry] == alone


def test_a_model_of_one_kind_is_measured_with_that_kind(place: Path, tmp_path: Path) -> None:
    rows = [  # labels of titles reversed, so that the measure depends on the kind
        row | {"rank": 102 - row["rank"] if row["kind"] == "title" else row["rank"]}
        for row in rows_of(place / "labelled.jsonl")
    ]
    more = [
        "--steps",
        "2",
        "--eval-every",
        "1",
        "--kind",
        "title",
        "--dev",
        str(write_rows(tmp_path / "dev.jsonl", rows)),
    ]
    found = {}
    for name, which in (("by default", []), ("named", ["--dev-kind", "title"]), ("other", ["--dev-kind", "answer"])):
        train(place, tmp_path / name, *more, *which)
        found[name] = [entry["mean rank"] for entry in entries(tmp_path / name) if "mean rank" in entry]
    assert found["by default"] == found["named"] != found["other"]


def test_the_learning_rate_follows_the_inverse_square_root(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(place, tmp_path / "m", "--steps", "12", "--log-every", "1", "--max-lr", "2e-3", "--warmup", "4")
    rates = {entry["step"]: entry["learning_rate"] for entry in entries(tmp_path / "m")}
    assert sorted(rates) == [*range(1, 13)]
    for step, rate in rates.items():  # 2e-3 min(t^-.5, t 4^-1.5), whose peak, 1e-3, is that of step 4
        assert rate == pytest.approx(2e-3 * min(step**-0.5, step / 8), rel=1e-6)
    # a preset of the thesis, which peaks at 2e-5
    call = [
        "rerank-queries",
        "train",
        f"{place}/labelled.jsonl",
        "--queries",
        f"{place}/queries.jsonl",
        "--device",
        "cpu",
    ]
    call += ["--model", f"{place}/model", "--preset", "ear-ri", "--max-length", "24", "-o", f"{tmp_path}/n"]
    app([*call, "--steps", "3", "--log-every", "1"], standalone_mode=False)
    assert [entry["learning_rate"] for entry in entries(tmp_path / "n")] == pytest.approx([2e-9, 4e-9, 6e-9])
    assert "training ends after 3 of the 10,000 steps in which the learning rate rises" in capfd.readouterr().err
    settings = read_json(tmp_path / "n" / "meta.json")["settings"]
    wanted = {"max_lr": 2e-3, "alpha": 0.01, "max_rank": 101, "skip_ties": True}
    assert {name: settings[name] for name in wanted} == wanted
    train(place, tmp_path / "o", "--steps", "1", "--schedule", "linear", "--max-lr", "2e-3", "--warmup", "0")
    assert "a learning rate of 0.002 destroys an encoder" in capfd.readouterr().err


def test_questions_that_teach_nothing_are_left_out_and_counted(place: Path, tmp_path: Path) -> None:
    rows = rows_of(place / "labelled.jsonl")
    for row in rows[:12]:  # q0, all three kinds
        row["rank"] = 101
    train(place, tmp_path / "m", "--steps", "1", source=write_rows(tmp_path / "in", rows))
    counts = read_json(tmp_path / "m" / "meta.json")["counts"]
    # 24 questions with three kinds each: 72 lists
    assert (counts["questions"], counts["lists"], counts["candidates"], counts["tied"]) == (24, 69, 276, 3)
    with pytest.raises(
        DrtkError, match="in: holds 72 lists of candidates, each of one rank alone; there is nothing to learn"
    ):
        train(place, tmp_path / "n", source=write_rows(tmp_path / "in", [row | {"rank": 7} for row in rows]))


def test_a_cross_encoder_that_likes_high_scores_is_turned_round(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from drtk.models.cross_encoder import Scorer

    tiny_crossencoder(tmp_path / "other")
    named = ("--steps", "1", "--model", str(tmp_path / "other"), "--max-lr", "0", "--warmup", "1")
    app(arguments(place, tmp_path / "m", *named), standalone_mode=False)
    assert "its head is turned round" in capfd.readouterr().err
    theirs = Scorer(str(tmp_path / "other"), device="cpu", logits=True)([("which gardens", "rivers")])
    mine = QueryScorer(str(tmp_path / "m"), device="cpu")([Candidate("which gardens", "rivers")])
    assert float(mine[0]) == pytest.approx(-float(theirs[0]), abs=5e-5)
    # one of drtk's own is not
    call = arguments(place, tmp_path / "n", *named[:2], "--model", str(tmp_path / "m"), *named[4:])
    app(call, standalone_mode=False)
    again = QueryScorer(str(tmp_path / "n"), device="cpu")([Candidate("which gardens", "rivers")])
    assert float(again[0]) == pytest.approx(float(mine[0]), abs=5e-5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rank": None}, "in:9: 'q0#title#00' has no rank; drtk rerank-queries label gives it one"),
        ({"rank": 0}, "in:9: 'rank' must be a whole number from 1"),
        ({"query_id": "q99"}, "in:9: the queries have no 'q99'"),
        ({"top1": None}, "in:9: 'q0#title#00' has no 'top1', which --scorer rd reads"),
        ({"query_id": "q5"}, "candidates of 'q[05]' for '.*' stand before, too"),
    ],
)
def test_candidates_that_cannot_be_learned_from_are_named(place: Path, tmp_path: Path, change: dict, told: str) -> None:
    rows = rows_of(place / "labelled.jsonl")
    rows[8] |= change
    source = write_rows(
        tmp_path / "in", [{key: value for key, value in row.items() if value is not None} for row in rows]
    )
    with pytest.raises(RecordError, match=told):
        train(place, tmp_path / "m", "--scorer", "rd", "--steps", "1", source=source)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--depth", "99"], "--depth 99: .*labelled.jsonl was labelled with --depth 100"),
        (["--micro-batch", "3"], "`micro_batch` 3: does not divide the 4 of a device"),
    ],
)
def test_options_that_contradict_the_data_are_rejected(
    place: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    with pytest.raises(DrtkError, match=message):
        train(place, tmp_path / "m", *more)
    assert not (tmp_path / "m").exists()


def relabelled(place: Path, output: Path, depth: int, max_rank: int) -> Path:
    call = ["rerank-queries", "label", place / "expansions.jsonl", "--queries", place / "queries.jsonl"]
    call += ["--index", place / "bm25s", "--depth", depth, "--max-rank", max_rank, "-o", output, "-q"]
    app([str(each) for each in call], standalone_mode=False)
    return output


def measured(folder: Path) -> float:
    """The first mean rank of a training that changes nothing: of what an untrained model chooses."""
    return next(entry["mean rank"] for entry in entries(folder) if "mean rank" in entry)


def test_how_deep_was_looked_is_taken_from_the_labels(place: Path, tmp_path: Path) -> None:
    # Of a question's four candidates one finds its answer at rank 1, one at 2, two nowhere. Looked through to rank 1 alone,
    # three find none, for which these labels say 2, a rank that is a real one beside the default depth of 100.
    shallow = relabelled(place, tmp_path / "shallow.jsonl", 1, 2)
    assert {row["rank"] for row in rows_of(shallow)} == {1, 2}
    ended = ["--steps", "1", "--max-lr", "0", "--warmup", "1", "--eval-every", "1"]
    train(place, tmp_path / "m", *ended, "--dev", str(shallow), source=shallow)
    manifest = read_json(tmp_path / "m" / "meta.json")
    assert (manifest["depth"], manifest["settings"]["depth"]) == (1, None)
    assert manifest["settings"]["max_rank"] == 101
    found = {row["_id"]: 101 if row["rank"] == 2 else 1 for row in rows_of(shallow)}
    chosen = choices(place, tmp_path, tmp_path / "m")
    assert measured(tmp_path / "m") == pytest.approx(sum(found[id] for id in chosen) / len(chosen))
    assert measured(tmp_path / "m") > 2  # what it would be at most, if rank 2 were one
    # deeper than the default: --max-rank must be above what the labels say
    deep = relabelled(place, tmp_path / "deep.jsonl", 200, 250)
    with pytest.raises(UsageError, match="`max_rank` 101: must be above the depth of the labels, 200"):
        train(place, tmp_path / "n", *ended, source=deep)
    train(place, tmp_path / "n", *ended, "--max-rank", "250", source=deep)
    assert read_json(tmp_path / "n" / "meta.json")["depth"] == 200
    # labels and what is measured with are each of their own depth
    train(place, tmp_path / "o", *ended, "--dev", str(shallow))
    assert measured(tmp_path / "o") == measured(tmp_path / "m")


def choices(place: Path, tmp_path: Path, model: Path, *kinds: str) -> list[str]:
    call = ["rerank-queries", "apply", place / "labelled.jsonl", "--queries", place / "queries.jsonl"]
    app([str(each) for each in (*call, "--model", model, "-o", tmp_path / "chosen", "-q")], standalone_mode=False)
    made = rows_of(tmp_path / "chosen" / "choices.jsonl")
    return [row["chosen"][0][0] for row in made if not kinds or row["kind"] in kinds]


def test_labels_without_a_manifest_go_by_the_option_and_ranks_that_contradict_it_are_told(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(place / "labelled.jsonl")
    for row in rows:
        row["rank"] = {101: 250, 2: 150}.get(row["rank"], row["rank"])
        del row["depth"]
    source = write_rows(tmp_path / "in", rows)
    train(place, tmp_path / "m", "--steps", "1", source=source)
    said = "in: ranks beyond 100 (150, 250 …) are taken for none found, but differ; was looked deeper? --depth says how deep"
    assert said in capfd.readouterr().err
    assert read_json(tmp_path / "m" / "meta.json")["depth"] == 100
    train(place, tmp_path / "n", "--steps", "1", "--depth", "200", "--max-rank", "250", source=source)
    assert "ranks beyond" not in capfd.readouterr().err
    assert read_json(tmp_path / "n" / "meta.json")["depth"] == 200


def kinds_of(rows: list[dict], *kinds: str) -> list[dict]:
    return [row for row in rows if row["kind"] in kinds]


def test_joined_labels_keep_the_depth_of_each_kind(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Joined as cat joins them, without a manifest. Answers were looked through to rank 1 alone, where 2 means none found.
    shallow, deep = rows_of(relabelled(place, tmp_path / "shallow.jsonl", 1, 2)), rows_of(place / "labelled.jsonl")
    joined = write_rows(tmp_path / "joined", kinds_of(shallow, "answer") + kinds_of(deep, "title"))
    ended = ["--steps", "1", "--max-lr", "0", "--warmup", "1", "--eval-every", "1"]
    train(place, tmp_path / "m", *ended, "--dev", str(joined), "--dev-kind", "answer", source=joined)
    assert read_json(tmp_path / "m" / "meta.json")["depth"] == [1, 100]
    assert "depth" not in capfd.readouterr().err
    chosen = choices(place, tmp_path, tmp_path / "m", "answer")
    found = {row["_id"]: 101 if row["rank"] == 2 else 1 for row in kinds_of(shallow, "answer")}
    assert measured(tmp_path / "m") == pytest.approx(sum(found[id] for id in chosen) / len(chosen))
    assert measured(tmp_path / "m") > 2  # what it would be at most, if rank 2 were one
    with pytest.raises(UsageError, match=r"--depth 1: .*joined was labelled with --depth 100"):
        train(place, tmp_path / "n", *ended, "--depth", "1", source=joined)
    with pytest.raises(UsageError, match="`max_rank` 90: must be above the depth of the labels, 100"):
        train(place, tmp_path / "n", *ended, "--max-rank", "90", source=joined)
    train(place, tmp_path / "n", *ended, "--kind", "answer", "--max-rank", "90", source=joined)  # titles are not read


def test_one_list_of_two_depths_is_refused(place: Path, tmp_path: Path) -> None:
    rows = rows_of(place / "labelled.jsonl")
    rows[2]["depth"] = 1  # among q0's sentences: none found in 1 passage is no worse than rank 50
    told = (
        "in:3: 'q0#sentence#02' was looked at to depth 1, those before it of 'q0' for 'sentence' to depth 100: "
        "their ranks cannot be compared; label them alike"
    )
    with pytest.raises(RecordError, match=told):
        train(place, tmp_path / "m", source=write_rows(tmp_path / "in", rows))


def test_an_assumed_depth_is_told_once(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shallow = rows_of(relabelled(place, tmp_path / "shallow.jsonl", 1, 2))
    source = write_rows(tmp_path / "in", [{key: row[key] for key in row if key != "depth"} for row in shallow])
    devs = [each for kind in ("answer", "title") for each in ("--dev", f"{kind}={source}")]
    run(place, tmp_path / "m", "--steps", "1", *devs, source=source)
    said = (
        "in: nothing says how deep was looked for answers ('q0#sentence#00' has no 'depth'); 100 is assumed, so that "
        "greater ranks mean none found (--depth says otherwise)"
    )
    assert capfd.readouterr().err.count(said) == 1
    train(place, tmp_path / "n", "--steps", "1", "--depth", "1", source=source)
    assert "is assumed" not in capfd.readouterr().err
    assert read_json(tmp_path / "n" / "meta.json")["depth"] == 1


def test_repeated_candidates_are_one_in_training_and_measuring(place: Path, tmp_path: Path) -> None:
    rows = rows_of(place / "labelled.jsonl")
    twice = [each for row in rows for each in (row, row | {"_id": row["_id"] + "x", "text": f" {row['text']} "})]
    more = ["--steps", "2", "--eval-every", "1", "--candidates", "3"]
    for name, source in (("once", write_rows(tmp_path / "a", rows)), ("twice", write_rows(tmp_path / "b", twice))):
        train(place, tmp_path / name, *more, "--dev", str(source), source=source)
    counts = [read_json(tmp_path / name / "meta.json")["counts"] for name in ("once", "twice")]
    assert [each.pop("repeated") for each in counts] == [0, 288]  # 24 questions, 3 kinds, 4 candidates
    assert counts[0] == counts[1]
    assert entries(tmp_path / "once") == entries(tmp_path / "twice")
    assert distance(*(load_file(tmp_path / name / "model.safetensors") for name in ("once", "twice"))) == 0.0
