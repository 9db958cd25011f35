"""drtk read: inputs and their order, answers, evaluation of the answers, and rejected input."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from drtk.cli.main import app
from drtk.data.trec import Order
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.models.seq2seq import load_generation_model
from drtk.query_expansion.fid_reader import ReaderQuestion, format_reader_input, iter_reader_questions
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from tests.expansion_collection import read_rows, write_rows
from tests.retriever_setup import MemoryCorpus
from tests.run_commands import Capture, run_rows, write_text
from tests.tiny_models import make_collection, save_tiny_generator

OPTIONS = "--queries queries.jsonl --max-new-tokens 6 --device cpu -q --model"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a reader with large weights, so that its answers differ."""
    folder = save_tiny_generator(tmp_path_factory.mktemp("models") / "t5", "t5", max_length=256)
    loaded = T5ForConditionalGeneration.from_pretrained(folder)
    for weights in loaded.parameters():
        weights.data *= 4
    loaded.save_pretrained(folder)
    return folder


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a corpus of 40 passages, queries, and a run with 1 to 12 passages for each of 10 queries."""
    monkeypatch.chdir(tmp_path)
    passages, queries, _ = make_collection(40)
    write_rows(tmp_path / "corpus.jsonl", passages)
    write_rows(tmp_path / "queries.jsonl", queries)
    draw = random.Random(4)
    lines = []
    for number in range(10):
        found = draw.sample(range(40), 1 + number * 7 % 12)
        lines += [f"q{number} Q0 d{id} {rank} {1 / rank!r} t\n" for rank, id in enumerate(found, start=1)]
    write_text(tmp_path / "run", "".join(lines))
    return tmp_path


def read(model: Path, more: str, *, corpus: str = "corpus.jsonl") -> None:
    app(f"read --corpus {corpus} {OPTIONS} {model} {more}".split(), standalone_mode=False)


def predict(capfd: Capture, model: Path, more: str) -> dict[str, tuple[str, float]]:
    rows = run_rows(capfd, f"read --corpus corpus.jsonl {OPTIONS} {model} {more}")
    return {row["query_id"]: (row["answer"], row["score"]) for row in rows}


def iter_inputs(run: str, *, depth: int = 100, order: Order = "rank", skip_bad: int = 0) -> Iterator[ReaderQuestion]:
    queries = {row["_id"]: row["text"] for row in make_collection(40)[1]}
    tracker, corpus = InputTracker(skip_bad=skip_bad), MemoryCorpus(40)
    return iter_reader_questions(run, queries=queries, corpus=corpus, depth=depth, order=order, tracker=tracker)


def make_inputs(query_id: str, *ids: str) -> list[str]:
    (query,) = (row["text"] for row in make_collection(40)[1] if row["_id"] == query_id)
    return [format_reader_input(query, passage) for passage in MemoryCorpus(40).get_many(list(ids))]


def read_slowly(model: Path, inputs: list[str]) -> tuple[str, float]:
    """Compute answers by encoding each passage separately and decoding without a cache."""
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


def test_answers_equal_those_of_a_slow_reader(cwd, model, capfd, monkeypatch):
    answers = predict(capfd, model, "run")
    with torch.inference_mode():
        for question in iter_inputs("run"):
            answer, score = read_slowly(model, question.inputs)
            assert answers[question.query_id] == (answer, pytest.approx(score, abs=2e-2))
    assert len(answers) == 10
    assert len({answer for answer, _ in answers.values()}) > 3
    monkeypatch.setattr("drtk.cli.read.BATCH_SIZE", 3)
    for id, (answer, score) in predict(capfd, model, "run --set batch_tokens=1").items():
        assert answers[id] == (answer, pytest.approx(score, abs=2e-2))


def test_a_passage_is_read_with_its_question_and_title():
    wright = Passage("d1", "Both brothers\nflew.", "Wright Flyer")
    assert format_reader_input("who flew first?", wright) == (
        "question: who flew first? title: Wright Flyer context: Both brothers flew."
    )
    assert format_reader_input("who?", Passage("d2", "Nobody.")) == "question: who? title: context: Nobody."


def fuse(depth: int = 20) -> list[tuple[str, float]]:
    """Fuse two rankings by round robin with their scores, whose order differs from the ranks."""
    rankings = [
        [(f"d{n}", 90.0 - n) for n in range(depth // 2)],
        [(f"d{39 - n}", 0.9 - n / 50) for n in range(depth // 2)],
    ]
    return [hit for pair in zip(*rankings, strict=True) for hit in pair]


def test_the_passages_of_a_fused_run_are_the_first_ten_by_rank(cwd, model, capfd):
    hits = fuse()
    lines = [f"q1 Q0 {id} {rank} {score} t\n" for rank, (id, score) in enumerate(hits, start=1)]
    write_text(cwd / "fused", "".join(lines))
    write_text(cwd / "reversed", "".join(reversed(lines)))
    first = make_inputs("q1", *(id for id, _ in hits[:10]))
    for name in ("fused", "reversed"):
        assert next(iter_inputs(name, depth=10)).inputs == first
    assert set(next(iter_inputs("fused", depth=10, order="score")).inputs) != set(first)
    answer = predict(capfd, model, "fused --depth 10")
    assert predict(capfd, model, "fused --depth 10 --set order=score") != answer


def test_different_orders_of_ranks_and_scores_are_reported_once(cwd, model, capfd):
    hits = enumerate(fuse(), start=1)
    lines = [f"{{}} Q0 {id} {rank} {score} t\n" for rank, (id, score) in hits]
    write_text(cwd / "fused", "".join(line.format(query) for query in ("q1", "q2") for line in lines))
    read(model, "fused -o p")
    log = capfd.readouterr().err
    assert log.count("are in different orders") == 1
    assert "fused:1: ranks and scores of query 'q1'" in log
    app("fuse fused run --method round-robin -o ours -q".split(), standalone_mode=False)
    read(model, "ours -o p2")
    assert "different orders" not in capfd.readouterr().err  # the scores of drtk fuse fall with the ranks


def test_a_released_reader_loads_from_its_wrapped_weights(cwd, model, capfd):
    # The public code saves encoder.* as encoder.encoder.*, each block's parts below module.*, and no tokenizer.
    wrapped = cwd / "wrapped"
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
        predict(capfd, wrapped, "run")
    actual = predict(capfd, wrapped, f"run --tokenizer {model}")
    assert actual == predict(capfd, model, "run")
    del state["encoder.encoder.block.0.module.layer.0.SelfAttention.q.weight"]
    torch.save(state, wrapped / "pytorch_model.bin")
    with pytest.raises(MismatchError, match=r"1 missing: encoder\.block\.0.layer\.0\.SelfAttention\.q\.weight"):
        predict(capfd, wrapped, f"run --tokenizer {model}")


def test_unknown_ids_and_models_of_another_kind_are_rejected(cwd, model, capfd):
    write_text(cwd / "unknown", "q1 Q0 d1 1 2.0 t\nq1 Q0 nowhere 2 1.0 t\n")
    write_text(cwd / "asked", "q1 Q0 d1 1 2.0 t\nq77 Q0 d1 1 2.0 t\n")
    for run, problem in (("unknown", "the corpus has no 'nowhere'"), ("asked", "the queries have no 'q77'")):
        with pytest.raises(RecordError, match=f"{run}:2: {problem}"):
            read(model, run)
    read(model, "unknown --depth 1")  # the unknown passage is not read
    assert len(predict(capfd, model, "asked --skip-bad 1")) == 1
    with pytest.raises(MismatchError, match="is a decoder-only model"):
        read(save_tiny_generator(cwd / "gpt2", "gpt2"), "run")


def test_passages_without_text_are_reported_and_rejected_if_all_lack_it(cwd, model, capfd):
    passages = read_rows(cwd / "corpus.jsonl")
    write_text(cwd / "run", "q1 Q0 d1 1 2 t\nq1 Q0 d2 2 1 t\nq2 Q0 d2 1 1 t\n")
    write_rows(cwd / "other.jsonl", [row | {"text": row["text"] * (row["_id"] != "d2")} for row in passages])
    read(model, "run -o p", corpus="other.jsonl")
    assert "other.jsonl: 2 of the 3 passages that were read have no text" in capfd.readouterr().err
    write_rows(cwd / "other.jsonl", [row | {"text": "\t"} for row in passages])
    with pytest.raises(DrtkError, match=r"other\.jsonl: none of the 3 passages that were read has a text"):
        read(model, "run -o made", corpus="other.jsonl")
    assert not list(cwd.glob("made*"))


def test_skipped_passages_make_room_for_the_next(cwd):
    # The top 2 of d1, x, y, d2 and d3 are d1 and d2 if x and y are skipped.
    lines = [f"q1 Q0 {id} {rank} {9 - rank} t\n" for rank, id in enumerate(("d1", "x", "y", "d2", "d3"), start=1)]
    write_text(cwd / "gaps", "".join(lines))
    (question,) = iter_inputs("gaps", depth=2, skip_bad=2)
    assert question.inputs == make_inputs("q1", "d1", "d2")


def test_a_nan_score_is_an_error(cwd, model, capfd):
    folder = cwd / "broken"
    loaded = T5ForConditionalGeneration.from_pretrained(model)
    loaded.shared.weight.data[:] = float("nan")
    loaded.save_pretrained(folder)
    for file in model.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DrtkError, match=r"a score is NaN or infinite in torch\.float32"):
        predict(capfd, folder, "run")


def test_a_run_without_a_query_is_reported(cwd, model, capfd):
    write_text(cwd / "empty", "")
    capfd.readouterr()
    read(model, "empty")
    assert capfd.readouterr() == ("", "drtk: read: the input has no questions, so nothing is answered\n")
