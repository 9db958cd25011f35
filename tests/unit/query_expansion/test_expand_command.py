"""drtk expand-queries: records, determinism, folds, candidates of a run, and rejected input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.data.readers import read_expansions
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.models import generation as text_writer
from drtk.models.checkpoint import save_pretrained_model
from drtk.query_expansion.generate import QueryExpander
from drtk.runtime.integrity import read_json
from tests.qa_collection import QuestionFiles, write_questions
from tests.run_commands import run_command
from tests.tiny_models import save_tiny_generator

SHORT = ["--n", "6", "--max-new-tokens", "4"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for arch in ("t5", "gpt2"):
        save_tiny_generator(folder / arch, arch)
    return folder


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuestionFiles:
    monkeypatch.chdir(tmp_path)
    return write_questions(tmp_path, 24)


def rows(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_command(capfd, "expand-queries", *arguments, "-q").splitlines()]


def planted(monkeypatch: pytest.MonkeyPatch, writer: Path, texts: Sequence[str]) -> list[list[str]]:
    """Instead of generating: `texts` for every question; what was read is returned."""
    from transformers import AutoTokenizer

    read: list[list[str]] = []
    tokenizer = AutoTokenizer.from_pretrained(writer)

    def answers(given: Any, ids: Any, mask: Any, keys: Sequence[str], *_: Any, **__: Any) -> list[list[list[int]]]:
        read.append(given.tokenizer.batch_decode(ids, skip_special_tokens=True))
        return [[tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts] for _ in keys]

    monkeypatch.setattr(text_writer, "generate_tokens", answers)
    return read


def test_each_different_text_is_a_record_and_blank_ones_and_repeats_are_counted(
    asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, models / "t5", ["rivers", " ", "planets market", "rivers", "", "winters"])
    capfd.readouterr()
    call = ["expand-queries", "questions.jsonl", "--model", str(models / "t5"), "--kind", "answer", "-o", "e.jsonl"]
    app(call, standalone_mode=False)
    logged = capfd.readouterr().err
    assert "trained on" not in logged  # nothing records what this model was trained on
    found = list(read_expansions("e.jsonl"))
    assert [each.text for each in found[:3]] == ["rivers", "planets market", "winters"]
    assert [each.id for each in found[:4]] == ["q0#answer#01", "q0#answer#02", "q0#answer#03", "q1#answer#01"]
    assert {(each.query_id, each.kind, each.fold) for each in found} == {(id, "answer", None) for id in asked.texts}
    counts = read_json(Path("e.jsonl.meta.json"))["counts"]
    # 24 questions, of whose 6 texts 2 are blank and 1 comes again; 2 words a question and 1, 2 and 1 more with each candidate
    assert (counts["in"], counts["out"], counts["blank"], counts["repeated"]) == (24, 72, 48, 24)
    assert "trained on" not in counts
    assert counts["words"] == {
        "answer": {"questions": 24, "without": 0, "candidates": 72, "question": 48, "expanded": 24 * (3 + 4 + 3)}
    }
    assert "answer: 3.0 distinct candidates per query; mean words: query 2.0, expanded query 3.3\n" in logged


def test_questions_without_a_candidate_are_counted(
    asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, models / "t5", ["", " "])
    capfd.readouterr()
    call = [
        "expand-queries",
        "questions.jsonl",
        "--model",
        str(models / "t5"),
        "--kind",
        "answer",
        "-o",
        "e.jsonl",
        "-q",
    ]
    app(call, standalone_mode=False)
    assert Path("e.jsonl").read_bytes() == b""
    assert capfd.readouterr().err == "drtk: 24 of 24 questions have no candidate of kind 'answer'\n"


def test_texts_do_not_depend_on_order_batches_or_neighbors(
    asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["--model", models / "t5", "--kind", "answer", *SHORT]
    whole = rows(capfd, "questions.jsonl", *call)
    assert len({row["text"] for row in whole}) > 40
    lines = asked.questions.read_text().splitlines(keepends=True)
    Path("back.jsonl").write_text("".join(lines[::-1]))
    Path("some.jsonl").write_text("".join(lines[7:12]))
    by_id = {row["_id"]: row for row in whole}
    assert {row["_id"]: row for row in rows(capfd, "back.jsonl", *call, "--set", "batch_tokens=70")} == by_id
    some = rows(capfd, "some.jsonl", *call)
    assert some == [row for row in whole if row["query_id"] in {f"q{number}" for number in range(7, 12)}]
    fewer = rows(
        capfd, "questions.jsonl", "--model", models / "t5", "--kind", "answer", "--n", "2", "--max-new-tokens", "4"
    )
    assert all(by_id[row["_id"]] == row for row in fewer)  # the first two of six are the two
    assert rows(capfd, "questions.jsonl", *call, "--seed", "43") != whole


def test_greedy_beam_and_one_greedy_with_samples(
    asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["questions.jsonl", "--model", models / "gpt2", "--kind", "answer", "--prompt", "… castles"]
    call += ["--max-new-tokens", "4"]
    greedy = rows(capfd, *call, "--decode", "greedy")
    assert [row["query_id"] for row in greedy] == list(asked.texts)
    beam = rows(capfd, *call, "--decode", "beam", "--n", "3", "--set", "beams=4")
    assert {row["_id"].rpartition("#")[2] for row in beam} == {"01", "02", "03"}
    both = rows(capfd, *call, "--decode", "greedy+sample", "--n", "6")
    assert [row for row in both if row["_id"].endswith("#01")] == greedy
    assert both == rows(capfd, *call, "--n", "6")  # what --prompt does where nothing is said
    sampled = {(row["query_id"], row["text"]) for row in rows(capfd, *call, "--n", "6", "--decode", "sample")}
    assert {(row["query_id"], row["text"]) for row in both} - {
        (row["query_id"], row["text"]) for row in greedy
    } <= sampled


def test_a_generator_says_what_and_how_long_it_writes(
    asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        UsageError, match=r"--kind: .* does not record what it generates; set --kind to answer, sentence, title"
    ):
        rows(capfd, "questions.jsonl", "--model", models / "t5")
    training = [
        "--task",
        "gar-answer",
        "--batch-size",
        "4",
        "--max-steps",
        "2",
        "--set",
        "max_length=16",
        "--target-length",
        "3",
    ]
    call = [
        "train-generator",
        "questions.jsonl",
        "--model",
        str(models / "t5"),
        "-o",
        "gen",
        *training,
        "--device",
        "cpu",
    ]
    app([*call, "-q"], standalone_mode=False)
    found = rows(capfd, "questions.jsonl", "--model", "gen", "--n", "4")
    assert {row["kind"] for row in found} == {"answer"}
    assert found == rows(capfd, "questions.jsonl", "--model", "gen", "--n", "4", "--max-new-tokens", "3")
    assert {row["kind"] for row in rows(capfd, "questions.jsonl", "--model", "gen", "--n", "1", "--kind", "mine")} == {
        "mine"
    }
    capfd.readouterr()
    app(["expand-queries", "questions.jsonl", "--model", "gen", "--n", "1", "-o", "e", "-q"], standalone_mode=False)
    assert "gen was trained on 24 of these questions, and may have memorized their answers" in capfd.readouterr().err


def test_a_prompt_contains_the_question_as_an_unexpanded_query(
    asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("one.jsonl").write_text('{"_id": "q", "text": " rivers planets? "}\n')
    read = planted(monkeypatch, models / "t5", ["winters"])
    for prompt in ("… market winters", "market winters", "garden … castles"):
        rows(capfd, "one.jsonl", "--model", models / "t5", "--kind", "answer", "--prompt", prompt)
    decoded = [" ".join(texts[0].replace("[UNK]", "?").split()) for texts in read]
    assert decoded[0] == decoded[1]
    assert decoded[0].startswith("rivers planets")
    assert decoded[0].endswith("market winters")
    assert decoded[2].startswith("garden rivers planets")
    assert decoded[2].endswith("castles")


def test_a_long_question_is_cut_and_never_the_prompt(
    asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("long.jsonl").write_text(json.dumps({"_id": "q", "text": "rivers " * 90}) + "\n")
    read = planted(monkeypatch, models / "t5", ["winters"])
    call = [
        "long.jsonl",
        "--model",
        models / "t5",
        "--kind",
        "answer",
        "--prompt",
        "market winters",
        "--set",
    ]
    rows(capfd, *call, "max_length=20")
    (text,) = read[0]
    assert text.endswith("market winters")
    assert 1 < text.count("rivers") < 20
    with pytest.raises(UsageError, match="`prompt` leaves no room for a question in an input of 3 tokens"):
        rows(capfd, *call, "max_length=3")


def test_a_language_model_needs_a_prompt(asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["questions.jsonl", "--model", models / "gpt2", "--kind", "answer", *SHORT]
    with pytest.raises(UsageError, match="is a language model, which requires `prompt`"):
        rows(capfd, *call)
    found = rows(capfd, *call, "--prompt", "… market winters")
    assert {row["query_id"] for row in found} == set(asked.texts)
    assert not any(row["text"].startswith(asked.texts[row["query_id"]].split()[0] + " ") for row in found[:1])
    whole = {row["_id"]: row for row in found}
    again = rows(capfd, *call, "--prompt", "… market winters", "--set", "batch_tokens=90")
    assert {row["_id"]: row for row in again} == whole


@pytest.fixture(scope="module")
def held_out(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, set[str]]]:
    """A folder of three generators, its questions, and by the name of each generator what it was trained with."""
    folder = tmp_path_factory.mktemp("folds")
    asked = write_questions(folder, 24)
    learnt: dict[str, set[str]] = {}

    def noted(pairs: Any, target: Path, *, start: Any, **_: Any) -> dict[str, Any]:
        learnt[target.name] = {pairs[at].source for at in range(len(pairs))}
        save_pretrained_model(start.writer.model, start.writer.tokenizer, target)
        return {"steps": 0, "epochs": 0.0}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drtk.query_expansion.train_generator.train_generator", noted)
        call = [
            "train-generator",
            asked.questions,
            "--task",
            "gar-answer",
            "--set",
            "folds=3",
            "--model",
            models / "t5",
        ]
        app([*map(str, call), "--batch-size", "4", "-o", str(folder / "gen"), "-q"], standalone_mode=False)
    return folder / "gen", asked.questions, learnt


def test_no_question_is_expanded_by_a_generator_that_saw_it(
    held_out: tuple[Path, Path, dict[str, set[str]]], tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    generators, questions, learnt = held_out
    assert len(learnt) == 3
    read: dict[int, set[str]] = {}
    write = text_writer.TextGenerator.tokenize

    def watched(self: Any, texts: Sequence[str]) -> Any:
        read.setdefault(id(self), set()).update(texts)
        return write(self, texts)

    monkeypatch.setattr(text_writer.TextGenerator, "tokenize", watched)
    # the same questions under other ids, in other letters, and in another order
    lines = [json.loads(line) for line in questions.read_text().splitlines()]
    renamed = [{"_id": "x" + row["_id"], "text": row["text"].removesuffix("?").upper()} for row in lines[::-1]]
    (tmp_path / "renamed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
    for source, rename in ((questions, ""), (tmp_path / "renamed.jsonl", "x")):
        found = rows(capfd, source, "--model", generators, "--holdout", "--n", "2", "--max-new-tokens", "2")
        texts = {rename + row["_id"]: row["text"] for row in lines}
        assert {row["query_id"] for row in found} <= set(texts)
        assert len({row["query_id"] for row in found}) > 12
        assert {row["fold"] for row in found} == {0, 1, 2}
        for row in found:
            assert texts[row["query_id"]] not in learnt[f"fold-{row['fold']}"]
    # and what each of the generators really read was in none of the sets but one: the folds were not only written down
    assert len(read) == 6
    for texts in read.values():
        unseen = [fold for fold in learnt if not {text.lower() for text in texts} & {each.rstrip("?") for each in learnt[fold]}
                  and not texts & learnt[fold]]  # fmt: skip
        assert len(unseen) == 1


def test_held_out_expansions_equal_those_of_the_generator_named(
    held_out: tuple[Path, Path, dict[str, set[str]]], capfd: pytest.CaptureFixture[str]
) -> None:
    generators, questions, _ = held_out
    found = rows(capfd, questions, "--model", generators, "--holdout", *SHORT)
    own = rows(capfd, questions, "--model", generators / "fold-1", *SHORT)
    mine = [row for row in found if row["fold"] == 1]
    assert mine
    assert [{key: value for key, value in row.items() if key != "fold"} for row in mine] == [
        row for row in own if row["query_id"] in {each["query_id"] for each in mine}
    ]


def test_a_generator_of_a_fold_by_itself_knows_what_it_was_trained_with(
    held_out: tuple[Path, Path, dict[str, set[str]]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    generators, questions, learnt = held_out
    folds = [json.loads(line)["fold"] for line in (generators / "questions.jsonl").open()]

    def told(source: Path, fold: int) -> tuple[str, int]:
        call = ["expand-queries", source, "--model", generators / f"fold-{fold}", "--n", "1", "--max-new-tokens", "2"]
        capfd.readouterr()
        app([*map(str, call), "-o", str(tmp_path / "e"), "--force", "-q"], standalone_mode=False)
        return capfd.readouterr().err, read_json(tmp_path / "e.meta.json")["counts"]["trained on"]

    for fold in range(3):
        seen = len(learnt[f"fold-{fold}"])
        assert seen == sum(each != fold for each in folds) < 24
        said, counted = told(questions, fold)
        assert f"fold-{fold} was trained on {seen} of these questions, and may have memorized" in said
        assert counted == seen
    # with --holdout no question goes to a generator that was made from it, which is known
    call = ["expand-queries", questions, "--model", generators, "--holdout", *SHORT, "-o", tmp_path / "h", "-q"]
    app([str(each) for each in call], standalone_mode=False)
    assert read_json(tmp_path / "h.meta.json")["counts"]["trained on"] == 0
    # the questions of its own fold alone are new to it
    own = [line for line, fold in zip(questions.open(), folds, strict=True) if fold == 0]
    (tmp_path / "own.jsonl").write_text("".join(own))
    assert told(tmp_path / "own.jsonl", 0) == ("", 0)


def test_holdout_is_rejected_without_a_generator_per_fold(
    held_out: tuple[Path, Path, dict[str, set[str]]], models: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    generators, questions, _ = held_out
    with pytest.raises(
        MismatchError,
        match=r"gen: contains 3 generators, one per fold; use `holdout`, or give one generator, such as .*/fold-0",
    ):
        rows(capfd, questions, "--model", generators, *SHORT)
    with pytest.raises(MismatchError, match="contains a single generator"):
        rows(capfd, questions, "--model", models / "t5", "--kind", "answer", "--holdout")
    strange = tmp_path / "strange.jsonl"
    strange.write_text(questions.read_text() + '{"_id": "new", "text": "of no fold"}\n')
    call = [strange, "--model", generators, "--holdout", "--n", "2", "--max-new-tokens", "2"]
    with pytest.raises(
        RecordError, match=r"strange.jsonl:25: question 'new' is in no fold of .*gen; use `outside` draw"
    ):
        rows(capfd, *call)
    assert "new" not in {row["query_id"] for row in rows(capfd, *call, "--skip-bad", "1")}
    assert "new" in {
        row["query_id"] for row in rows(capfd, *call, "--set", "outside=draw", "--n", "9", "--max-new-tokens", "9")
    }
    strange.write_text('{"_id": "q3", "text": "another one"}\n')
    with pytest.raises(RecordError, match=r"strange.jsonl:1: question 'q3' differs from 'q3' in"):
        rows(capfd, *call, "--set", "outside=draw")


def test_candidates_of_a_run_need_no_generator(asked: QuestionFiles, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["questions.jsonl", "--from-run", "bm25.run", "--corpus", "passages.jsonl"]
    found = rows(capfd, *call)
    assert {row["kind"] for row in found} == {"sentence", "title", "terms"}
    first = [row for row in found if row["query_id"] == "q0"]
    titles = [asked.answers[id].capitalize() for id in ("q1", "q0", "q2")]  # hits 1, 2 and 3
    assert [row["text"] for row in first if row["kind"] == "title"] == titles
    # the sentence that repeats the question is the best of the second hit; the one with the answer comes a round later
    wanted = [row["text"] for row in first if row["kind"] == "sentence"]
    assert wanted[1] == asked.texts["q0"].removesuffix("?") + "."
    assert wanted[4] == asked.sentences["q0"]
    assert rows(capfd, *call, "--kind", "title") == [row for row in found if row["kind"] == "title"]
    two = rows(capfd, *call, "--kind", "sentence", "--set", "candidates=2", "--set", "depth=1")
    assert [row["_id"] for row in two[:3]] == ["q0#sentence#01", "q0#sentence#02", "q1#sentence#01"]


def test_a_run_with_unknown_ids_is_rejected_with_one_line(
    asked: QuestionFiles, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["questions.jsonl", "--from-run", "bm25.run", "--corpus", "passages.jsonl"]
    plain = asked.run.read_text()
    asked.run.write_text(plain.replace("q1 Q0 d1 ", "q1 Q0 gone ").replace("q2 Q0 d2 ", "q2 Q0 lost "))
    with pytest.raises(RecordError, match=r"bm25.run:5: the corpus has no 'gone' \(1 more ids are unknown\)$"):
        rows(capfd, *call)
    assert {row["query_id"] for row in rows(capfd, *call, "--skip-bad", "2")} == set(asked.texts)
    asked.run.write_text(plain + "q77 Q0 d1 1 1.0 bm25\n")
    with pytest.raises(RecordError, match=r"bm25.run:73: the queries have no 'q77'$"):
        rows(capfd, *call)
    asked.run.write_text("".join(line for line in plain.splitlines(keepends=True) if not line.startswith("q5 ")))
    capfd.readouterr()
    app(["expand-queries", *call, "-o", "e.jsonl", "-q"], standalone_mode=False)
    assert capfd.readouterr().err == "drtk: 1 of 24 questions have no hits in bm25.run, and so no candidates\n"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "--model and --from-run cannot be combined; give one"),
        (["--model", "m", "--from-run", "r", "--corpus", "c"], "--model and --from-run cannot be combined; give one"),
        (["--from-run", "r"], "--corpus and --from-run must be given together"),
        (["--model", "m", "--corpus", "c"], "--corpus and --from-run must be given together"),
        (["--model", "m", "--set", "candidates=3"], "--set candidates requires --from-run"),
        (["--from-run", "r", "--corpus", "c", "--n", "3"], "`n` requires `model`"),
        (["--from-run", "r", "--corpus", "c", "--kind", "answer"], "`from_run` makes sentence, title, terms"),
        (["--model", "m", "--kind", "../a"], "`kind` '../a': must be one word, usable as a file name"),
        (["--model", "m", "--decode", "greedy", "--n", "3"], "`n` 3: cannot be combined with `decode` greedy"),
        (["--model", "m", "--decode", "beam", "--top-k", "3"], "--top-k requires --decode sample"),
        (["--model", "m", "--set", "beams=3"], "--set beams requires --decode beam"),
        (["--model", "m", "--set", "outside=draw"], "--set outside requires --holdout"),
        (["--model", "m", "--holdout", "--prompt", "x"], "--prompt cannot be combined with --holdout"),
    ],
)
def test_contradictory_options_are_rejected(
    asked: QuestionFiles, capfd: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        rows(capfd, "questions.jsonl", *more)


def test_a_question_without_text_is_reported_with_its_line(
    asked: QuestionFiles, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked.questions.write_text(asked.questions.read_text() + '{"_id": "blank", "text": " "}\n')
    call = ["questions.jsonl", "--model", models / "t5", "--kind", "answer", "--n", "1", "--max-new-tokens", "2"]
    with pytest.raises(RecordError, match=r"questions.jsonl:25: 'blank' has no text"):
        rows(capfd, *call)
    assert rows(capfd, *call, "--skip-bad", "1")


def test_a_resumed_run_has_the_bytes_and_counts_of_an_uninterrupted_one(
    asked: QuestionFiles, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drtk.cli.expand_queries.WINDOW", 4)
    call = ["expand-queries", "questions.jsonl", "--model", str(models / "t5"), "--kind", "answer", *SHORT, "-q"]
    expand, done = QueryExpander.__call__, []

    def fail(self: QueryExpander, prepared: Any) -> Any:
        done.append(1)
        if len(done) == 4:
            raise DrtkError("power failure")
        return expand(self, prepared)

    with monkeypatch.context() as patch:
        patch.setattr(QueryExpander, "__call__", fail)
        with pytest.raises(DrtkError, match="power failure"):
            app([*call, "-o", "parts.jsonl"], standalone_mode=False)
    assert read_json(Path("parts.jsonl.part.json"))["records"] == 12
    assert not Path("parts.jsonl").exists()
    app([*call, "-o", "parts.jsonl", "--resume"], standalone_mode=False)
    app([*call, "-o", "whole.jsonl"], standalone_mode=False)
    assert Path("parts.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    counts = [read_json(Path(f"{name}.jsonl.meta.json"))["counts"] for name in ("parts", "whole")]
    assert counts[0] == counts[1]


def without_texts(asked: QuestionFiles, **changes: str) -> None:
    rows = [json.loads(line) | changes for line in asked.corpus.read_text().splitlines()]
    asked.corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_missing_candidates_are_reported_with_kind_and_corpus(
    asked: QuestionFiles, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["expand-queries", "questions.jsonl", "--from-run", "bm25.run", "--corpus", "passages.jsonl", "-q"]
    without_texts(asked, text=" ")
    capfd.readouterr()
    app([*call, "-o", "titles.jsonl"], standalone_mode=False)  # 24 questions with 3 hits each
    told = "passages.jsonl: none of the 72 passages that were read has a text; check that it is the right file"
    left = "24 of 24 questions have no candidate of kind 'sentence'"
    assert capfd.readouterr().err == f"drtk: {told}\ndrtk: {left}\n"
    with pytest.raises(DrtkError) as fault:
        app([*call, "--kind", "sentence", "-o", "s.jsonl"], standalone_mode=False)
    assert str(fault.value) == told
    assert not Path("s.jsonl").exists()
    app([*call, "--kind", "title", "-o", "t.jsonl"], standalone_mode=False)
    assert capfd.readouterr().err == ""  # which needs no texts
    without_texts(asked, title="")
    with pytest.raises(DrtkError, match="none of the 72 passages that were read has a text"):
        app([*call, "-o", "all.jsonl"], standalone_mode=False)
