"""Training of query re-rankers: inputs, schedule, selection, against loops written from the description of the methods alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoTokenizer

from drtk.cli.main import app
from drtk.query_expansion.candidates import Candidates
from drtk.query_expansion.query_reranker_input import Candidate, CandidateTokenizer, QueryInput
from drtk.query_expansion.train_reranker import LabelledCandidates, MeasuredRank, inverse_sqrt
from drtk.records import Expansion, Query
from tests.expansions import labelled, write_world
from tests.reference import queries as slow
from tests.tiny import TOPICS, tiny_crossencoder, tiny_model, words_of


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    return AutoTokenizer.from_pretrained(tiny_crossencoder(tmp_path_factory.mktemp("model")))


def text(draw: random.Random, longest: int) -> str:
    return " ".join(draw.choice(words_of(draw.choice(TOPICS))) for _ in range(draw.randint(0, longest)))


@pytest.mark.parametrize("style", ["official", "thesis"])
@pytest.mark.parametrize("scorer", ["ri", "rd"])
def test_what_is_read_and_what_is_cut_is_what_the_reference_says(tokenizer: object, scorer: str, style: str) -> None:
    draw = random.Random(3)
    for _ in range(60):
        candidate = Candidate(text(draw, 9), text(draw, 9), text(draw, 3), text(draw, 30))
        longest = draw.choice([8, 12, 20, 64])
        parts = [candidate.question, candidate.text]
        if style == "thesis":
            parts = [slow.expanded(candidate.question, candidate.text)]
        if scorer == "rd":
            passage = [candidate.title, candidate.passage]
            parts += passage if style == "official" else [" ".join(passage)]
        pieces = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts]  # type: ignore[operator]
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id  # type: ignore[attr-defined]
        found = CandidateTokenizer(tokenizer, QueryInput(scorer, style, longest))([candidate]).ids.tolist()
        assert found == slow.scorer_input(pieces, first=first, last=last, longest=longest)


def test_the_schedule_is_that_of_the_reference() -> None:
    for max_lr, warmup in ((2e-3, 10_000), (5e-3, 10_000), (1e-2, 7)):
        for step in (1, 2, 6, 7, 8, 99, 9_999, 10_000, 10_001, 123_456):
            wanted = slow.learning_rate(step, max_lr=max_lr, warmup=warmup)
            assert max_lr * inverse_sqrt(step, warmup=warmup) == pytest.approx(wanted, rel=1e-12)
            assert wanted <= max_lr / warmup**0.5 * (1 + 1e-12)  # the trap: max_lr itself is never a rate


def test_the_first_step_goes_as_far_as_the_first_rate(tmp_path: Path) -> None:
    # Adam's first step is the rate, whatever the gradient: a step counted from 0 would stand still, or go twice as far.
    write_world(tmp_path)
    model = tiny_model(tmp_path / "model")
    call = ["rerank-queries", "train", labelled(tmp_path), "--queries", tmp_path / "queries.jsonl", "--model", model]
    call += ["--device", "cpu", "--max-length", "24", "--batch", "4", "--max-lr", "2e-3", "--warmup", "4", "-q"]
    app([str(each) for each in (*call, "--steps", 1, "--log-every", 1, "-o", tmp_path / "m")], standalone_mode=False)
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "m" / "model.safetensors")
    rate = slow.learning_rate(1, max_lr=2e-3, warmup=4)
    assert rate == pytest.approx(2.5e-4)
    compared = 0
    for name, weights in before.items():
        there = [each for each in after if each.endswith(name) and "layer" in name]
        if there and name.endswith("weight"):  # biases may have gradients that are not far above Adam's epsilon
            moved = (after[there[0]] - weights).abs()
            assert float(moved.max()) == pytest.approx(rate, rel=0.05), name
            compared += 1
    assert compared > 15
    log = [json.loads(line) for line in (tmp_path / "m" / "log.jsonl").read_text().splitlines()]
    assert [entry["learning_rate"] for entry in log if "learning_rate" in entry] == [pytest.approx(rate)]


class Summing(nn.Module):
    """A score that anybody can work out from what is read, with many equal ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Tensor) -> Tensor:
        return ((input_ids * attention_mask).sum(1) % 5) * self.weight


@pytest.mark.parametrize("seed", range(12))
def test_a_checkpoint_is_measured_as_the_reference_says(tokenizer: object, seed: int) -> None:
    draw = random.Random(seed)
    groups, wanted = [], []
    reading = CandidateTokenizer(tokenizer, QueryInput("ri", "official", 24))
    for number in range(draw.randint(1, 9)):
        question = text(draw, 5) + "?"
        texts = [text(draw, 6) for _ in range(draw.randint(1, 8))]
        ranks = [draw.choice([1, 7, 100, 101, 400]) for _ in texts]
        expansions = tuple(
            Expansion(f"e{number}.{at}", f"q{number}", "answer", each, rank=rank)
            for at, (each, rank) in enumerate(zip(texts, ranks, strict=True))
        )
        groups.append(Candidates(Query(f"q{number}", question), "answer", expansions))
        scores = [float(reading([Candidate(question, each)]).ids.sum() % 5) for each in texts]
        wanted.append((scores, [rank if rank <= 100 else 250 for rank in ranks]))
    found = LabelledCandidates(groups, depth=100, max_rank=250, ties=True)
    measured = MeasuredRank(Summing(), found, range(len(groups)), tokenizing=reading)
    assert measured() == {"mean rank": pytest.approx(slow.mean_chosen_rank(wanted))}
