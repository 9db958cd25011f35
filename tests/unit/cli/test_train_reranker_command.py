"""drtk train-reranker as users run it: a kill and a resumption, what is kept, what loads elsewhere, what is refused."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.integrity import read_json
from tests.precision import linear_layers
from tests.running import command, killed_at
from tests.tiny import collection, tiny_crossencoder, tiny_model, write_collection

QUICK = ["--batch", "8", "--negatives", "3", "--lr", "1e-3", "--max-length", "32", "--device", "cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 queries with examples, a run of ten documents each, judgements, and a BEIR folder of them."""
    folder = tmp_path_factory.mktemp("rerank")
    write_collection(folder, 60)
    tiny_crossencoder(folder / "model")
    draw = random.Random(0)
    with open(folder / "run", "w") as run:
        for query in range(60):
            others = draw.sample([number for number in range(60) if number != query], 9)
            ranked = draw.sample([query, *others], 10)
            run.writelines(f"q{query} Q0 d{id} {at} {20 - at} t\n" for at, id in enumerate(ranked, start=1))
    (folder / "dev" / "qrels").mkdir(parents=True)
    judged = "".join(f"q{query}\td{query}\t1\n" for query in range(60))
    for name in ("qrels.tsv", "dev/qrels/dev.tsv"):
        (folder / name).write_text("query-id\tcorpus-id\tscore\n" + judged)
    shutil.copy(folder / "queries.jsonl", folder / "dev")
    return folder


def arguments(place: Path, output: Path, *more: str, examples: str = "examples.jsonl") -> list[str]:
    named = ["--corpus", str(place / "corpus.jsonl"), "--queries", str(place / "queries.jsonl")]
    named += ["--model", str(place / "model"), "-o", str(output), *QUICK, *more]
    return ["train-reranker", str(place / examples), *named]


def train(place: Path, output: Path, *more: str, examples: str = "examples.jsonl") -> dict:
    app([*arguments(place, output, *more, examples=examples), "-q"], standalone_mode=False)
    return load_file(output / "model.safetensors")


def measured(place: Path, *more: str) -> list[str]:
    return ["--dev", str(place / "dev"), "--dev-run", str(place / "run"), "--dev-queries", "20", *more]


def entries(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def distance(mine: dict, theirs: dict) -> float:
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(place: Path, tmp_path: Path) -> None:
    more = [
        "--steps",
        "60",
        "--log-every",
        "5",
        "--save-every",
        "10",
        "--r-drop",
        "--backward",
        "3",
        "--micro-batch",
        "4",
    ]
    more += measured(place, "--eval-every", "10")
    output = tmp_path / "killed"
    killed_at(Path(f"{output}.part") / "checkpoints" / "checkpoint-20" / "complete", *arguments(place, output, *more))
    assert not (output / "meta.json").exists()
    with pytest.raises(MismatchError, match=r"other settings .*\(weight_decay\)"):
        train(place, output, *more, "--resume", "--weight-decay", "0.5", "--lr", "2e-3")
    with pytest.raises(MismatchError, match=r"other settings .*\(.*batch, .*r_drop"):  # of another preset
        train(place, output, *more, "--resume", "--no-r-drop", "--batch", "16")
    assert distance(train(place, output, *more, "--resume"), train(place, tmp_path / "whole", *more)) == 0.0
    assert entries(output) == entries(tmp_path / "whole")
    assert not (output / "checkpoints").exists()


def test_a_checkpoint_of_another_preset_is_not_gone_on_from(place: Path, tmp_path: Path) -> None:
    size = ["--backward", "2", "--steps", "4", "--save-every", "2", "--log-every", "1"]
    with pytest.raises(DrtkError, match="the loss is nan at step"):
        train(
            place, tmp_path / "m", "--preset", "simlm-reranker", *size, "--lr", "1e38", "--trainer", "max_grad_norm=0"
        )
    assert (tmp_path / "m.part" / "meta.json.part").exists()
    with pytest.raises(MismatchError, match=r"was begun with other settings or files \(.*r_drop") as told:
        train(place, tmp_path / "m", "--preset", "simlm-reranker-official", *size, "--resume")
    assert "\n" not in str(told.value)


def test_the_best_measured_weights_are_kept_and_score_what_was_measured(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(place, tmp_path / "m", "--steps", "40", *measured(place, "--eval-every", "10", "--dev-queries", "60"))
    found = [entry for entry in entries(tmp_path / "m") if "RR@10" in entry]
    best = read_json(tmp_path / "m" / "meta.json")["best"]
    highest = max(found, key=lambda entry: entry["RR@10"])
    assert best == {"step": highest["step"], "RR@10": pytest.approx(highest["RR@10"], rel=1e-5)}
    files = ["--corpus", str(place / "corpus.jsonl"), "--queries", str(place / "queries.jsonl")]
    call = ["rerank", str(place / "run"), "--model", str(tmp_path / "m"), *files, "-o", str(tmp_path / "out.run"), "-q"]
    app(call, standalone_mode=False)
    shown = command(capfd, "eval", tmp_path / "out.run", "--qrels", place / "qrels.tsv", "--measures", "RR@10")
    assert f"{best['RR@10']:.4f}" in shown


def test_an_encoder_of_drtks_own_learns_to_tell_the_positive(place: Path, tmp_path: Path) -> None:
    # ln 4 = 1.386 where nothing is known of four passages
    encoder = ["--model", str(tiny_model(tmp_path / "encoder")), "--steps", "100", "--lr", "4e-3", "--log-every", "20"]
    train(place, tmp_path / "m", *encoder)
    losses = [entry["loss"] for entry in entries(tmp_path / "m")]
    assert losses[0] == pytest.approx(1.386, abs=0.01)
    assert losses[-1] < 1.2


def test_micro_batches_take_the_same_steps(place: Path, tmp_path: Path) -> None:
    # Without dropout the mean of two halves is the mean of the whole.
    shutil.copytree(place / "model", tmp_path / "dry")
    config = read_json(tmp_path / "dry" / "config.json")
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (tmp_path / "dry" / "config.json").write_text(json.dumps(config))
    # Plain gradient descent: Adam would make as large a step of a difference by rounding as of a gradient.
    more = ["--steps", "3", "--lr", "0.01", "--model", str(tmp_path / "dry"), "--warmup", "0", "--trainer", "optim=sgd"]
    whole = train(place, tmp_path / "whole", *more)
    parts = train(place, tmp_path / "parts", *more, "--micro-batch", "2")
    assert distance(whole, parts) < 2e-5
    assert distance(whole, load_file(tmp_path / "dry" / "model.safetensors")) > 1e-4


def test_the_folder_loads_in_sentence_transformers_with_equal_scores(place: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    train(place, tmp_path / "m", "--steps", "5")
    meta = read_json(tmp_path / "m" / "meta.json")
    assert (meta["kind"], meta["pairing"]) == ("model", {"title": "colon", "max_length": 32})
    passages, queries, _ = collection(60)
    pairs = [
        (query["text"], f"{passage['title']}: {passage['text']}")
        for query, passage in zip(queries, reversed(passages), strict=True)
    ]
    theirs = library.CrossEncoder(str(tmp_path / "m"), device="cpu").predict(pairs, batch_size=7)
    run = tmp_path / "run"
    run.write_text("".join(f"q{at} Q0 d{59 - at} 1 1.0 t\n" for at in range(60)))
    files = ["--corpus", str(place / "corpus.jsonl"), "--queries", str(place / "queries.jsonl")]
    app(["rerank", str(run), "--model", str(tmp_path / "m"), *files, "-o", str(tmp_path / "out"), "-q"],
        standalone_mode=False)  # fmt: skip
    mine = [float(line.split()[4]) for line in (tmp_path / "out").read_text().splitlines()]
    np.testing.assert_allclose(mine, theirs, atol=5e-5)
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".safetensors"}


def test_pairs_by_themselves_and_the_first_positive_alone_are_trained_on(place: Path, tmp_path: Path) -> None:
    named = ["train-reranker", str(place / "examples.jsonl"), "--corpus", str(place / "corpus.jsonl")]
    named += ["--queries", str(place / "queries.jsonl"), "--model", str(place / "model"), "-q", "--device", "cpu"]
    app([*named, "-o", str(tmp_path / "m"), "--loss", "bce", "--batch", "16", "--epochs", "1"], standalone_mode=False)
    # 60 examples of a positive and three negatives: 240 pairs, 15 steps of 16
    assert read_json(tmp_path / "m" / "meta.json")["counts"]["steps"] == 15
    rows = [json.loads(line) for line in (place / "examples.jsonl").read_text().splitlines()]
    for row in rows:
        row["positives"] = [*row["positives"], "d999"]  # which the corpus lacks
    (place / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(MismatchError, match=r"two\.jsonl:1: the corpus has no 'd999'"):
        train(place, tmp_path / "n", "--steps", "1", examples="two.jsonl")
    train(place, tmp_path / "n", "--steps", "1", "--first-positive", examples="two.jsonl")


def test_measuring_with_queries_that_are_trained_on_is_told(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (place / "queries.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] = f"question {number}"
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(place / "dev", tmp_path / "dev")
    for row in rows[:50]:
        row["text"] = f"another {row['text']}"  # the same id, and something else is asked
    (tmp_path / "dev" / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = [
        "--queries",
        str(tmp_path / "queries.jsonl"),
        "--dev",
        str(tmp_path / "dev"),
        "--dev-run",
        str(place / "run"),
    ]
    capfd.readouterr()
    train(place, tmp_path / "m", *more, "--steps", "1", "--dev-queries", "60")
    told = f"drtk: {tmp_path / 'dev'}: 10 of its 60 measured queries are in {place / 'examples.jsonl'} too: the weights"
    assert told in capfd.readouterr().err
    (place / "fifty.jsonl").write_text("".join((place / "examples.jsonl").read_text().splitlines(keepends=True)[:50]))
    train(place, tmp_path / "n", *more, "--steps", "1", "--dev-queries", "60", examples="fifty.jsonl")
    assert " too" not in capfd.readouterr().err


def test_early_stopping_ends_training(place: Path, tmp_path: Path) -> None:
    more = measured(place, "--eval-every", "2", "--patience", "2")
    train(place, tmp_path / "m", "--steps", "200", "--lr", "0", *more)  # nothing is learned: nothing gets better
    counts = read_json(tmp_path / "m" / "meta.json")["counts"]
    assert counts["steps"] == 4  # the start is the best, two more are not


def test_the_start_is_measured_and_kept_where_training_makes_it_worse(place: Path, tmp_path: Path) -> None:
    start = ["--model", str(tiny_model(tmp_path / "encoder")), "--steps", "100", "--lr", "4e-3"]
    learnt = train(place, tmp_path / "learnt", *start)
    worse = ["--model", str(tmp_path / "learnt"), "--steps", "6", "--lr", "0.5"]
    worse += measured(place, "--eval-every", "3", "--dev-queries", "60")
    kept = train(place, tmp_path / "worse", *worse)
    found = {entry["step"]: entry["RR@10"] for entry in entries(tmp_path / "worse") if "RR@10" in entry}
    assert list(found) == [0, 3, 6]
    assert found[0] > max(found[3], found[6])
    assert read_json(tmp_path / "worse" / "meta.json")["best"]["step"] == 0
    assert distance(kept, learnt) == 0


@pytest.mark.parametrize("more", [[], ["--loss", "bce"], ["--backward", "2", "--r-drop"]])
def test_the_precision_is_that_of_every_forward_pass(place: Path, tmp_path: Path, more: list[str]) -> None:
    call = arguments(place, tmp_path / "m", "--steps", "2", "--precision", "bfloat16", *more)
    if "bce" in more:
        call = [item for at, item in enumerate(call) if "--negatives" not in (item, call[at - 1])]
    with linear_layers() as found:
        app([*call, "-q"], standalone_mode=False)
    assert found == {torch.bfloat16}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"query_id": "q99", "positives": ["d1"], "negatives": ["d2"]}, "bad.jsonl:9: the queries have no 'q99'"),
        ({"query_id": "q1", "positives": ["d1"], "negatives": ["d99"]}, "bad.jsonl:9: the corpus has no 'd99'"),
        (
            {"query_id": "q1", "positives": ["d1"], "negatives": []},
            "bad.jsonl:9: 'q1' has no negatives; --loss bce does without",
        ),
        ({"query_id": "q1", "positives": [], "negatives": ["d2"]}, "bad.jsonl:9: 'positives' is empty"),
    ],
)
def test_examples_that_lead_nowhere_are_named(place: Path, tmp_path: Path, row: dict, told: str) -> None:
    good = (place / "examples.jsonl").read_text().splitlines()[:8]
    (place / "bad.jsonl").write_text("\n".join([*good, json.dumps(row)]) + "\n")
    with pytest.raises(DrtkError, match=told) as fault:
        train(place, tmp_path / "m", examples="bad.jsonl")
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "m").exists()


def test_one_negative_is_repeated_to_fill_the_list_and_that_is_said(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (place / "examples.jsonl").read_text().splitlines()]
    one = [row | {"negatives": row["negatives"][:1]} for row in rows]
    (place / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in one))
    train(place, tmp_path / "m", "--steps", "2", examples="one.jsonl")
    assert read_json(tmp_path / "m" / "meta.json")["counts"]["examples"] == 60
    assert "train-reranker: 60 examples have fewer than 3 negatives; theirs repeat" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--vectors", "v"], "--vectors: is not for --kind crossencoder"),
        (["--kind", "hlatr"], "--negatives is for --kind crossencoder"),
        (["--depth", "50"], "--depth is for --kind hlatr"),
        (["--dropout", "0.2"], "--dropout is for --kind hlatr"),
        (["--steps", "3", "--epochs", "2"], "--steps and --epochs: choose one"),
        (["--preset", "quickstart"], "preset 'quickstart' is for drtk train-retriever"),
        (["--dev", "dev"], "--dev and --dev-run go together"),
        (["--patience", "2"], "--patience: needs something to measure with"),
        (["--eval-every", "2"], "--eval-every goes with --dev, by which"),
        (["--dev-queries", "2"], "--dev-queries goes with --dev, by which"),
        (["--dev-depth", "2"], "--dev-depth goes with --dev, by which"),
        (["--select", "nDCG@10"], "--select goes with --dev, by which"),
        (["--dev-split", "test"], "--dev-split: names judgements of --dev"),
        (["--backward", "5"], "--backward 5: a query has 4 passages in a step"),
        (["--trainer", "gradient_accumulation_steps=2"], "gradient_accumulation_steps: cannot be chosen"),
    ],
)
def test_what_cannot_be_meant_is_refused(place: Path, tmp_path: Path, more: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        train(place, tmp_path / "m", *more)
    assert not (tmp_path / "m").exists()


def test_faults_of_data_are_told_in_one_line(place: Path, tmp_path: Path) -> None:
    with pytest.raises(DrtkError, match="60 examples do not fill one batch of 64; --batch 60 or less would do"):
        train(place, tmp_path / "m", "--batch", "64")
    with pytest.raises(MismatchError, match="model: reads at most 64 tokens; 65 were asked for"):
        train(place, tmp_path / "m", "--max-length", "65")
    with pytest.raises(DrtkError, match=r"the loss is nan at step \d+; a lower --lr"):
        train(place, tmp_path / "m", "--steps", "20", "--lr", "1e38", "--warmup", "0", "--trainer", "max_grad_norm=0")
    other = tmp_path / "other.run"
    other.write_text("x1 Q0 d1 1 1.0 t\n")
    with pytest.raises(MismatchError, match=r"other\.run: no query of it has a judgement"):
        train(place, tmp_path / "n", *measured(place), "--dev-run", str(other))
    other.write_text("q1 Q0 d99 1 1.0 t\n")
    with pytest.raises(MismatchError, match=r"corpus\.jsonl: has no 'd99', which the dev run names$"):
        train(place, tmp_path / "n", *measured(place), "--dev-run", str(other))
    other.write_text(
        "".join(f"q1 Q0 {id} {rank} {9 - rank} t\n" for rank, id in enumerate(["d99", "d1", "d98"], start=1))
    )
    with pytest.raises(
        MismatchError, match="has no 'd99', which the dev run names; 2 of the 3 that are measured are not"
    ):
        train(place, tmp_path / "n", *measured(place), "--dev-run", str(other))


def test_examples_of_no_use_are_forgiven_as_often_as_is_allowed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (place / "examples.jsonl").read_text().splitlines()[:8]
    bad = [
        {"query_id": "q99", "positives": ["d1"], "negatives": ["d2"]},
        {"query_id": "q1", "positives": ["d1"], "negatives": []},
        {"query_id": "q2", "positives": ["d2"], "negatives": ["d98"]},
        {"query_id": "q3", "positives": ["d99"], "negatives": ["d2"]},
    ]
    (place / "some.jsonl").write_text("".join(f"{row}\n" for row in [*good[:4], *map(json.dumps, bad), *good[4:]]))
    told = r"some\.jsonl:8: the corpus has no 'd99'; 2 of the \d+ that the examples name are not there$"
    with pytest.raises(MismatchError, match=told):
        train(place, tmp_path / "m", "--steps", "1", "--skip-bad", "3", examples="some.jsonl")
    app(
        [*arguments(place, tmp_path / "m", "--steps", "1", "--skip-bad", "4", examples="some.jsonl")],
        standalone_mode=False,
    )
    assert "some.jsonl:5: the queries have no 'q99'" in capsys.readouterr().err
    assert read_json(tmp_path / "m" / "meta.json")["counts"]["examples"] == 8
    with pytest.raises(DrtkError, match="8 examples do not fill one batch of 12; --batch 8 or less would do"):
        train(place, tmp_path / "n", "--batch", "12", "--skip-bad", "4", examples="some.jsonl")
    assert not (tmp_path / "n").exists()
    (place / "none.jsonl").write_text("")
    with pytest.raises(DrtkError, match=r"none\.jsonl: no examples to learn from$"):
        train(place, tmp_path / "n", examples="none.jsonl")


def test_passages_without_a_text_are_told_and_refused_where_there_is_nothing_else(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (place / "corpus.jsonl").read_text().splitlines()]
    rows[3]["text"] = ""
    blank = tmp_path / "blank.jsonl"
    blank.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(place, tmp_path / "m", "--steps", "1", "--corpus", str(blank))
    assert f"drtk: {blank}: 1 of the 60 passages looked up there have no text\n" in capfd.readouterr().err
    blank.write_text("".join(json.dumps(row | {"text": " "}) + "\n" for row in rows))
    with pytest.raises(
        DrtkError, match=r"blank\.jsonl: none of the 60 passages looked up there has a text: is it the r"
    ):
        train(place, tmp_path / "n", "--steps", "1", "--corpus", str(blank), "--title", "none")
    assert not (tmp_path / "n").exists()


def test_a_positive_among_its_own_negatives_is_told_and_left_out(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (place / "examples.jsonl").read_text().splitlines()[:8]]
    rows[2]["negatives"].insert(0, rows[2]["positives"][0])
    (place / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(place, tmp_path / "m", "--steps", "1", examples="own.jsonl")
    assert "own.jsonl: 1 times a positive is among its own negatives; it is left out of them" in capsys.readouterr().err
