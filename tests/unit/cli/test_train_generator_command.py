"""drtk train-generator as users run it: it learns, a kill and a resumption, what is kept, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.integrity import read_json
from drtk.training.fit import DrtkTrainer
from tests.running import command, killed_at
from tests.tiny import tiny_model, tiny_writer, write_collection

QUICK = ["--batch", "8", "--lr", "3e-3", "--max-length", "24", "--target-length", "8"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generator")
    write_collection(folder, 64)
    tiny_writer(folder / "model", "t5")
    tiny_writer(folder / "larger", "t5", hidden=64, layers=2)
    return folder


def arguments(place: Path, output: Path, *more: str, examples: str = "examples.jsonl") -> list[str]:
    named = ["--corpus", str(place / "corpus.jsonl"), "--queries", str(place / "queries.jsonl")]
    named += ["--model", str(place / "model"), "-o", str(output), *QUICK, *more]
    return ["train-generator", str(place / examples), *named]


def train(place: Path, output: Path, *more: str, examples: str = "examples.jsonl") -> None:
    app([*arguments(place, output, *more, examples=examples), "-q"], standalone_mode=False)


def entries(folder: Path, field: str) -> list[dict]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [entry for entry in lines if field in entry]


def weights(folder: Path) -> dict:
    return load_file(folder / "model.safetensors")


def equal(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(bool((mine[name] == theirs[name]).all()) for name in mine)


def found_first(place: Path, model: Path, capfd: pytest.CaptureFixture[str], *more: str) -> int:
    """Of the 64 passages, how many are the first that BM25 finds for the query that the model writes for them."""
    call = ["doc2query", place / "corpus.jsonl", "--model", model, "--n", "1", "--max-new-tokens", "8", *more, "-q"]
    rows = [json.loads(line) for line in command(capfd, *call).splitlines()]
    queries = place / "written.jsonl"
    queries.write_text("".join(json.dumps({"_id": row["_id"], "text": row["queries"][0]}) + "\n" for row in rows))
    return sum(line.split()[0] == line.split()[2] for line in searched(place, queries, capfd))


def searched(place: Path, queries: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    return command(capfd, "search", place / "bm25", queries, "-k", "1").splitlines()


def test_queries_of_a_model_that_learnt_64_pairs_find_their_own_passages(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    more = ["--model", str(place / "larger"), "--steps", "90", "--batch", "32", "--log-every", "30"]
    train(place, tmp_path / "m", *more)
    losses = [entry["loss"] for entry in entries(tmp_path / "m", "loss")]
    assert losses[-1] < 0.2 * losses[0]
    command(capfd, "index", place / "corpus.jsonl", "--type", "bm25s", "-o", place / "bm25", "-q")
    own = [line.split() for line in searched(place, place / "queries.jsonl", capfd)]
    best = sum(row[0][1:] == row[2][1:] for row in own)  # the pairs' own queries; several passages share their words
    trained = found_first(place, tmp_path / "m", capfd, "--decode", "greedy")
    untrained = found_first(place, place / "larger", capfd, "--decode", "sample")
    assert best >= 30
    assert trained >= 0.8 * best
    assert untrained <= 0.2 * best


def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(place: Path, tmp_path: Path):
    schedule = ["--steps", "50", "--log-every", "5", "--save-every", "10", "--eval-every", "5", "--dev-share", "0.3"]
    output = tmp_path / "killed"
    killed_at(
        Path(f"{output}.part") / "checkpoints" / "checkpoint-20" / "complete", *arguments(place, output, *schedule)
    )
    assert not (output / "meta.json").exists()
    with pytest.raises(MismatchError, match=r"other settings .*\(weight_decay\)"):
        train(place, output, *schedule, "--resume", "--weight-decay", "0.1", "--lr", "2e-3")
    train(place, output, *schedule, "--resume")
    train(place, tmp_path / "whole", *schedule)
    assert equal(output, tmp_path / "whole")
    assert (output / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()
    assert [entry["step"] for entry in entries(output, "loss")] == list(range(5, 51, 5))
    assert [entry["step"] for entry in entries(output, "rougeL")] == list(range(5, 51, 5))
    assert read_json(output / "meta.json")["best"] == read_json(tmp_path / "whole" / "meta.json")["best"]
    assert not (output / "checkpoints").exists()


def test_the_weights_measured_best_are_the_result(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # planted: ROUGE-1 is best at the second of three measurements, ROUGE-2 at the third; equal weights at equal steps
    planted = iter([(0.1, 0.1), (0.9, 0.1), (0.2, 0.2)] * 2)

    def rouge(written: list[str], wanted: list[str]) -> dict[str, float]:
        first, second = next(planted)
        return {"rouge1": first, "rouge2": second, "rougeL": 0.0}

    monkeypatch.setattr("drtk.evaluation.answers.rouge", rouge)
    measured = ["--steps", "12", "--eval-every", "4", "--dev", str(place / "examples.jsonl")]
    train(place, tmp_path / "first", *measured, "--select", "rouge1")
    train(place, tmp_path / "second", *measured, "--select", "rouge2")
    train(place, tmp_path / "eight", "--steps", "8")
    train(place, tmp_path / "twelve", "--steps", "12")
    assert equal(tmp_path / "first", tmp_path / "eight")
    assert equal(tmp_path / "second", tmp_path / "twelve")
    assert not equal(tmp_path / "eight", tmp_path / "twelve")
    assert read_json(tmp_path / "first" / "meta.json")["best"] == {"step": 8, "rouge1": 0.9}


def test_measuring_with_pairs_that_are_trained_on_is_told(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = (place / "examples.jsonl").read_text().splitlines(keepends=True)
    rows = list(map(json.loads, lines))
    (tmp_path / "first.jsonl").write_text("".join(lines[:50]))
    # 14 new ones, 10 of those before, and 4 of their passages with the questions of others
    mixed = [
        json.dumps(row | {"query_id": other["query_id"]}) + "\n" for row, other in zip(rows[:4], rows[-4:], strict=True)
    ]
    (tmp_path / "dev.jsonl").write_text("".join(lines[40:] + mixed))
    more = ["--steps", "1", "--eval-every", "1", "--select", "loss"]
    capfd.readouterr()
    train(place, tmp_path / "m", *more, "--dev", str(tmp_path / "dev.jsonl"), examples=str(tmp_path / "first.jsonl"))
    told = f"dev.jsonl: 10 of its 28 pairs are in {tmp_path / 'first.jsonl'} too: the weights that are kept are then"
    assert told in capfd.readouterr().err
    (tmp_path / "new.jsonl").write_text("".join(lines[50:]))
    train(place, tmp_path / "n", *more, "--dev", str(tmp_path / "new.jsonl"), examples=str(tmp_path / "first.jsonl"))
    assert "too" not in capfd.readouterr().err


def test_training_ends_when_patience_does_and_stays_ended(place: Path, tmp_path: Path):
    # learning 45 pairs by heart makes the loss on the 19 others grow
    more = ["--model", str(place / "larger"), "--batch", "32", "--select", "loss", "--dev-share", "0.3"]
    train(place, tmp_path / "m", *more, "--steps", "400", "--eval-every", "20", "--patience", "2")
    losses = [entry["dev_loss"] for entry in entries(tmp_path / "m", "dev_loss")]
    best = min(range(len(losses)), key=losses.__getitem__)
    manifest = read_json(tmp_path / "m" / "meta.json")
    assert manifest["best"] == {"step": 20 * (best + 1), "dev_loss": pytest.approx(losses[best], rel=1e-5)}
    assert manifest["counts"]["steps"] == 20 * len(losses) < 400
    assert len(losses) == best + 1 + 2
    assert not entries(tmp_path / "m", "rougeL")


def test_the_folder_says_how_to_read_and_doc2query_does_so(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    train(place, tmp_path / "m", "--steps", "2", "--prefix", "ask:", "--title", "none")
    manifest = read_json(tmp_path / "m" / "meta.json")
    assert (manifest["kind"], manifest["architecture"]) == ("model", "t5")
    assert manifest["writing"] == {"prefix": "ask:", "title": "none", "max_length": 24}
    assert manifest["counts"] | {"epochs": 0} == {"pairs": 64, "dev pairs": 0, "steps": 2, "epochs": 0}
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".safetensors"}

    def written(*more: str) -> str:
        call = [place / "corpus.jsonl", "--model", tmp_path / "m", "--n", "1", "--max-new-tokens", "6", "--bare", "-q"]
        return command(capfd, "doc2query", *call, *more)

    assert written() == written("--prefix", "ask:", "--title", "none", "--max-length", "24")
    assert written() != written("--max-length", "8")
    with pytest.raises(MismatchError, match="was trained with --title 'none'; 'join' contradicts it"):
        written("--title", "join")
    train(place, tmp_path / "on", "--model", str(tmp_path / "m"), "--steps", "1")  # goes on reading so
    assert read_json(tmp_path / "on" / "meta.json")["writing"] == manifest["writing"]


def test_passages_with_queries_train_as_their_examples_do(place: Path, tmp_path: Path):
    queries = [json.loads(line)["text"] for line in (place / "queries.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (place / "corpus.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | {"queries": [query]}) for row, query in zip(rows, queries, strict=True)]
    (place / "enriched.jsonl").write_text("\n".join(lines) + "\n")
    call = ["--model", str(place / "model"), *QUICK, "--steps", "6", "-q"]
    app(
        ["train-generator", str(place / "enriched.jsonl"), "-o", str(tmp_path / "direct"), *call],
        standalone_mode=False,
    )
    train(place, tmp_path / "looked-up", "--steps", "6")
    assert equal(tmp_path / "direct", tmp_path / "looked-up")


@pytest.mark.parametrize("more", [["--gradient-checkpointing"], ["--precision", "bfloat16"]])
def test_variants_train(place: Path, tmp_path: Path, more: list[str]):
    train(
        place,
        tmp_path / "m",
        "--steps",
        "24",
        "--log-every",
        "4",
        "--label-smoothing",
        "0.1",
        "--dev-share",
        ".3",
        *more,
    )
    losses = [entry["loss"] for entry in entries(tmp_path / "m", "loss")]
    assert losses[-1] < losses[0]
    assert read_json(tmp_path / "m" / "config.json").get("use_cache", True)


def test_a_bart_model_trains_too(place: Path, tmp_path: Path):
    from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

    from drtk.models.seq2seq import save_writer

    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    sizes = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in
             (("layers", 1), ("ffn_dim", 64), ("attention_heads", 4))}  # fmt: skip
    tokens = {"pad_token_id": pad, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": end}
    config = BartConfig(vocab_size=len(tokenizer), d_model=32, max_position_embeddings=64, **sizes, **tokens)
    save_writer(BartForConditionalGeneration(config), tokenizer, tmp_path / "bart")
    train(place, tmp_path / "m", "--model", str(tmp_path / "bart"), "--steps", "24", "--log-every", "4",
          "--dev-share", "0.3", "--target-length", "99")  # fmt: skip
    losses = [entry["loss"] for entry in entries(tmp_path / "m", "loss")]
    assert losses[-1] < 0.9 * losses[0]
    assert read_json(tmp_path / "m" / "meta.json")["architecture"] == "bart"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"query_id": "q99", "positives": ["d1"], "negatives": []}, "bad.jsonl:9: the queries have no 'q99'"),
        ({"query_id": "q1", "positives": ["d99"], "negatives": []}, "bad.jsonl:9: the corpus has no 'd99'"),
        ({"query_id": "q1", "positives": [], "negatives": ["d2"]}, "bad.jsonl:9: 'positives' is empty"),
    ],
)
def test_examples_that_lead_nowhere_are_named(place: Path, tmp_path: Path, row: dict, told: str):
    good = (place / "examples.jsonl").read_text().splitlines()[:8]
    (place / "bad.jsonl").write_text("\n".join([*good, json.dumps(row)]) + "\n")
    with pytest.raises(DrtkError, match=told) as fault:
        train(place, tmp_path / "m", examples="bad.jsonl")
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "m").exists()


def test_passages_without_queries_are_named(place: Path, tmp_path: Path):
    def train_on(name: str) -> None:
        app(["train-generator", str(place / name), "--model", str(place / "model"), "-o", str(tmp_path / "m")],
            standalone_mode=False)  # fmt: skip

    with pytest.raises(DrtkError, match='no passage has "queries"; training examples come with --corpus'):
        train_on("corpus.jsonl")
    (place / "wrong.jsonl").write_text('{"_id": "a", "text": "b"}\n{"_id": "c", "text": "d", "queries": "e"}\n')
    with pytest.raises(DrtkError, match=r"wrong.jsonl:2: 'queries' must be a list of strings"):
        train_on("wrong.jsonl")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--dev", "x", "--dev-share", "0.1"], "--dev and --dev-share: choose one"),
        (["--patience", "2"], "--patience needs something to measure with"),
        (["--trainer", "label_smoothing_factor=0.1"], "label_smoothing_factor: cannot be chosen: .*--label-smoothing"),
        (["--trainer", "eval_strategy=steps"], "eval_strategy: cannot be chosen"),
        (["--prefix", "river " * 30], "--prefix is 31 tokens long and leaves nothing of --max-length 24"),
    ],
)
def test_what_cannot_be_meant_is_refused(place: Path, tmp_path: Path, more: list[str], told: str):
    with pytest.raises(UsageError, match=told):
        train(place, tmp_path / "m", *more)


def test_a_corpus_without_queries_is_a_usage_error(place: Path, tmp_path: Path):
    call = [
        "train-generator",
        str(place / "examples.jsonl"),
        "--model",
        str(place / "model"),
        "-o",
        str(tmp_path / "m"),
    ]
    with pytest.raises(UsageError, match="--corpus and --queries go together"):
        app([*call, "--corpus", str(place / "corpus.jsonl")], standalone_mode=False)


def test_what_cannot_be_trained_or_measured_is_told(place: Path, tmp_path: Path):
    tiny_writer(tmp_path / "gpt2", "gpt2")
    with pytest.raises(MismatchError, match=r"goes on with a text \(gpt2\); a model of encoder and decoder"):
        train(place, tmp_path / "m", "--model", str(tmp_path / "gpt2"))
    with pytest.raises(MismatchError, match=r"is an encoder \(bert\)"):
        train(place, tmp_path / "m", "--model", str(tiny_model(tmp_path / "encoder")))
    with pytest.raises(DrtkError, match="64 pairs do not fill one batch of 65; --batch 64"):
        train(place, tmp_path / "m", "--batch", "65")
    with pytest.raises(DrtkError, match=r"examples.jsonl: no pairs to measure with at this --dev-share"):
        train(place, tmp_path / "m", "--dev-share", "0")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "--gradient-checkpointing or, begun anew, a smaller --batch or more devices may help"),
        (["--gradient-checkpointing"], "beginning anew with a smaller --batch or more devices may help"),
    ],
)
def test_a_lack_of_memory_is_not_answered_with_what_is_in_use(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], told: str
):
    def full(*given: object, **named: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(DrtkTrainer, "training_step", full)
    with pytest.raises(DrtkError, match=f"cpu: out of memory at step 1; {told}"):
        train(place, tmp_path / "m", "--steps", "1", *more)
