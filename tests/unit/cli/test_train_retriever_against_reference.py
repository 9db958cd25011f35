"""Losses logged by train-retriever equal reference losses of vectors computed with transformers."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from drtk.cli.main import app
from drtk.models.config import InitModelSettings
from drtk.models.init_model import train_tokenizer
from tests.reference import finetuning as slow
from tests.reference.finetuning import BatchQuery
from tests.tiny_models import make_collection

SEED, EPOCHS = 42, 3
COSINE: dict[str, Any] = {"similarity": "cosine", "temperature": 0.02}
DOT: dict[str, Any] = {"similarity": "dot", "temperature": 1.0}
PASSAGES, QUERIES, _ = make_collection(120)
TEXTS = {row["_id"]: row for row in PASSAGES}
ASKED = {row["_id"]: row["text"] for row in QUERIES}


def plain_bert(folder: Path, *, seed: int) -> None:
    """Save a BERT without drtk's settings of pooling and similarity, without dropout, and with large weights."""
    words = (f"{row['title']} {row['text']}" for row in PASSAGES)
    tokenizer = train_tokenizer(words, InitModelSettings(vocab_size=400, min_frequency=1, max_length=256))
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    size |= {"vocab_size": len(tokenizer), "max_position_embeddings": 256}
    config = BertConfig(initializer_range=0.15, **size, **dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def examples(count: int, negatives: int) -> list[dict]:
    """Return scored examples with one to three positives; some are shared by examples."""
    draw = random.Random(count)
    results = []
    for number in range(count):
        positives = [f"d{number}", f"d{number + 20}", f"d{number + 40}"][: number % 3 + 1]
        if number == 4:
            positives[0] = "d3"
        others = [name for name in TEXTS if name not in positives]
        wrong = draw.sample(others, negatives)
        if number:
            wrong[0] = f"d{number - 1}" if f"d{number - 1}" not in positives else wrong[0]
        ids = {"positives": positives, "negatives": wrong}
        scores = {side: [round(draw.gauss(0, 2), 3) for _ in ids[side]] for side in ids}
        results.append({"query_id": f"q{number}", **ids, "scores": scores})
    return results


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    lists = {"many": examples(6, 50), "two": examples(4, 2), "31": examples(6, 31)}
    for name, rows in {"corpus": PASSAGES, "queries": QUERIES, **lists}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    plain_bert(folder / "one", seed=1)
    plain_bert(folder / "both" / "query", seed=2)
    plain_bert(folder / "both" / "passage", seed=3)
    return folder


def train(files: Path, output: Path, *more: str, model: str = "one", data: str = "many", count: int = 6) -> list[dict]:
    """Train for three steps, an epoch each, at a learning rate of 1e-9; return the log lines."""
    call = f"train-retriever {files}/{data}.jsonl --model {files}/{model} -o {output} --device cpu -q"
    call += f" --corpus {files}/corpus.jsonl --queries {files}/queries.jsonl"
    call += f" --batch-size {count} --max-steps {EPOCHS} --set log_steps=1 --learning-rate 1e-9"
    app([*call.split(), *more], standalone_mode=False)
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    return lines


class Plain:
    """An encoder loaded with transformers, with CLS pooling, without batches."""

    def __init__(self, folder: Path, *, length: int, title: str) -> None:
        self._model, self._tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        self._length, self._title = length, title
        self.vector = cache(self._vector)

    def passage(self, name: str) -> list[float]:
        title, text = TEXTS[name]["title"], TEXTS[name]["text"]
        if self._title == "segment":
            return self.vector(title, text)
        return self.vector(f"{title} [SEP] {text}" if self._title == "sep" else f"{title} {text}", None)

    def query(self, name: str) -> list[float]:
        return self.vector(ASKED[name], None)

    @torch.no_grad()
    def _vector(self, text: str, pair: str | None) -> list[float]:
        inputs = self._tokenizer(text, pair, truncation=True, max_length=self._length, return_tensors="pt")
        return self._model(**inputs).last_hidden_state[0, 0].tolist()


def make_query(row: dict, names: list[str], scores: list[float], query: Plain, passage: Plain) -> BatchQuery:
    vectors = [passage.passage(name) for name in names]
    return BatchQuery(query.query(row["query_id"]), vectors, names, frozenset(row["positives"]), tuple(scores))


def batches(
    query: Plain, passage: Plain, *, negatives: int, rotate: bool = True, listed: int = 50
) -> list[list[BatchQuery]]:
    """Return the batch of each epoch: positives in turn (or the first), a window of negatives, and teacher scores."""
    results = []
    for epoch in range(EPOCHS):
        batch = []
        for row in examples(6, listed):
            at = epoch % len(row["positives"]) if rotate else 0
            places = list(map(str, range(listed)))
            window = [int(number) for number in slow.window(places, negatives, epoch=epoch, seed=SEED)]
            names = [row["positives"][at], *(row["negatives"][number] for number in window)]
            scores = [row["scores"]["positives"][at], *(row["scores"]["negatives"][number] for number in window)]
            batch.append(make_query(row, names, scores, query, passage))
        results.append(batch)
    return results


def close(expected: float) -> Any:
    return pytest.approx(expected, abs=2e-4, rel=2e-5)


def simlm(batch: list[BatchQuery], **options: Any) -> float:
    return slow.mean(slow.simlm_full(batch, **COSINE, **options))


def dot(batch: list[BatchQuery]) -> float:
    return slow.mean(slow.infonce(batch, **DOT))


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ((), simlm),
        (("--set", "mask_duplicate_positives=true"), lambda batch: simlm(batch, masking="duplicates")),
        (
            ("--set", "mask_false_negatives=true", "--set", "grad_cache=5"),
            lambda batch: simlm(batch, masking="answers"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_simlms_first_retriever(files, tmp_path, options, loss):
    plain = Plain(files / "one", length=144, title="segment")
    lines = train(files, tmp_path / "m", "--preset", "simlm-r1", *options)
    expected = [loss(batch) for batch in batches(plain, plain, negatives=15)]
    assert [line["loss"] for line in lines] == [close(value) for value in expected]
    assert len({round(value, 2) for value in expected}) == EPOCHS  # every epoch sees something else


def test_simlm_on_nq_warms_up_the_temperature_and_uses_the_gold_passage(files, tmp_path):
    # after 0, 1 and 2 of 4 steps the scale is at least 1, 50 / 4 and 50 / 2: temperatures 1, .08 and .04
    plain = Plain(files / "one", length=192, title="segment")
    lines = train(files, tmp_path / "m", "--preset", "simlm-nq-r1-official", "--set", "warmup=4")
    for step, batch in enumerate(batches(plain, plain, negatives=15, rotate=False)):
        warm = slow.warmed_temperature(step, temperature=0.02, warmup=4)
        assert lines[step]["loss"] == close(slow.mean(slow.simlm_full(batch, temperature=warm)))


@pytest.mark.parametrize(
    ("preset", "length", "negatives", "alpha"),
    [("simlm-distill", 144, 23, 0.2), ("simlm-nq-distill-official", 192, 15, 1.0)],
)
def test_simlms_distillation(files, tmp_path, preset, length, negatives, alpha):
    is_nq = preset != "simlm-distill"  # which warms the temperature up and keeps to the gold passage
    plain = Plain(files / "one", length=length, title="segment")
    lines = train(files, tmp_path / "m", "--preset", preset, "--set", "warmup=4")
    for step, batch in enumerate(batches(plain, plain, negatives=negatives, rotate=not is_nq)):
        temperature = slow.warmed_temperature(step, temperature=0.02, warmup=4) if is_nq else 0.02
        divergence = slow.mean(slow.distillation(batch, similarity="cosine", temperature=temperature))
        contrast = slow.mean(slow.simlm_full(batch, temperature=temperature))
        assert (lines[step]["distillation"], lines[step]["contrastive"]) == (close(divergence), close(contrast))
        assert lines[step]["loss"] == close(divergence + alpha * contrast)


def test_query_as_contexts_first_retriever(files, tmp_path):
    plain = Plain(files / "one", length=144, title="sep")
    lines = train(files, tmp_path / "m", "--preset", "qac-r1")
    expected = [dot(batch) for batch in batches(plain, plain, negatives=15)]
    assert [line["loss"] for line in lines] == [close(value) for value in expected]


def test_masters_first_retriever_has_two_encoders(files, tmp_path):
    # of lists of 31 the shuffle takes all, in some order
    query = Plain(files / "both" / "query", length=32, title="sep")
    passage = Plain(files / "both" / "passage", length=128, title="sep")
    lines = train(files, tmp_path / "m", "--preset", "master-official-r1", model="both", data="31")
    expected = [dot(batch) for batch in batches(query, passage, negatives=31, listed=31)]
    assert [line["loss"] for line in lines] == [close(value) for value in expected]


def test_dpr_has_two_encoders_the_gold_passage_and_one_negative(files, tmp_path):
    # which of two negatives a query gets is drawn: every epoch has to be one of the 2^4 batches there are
    query = Plain(files / "both" / "query", length=256, title="sep")  # all token types are zero there
    passage = Plain(files / "both" / "passage", length=256, title="sep")
    rows = examples(4, 2)
    possible = []
    for choice in itertools.product((0, 1), repeat=4):
        picked = [[row["positives"][0], row["negatives"][at]] for row, at in zip(rows, choice, strict=True)]
        possible.append(
            dot([make_query(row, names, [], query, passage) for row, names in zip(rows, picked, strict=True)])
        )
    assert min(second - first for first, second in itertools.pairwise(sorted(possible))) > 1e-4
    lines = train(files, tmp_path / "m", "--preset", "dpr-nq", model="both", data="two", count=4)
    for line in lines:
        assert min(abs(line["loss"] - each) for each in possible) < 2e-5
    assert len({round(line["loss"], 4) for line in lines}) > 1  # drawn anew by epoch


@pytest.mark.parametrize("preset", ["simlm-r1", "qac-r1"])
def test_texts_that_are_too_long_are_cut(files, tmp_path, preset):
    """Pairs are truncated longest first, single texts at the end, queries to their own maximum length."""
    title = "sep" if preset == "qac-r1" else "segment"
    query, passage = (Plain(files / "one", length=length, title=title) for length in (6, 12))
    more = ("--preset", preset, "--query-length", "6", "--passage-length", "12")
    lines = train(files, tmp_path / "m", *more)
    loss = simlm if preset == "simlm-r1" else dot
    for line, batch in zip(lines, batches(query, passage, negatives=15), strict=True):
        assert line["loss"] == close(loss(batch))
