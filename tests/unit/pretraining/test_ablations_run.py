"""A step of every row of the papers' tables on tiny models: terms that are numbers, and a gradient in the encoder."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drtk.models.model_folder import locate
from drtk.pretraining.assembly import build_network, check_composition
from drtk.pretraining.composition import Composition
from drtk.pretraining.dataset import PretrainingData
from drtk.pretraining.network import compute_batch_terms
from drtk.text.token_dataset import TokenCorpus
from tests.enriched import enriched_corpus
from tests.tiny import tiny_model
from tests.unit.pretraining.test_ablations import ROWS, resolved


def shape(flags: str) -> str:
    """What a composition is apart from rates, weights and the generator's name, which change no part of a step."""
    plan, _, _ = resolved(flags)
    slots = {name: replace(slot, rate=float(slot.rate > 0)) for name, slot in plan.slots.items()}
    objectives = tuple(replace(each, weight=1.0) for each in plan.objectives)
    generator = plan.generator and replace(plan.generator, model="")
    return repr(replace(plan, slots=slots, objectives=objectives, generator=generator))


# Each shape once, of the pages whose rows are more than another rate; rows with titles need a corpus whose titles are weighed.
PAGES = ("diffcse", "master", "simlm")
FLAGS = [*{shape(row.flags): row.flags for row in ROWS if row.page in PAGES and "title=" not in row.flags}.values()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that has everything, an encoder, and a masked language model of the same vocabulary."""
    from drtk.models.lm_head import load_masked_lm, save_lm_head

    folder = tmp_path_factory.mktemp("ablations")
    enriched_corpus(folder / "corpus.jsonl", tiny_model(folder / "model"))
    with torch.random.fork_rng(devices=[]):
        _, head, _ = load_masked_lm(tiny_model(folder / "generator", seed=2))
    save_lm_head(head, folder / "generator")
    return folder


def with_tiny_generator(plan: Composition, world: Path) -> Composition:
    if plan.generator is None:
        return plan
    return replace(plan, generator=replace(plan.generator, model=str(world / "generator")))


@pytest.mark.parametrize("flags", FLAGS)
def test_a_step_of_every_row_trains_the_encoder(flags: str, world: Path) -> None:
    plan, settings, _ = resolved(flags)
    plan = with_tiny_generator(plan, world)
    settings = replace(settings, batch=6, held_out=0, max_length=32, steps=1)
    network, tokenizer = build_network(plan, locate(str(world / "model")), seed=1)
    wants = check_composition(plan, place=flags)
    corpus = TokenCorpus.open(str(world / "corpus.jsonl"), str(world / "model"), wants=wants)
    material = PretrainingData(corpus, plan, settings, tokenizer, 1)
    rows = material.dataset()
    batch = material.collator(6).collate([rows[number] for number in range(6)])
    network.train()
    output = network(batch, network.counts(batch))
    present = {name: slot.present for name, slot in batch.items()}
    terms = output.terms | compute_batch_terms(plan, output.vectors, present)
    assert set(terms) >= {each.name for each in plan.objectives}
    assert all(math.isfinite(value.item()) and value.item() > 0 for value in terms.values()), terms
    torch.stack([network.weights[name] * value for name, value in terms.items()]).sum().backward()
    first = network.anatomy.layers[0]
    assert all(each.grad is not None and each.grad.any() for each in first.parameters() if each.dim() == 2)
