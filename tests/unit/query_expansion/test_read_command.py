"""drtk read: what a reader sees, in which order, what it answers, and that eval takes it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.models.seq2seq import load_generation_model
from drtk.query_expansion.read import AnswerReader, format_reader_input, iter_reader_questions
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from tests.retriever_setup import MemoryCorpus
from tests.run_commands import run_command, write_text
from tests.tiny_models import make_collection, save_tiny_cross_encoder, save_tiny_generator

FILES = ["--corpus", "corpus.jsonl", "--queries", "queries.jsonl"]
SHORT = ["--max-new-tokens", "6", "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader whose weights are large, so that its answers differ."""
    folder = save_tiny_generator(tmp_path_factory.mktemp("models") / "t5", "t5", max_length=256)
    loaded = T5ForConditionalGeneration.from_pretrained(folder)
    for weights in loaded.parameters():
        weights.data *= 4
    loaded.save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of 40 passages, its queries, and a run of 1 to 12 passages a query, scores falling."""
    monkeypatch.chdir(tmp_path)
    passages, queries, _ = make_collection(40)
    for name, rows in (("corpus", passages), ("queries", queries)):
        write_text(tmp_path / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    draw = random.Random(4)
    lines = []
    for number in range(20):
        found = draw.sample(range(40), 1 + number * 7 % 12)
        lines += [f"q{number} Q0 d{id} {rank} {1 / rank!r} t\n" for rank, id in enumerate(found, start=1)]
    write_text(tmp_path / "run", "".join(lines))
    return tmp_path


def predictions(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, tuple[str, float]]:
    found = [json.loads(line) for line in run_command(capfd, "read", *arguments, *SHORT).splitlines()]
    return {row["query_id"]: (row["answer"], row["score"]) for row in found}


def by_hand(model: Path, inputs: list[str]) -> tuple[str, float]:
    """Passage by passage through the encoder, then token by token without a cache."""
    writer = load_generation_model(model)
    network: Any = writer.model
    states = [
        network.encoder(input_ids=writer.tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state
        for text in inputs
    ]
    joined = BaseModelOutput(last_hidden_state=torch.cat(states, dim=1))
    tokens, score = [], 0.0
    for _ in range(6):
        before = torch.tensor([[writer.start, *tokens]])
        chances = network(encoder_outputs=joined, decoder_input_ids=before, use_cache=False).logits[0, -1]
        best = chances.log_softmax(dim=-1).max(dim=-1)
        score += float(best.values)
        if int(best.indices) in writer.ends:
            break
        tokens.append(int(best.indices))
    return " ".join(writer.tokenizer.decode(tokens, skip_special_tokens=True).split()), score


def test_answers_are_those_of_a_reader_written_out(here: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = predictions(capfd, "run", *FILES, "--model", model)
    queries = {row["_id"]: row["text"] for row in make_collection(40)[1]}
    tracker = InputTracker()
    with torch.inference_mode():
        for question in iter_reader_questions(
            "run", queries=queries, corpus=MemoryCorpus(40), depth=100, order="rank", tracker=tracker
        ):
            answer, score = by_hand(model, question.inputs)
            assert found[question.query_id] == (answer, pytest.approx(score, abs=2e-2))
    assert len(found) == 20
    assert len({answer for answer, _ in found.values()}) > 3, "a reader that answers all alike would show nothing"


def test_batches_windows_and_neighbors_change_no_answer(
    here: Path, model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = predictions(capfd, "run", *FILES, "--model", model)
    one_by_one = predictions(capfd, "run", *FILES, "--model", model, "--set", "batch_tokens=1")
    monkeypatch.setattr("drtk.cli.read.WINDOW", 3)
    in_windows = predictions(capfd, "run", *FILES, "--model", model)
    for other in (one_by_one, in_windows):
        assert {id: answer for id, (answer, _) in other.items()} == {id: answer for id, (answer, _) in whole.items()}
        for id, (_, score) in other.items():
            assert score == pytest.approx(whole[id][1], abs=2e-2)


def test_a_passage_is_read_with_its_question_and_title() -> None:
    wright = Passage("d1", "Both brothers\nflew.", "Wright Flyer")
    assert format_reader_input("who flew first?", wright) == (
        "question: who flew first? title: Wright Flyer context: Both brothers flew."
    )
    assert format_reader_input("who?", Passage("d2", "Nobody.")) == "question: who? title: context: Nobody."


def fused_by_others(depth: int = 20) -> list[tuple[str, float]]:
    """A fused list as others write it: round robin of two lists with the scores they had, so that scores rise and fall."""
    lists = [
        [(f"d{n}", 90.0 - n) for n in range(depth // 2)],
        [(f"d{39 - n}", 0.9 - n / 50) for n in range(depth // 2)],
    ]
    return [hit for pair in zip(*lists, strict=True) for hit in pair]


def test_the_first_ten_of_a_fused_run_are_its_first_ten_by_rank(
    here: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fused = fused_by_others()
    scores = [score for _, score in fused]
    assert scores != sorted(scores, reverse=True)
    lines = [f"q1 Q0 {id} {rank} {score} t\n" for rank, (id, score) in enumerate(fused, start=1)]
    write_text(here / "fused", "".join(lines))
    write_text(here / "backwards", "".join(reversed(lines)))  # neither the order of the lines
    write_text(
        here / "ten", "".join(f"q1 Q0 {id} {at + 1} {1 / (at + 1)} t\n" for at, (id, _) in enumerate(fused[:10]))
    )
    queries = {"q1": "who?"}

    def seen(name: str, **more: Any) -> list[str]:
        choices = {"depth": 10, "order": "rank"} | more
        (question,) = iter_reader_questions(
            name, queries=queries, corpus=MemoryCorpus(40), tracker=InputTracker(), **choices
        )
        return question.inputs

    first = [
        format_reader_input("who?", passage) for passage in MemoryCorpus(40).get_many([id for id, _ in fused[:10]])
    ]
    assert seen("fused") == seen("backwards") == seen("ten") == first
    assert set(seen("fused", order="score")) != set(first)  # the trap: a reader that sorts sees d0 to d9 alone

    of_ten = predictions(capfd, "ten", *FILES, "--model", model, "--depth", "10")
    assert predictions(capfd, "fused", *FILES, "--model", model, "--depth", "10") == of_ten
    assert predictions(capfd, "fused", *FILES, "--model", model, "--depth", "10", "--set", "order=score") != of_ten


def test_different_orders_of_ranks_and_scores_are_reported_once(
    here: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [
        f"q{n} Q0 {id} {rank} {score} t\n" for n in (1, 2) for rank, (id, score) in enumerate(fused_by_others(), 1)
    ]
    write_text(here / "fused", "".join(lines))
    call = [*FILES, "--model", str(model), *SHORT]
    app(["read", "fused", *call, "-o", "p"], standalone_mode=False)
    told = capfd.readouterr().err
    assert told.count("are in different orders") == 1
    assert "fused:1: ranks and scores of query 'q1'" in told
    app(["fuse", "fused", "run", "--method", "round-robin", "-o", "ours", "-q"], standalone_mode=False)
    app(["read", "ours", *call, "-o", "p2"], standalone_mode=False)
    assert "different orders" not in capfd.readouterr().err  # drtk's own scores fall with the ranks


def test_predictions_go_to_eval_as_they_are(here: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Of 20 questions, 5 are given the reader's answer as a right one, and one of these questions is not in the run: 4 / 20.
    run_command(capfd, "read", "run", *FILES, "--model", model, *SHORT, "-o", "predictions.jsonl")
    answers = {
        row["query_id"]: row["answer"] for row in map(json.loads, Path("predictions.jsonl").read_text().splitlines())
    }
    right = [id for id, answer in answers.items() if answer][:4]
    rows = [
        {"_id": id, "text": "?", "answers": ["nothing of the kind", answers[id]] if id in right else ["nothing at all"]}
        for id in list(answers)[:19]
    ]
    rows.append({"_id": "q39", "text": "?", "answers": ["x"]})
    assert set(right) <= {row["_id"] for row in rows}
    write_text(here / "answers.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    table = run_command(
        capfd, "eval", "predictions.jsonl", "--exact-match", "--answers", "answers.jsonl", "--format", "jsonl"
    )
    (row,) = [json.loads(line) for line in table.splitlines()]
    assert row["EM"] == pytest.approx(4 / 20)


def test_an_interrupted_run_resumed_equals_an_uninterrupted_one(
    here: Path, model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drtk.cli.read.WINDOW", 4)
    call = ["read", "run", *FILES, "--model", str(model), *SHORT]
    run_command(capfd, *call, "-o", "whole")
    done = []
    work = AnswerReader.__call__

    def until_memory_ends(self: AnswerReader, prepared: Any) -> Any:
        if len(done) == 3:
            raise DrtkError("memory ends")
        done.append(prepared)
        return work(self, prepared)

    monkeypatch.setattr(AnswerReader, "__call__", until_memory_ends)
    with pytest.raises(DrtkError, match="memory ends"):
        run_command(capfd, *call, "-o", "out")
    assert Path("out.part").read_text().count("\n") == 12  # three windows of four
    monkeypatch.setattr(AnswerReader, "__call__", work)
    run_command(capfd, *call, "-o", "out", "--resume")
    assert Path("out").read_bytes() == Path("whole").read_bytes()


def test_a_released_reader_loads_from_its_wrapped_weights(
    here: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # The public code saves encoder.* as encoder.encoder.*, each block's parts below module.*, and no tokenizer.
    wrapped = here / "wrapped"
    wrapped.mkdir()
    state = {}
    for name, weights in T5ForConditionalGeneration.from_pretrained(model).state_dict().items():
        parts = name.split(".")
        if parts[0] == "encoder":
            parts.insert(0, "encoder")
            if parts[2] == "block":
                parts.insert(4, "module")
        state[".".join(parts)] = weights.clone()
    assert any(name.startswith("encoder.encoder.block.0.module.layer.0.SelfAttention.q") for name in state)
    torch.save(state, wrapped / "pytorch_model.bin")
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["FiDT5"]}
    write_text(wrapped / "config.json", json.dumps(config))
    with pytest.raises(MismatchError, match="wrapped: has no tokenizer files"):
        predictions(capfd, "run", *FILES, "--model", wrapped)
    found = predictions(capfd, "run", *FILES, "--model", wrapped, "--tokenizer", model)
    assert found == predictions(capfd, "run", *FILES, "--model", model)
    del state["encoder.encoder.block.0.module.layer.0.SelfAttention.q.weight"]
    torch.save(state, wrapped / "pytorch_model.bin")
    with pytest.raises(MismatchError, match=r"1 missing: encoder\.block\.0.layer\.0\.SelfAttention\.q\.weight"):
        predictions(capfd, "run", *FILES, "--model", wrapped, "--tokenizer", model)


def test_unreadable_indexes_are_reported_in_one_line(
    here: Path, model: Path, capfd: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    call = ["read", *FILES, "--model", str(model), *SHORT]
    write_text(here / "unknown", "q1 Q0 d1 1 2.0 t\nq1 Q0 nowhere 2 1.0 t\n")
    with pytest.raises(RecordError, match=r"unknown:2: the corpus has no 'nowhere'"):
        run_command(capfd, *call, "unknown")
    run_command(capfd, *call, "unknown", "--depth", "1")  # not looked at
    write_text(here / "asked", "q1 Q0 d1 1 2.0 t\nq77 Q0 d1 1 2.0 t\n")
    with pytest.raises(RecordError, match=r"asked:2: the queries have no 'q77'"):
        run_command(capfd, *call, "asked")
    assert len(run_command(capfd, *call, "asked", "--skip-bad", "1").splitlines()) == 1
    other = tmp_path_factory.mktemp("others")
    for folder, complaint in (
        (save_tiny_generator(other / "gpt2", "gpt2"), "is a decoder-only model"),
        (save_tiny_cross_encoder(other / "bert"), "got an encoder"),
        (here, "not a model folder"),
    ):
        with pytest.raises(MismatchError, match=complaint):
            run_command(capfd, "read", "run", *FILES, "--model", folder, *SHORT)


def test_passages_without_text_are_reported_and_rejected_if_all_lack_it(
    here: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    passages = [json.loads(line) for line in (here / "corpus.jsonl").read_text().splitlines()]
    write_text(here / "run", "q1 Q0 d1 1 2 t\nq1 Q0 d2 2 1 t\nq2 Q0 d2 1 1 t\n")
    files = ["--corpus", "other.jsonl", "--queries", "queries.jsonl", "--model", str(model)]
    rows = [row | {"text": "" if row["_id"] == "d2" else row["text"]} for row in passages]
    write_text(here / "other.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    app(["read", "run", *files, *SHORT, "-o", "p"], standalone_mode=False)
    assert "other.jsonl: 2 of the 3 passages that were read have no text" in capfd.readouterr().err
    write_text(here / "other.jsonl", "".join(json.dumps(row | {"text": "\t"}) + "\n" for row in passages))
    with pytest.raises(DrtkError, match=r"other\.jsonl: none of the 3 passages that were read has a text"):
        app(["read", "run", *files, *SHORT, "-o", "made"], standalone_mode=False)
    assert not list(here.glob("made*"))


def test_passages_forgiven_make_room_for_those_that_follow(here: Path) -> None:
    # Of d1, x, y, d2 the first two are wanted: with x and y forgiven these are d1 and d2, though y was third.
    write_text(
        here / "gaps", "".join(f"q1 Q0 {id} {at} {9 - at} t\n" for at, id in enumerate(("d1", "x", "y", "d2", "d3"), 1))
    )
    tracker = InputTracker(skip_bad=2)
    (question,) = iter_reader_questions(
        "gaps", queries={"q1": "who?"}, corpus=MemoryCorpus(40), depth=2, order="rank", tracker=tracker
    )
    assert question.inputs == [
        format_reader_input("who?", passage) for passage in MemoryCorpus(40).get_many(["d1", "d2"])
    ]
    assert tracker.bad == 2


def test_a_nan_score_is_an_error(here: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = here / "broken"
    loaded = T5ForConditionalGeneration.from_pretrained(model)
    loaded.shared.weight.data[:] = float("nan")
    loaded.save_pretrained(folder)
    for file in model.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DrtkError, match=r"a score is NaN or infinite in torch\.float32"):
        predictions(capfd, "run", *FILES, "--model", folder)


def test_a_run_without_a_query_is_reported(here: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_text(here / "empty", "")
    capfd.readouterr()
    app(["read", "empty", *FILES, "--model", str(model), *SHORT], standalone_mode=False)
    assert capfd.readouterr() == ("", "drtk: read: no question came in, so nothing is answered\n")
