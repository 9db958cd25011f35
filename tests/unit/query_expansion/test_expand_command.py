"""drtk expand-queries: records, determinism, folds, candidates of a run, and rejected input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.data.readers import read_expansions
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.models.checkpoint import save_pretrained_model
from drtk.models.generation import TextGenerator
from drtk.query_expansion.generate import QueryExpander
from drtk.runtime.integrity import read_json
from drtk.text.batching import TokenizedTexts
from tests.expansion_collection import read_rows, write_rows
from tests.qa_collection import QuestionFiles, write_questions
from tests.run_commands import Capture, fail_at_call, get_messages, run_rows

SHORT = "--n 6 --max-new-tokens 4"
FROM_RUN = "questions.jsonl --from-run bm25.run --corpus passages.jsonl"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuestionFiles:
    monkeypatch.chdir(tmp_path)
    return write_questions(tmp_path, 24)


def expand(capfd: Capture, command: str, *arguments: str) -> list[dict[str, Any]]:
    return run_rows(capfd, f"expand-queries {command} -q", *arguments)


def plant_texts(monkeypatch: pytest.MonkeyPatch, model: Path, texts: Sequence[str]) -> list[list[str]]:
    """Let the generator return `texts` for every question; return the list of batches that it reads."""
    from transformers import AutoTokenizer

    batches: list[list[str]] = []
    tokenizer = AutoTokenizer.from_pretrained(model)

    def generate(self: TextGenerator, tokens: TokenizedTexts, keys: Sequence[str]) -> list[list[str]]:
        ids = np.split(tokens.ids, tokens.starts[1:])
        batches.append(tokenizer.batch_decode(ids, skip_special_tokens=True))
        return [[*texts] for _ in keys]

    monkeypatch.setattr(TextGenerator, "generate", generate)
    return batches


def test_each_different_text_is_a_record_and_blank_ones_and_repeats_are_counted(files, models, capfd, monkeypatch):
    plant_texts(monkeypatch, models / "t5", ["rivers", " ", "planets market", "rivers", "", "winters"])
    call = f"questions.jsonl --model {models}/t5 --kind answer -o e.jsonl"
    log = get_messages(capfd, f"expand-queries {call}")
    assert "trained on" not in log  # the model does not record its training questions
    rows = list(read_expansions("e.jsonl"))
    assert [row.text for row in rows[:3]] == ["rivers", "planets market", "winters"]
    assert [row.id for row in rows[:4]] == ["q0#answer#01", "q0#answer#02", "q0#answer#03", "q1#answer#01"]
    assert {(row.query_id, row.kind, row.fold) for row in rows} == {(id, "answer", None) for id in files.texts}
    counts = read_json(Path("e.jsonl.meta.json"))["counts"]
    # 24 questions with 6 texts, 2 blank and 1 repeated; 2 words a question, and 1, 2 and 1 more with each candidate
    assert (counts["in"], counts["out"], counts["blank"], counts["repeated"]) == (24, 72, 48, 24)
    assert "trained on" not in counts
    words = {"questions": 24, "without": 0, "candidates": 72, "question": 48, "expanded": 24 * (3 + 4 + 3)}
    assert counts["words"] == {"answer": words}
    assert "answer: 3.0 distinct candidates per query; mean words: query 2.0, expanded query 3.3\n" in log
    plant_texts(monkeypatch, models / "t5", ["", " "])
    log = get_messages(capfd, f"expand-queries {call} -q --force")
    assert Path("e.jsonl").read_bytes() == b""
    assert log == "drtk: 24 of 24 questions have no candidate of kind 'answer'\n"


def test_texts_do_not_depend_on_order_batches_or_neighbors(files, models, capfd):
    call = f"--model {models}/t5 --kind answer {SHORT}"
    whole = expand(capfd, f"questions.jsonl {call}")
    assert len({row["text"] for row in whole}) > 40
    questions = read_rows(files.questions)
    write_rows(Path("reversed"), questions[::-1])
    write_rows(Path("some"), questions[7:12])
    by_id = {row["_id"]: row for row in whole}
    assert {row["_id"]: row for row in expand(capfd, f"reversed {call} --set batch_tokens=70")} == by_id
    assert expand(capfd, f"some {call}") == [row for row in whole if 7 <= int(row["query_id"][1:]) < 12]
    fewer = expand(capfd, f"questions.jsonl {call} --n 2")
    assert all(by_id[row["_id"]] == row for row in fewer)  # the first two of six are the two
    assert expand(capfd, f"questions.jsonl {call} --seed 43") != whole


def test_greedy_beam_and_greedy_with_samples(files, models, capfd):
    def run(more: str) -> list[dict[str, Any]]:
        call = f"questions.jsonl --model {models}/gpt2 --kind answer --max-new-tokens 4 {more}"
        return expand(capfd, call, "--prompt", "… castles")

    greedy = run("--decode greedy")
    assert [row["query_id"] for row in greedy] == list(files.texts)
    beam = run("--decode beam --n 3 --set beams=4")
    assert {row["_id"].rpartition("#")[2] for row in beam} == {"01", "02", "03"}
    both = run("--decode greedy+sample --n 6")
    assert [row for row in both if row["_id"].endswith("#01")] == greedy
    assert [row for row in both if row.get("decode") == "greedy"] == greedy
    assert both == run("--n 6")  # the default with a prompt
    texts, greedy_texts, sampled_texts = (
        {(row["query_id"], row["text"]) for row in rows} for rows in (both, greedy, run("--n 6 --decode sample"))
    )
    assert texts - greedy_texts <= sampled_texts


def test_a_generator_records_kind_length_and_questions_of_its_training(files, models, capfd):
    with pytest.raises(UsageError, match=r"--kind: .* does not record what it generates; set --kind to answer, sent"):
        expand(capfd, f"questions.jsonl --model {models}/t5")
    training = "--task gar-answer --batch-size 4 --max-steps 2 --set max_length=16 --target-length 3 --device cpu -q"
    app(f"train-generator questions.jsonl --model {models}/t5 -o gen {training}".split(), standalone_mode=False)
    rows = expand(capfd, "questions.jsonl --model gen --n 4")
    assert {row["kind"] for row in rows} == {"answer"}
    assert rows == expand(capfd, "questions.jsonl --model gen --n 4 --max-new-tokens 3")
    assert {row["kind"] for row in expand(capfd, "questions.jsonl --model gen --n 1 --kind mine")} == {"mine"}
    log = get_messages(capfd, "expand-queries questions.jsonl --model gen --n 1 -o e -q")
    assert "gen was trained on 24 of these questions, and may have memorized their answers" in log


def test_a_prompt_contains_the_question_as_an_unexpanded_query(files, models, capfd, monkeypatch):
    write_rows(Path("one.jsonl"), [{"_id": "q", "text": " rivers planets? "}])
    batches = plant_texts(monkeypatch, models / "t5", ["winters"])
    for prompt in ("… market winters", "market winters", "garden … castles"):
        expand(capfd, f"one.jsonl --model {models}/t5 --kind answer", "--prompt", prompt)
    inputs = [" ".join(texts[0].replace("[UNK]", "?").split()) for texts in batches]
    assert inputs[0] == inputs[1]
    for text, start, end in ((inputs[0], "rivers", "market winters"), (inputs[2], "garden rivers", "castles")):
        assert text.startswith(f"{start} planets")
        assert text.endswith(end)
    # A long question is truncated, and never the prompt.
    write_rows(Path("long.jsonl"), [{"_id": "q", "text": "rivers " * 90}])
    call = f"long.jsonl --model {models}/t5 --kind answer --set"
    expand(capfd, f"{call} max_length=20", "--prompt", "market winters")
    (text,) = batches[-1]
    assert text.endswith("market winters")
    assert 1 < text.count("rivers") < 20
    with pytest.raises(UsageError, match="`prompt` leaves no room for a question in an input of 3 tokens"):
        expand(capfd, f"{call} max_length=3", "--prompt", "market winters")


def test_a_decoder_only_model_needs_a_prompt(files, models, capfd):
    call = f"questions.jsonl --model {models}/gpt2 --kind answer {SHORT}"
    with pytest.raises(UsageError, match="is a decoder-only model, which requires `prompt`"):
        expand(capfd, call)
    rows = expand(capfd, call, "--prompt", "… market winters")
    assert {row["query_id"] for row in rows} == set(files.texts)
    assert not rows[0]["text"].startswith(files.texts[rows[0]["query_id"]].split()[0] + " ")
    assert expand(capfd, f"{call} --set batch_tokens=90", "--prompt", "… market winters") == rows


Held = tuple[Path, Path, dict[str, set[str]]]


@pytest.fixture(scope="module")
def fold_models(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Held:
    """Return a folder of three generators, its questions, and the training questions of each generator."""
    folder = tmp_path_factory.mktemp("folds")
    asked = write_questions(folder, 24)
    trained: dict[str, set[str]] = {}

    def train(pairs: Any, target: Path, *, start: Any, **_: Any) -> dict[str, Any]:
        trained[target.name] = {pairs[index].source for index in range(len(pairs))}
        save_pretrained_model(start.generator.model, start.generator.tokenizer, target)
        return {"steps": 0, "epochs": 0.0}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drtk.query_expansion.train_generator.train_generator", train)
        call = f"train-generator {asked.questions} -o {folder}/gen --task gar-answer --set folds=3 --batch-size 4 -q"
        app([*call.split(), "--model", str(models / "t5")], standalone_mode=False)
    return folder / "gen", asked.questions, trained


def test_no_question_is_expanded_by_a_generator_that_saw_it(fold_models, tmp_path, capfd, monkeypatch):
    generators, questions, trained = fold_models
    assert len(trained) == 3
    inputs: dict[int, set[str]] = {}
    tokenize = TextGenerator.tokenize

    def watch(self: Any, texts: Sequence[str]) -> Any:
        inputs.setdefault(id(self), set()).update(text.lower().rstrip("?") for text in texts)
        return tokenize(self, texts)

    monkeypatch.setattr(TextGenerator, "tokenize", watch)
    # The same questions with other ids, in capitals, and in another order.
    rows = read_rows(questions)
    renamed = [{"_id": "x" + row["_id"], "text": row["text"].removesuffix("?").upper()} for row in rows[::-1]]
    write_rows(tmp_path / "renamed.jsonl", renamed)
    for source, prefix in ((questions, ""), (tmp_path / "renamed.jsonl", "x")):
        expanded = expand(capfd, f"{source} --model {generators} --holdout --n 2 --max-new-tokens 2")
        texts = {prefix + row["_id"]: row["text"] for row in rows}
        assert len({row["query_id"] for row in expanded}) > 12
        assert {row["fold"] for row in expanded} == {0, 1, 2}
        for row in expanded:
            assert texts[row["query_id"]] not in trained[f"fold-{row['fold']}"]
    # Each generator read only questions of one fold: the folds are not only written down.
    assert len(inputs) == 6
    seen = [{text.lower().rstrip("?") for text in texts} for texts in trained.values()]
    assert all(sum(texts.isdisjoint(others) for others in seen) == 1 for texts in inputs.values())


def test_held_out_expansions_equal_those_of_the_generator_of_the_fold(fold_models, tmp_path, capfd):
    generators, questions, trained = fold_models
    rows = expand(capfd, f"{questions} --model {generators} --holdout {SHORT}")
    of_fold = [row for row in rows if row.pop("fold") == 1]
    assert of_fold
    ids = {row["query_id"] for row in of_fold}
    alone = expand(capfd, f"{questions} --model {generators}/fold-1 {SHORT}")
    assert of_fold == [row for row in alone if row["query_id"] in ids]
    log = get_messages(capfd, f"expand-queries {questions} --model {generators}/fold-1 --n 1 -o {tmp_path}/e -q")
    assert f"fold-1 was trained on {len(trained['fold-1'])} of these questions, and may have memorized" in log


def test_holdout_is_rejected_without_a_generator_per_fold(fold_models, models, tmp_path, capfd):
    generators, questions, _ = fold_models
    with pytest.raises(MismatchError, match=r"gen: contains 3 generators, one per fold; use `holdout`, or .*/fold-0"):
        expand(capfd, f"{questions} --model {generators}")
    with pytest.raises(MismatchError, match="contains a single generator"):
        expand(capfd, f"{questions} --model {models}/t5 --kind answer --holdout")
    other = write_rows(tmp_path / "other.jsonl", [*read_rows(questions), {"_id": "new", "text": "of no fold"}])
    call = f"{other} --model {generators} --holdout --n 9 --max-new-tokens 9"
    with pytest.raises(RecordError, match=r"other.jsonl:25: question 'new' is in no fold of .*gen; expand it with one"):
        expand(capfd, call)
    assert "new" not in {row["query_id"] for row in expand(capfd, f"{call} --skip-bad 1")}


def test_candidates_of_a_run_require_no_generator(files, capfd):
    rows = expand(capfd, FROM_RUN)
    assert {row["kind"] for row in rows} == {"sentence", "title", "terms"}
    first = [row for row in rows if row["query_id"] == "q0"]
    titles = [files.answers[id].capitalize() for id in ("q1", "q0", "q2")]  # hits 1, 2 and 3
    assert [row["text"] for row in first if row["kind"] == "title"] == titles
    # The sentence that repeats the question is the best of the second hit; the one with the answer comes a round later.
    sentences = [row["text"] for row in first if row["kind"] == "sentence"]
    assert sentences[1] == files.texts["q0"].removesuffix("?") + "."
    assert sentences[4] == files.sentences["q0"]
    assert expand(capfd, f"{FROM_RUN} --kind title") == [row for row in rows if row["kind"] == "title"]
    two = expand(capfd, f"{FROM_RUN} --kind sentence --set candidates=2 --set depth=1")
    assert [row["_id"] for row in two[:3]] == ["q0#sentence#01", "q0#sentence#02", "q1#sentence#01"]


def test_a_run_with_unknown_ids_is_rejected_with_one_line(files, capfd):
    run = files.run.read_text()
    files.run.write_text(run.replace("q1 Q0 d1 ", "q1 Q0 gone ").replace("q2 Q0 d2 ", "q2 Q0 lost "))
    with pytest.raises(RecordError, match=r"bm25.run:5: the corpus has no 'gone'$"):
        expand(capfd, FROM_RUN)
    assert {row["query_id"] for row in expand(capfd, f"{FROM_RUN} --skip-bad 2")} == set(files.texts)
    files.run.write_text(run + "q77 Q0 d1 1 1.0 bm25\n")
    with pytest.raises(RecordError, match=r"bm25.run:73: the queries have no 'q77'$"):
        expand(capfd, FROM_RUN)
    files.run.write_text("".join(line for line in run.splitlines(keepends=True) if not line.startswith("q5 ")))
    log = get_messages(capfd, f"expand-queries {FROM_RUN} -o e.jsonl -q")
    assert log == "drtk: 1 of 24 questions have no hits in bm25.run, and so no candidates\n"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", "--model or --from-run is required"),
        ("--model m --from-run r --corpus c", "--model and --from-run cannot be combined; give one"),
        ("--from-run r", "--corpus and --from-run must be given together"),
        ("--model m --set candidates=3", "--set candidates requires --from-run"),
        ("--from-run r --corpus c --n 3", "`n` requires `model`"),
        ("--from-run r --corpus c --kind answer", "`from_run` supports sentence, title, terms"),
        ("--model m --kind ../a", "`kind` '../a': must be one word, usable as a file name"),
        ("--model m --decode greedy --n 3", "`n` 3: cannot be combined with `decode` greedy"),
        ("--model m --holdout --prompt x", "--prompt cannot be combined with --holdout"),
    ],
)
def test_contradictory_options_are_rejected(files, capfd, more, message):
    with pytest.raises(UsageError, match=message):
        expand(capfd, f"questions.jsonl {more}")


def test_a_question_without_text_is_reported_with_its_line(files, models, capfd):
    write_rows(files.questions, [*read_rows(files.questions), {"_id": "blank", "text": " "}])
    call = f"questions.jsonl --model {models}/t5 --kind answer --n 1 --max-new-tokens 2"
    with pytest.raises(RecordError, match=r"questions.jsonl:25: 'blank' has no text"):
        expand(capfd, call)
    assert expand(capfd, f"{call} --skip-bad 1")


def test_a_resumed_run_has_the_bytes_and_counts_of_an_uninterrupted_one(files, models, capfd, monkeypatch):
    monkeypatch.setattr("drtk.cli.expand_queries.BATCH_SIZE", 4)
    call = f"questions.jsonl --model {models}/t5 --kind answer {SHORT}"
    with fail_at_call(4, QueryExpander, "__call__"):
        expand(capfd, f"{call} -o parts")
    assert read_json(Path("parts.part.json"))["records"] == 12
    assert not Path("parts").exists()
    expand(capfd, f"{call} -o parts --resume")
    expand(capfd, f"{call} -o whole")
    assert Path("parts").read_bytes() == Path("whole").read_bytes()
    counts = [read_json(Path(f"{name}.meta.json"))["counts"] for name in ("parts", "whole")]
    assert counts[0] == counts[1]


def test_missing_candidates_are_reported_with_kind_and_corpus(files, capfd):
    write_rows(files.corpus, [row | {"text": " "} for row in read_rows(files.corpus)])
    problem = "passages.jsonl: none of the 72 passages that were read has a text; check that it is the right file"
    no_sentences = "24 of 24 questions have no candidate of kind 'sentence'"
    log = get_messages(capfd, f"expand-queries {FROM_RUN} -o titles.jsonl -q")  # 24 questions with 3 hits each
    assert log == f"drtk: {problem}\ndrtk: {no_sentences}\n"
    with pytest.raises(DrtkError, match=f"^{problem}$"):
        expand(capfd, f"{FROM_RUN} --kind sentence -o s.jsonl")
    assert not Path("s.jsonl").exists()
    assert get_messages(capfd, f"expand-queries {FROM_RUN} --kind title -o t.jsonl -q") == ""  # needs no texts
    write_rows(files.corpus, [row | {"title": ""} for row in read_rows(files.corpus)])
    with pytest.raises(DrtkError, match=problem):
        expand(capfd, f"{FROM_RUN} -o all.jsonl")
