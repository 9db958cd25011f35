"""Losses logged by train-reranker equal reference losses of logits computed with transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ElectraConfig,
    ElectraModel,
)

from drtk.cli.main import app
from drtk.models.config import InitModelSettings
from drtk.models.init_model import train_tokenizer
from drtk.models.list_reranker import load_list_reranker
from tests.reference import finetuning as slow
from tests.reference.hlatr import logits
from tests.run_commands import read_log
from tests.tiny_models import make_collection

SEED = 42
PASSAGES, QUERIES, _ = make_collection(80)
TEXTS = {row["_id"]: row for row in PASSAGES}
ASKED = {row["_id"]: row["text"] for row in QUERIES}
SIZE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SIZE |= {"max_position_embeddings": 200, "initializer_range": 0.3}
SIZE |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def examples(count: int, negatives: int) -> list[dict]:
    """Return examples with one or two positives."""
    draw = random.Random(negatives)
    results = []
    for number in range(count):
        positives = [f"d{number}", f"d{number + 20}"][: number % 2 + 1]
        wrong = draw.sample([name for name in TEXTS if name not in positives], negatives)
        results.append({"query_id": f"q{number}", "positives": positives, "negatives": wrong})
    return results


def first_stage() -> dict[str, list[str]]:
    """Return the ranked documents of seven queries, up to nine each; those of q6 are all irrelevant."""
    draw = random.Random(0)
    results = {}
    for number in range(7):
        names = draw.sample([name for name in TEXTS if name != f"d{number}"], 5 + number % 4)
        results[f"q{number}"] = draw.sample([*names, f"d{number}"], len(names) + 1) if number < 6 else names
    return results


def labels(run: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    """Return the relevant documents: one per query, two for q1 and q2."""
    results = {query: {name: float(name == f"d{query[1:]}") for name in names} for query, names in run.items()}
    for query in ("q1", "q2"):
        results[query][next(name for name in run[query] if not results[query][name])] = 1.0
    return results


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    for name, rows in {"corpus": PASSAGES, "queries": QUERIES, "many": examples(3, 70), "few": examples(4, 5)}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = first_stage()
    hits = ((query, at, name) for query, names in run.items() for at, name in enumerate(names))
    (folder / "run").write_text("".join(f"{query} Q0 {name} {at + 1} {20 - at} t\n" for query, at, name in hits))
    judged = ((query, *judgment) for query, grades in labels(run).items() for judgment in grades.items())
    (folder / "qrels").write_text("".join(f"{query} 0 {name} {grade:.0f}\n" for query, name, grade in judged))
    words = (f"{row['title']} {row['text']}" for row in PASSAGES)
    tokenizer = train_tokenizer(words, InitModelSettings(vocab_size=400, min_frequency=1, max_length=200))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        bert = BertConfig(vocab_size=len(tokenizer), **SIZE)
        models = {
            "electra": ElectraModel(ElectraConfig(vocab_size=len(tokenizer), embedding_size=12, **SIZE)),
            "bert": BertModel(bert),
            "crossencoder": BertForSequenceClassification(BertConfig(num_labels=1, **bert.to_diff_dict())),
        }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def drtk(*call: str | Path) -> None:
    app([*map(str, call), "--device", "cpu", "-q"], standalone_mode=False)


def texts(data: Path) -> list[str]:
    return ["--corpus", str(data / "corpus.jsonl"), "--queries", str(data / "queries.jsonl")]


class Plain:
    """A trained cross-encoder loaded with transformers, without batches; title: separator of title and text."""

    def __init__(self, folder: Path, *, length: int, title: str | None) -> None:
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self._tokenizer, self._length, self._title = AutoTokenizer.from_pretrained(folder), length, title

    def inputs(self, query: str, name: str) -> Any:
        row = TEXTS[name]
        text = row["text"] if self._title is None else f"{row['title']}{self._title}{row['text']}"
        given: dict[str, Any] = {"truncation": "longest_first", "max_length": self._length, "return_tensors": "pt"}
        return self._tokenizer(ASKED[query], text, **given)

    @torch.no_grad()
    def logit(self, query: str, name: str) -> float:
        found = self.model(**self.inputs(query, name)).logits
        assert found.shape == (1, 1)
        return found.item()


def close(expected: float) -> Any:
    return pytest.approx(expected, abs=2e-5, rel=2e-5)


@pytest.mark.parametrize("length", [192, 20])
def test_simlms_re_ranker_as_released(data, tmp_path, length):
    # 64 logits of a query, of which the positive and the 15 best negatives count; without dropout both passes agree
    call = ("train-reranker", data / "many.jsonl", *texts(data), "--model", data / "electra", "-o", tmp_path / "m")
    more = f"--max-length {length} --batch-size 3 --max-steps 2 --set log_steps=1 --learning-rate 1e-9"
    drtk(*call, "--preset", "simlm-reranker-official", *more.split())
    plain = Plain(tmp_path / "m", length=length, title=": ")
    whole = []
    for epoch, line in enumerate(read_log(tmp_path / "m")):
        losses = []
        for row in examples(3, 70):
            positive = row["positives"][epoch % len(row["positives"])]
            names = [positive, *slow.window(row["negatives"], 63, epoch=epoch, seed=SEED)]
            scores = [plain.logit(row["query_id"], name) for name in names]
            kept = [scores[data] for data in slow.keep_hardest(scores, 16)]
            losses.append(slow.r_drop(kept, kept))
            whole.append(slow.listwise(scores))
        assert line["loss"] == close(slow.mean(losses))
        assert (line["cross_entropy"], line["r_drop"]) == (close(slow.mean(losses)), close(0.0))
        assert abs(slow.mean(whole[-3:]) - slow.mean(losses)) > 1e-3  # all 64 would have been another figure
    assert epoch == 1


def test_the_passage_re_ranker_of_questions(data, tmp_path):
    # 4 questions with 1, 2, 1 and 2 positives and 5 negatives each: 26 pairs, all of which are one batch
    call = ("train-reranker", data / "few.jsonl", *texts(data), "--model", data / "bert", "-o", tmp_path / "m")
    more = ("--batch-size", "26", "--max-steps", "2", "--set", "log_steps=1", "--learning-rate", "1e-9")
    drtk(*call, "--preset", "bert-passage-reranker", *more)
    plain = Plain(tmp_path / "m", length=192, title=None)
    losses = [
        slow.binary(plain.logit(row["query_id"], name), right=side == "positives")
        for row in examples(4, 5)
        for side in ("positives", "negatives")
        for name in row[side]
    ]
    assert len(losses) == 26
    assert [line["loss"] for line in read_log(tmp_path / "m")] == [close(slow.mean(losses))] * 2


def test_lists_of_unequal_lengths(data, tmp_path):
    # six queries have something right among their first eight; the seventh is left out
    made = tmp_path / "vectors"
    rerank = ("rerank", data / "run", *texts(data), "--model", data / "crossencoder", "-o", tmp_path / "reranked")
    drtk(*rerank, "--save-vectors", made, "--set", "vector_dtype=float32", "--set", "title=colon")
    call = ("train-reranker", data / "run", "--vectors", made, "--qrels", data / "qrels", "-o", tmp_path / "m")
    right = labels(first_stage())
    lists = {query: names[:8] for query, names in first_stage().items()}
    learnt = [query for query, names in lists.items() if any(right[query][name] for name in names)]
    more = f"--set depth=8 --set dropout=0 --batch-size {len(learnt)} --max-steps 1 --learning-rate 1e-9"
    drtk(*call, "--preset", "hlatr", *more.split())
    plain = Plain(data / "crossencoder", length=192, title=": ")
    model = load_list_reranker(tmp_path / "m")
    layers = model.layers.layers
    assert len(layers) == 4
    losses = []
    with torch.no_grad():
        for query in learnt:
            inputs = [plain.inputs(query, name) for name in lists[query]]
            vectors = [plain.model.bert(**each).last_hidden_state[0, 0] for each in inputs]
            parts = {"project": model.project, "ranks": model.ranks, "norm": model.norm, "head": model.head}
            scores = [logit.item() for logit in logits(vectors, layers=layers, heads=2, **parts)]
            losses.append(slow.labeled_list(scores, [right[query][name] for name in lists[query]]))
    assert [line["loss"] for line in read_log(tmp_path / "m")] == [close(slow.mean(losses))]
    assert {sum(right[query][name] for name in lists[query]) for query in learnt} == {1.0, 2.0}
