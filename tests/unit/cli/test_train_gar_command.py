"""drtk train-generator --task gar-…: targets, folds and their record, a kill and a resumption, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.config import load_preset, merge
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.models.seq2seq import save_writer
from drtk.runtime.integrity import read_json
from drtk.training.config import GeneratorConfig
from tests.asked import Asked, write_questions
from tests.running import killed_at
from tests.tiny import tiny_writer

QUICK = [
    "--batch",
    "4",
    "--lr",
    "3e-3",
    "--max-length",
    "16",
    "--target-length",
    "8",
    "--steps",
    "6",
    "--device",
    "cpu",
]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_writer(tmp_path_factory.mktemp("writer") / "t5", "t5")


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return write_questions(tmp_path, 24)


def arguments(asked: Asked, writer: Path, output: Path, *more: str, task: str = "gar-answer") -> list[str]:
    files = [] if task == "gar-answer" else ["--run", str(asked.run), "--corpus", str(asked.corpus)]
    call = ["train-generator", str(asked.questions), "--task", task, "--model", str(writer), "-o", str(output)]
    return [*call, *files, *QUICK, *more]


def train(asked: Asked, writer: Path, output: Path, *more: str, task: str = "gar-answer") -> None:
    app([*arguments(asked, writer, output, *more, task=task), "-q"], standalone_mode=False)


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Instead of training: what would have been learnt, target by source, by the name of the folder."""
    found: dict[str, dict[str, str]] = {}

    def noted(pairs: Sequence[Any], folder: Path, *, start: Any, **_: Any) -> dict[str, Any]:
        found[folder.name.removesuffix(".part")] = {pairs[at].source: pairs[at].target for at in range(len(pairs))}
        save_writer(start.writer.model, start.writer.tokenizer, folder)
        return {"steps": 0, "epochs": 0.0}

    for place in (
        "drtk.query_expansion.train_generator",
        "drtk.training.generator",
    ):  # the one that imports the other first
        monkeypatch.setattr(f"{place}.train_generator", noted)
    return found


def test_targets_are_answers_sentences_and_titles(
    asked: Asked, writer: Path, tmp_path: Path, learnt: dict[str, dict[str, str]]
) -> None:
    for task in ("gar-answer", "gar-sentence", "gar-title"):
        train(asked, writer, tmp_path / task, task=task)
    for id, question in asked.texts.items():
        assert learnt["gar-answer"][question] == asked.answers[id]
        assert learnt["gar-sentence"][question] == asked.sentences[id]
        assert learnt["gar-title"][question] == asked.answers[id].capitalize()
    manifest = read_json(tmp_path / "gar-title" / "meta.json")
    assert (manifest["kind"], manifest["expands"], manifest["target_length"]) == ("model", "title", 8)
    assert manifest["counts"]["pairs"] == manifest["counts"]["trained with"] == 24


def test_titles_of_all_answer_bearing_hits_are_joined_and_first_takes_one(
    asked: Asked, writer: Path, tmp_path: Path, learnt: dict[str, dict[str, str]]
) -> None:
    # q0's answer into its third hit, d2, too: the second and the third hit have it
    rows = [json.loads(line) for line in asked.corpus.read_text().splitlines()]
    rows[2]["text"] += f" And {asked.answers['q0']}."
    asked.corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    titles = [asked.answers[id].capitalize() for id in ("q0", "q2")]
    for name, more in (
        ("all", ["--separator", " | "]),
        ("first", ["--title-mode", "first"]),
        ("two", ["--depth", "2"]),
    ):
        train(asked, writer, tmp_path / name, *more, task="gar-title")
    question = asked.texts["q0"]
    assert learnt["all"][question] == " | ".join(titles)
    assert learnt["first"][question] == learnt["two"][question] == titles[0]


def test_questions_without_answers_or_answer_bearing_passage_are_dropped_and_counted(
    asked: Asked, writer: Path, tmp_path: Path, learnt: dict[str, dict[str, str]]
) -> None:
    rows = [json.loads(line) for line in asked.questions.read_text().splitlines()]
    rows[0] = {"_id": "q0", "text": rows[0]["text"]}
    rows[1] |= {"answers": ["", " "]}
    rows[2] |= {"answers": ["nowhere to be found"]}
    rows.append({"_id": "q24", "text": "not in the run", "answers": ["river"]})
    asked.questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(asked, writer, tmp_path / "m", task="gar-sentence")
    counts = read_json(tmp_path / "m" / "meta.json")["counts"]
    # q0 and q1 have no answer; q2's stands nowhere, and q24 has no hits
    wanted = {"questions": 25, "without answers": 2, "without answer-bearing passage": 2, "pairs": 21}
    assert {name: counts[name] for name in wanted} == wanted
    assert set(learnt["m"]) == {asked.texts[f"q{number}"] for number in range(3, 24)}


def test_measuring_with_questions_that_are_trained_with_is_told(
    asked: Asked, writer: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in asked.questions.read_text().splitlines()]
    again = [row | {"_id": f"other-{row['_id']}", "text": row["text"].upper()} for row in rows[:5]]
    again[0]["answers"] = []  # has nothing to be measured with
    dev = tmp_path / "dev.jsonl"
    dev.write_text("".join(json.dumps(row) + "\n" for row in (*again, {"_id": "new", "text": "new", "answers": ["x"]})))
    more = ["--eval-every", "6", "--select", "loss"]
    capfd.readouterr()
    train(asked, writer, tmp_path / "m", "--dev", str(dev), *more)
    told = f"drtk: {dev}: 4 of its 5 questions are in {asked.questions} too: the weights that are kept are then"
    assert told in capfd.readouterr().err
    train(asked, writer, tmp_path / "n", "--dev-share", "0.3", *more)
    assert "too:" not in capfd.readouterr().err


def blank(asked: Asked, *questions: str) -> None:
    """Take the texts of these questions' passages away."""
    ids = {question.replace("q", "d") for question in questions}
    rows = [json.loads(line) for line in asked.corpus.read_text().splitlines()]
    rows = [row | {"text": row["text"] * (row["_id"] not in ids)} for row in rows]
    asked.corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_passages_without_a_text_are_counted_as_far_as_answers_are_looked_for(
    asked: Asked, writer: Path, tmp_path: Path, learnt: dict[str, dict[str, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    blank(asked, "q5")
    capfd.readouterr()
    train(asked, writer, tmp_path / "m", task="gar-sentence")
    # The answer is in the second of three hits: 23 * 2 + 3. d5 is the first of q4's, the second of q5's, the third of q3's.
    assert "passages.jsonl: 2 of the 49 passages looked up there have no text\n" in capfd.readouterr().err
    assert len(learnt["m"]) == 23
    train(asked, writer, tmp_path / "n", "--match-title", task="gar-title")
    assert len(learnt["n"]) == 24
    assert "have no text" not in capfd.readouterr().err  # a title is looked into, too


def test_answers_in_capitals_are_cleaned_where_the_preset_of_triviaqa_says_so(
    asked: Asked, writer: Path, tmp_path: Path, learnt: dict[str, dict[str, str]]
) -> None:
    rows = [json.loads(line) for line in asked.questions.read_text().splitlines()]
    rows[0] |= {"answers": ["DAVID BECKHAM", "Beckham"]}
    asked.questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for preset, wanted in (("gar-answer", "DAVID BECKHAM"), ("gar-answer-triviaqa", "David Beckham")):
        call = ["train-generator", asked.questions, "--preset", preset, "--model", writer, "-o", tmp_path / preset]
        app([*map(str, call), "--batch", "4", "-q"], standalone_mode=False)
        assert learnt[preset][asked.texts["q0"]] == wanted


def test_the_value_of_triviaqas_answer_is_learnt_not_its_first_alias(
    asked: Asked, writer: Path, tmp_path: Path, learnt: dict[str, dict[str, str]]
) -> None:
    rows = [json.loads(line) for line in asked.questions.read_text().splitlines()]
    del rows[0]["answers"]
    rows[0] |= {"answer": {"aliases": ["Becks", "DAVID BECKHAM"], "value": "DAVID BECKHAM"}}
    asked.questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = [
        "train-generator",
        asked.questions,
        "--preset",
        "gar-answer-triviaqa",
        "--model",
        writer,
        "-o",
        tmp_path / "v",
    ]
    app([*map(str, call), "--batch", "4", "-q"], standalone_mode=False)
    assert learnt["v"][asked.texts["q0"]] == "David Beckham"


@pytest.mark.parametrize(
    ("name", "task", "lengths"),
    [
        ("gar-answer", "gar-answer", (20, 40)),
        ("gar-sentence", "gar-sentence", (20, 64)),
        ("gar-title", "gar-title", (20, 64)),
        ("gar-answer-triviaqa", "gar-answer", (50, 16)),
        ("gar-sentence-triviaqa", "gar-sentence", (50, 64)),
        ("gar-title-triviaqa", "gar-title", (50, 64)),
    ],
)
def test_presets_hold_the_published_figures(name: str, task: str, lengths: tuple[int, int]) -> None:
    found = merge(GeneratorConfig, load_preset(name).settings, {})
    found.check()
    assert (found.task, found.max_length, found.target_length) == (task, *lengths)
    assert (found.lr, found.weight_decay, found.warmup, found.schedule) == (3e-5, 0.0, 0.0, "linear")
    assert (found.batch, found.select, found.label_smoothing) == (128, "rouge1", 0.0)
    assert found.title_mode == "all"


def test_a_generator_of_expansions_is_kept_by_rouge_1_and_one_of_queries_by_rouge_l(
    asked: Asked, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter([0.9, 0.1])  # after three steps and after six; by ROUGE-L the later one would be the best
    monkeypatch.setattr(
        "drtk.evaluation.answers.rouge",
        lambda *_: {"rouge1": (one := next(measured)), "rouge2": 0.0, "rougeL": 1 - one},
    )
    train(asked, writer, tmp_path / "m", "--dev-share", "0.3", "--eval-every", "3")
    assert read_json(tmp_path / "m" / "meta.json")["best"] == {"step": 3, "rouge1": 0.9}
    assert GeneratorConfig().best_by == "rougeL"
    assert GeneratorConfig(task="gar-title", select="loss").best_by == "loss"


def test_no_generator_learns_from_its_own_fold_and_all_learn_from_the_others(
    asked: Asked, writer: Path, tmp_path: Path, learnt: dict[str, dict[str, str]]
) -> None:
    train(asked, writer, tmp_path / "m", "--folds", "3")
    record = {row["_id"]: row for row in map(json.loads, (tmp_path / "m" / "questions.jsonl").read_text().splitlines())}
    assert record.keys() == asked.texts.keys()
    for fold in range(3):
        seen = set(learnt[f"fold-{fold}"])
        assert seen == {text for id, text in asked.texts.items() if record[id]["fold"] != fold}
        manifest = read_json(tmp_path / "m" / f"fold-{fold}" / "meta.json")
        assert (manifest["kind"], manifest["fold"], manifest["counts"]["pairs"]) == ("model", fold, len(seen))
    whole = read_json(tmp_path / "m" / "meta.json")
    assert (whole["kind"], whole["folds"], whole["expands"]) == ("generators", 3, "answer")
    lines = asked.questions.read_text().splitlines(keepends=True)
    asked.questions.write_text("".join(lines[::-1]))
    train(asked, writer, tmp_path / "back", "--folds", "3")
    back = {row["_id"]: row for row in map(json.loads, (tmp_path / "back" / "questions.jsonl").open())}
    assert back == record


def test_what_generators_of_folds_are_measured_with_is_neither_trained_on_nor_their_fold(
    asked: Asked, writer: Path, tmp_path: Path
) -> None:
    train(
        asked, writer, tmp_path / "m", "--folds", "2", "--dev-share", "0.3", "--eval-every", "3", "--select", "rouge1"
    )
    record = [json.loads(line)["fold"] for line in (tmp_path / "m" / "questions.jsonl").open()]
    for fold in range(2):
        counts = read_json(tmp_path / "m" / f"fold-{fold}" / "meta.json")["counts"]
        assert counts["pairs"] + counts["dev pairs"] == sum(each != fold for each in record)
        assert counts["dev pairs"] > 0
        assert any("rouge1" in line for line in (tmp_path / "m" / f"fold-{fold}" / "log.jsonl").open())


def test_killed_while_a_later_fold_is_trained_and_resumed_the_weights_are_the_same(
    asked: Asked, writer: Path, tmp_path: Path
) -> None:
    schedule = ["--folds", "2", "--steps", "20", "--save-every", "4", "--log-every", "4"]
    output = tmp_path / "killed"
    call = arguments(asked, writer, output, *schedule, task="gar-sentence")
    killed_at(Path(f"{output}.part") / "fold-1" / "checkpoints" / "checkpoint-4" / "complete", *call)
    assert not (output / "meta.json").exists()
    first = (Path(f"{output}.part") / "fold-0" / "model.safetensors").stat().st_mtime_ns
    lines = asked.questions.read_text()
    asked.questions.write_text(lines.replace(asked.texts["q3"], "another question?"))
    with pytest.raises(MismatchError, match="was begun with other questions; --force without --resume begins again"):
        train(asked, writer, output, *schedule, "--resume", task="gar-sentence")
    asked.questions.write_text(lines)
    train(asked, writer, output, *schedule, "--resume", task="gar-sentence")
    train(asked, writer, tmp_path / "whole", *schedule, task="gar-sentence")
    assert (output / "fold-0" / "model.safetensors").stat().st_mtime_ns == first  # was finished, and is not made again
    for fold in ("fold-0", "fold-1"):
        mine, theirs = (load_file(folder / fold / "model.safetensors") for folder in (output, tmp_path / "whole"))
        assert all(bool((mine[name] == theirs[name]).all()) for name in theirs)
        assert (output / fold / "log.jsonl").read_text() == (tmp_path / "whole" / fold / "log.jsonl").read_text()
        assert not (output / fold / "checkpoints").exists()
    assert (output / "questions.jsonl").read_bytes() == (tmp_path / "whole" / "questions.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("task", "more", "told"),
    [
        ("gar-answer", ["--corpus", "x"], "--corpus: only with --task gar-sentence or gar-title"),
        ("gar-answer", ["--queries", "x"], "--queries: with --task gar-answer, INPUT holds the questions"),
        ("gar-answer", ["--title", "none"], "--title: only with --task doc2query"),
        ("gar-answer", ["--title-mode", "first"], "--title-mode: only with --task gar-title"),
        ("gar-answer", ["--depth", "5"], "--depth: only with --task gar-sentence or gar-title"),
        ("gar-sentence", ["--answer-case", "initial"], "--answer-case: only with --task gar-answer"),
        ("gar-sentence", ["--dev", "x"], "--dev and --dev-run go together"),
        ("doc2query", ["--folds", "2"], "--folds: only with --task gar-answer or gar-sentence or gar-title"),
        ("doc2query", ["--run", "x"], "--run: only with --task gar-sentence or gar-title"),
    ],
)
def test_what_a_task_does_not_look_at_is_refused(
    asked: Asked, writer: Path, tmp_path: Path, task: str, more: list[str], told: str
) -> None:
    call = ["train-generator", str(asked.questions), "--task", task, "--model", str(writer), "-o", str(tmp_path / "m")]
    files = ["--run", str(asked.run), "--corpus", str(asked.corpus)] if task == "gar-sentence" else []
    with pytest.raises(UsageError, match=told):
        app([*call, *files, *more], standalone_mode=False)


def test_a_task_that_looks_for_passages_wants_run_and_corpus(asked: Asked, writer: Path, tmp_path: Path) -> None:
    call = [
        "train-generator",
        str(asked.questions),
        "--task",
        "gar-title",
        "--model",
        str(writer),
        "-o",
        str(tmp_path / "m"),
    ]
    with pytest.raises(UsageError, match="--run: --task gar-title looks for answers in the passages of a BM25 run"):
        app(call, standalone_mode=False)


def test_data_that_cannot_be_trained_on_is_told_in_a_line(asked: Asked, writer: Path, tmp_path: Path) -> None:
    plain = asked.questions.read_text()
    run = asked.run.read_text().splitlines(keepends=True)
    asked.run.write_text("".join(run[:4]) + "q1 Q0 lost 2 8.5 bm25\n" + "".join(run[4:]))
    with pytest.raises(RecordError, match=r"bm25.run:5: the corpus has no 'lost'$"):
        train(asked, writer, tmp_path / "m", task="gar-title")
    asked.run.write_text("".join(run) + "q99 Q0 d1 1 1.0 bm25\n")
    with pytest.raises(RecordError, match=r"bm25.run:73: the queries have no 'q99'$"):
        train(asked, writer, tmp_path / "m", task="gar-title")
    asked.run.write_text("".join(run))
    asked.questions.write_text(
        "".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in asked.texts.items())
    )
    with pytest.raises(DrtkError, match=r"questions.jsonl: no question has an answer"):
        train(asked, writer, tmp_path / "m")
    asked.questions.write_text(plain.replace('"answers": ["', '"answers": ["no '))
    with pytest.raises(DrtkError, match=r"no question has a passage with its answer among its hits in .*bm25.run"):
        train(asked, writer, tmp_path / "m", task="gar-sentence")
    asked.questions.write_text(plain)
    blank(asked, *asked.texts)
    told = r"passages.jsonl: none of the 72 passages looked up there has a text: is it the right file\?"
    for task in ("gar-sentence", "gar-title"):  # 24 questions with 3 hits each
        with pytest.raises(DrtkError, match=told):
            train(asked, writer, tmp_path / "m", task=task)
    with pytest.raises(DrtkError, match="pairs do not fill one batch"):
        train(asked, writer, tmp_path / "m", "--folds", "2", "--batch", "24")
    with pytest.raises(DrtkError, match=r"questions.jsonl: no questions to measure with at this --dev-share"):
        train(asked, writer, tmp_path / "m", "--dev-share", "0")
    assert not (tmp_path / "m").exists()
