"""drtk train-generator: trained models, inputs, GAR targets, folds, and rejected options. See also test_training.py."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.config import load_preset, merge_settings
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.models.checkpoint import save_pretrained_model
from drtk.runtime.integrity import read_json
from drtk.training.config import GeneratorConfig
from drtk.training.fit import DrtkTrainer
from tests.expansion_collection import read_rows, write_rows
from tests.qa_collection import QuestionFiles, write_questions
from tests.run_commands import cut_off_before_step, read_log, run_command
from tests.tiny_models import compute_max_difference, load_weights, save_tiny_generator

QUICK = "--batch-size 8 --learning-rate 3e-3 --max-length 24 --target-length 8 --device cpu -q"


def train(data: Path, output: Path, *more: str, examples: str | Path = "examples.jsonl") -> dict[str, Any]:
    files = f"--corpus {data}/corpus.jsonl --queries {data}/queries.jsonl --model {data}/t5 -o {output}"
    app(["train-generator", str(data / examples), *files.split(), *QUICK.split(), *more], standalone_mode=False)
    return read_json(output / "meta.json")


def equal(one: Path, other: Path) -> bool:
    return compute_max_difference(load_weights(one), load_weights(other)) == 0


def entries(folder: Path, field: str) -> list[dict]:
    return [entry for entry in read_log(folder) if field in entry]


def read_folds(folder: Path) -> dict[str, int]:
    """Return the fold of each question by its id."""
    return {row["_id"]: row["fold"] for row in read_rows(folder / "questions.jsonl")}


def edit_rows(path: Path, change: Callable[[list[dict]], Any]) -> None:
    rows = read_rows(path)
    change(rows)
    write_rows(path, rows)


def test_the_default_of_dev_measure_depends_on_the_task():
    assert GeneratorConfig().best_by == "rougeL"
    assert GeneratorConfig(task="gar-title").best_by == "rouge1"
    assert GeneratorConfig(task="gar-title", dev_measure="loss").best_by == "loss"


def test_the_folder_records_the_input_format(data, tmp_path, capfd):
    manifest = train(data, tmp_path / "m", "--max-steps", "2", "--set", "prefix=ask:", "--set", "title=none")
    assert (manifest["kind"], manifest["architecture"]) == ("model", "t5")
    assert manifest["writing"] == {"prefix": "ask:", "title": "none", "max_length": 24}
    assert manifest["counts"] | {"epochs": 0} == {"pairs": 60, "dev pairs": 0, "steps": 2, "epochs": 0}
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".md", ".safetensors"}

    def generate(*more: str) -> str:
        call = [data / "corpus.jsonl", "--model", tmp_path / "m", "--n", "1", "--max-new-tokens", "6", "--bare", "-q"]
        return run_command(capfd, "doc2query", *call, *more)

    assert generate() == generate("--set", "prefix=ask:", "--set", "title=none", "--set", "max_length=24")
    with pytest.raises(MismatchError, match="was trained with `title` 'none', not 'join'"):
        generate("--set", "title=join")
    again = train(data, tmp_path / "n", "--model", f"{tmp_path}/m", "--max-steps", "1")
    assert again["writing"] == manifest["writing"]


def test_passages_with_queries_train_like_their_examples(data, tmp_path):
    queries, passages = read_rows(data / "queries.jsonl"), read_rows(data / "corpus.jsonl")

    def train_on(rows: list[dict]) -> None:
        enriched = write_rows(tmp_path / "enriched.jsonl", rows)
        call = f"train-generator {enriched} --model {data}/t5 -o {tmp_path}/direct {QUICK} --max-steps 3 --force"
        app(call.split(), standalone_mode=False)

    train_on([row | {"queries": [query["text"]]} for row, query in zip(passages, queries, strict=True)])
    train(data, tmp_path / "looked-up", "--max-steps", "3")
    assert equal(tmp_path / "direct", tmp_path / "looked-up")
    with pytest.raises(DrtkError, match='no passage has "queries"; set `corpus`'):
        train_on(passages)
    with pytest.raises(DrtkError, match=r"enriched.jsonl:2: 'queries' must be a list of strings"):
        train_on([passages[0], passages[1] | {"queries": "e"}])


def test_a_bart_model_trains_too(data, tmp_path):
    from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(data / "t5")
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    shape = {"layers": 1, "ffn_dim": 64, "attention_heads": 4}
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in shape.items()}
    tokens = {"pad_token_id": pad, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": end}
    config = BartConfig(vocab_size=len(tokenizer), d_model=32, max_position_embeddings=64, **sizes, **tokens)
    save_pretrained_model(BartForConditionalGeneration(config), tokenizer, tmp_path / "bart")
    more = "--max-steps 24 --set log_steps=4 --dev-share 0.3 --set dev_measure=loss --target-length 99"
    manifest = train(data, tmp_path / "m", "--model", str(tmp_path / "bart"), *more.split())
    losses = [entry["loss"] for entry in entries(tmp_path / "m", "loss")]
    assert losses[-1] < 0.9 * losses[0]
    assert manifest["architecture"] == "bart"
    assert not entries(tmp_path / "m", "rougeL")


def test_models_and_shares_that_cannot_be_used_are_rejected(data, tmp_path):
    for model, message in (
        (save_tiny_generator(tmp_path / "gpt2", "gpt2"), r"is a decoder-only model \(gpt2\)"),
        (data / "encoder", r"got an encoder \(bert\)"),
    ):
        with pytest.raises(MismatchError, match=message):
            train(data, tmp_path / "m", "--model", str(model))
    with pytest.raises(UsageError, match=r"`prefix`: .* tokens leave no room in `max_length` 24"):
        train(data, tmp_path / "m", "--set", "prefix=" + "river," * 30)
    with pytest.raises(DrtkError, match=r"examples.jsonl: no pairs are left for evaluation; increase `dev_share`"):
        train(data, tmp_path / "m", "--dev-share", "0")


# GAR: generators of answers, sentences and titles


@pytest.fixture
def gar_files(tmp_path: Path) -> QuestionFiles:
    return write_questions(tmp_path, 24)


def train_gar(
    gar_files: QuestionFiles, data: Path, output: Path, *more: str, task: str = "gar-answer"
) -> dict[str, Any]:
    files = [] if task == "gar-answer" else ["--run", str(gar_files.run), "--corpus", str(gar_files.corpus)]
    call = f"train-generator {gar_files.questions} --task {task} --model {data}/t5 -o {output} --batch-size 4 "
    call += "--learning-rate 3e-3 --max-length 16 --target-length 8 --max-steps 6 --device cpu -q"
    app([*call.split(), *files, *more], standalone_mode=False)
    return read_json(output / "meta.json")


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Replace training by a function that records {source: target} for each output folder."""
    by_folder: dict[str, dict[str, str]] = {}

    def record(pairs: Sequence[Any], folder: Path, *, start: Any, **_: Any) -> dict[str, Any]:
        by_folder[folder.name.removesuffix(".part")] = {pairs[at].source: pairs[at].target for at in range(len(pairs))}
        save_pretrained_model(start.generator.model, start.generator.tokenizer, folder)
        return {"steps": 0, "epochs": 0.0}

    for module in ("drtk.query_expansion.train_generator", "drtk.training.generator"):
        monkeypatch.setattr(f"{module}.train_generator", record)
    return by_folder


def test_targets_are_answers_sentences_and_titles(gar_files, data, tmp_path, targets):
    for task in ("gar-answer", "gar-sentence", "gar-title"):
        manifest = train_gar(gar_files, data, tmp_path / task, task=task)
    for id, question in gar_files.texts.items():
        assert targets["gar-answer"][question] == gar_files.answers[id]
        assert targets["gar-sentence"][question] == gar_files.sentences[id]
        assert targets["gar-title"][question] == gar_files.answers[id].capitalize()
    assert (manifest["kind"], manifest["expands"], manifest["target_length"]) == ("model", "title", 8)
    assert manifest["counts"]["pairs"] == manifest["counts"]["trained with"] == 24


def test_titles_of_all_answer_bearing_hits_are_joined_and_first_takes_one(gar_files, data, tmp_path, targets):
    # q0's answer into its third hit, d2, too: the second and the third hit have it
    edit_rows(gar_files.corpus, lambda rows: rows[2].update(text=f"{rows[2]['text']} And {gar_files.answers['q0']}."))
    titles = [gar_files.answers[id].capitalize() for id in ("q0", "q2")]
    for name, setting in (("all", "separator= | "), ("first", "title_mode=first"), ("two", "depth=2")):
        train_gar(gar_files, data, tmp_path / name, "--set", setting, task="gar-title")
    question = gar_files.texts["q0"]
    assert targets["all"][question] == " | ".join(titles)
    assert targets["first"][question] == targets["two"][question] == titles[0]


def test_questions_without_answers_or_answer_bearing_passage_are_dropped_and_counted(
    gar_files, data, tmp_path, targets
):
    def change(rows: list[dict]) -> None:
        rows[0] = {"_id": "q0", "text": rows[0]["text"]}
        rows[1] |= {"answers": ["", " "]}
        rows[2] |= {"answers": ["nowhere to be found"]}
        rows.append({"_id": "q24", "text": "not in the run", "answers": ["river"]})

    edit_rows(gar_files.questions, change)
    counts = train_gar(gar_files, data, tmp_path / "m", task="gar-sentence")["counts"]
    # q0 and q1 have no answer; q2's is in no passage, and q24 has no hits
    expected = {"questions": 25, "without answers": 2, "without answer-bearing passage": 2, "pairs": 21}
    assert {name: counts[name] for name in expected} == expected
    assert set(targets["m"]) == {gar_files.texts[f"q{number}"] for number in range(3, 24)}


def test_passages_without_a_text_are_counted(gar_files, data, tmp_path, targets, caplog):
    edit_rows(gar_files.corpus, lambda rows: [row.update(text="") for row in rows if row["_id"] == "d5"])
    train_gar(gar_files, data, tmp_path / "m", task="gar-sentence")
    # The answer is in the second of three hits: 23 * 2 + 3. d5 is the first of q4's, the second of q5's, the third of q3's.
    assert "passages.jsonl: 2 of the 49 passages that were read have no text" in caplog.text
    caplog.clear()
    train_gar(gar_files, data, tmp_path / "n", "--set", "match_title=true", task="gar-title")
    assert (len(targets["m"]), len(targets["n"])) == (23, 24)
    assert "have no text" not in caplog.text  # titles are searched too


def test_the_triviaqa_preset_changes_the_case_of_answers_in_capitals(gar_files, data, tmp_path, targets):
    def change(rows: list[dict]) -> None:
        rows[0] |= {"answers": ["DAVID BECKHAM", "Beckham"]}
        del rows[1]["answers"]  # as TriviaQA has it: the value, not the first alias
        rows[1] |= {"answer": {"aliases": ["Becks", "DAVID BECKHAM"], "value": "DAVID BECKHAM"}}

    edit_rows(gar_files.questions, change)
    for preset, expected in (("gar-answer", "DAVID BECKHAM"), ("gar-answer-triviaqa", "David Beckham")):
        train_gar(gar_files, data, tmp_path / preset, "--preset", preset)
        assert targets[preset][gar_files.texts["q0"]] == targets[preset][gar_files.texts["q1"]] == expected


def test_presets_have_the_published_settings():
    lengths = {"gar-answer": 40, "gar-sentence": 64, "gar-title": 64}
    for name in (*lengths, *(f"{each}-triviaqa" for each in lengths)):
        config = merge_settings(GeneratorConfig, load_preset(name).settings, {})
        task = name.removesuffix("-triviaqa")
        expected = (20, lengths[task]) if name == task else (50, 16 if task == "gar-answer" else 64)
        assert (config.task, config.max_length, config.target_length) == (task, *expected)
        assert (config.learning_rate, config.weight_decay, config.warmup, config.schedule) == (3e-5, 0.0, 0.0, "linear")
        assert (config.batch_size, config.dev_measure, config.label_smoothing) == (128, "rouge1", 0.0)
        assert config.title_mode == "all"


def test_each_generator_is_trained_on_all_folds_except_its_own(gar_files, data, tmp_path, targets):
    whole = train_gar(gar_files, data, tmp_path / "m", "--set", "folds=3")
    record = read_folds(tmp_path / "m")
    assert record.keys() == gar_files.texts.keys()
    for fold in range(3):
        seen = set(targets[f"fold-{fold}"])
        assert seen == {text for id, text in gar_files.texts.items() if record[id] != fold}
        manifest = read_json(tmp_path / "m" / f"fold-{fold}" / "meta.json")
        assert (manifest["kind"], manifest["fold"], manifest["counts"]["pairs"]) == ("model", fold, len(seen))
    assert (whole["kind"], whole["folds"], whole["expands"]) == ("generators", 3, "answer")
    gar_files.questions.write_text("".join(gar_files.questions.read_text().splitlines(keepends=True)[::-1]))
    train_gar(gar_files, data, tmp_path / "back", "--set", "folds=3")
    assert read_folds(tmp_path / "back") == record


def test_folds_hold_out_their_own_pairs_and_resume_where_they_stopped(gar_files, data, tmp_path):
    more = "--set folds=2 --dev-share 0.3 --eval-steps 3 --set save_steps=2 --set log_steps=2".split()
    with cut_off_before_step(DrtkTrainer, 5, only="fold-1"):
        train_gar(gar_files, data, tmp_path / "m", *more, task="gar-sentence")
    first = (tmp_path / "m.part" / "fold-0" / "model.safetensors").stat().st_mtime_ns
    lines = gar_files.questions.read_text()
    gar_files.questions.write_text(lines.replace(gar_files.texts["q3"], "another question?"))
    with pytest.raises(MismatchError, match="started with other questions; use `force` without `resume` to start over"):
        train_gar(gar_files, data, tmp_path / "m", *more, "--resume", task="gar-sentence")
    gar_files.questions.write_text(lines)
    train_gar(gar_files, data, tmp_path / "m", *more, "--resume", task="gar-sentence")
    train_gar(gar_files, data, tmp_path / "whole", *more, task="gar-sentence")
    assert (tmp_path / "m" / "fold-0" / "model.safetensors").stat().st_mtime_ns == first  # finished before
    folds = read_folds(tmp_path / "m").values()
    for fold in range(2):
        actual, whole = (tmp_path / name / f"fold-{fold}" for name in ("m", "whole"))
        assert equal(actual, whole)
        assert (actual / "log.jsonl").read_text() == (whole / "log.jsonl").read_text()
        counts = read_json(actual / "meta.json")["counts"]
        assert counts["pairs"] + counts["dev pairs"] == sum(each != fold for each in folds)
        assert counts["dev pairs"] > 0
        assert entries(actual, "rouge1")


def test_evaluation_on_training_questions_causes_a_warning(gar_files, data, tmp_path, caplog):
    rows = read_rows(gar_files.questions)[:5]
    again = [row | {"_id": f"other-{row['_id']}", "text": row["text"].upper()} for row in rows]
    again[0]["answers"] = []  # cannot be evaluated
    dev = write_rows(tmp_path / "dev.jsonl", [*again, {"_id": "new", "text": "new", "answers": ["x"]}])
    train_gar(gar_files, data, tmp_path / "m", "--dev", str(dev), "--max-steps", "1", "--set", "dev_measure=loss")
    assert f"{dev}: 4 of its 5 questions are also in {gar_files.questions}" in caplog.text


def test_unusable_training_data_is_rejected_in_one_line(gar_files, data, tmp_path):
    def fail(kind: type[Exception], message: str, *more: str, task: str = "gar-title") -> None:
        with pytest.raises(kind, match=message):
            train_gar(gar_files, data, tmp_path / "m", *more, task=task)

    plain = gar_files.questions.read_text()
    run = gar_files.run.read_text().splitlines(keepends=True)
    gar_files.run.write_text("".join(run[:4]) + "q1 Q0 lost 2 8.5 bm25\n" + "".join(run[4:]))
    fail(RecordError, r"bm25.run:5: the corpus has no 'lost'$")
    gar_files.run.write_text("".join(run) + "q99 Q0 d1 1 1.0 bm25\n")
    fail(RecordError, r"bm25.run:73: the queries have no 'q99'$")
    gar_files.run.write_text("".join(run))
    edit_rows(gar_files.questions, lambda rows: [row.pop("answers") for row in rows])
    fail(DrtkError, r"questions.jsonl: no question has an answer", task="gar-answer")
    gar_files.questions.write_text(plain.replace('"answers": ["', '"answers": ["no '))
    fail(DrtkError, r"no question has an answer in its hits in .*bm25.run", task="gar-sentence")
    gar_files.questions.write_text(plain)
    fail(DrtkError, "pairs do not fill one batch", "--set", "folds=2", "--batch-size", "24", task="gar-answer")
    fail(DrtkError, r"no pairs are left for evaluation; increase `dev_share`", "--dev-share", "0", task="gar-answer")
    edit_rows(gar_files.corpus, lambda rows: [row.update(text="") for row in rows])
    fail(DrtkError, "passages.jsonl: none of the 72 passages that were read has a text; check that it is the right")
