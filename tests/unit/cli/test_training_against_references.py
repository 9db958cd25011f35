"""Losses logged by train-retriever and train-reranker equal reference losses of vectors and logits of transformers."""

import itertools
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
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
from tests.expansion_collection import write_rows
from tests.reference import finetuning as slow
from tests.reference import hlatr
from tests.reference.finetuning import BatchQuery
from tests.run_commands import read_log
from tests.tiny_models import make_collection

SEED, EPOCHS = 42, 3
COSINE: dict[str, Any] = {"similarity": "cosine", "temperature": 0.02}
DOT: dict[str, Any] = {"similarity": "dot", "temperature": 1.0}
PASSAGES, QUERIES, _ = make_collection(120)
TEXTS = {row["_id"]: row for row in PASSAGES}
ASKED = {row["_id"]: row["text"] for row in QUERIES}


def make_examples(count: int, negatives: int) -> list[dict]:
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
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write texts, examples, a run, judgments, and models without dropout and with large weights."""
    folder = tmp_path_factory.mktemp("reference")
    sizes = {"many": (6, 50), "two": (4, 2), "31": (6, 31), "70": (3, 70), "few": (4, 5)}
    lists = {name: make_examples(*size) for name, size in sizes.items()}
    for name, rows in {"corpus": PASSAGES, "queries": QUERIES, **lists}.items():
        write_rows(folder / f"{name}.jsonl", rows)
    run = first_stage()
    hits = ((query, at, name) for query, names in run.items() for at, name in enumerate(names))
    (folder / "run").write_text("".join(f"{query} Q0 {name} {at + 1} {20 - at} t\n" for query, at, name in hits))
    judged = ((query, *judgment) for query, grades in labels(run).items() for judgment in grades.items())
    (folder / "qrels").write_text("".join(f"{query} 0 {name} {grade:.0f}\n" for query, name, grade in judged))
    words = (f"{row['title']} {row['text']}" for row in PASSAGES)
    tokenizer = train_tokenizer(words, InitModelSettings(vocab_size=400, min_frequency=1, max_length=256))

    size: dict[str, Any] = {"vocab_size": len(tokenizer), "max_position_embeddings": 256, "num_hidden_layers": 2}
    size |= {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "initializer_range": 0.15}
    size |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    small = size | {"num_hidden_layers": 1, "hidden_size": 16, "initializer_range": 0.3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        models = {name: BertModel(BertConfig(**size)) for name in ("one", "both/query", "both/passage")}
        models["electra"] = ElectraModel(ElectraConfig(embedding_size=12, **small))
        models["crossencoder"] = BertForSequenceClassification(BertConfig(num_labels=1, **small))
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def close(expected: float, *, abs: float = 2e-4) -> Any:
    return pytest.approx(expected, abs=abs, rel=2e-5)


def train(files: Path, output: Path, *more: str, model: str = "one", data: str = "many", count: int = 6) -> list[dict]:
    """Train a retriever for three steps, an epoch each, at a learning rate of 1e-9; return the log."""
    call = f"train-retriever {files}/{data}.jsonl --model {files}/{model} -o {output} --device cpu -q"
    call += f" --corpus {files}/corpus.jsonl --queries {files}/queries.jsonl"
    call += f" --batch-size {count} --max-steps {EPOCHS} --set log_steps=1 --learning-rate 1e-9"
    app([*call.split(), *more], standalone_mode=False)
    assert [line["step"] for line in read_log(output)] == [1, 2, 3]
    return read_log(output)


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
        for row in make_examples(6, listed):
            at = epoch % len(row["positives"]) if rotate else 0
            places = list(map(str, range(listed)))
            window = [int(number) for number in slow.window(places, negatives, epoch=epoch, seed=SEED)]
            names = [row["positives"][at], *(row["negatives"][number] for number in window)]
            scores = [row["scores"]["positives"][at], *(row["scores"]["negatives"][number] for number in window)]
            batch.append(make_query(row, names, scores, query, passage))
        results.append(batch)
    return results


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
    rows = make_examples(4, 2)
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


def drtk(*call: str | Path) -> None:
    app([*map(str, call), "--device", "cpu", "-q"], standalone_mode=False)


def texts(files: Path) -> list[str]:
    return ["--corpus", str(files / "corpus.jsonl"), "--queries", str(files / "queries.jsonl")]


class PlainReranker:
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


@pytest.mark.parametrize("length", [192, 20])
def test_simlms_re_ranker_as_released(files, tmp_path, length):
    # 64 logits of a query, of which the positive and the 15 best negatives count; without dropout both passes agree
    call = ("train-reranker", files / "70.jsonl", *texts(files), "--model", files / "electra", "-o", tmp_path / "m")
    more = f"--max-length {length} --batch-size 3 --max-steps 2 --set log_steps=1 --learning-rate 1e-9"
    drtk(*call, "--preset", "simlm-reranker-official", *more.split())
    plain = PlainReranker(tmp_path / "m", length=length, title=": ")
    whole = []
    for epoch, line in enumerate(read_log(tmp_path / "m")):
        losses = []
        for row in make_examples(3, 70):
            positive = row["positives"][epoch % len(row["positives"])]
            names = [positive, *slow.window(row["negatives"], 63, epoch=epoch, seed=SEED)]
            scores = [plain.logit(row["query_id"], name) for name in names]
            kept = [scores[data] for data in slow.keep_hardest(scores, 16)]
            losses.append(slow.r_drop(kept, kept))
            whole.append(slow.listwise(scores))
        assert line["loss"] == close(slow.mean(losses), abs=2e-5)
        assert (line["cross_entropy"], line["r_drop"]) == (close(slow.mean(losses), abs=2e-5), close(0.0, abs=2e-5))
        assert abs(slow.mean(whole[-3:]) - slow.mean(losses)) > 1e-3  # all 64 would have been another figure
    assert epoch == 1


def test_the_passage_re_ranker_of_questions(files, tmp_path):
    # 4 questions with 1, 2, 3 and 1 positives and 5 negatives each: 27 pairs, all of which are one batch
    call = ("train-reranker", files / "few.jsonl", *texts(files), "--model", files / "one", "-o", tmp_path / "m")
    more = ("--batch-size", "27", "--max-steps", "2", "--set", "log_steps=1", "--learning-rate", "1e-9")
    drtk(*call, "--preset", "bert-passage-reranker", *more)
    plain = PlainReranker(tmp_path / "m", length=192, title=None)
    losses = [
        slow.binary(plain.logit(row["query_id"], name), right=side == "positives")
        for row in make_examples(4, 5)
        for side in ("positives", "negatives")
        for name in row[side]
    ]
    assert len(losses) == 27
    assert [line["loss"] for line in read_log(tmp_path / "m")] == [close(slow.mean(losses), abs=2e-5)] * 2


def test_lists_of_unequal_lengths(files, tmp_path):
    # six queries have something right among their first eight; the seventh is left out
    made = tmp_path / "vectors"
    rerank = ("rerank", files / "run", *texts(files), "--model", files / "crossencoder", "-o", tmp_path / "reranked")
    drtk(*rerank, "--save-vectors", made, "--set", "vector_dtype=float32", "--set", "title=colon")
    call = ("train-reranker", files / "run", "--vectors", made, "--qrels", files / "qrels", "-o", tmp_path / "m")
    right = labels(first_stage())
    lists = {query: names[:8] for query, names in first_stage().items()}
    learnt = [query for query, names in lists.items() if any(right[query][name] for name in names)]
    more = f"--set depth=8 --set dropout=0 --batch-size {len(learnt)} --max-steps 1 --learning-rate 1e-9"
    drtk(*call, "--preset", "hlatr", *more.split())
    plain = PlainReranker(files / "crossencoder", length=192, title=": ")
    model = load_list_reranker(tmp_path / "m")
    layers = model.layers.layers
    assert len(layers) == 4
    losses = []
    with torch.no_grad():
        for query in learnt:
            inputs = [plain.inputs(query, name) for name in lists[query]]
            vectors = [plain.model.bert(**each).last_hidden_state[0, 0] for each in inputs]
            parts = {"project": model.project, "ranks": model.ranks, "norm": model.norm, "head": model.head}
            scores = [logit.item() for logit in hlatr.logits(vectors, layers=layers, heads=2, **parts)]
            losses.append(slow.labeled_list(scores, [right[query][name] for name in lists[query]]))
    assert [line["loss"] for line in read_log(tmp_path / "m")] == [close(slow.mean(losses), abs=2e-5)]
    assert {sum(right[query][name] for name in lists[query]) for query in learnt} == {1.0, 2.0}
