"""Tokens predicted by a generator, and the tokens that it may replace."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from drtk.errors import MismatchError
from drtk.models.generation import sample_from_softmax
from drtk.models.lm_head import LMHead
from drtk.pretraining.composition import Composition, Corruption, GeneratorSpec, Slot
from drtk.pretraining.dataset import SlotBatch
from drtk.pretraining.token_generator import TokenGenerator, fill_masks
from tests.backbone_families import create_masked_lm, create_padded_batch, save_random_masked_lm
from tests.tiny_models import save_tiny_encoder

HIDDEN = torch.tensor([[0, 1, 0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0]]).bool()


def make_frozen_generator(model: Any) -> TokenGenerator:
    body = getattr(model, model.base_model_prefix)
    return TokenGenerator(body, LMHead(model, body), frozen=True)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def fill_tokens(model: Any, *, noise: Tensor | None = None, where: Tensor = HIDDEN) -> tuple[Tensor, Tensor, Tensor]:
    """Return the filled ids of a batch, the ids, and transformers' logits."""
    ids, attention = create_padded_batch(model)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=attention).logits
    return make_frozen_generator(model).replace_tokens(ids, attention, where, noise=noise), ids, logits


def test_sample_from_softmax_has_known_values() -> None:
    # p = .5 .2 0 .3: ids have [0, .5), [.5, .7), nothing and [.7, 1)
    scores = torch.tensor([0.5, 0.2, 0.0, 0.3]).log().repeat(8, 1)
    noise = torch.tensor([0.0, 0.49, 0.51, 0.69, 0.71, 0.99, 1.0, 0.2])
    assert sample_from_softmax(scores, noise).tolist() == [0, 0, 1, 1, 3, 3, 3, 0]
    # 100,000 evenly spaced numbers: the share of each id is its probability to 1e-5
    scores = torch.randn(7, generator=torch.Generator().manual_seed(2))
    found = sample_from_softmax(scores.expand(100_000, 7), (torch.arange(100_000) + 0.5) / 100_000)
    torch.testing.assert_close(torch.bincount(found, minlength=7) / 100_000, scores.softmax(dim=0), atol=2e-5, rtol=0)


def test_samples_invert_the_cumulative_softmax_of_the_model() -> None:
    actual, ids, logits = fill_tokens(create_masked_lm("bert"))  # without noise: the most likely tokens
    torch.testing.assert_close(actual, torch.where(HIDDEN, logits.argmax(dim=-1), ids))
    assert (actual[HIDDEN] != ids[HIDDEN]).any()
    numbers = noise(3, 9)
    actual, ids, logits = fill_tokens(create_masked_lm("bert"), noise=numbers)
    steps = logits.softmax(dim=-1).cumsum(dim=-1)
    for row, place in HIDDEN.nonzero().tolist():
        assert int(actual[row, place]) == int((steps[row, place] <= numbers[row, place]).sum())
    assert (actual == ids)[~HIDDEN].all()


def test_joint_generator_proposes_without_dropout_and_stays_in_training_mode() -> None:
    model = create_masked_lm("bert", hidden_dropout_prob=0.5)
    ids, attention = create_padded_batch(model)
    quiet, _, _ = fill_tokens(model, noise=noise(3, 9))
    generator = TokenGenerator(model.bert, LMHead(model, model.bert), frozen=False).train()
    assert torch.equal(generator.replace_tokens(ids, attention, HIDDEN, noise=noise(3, 9)), quiet)
    assert generator.training
    assert generator.backbone.training


def test_generator_from_folder(tmp_path: Path) -> None:
    model = save_random_masked_lm("electra", tmp_path / "g")
    tokenizer, bare = AutoTokenizer.from_pretrained(tmp_path / "g"), save_tiny_encoder(tmp_path / "e", vocab_size=60)
    other = AutoTokenizer.from_pretrained(bare)
    assert TokenGenerator.from_folder(tmp_path / "g", tokenizer).frozen
    with pytest.raises(MismatchError, match=r"vocabulary \(\d+ tokens, .* differs from the encoder's \(\d+ tokens\)"):
        TokenGenerator.from_folder(tmp_path / "g", other)
    for frozen in (True, False):
        with pytest.raises(MismatchError, match="no trained masked-LM head"):
            TokenGenerator.from_folder(bare, other, frozen=frozen)
    assert not TokenGenerator.from_folder(bare, other, frozen=False, reinitialize=True).frozen
    trained = TokenGenerator.from_folder(tmp_path / "g", tokenizer, frozen=False).train()
    assert trained.backbone.training
    assert all(parameter.requires_grad for parameter in trained.parameters())
    own = trained.backbone.encoder.layer[0].intermediate.dense.weight
    assert torch.equal(own, model.electra.encoder.layer[0].intermediate.dense.weight)
    redrawn = TokenGenerator.from_folder(tmp_path / "g", tokenizer, frozen=False, reinitialize=True)
    head = redrawn.head
    assert [each.shape for each in redrawn.parameters()] == [each.shape for each in trained.parameters()]
    assert not torch.equal(redrawn.backbone.encoder.layer[0].intermediate.dense.weight, own)
    assert head.bias is not None
    assert bool((head.norm.weight == 1).all() and (head.bias == 0).all())
    assert head.weight is redrawn.backbone.embeddings.word_embeddings.weight
    assert head.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)


class ConstantGenerator:
    """A generator that predicts 9 at all masked positions."""

    def replace_tokens(self, ids: Tensor, attention: Tensor, where: Tensor, **_: Any) -> Tensor:
        return torch.where(where, torch.full_like(ids, 9), ids)


def fill_rows(corruption: Corruption, scope: Any, *, edited: Any = None, noise: bool = True) -> list[list[int]]:
    """Fill the masks of two copies of [CLS] a [MASK] [SEP] [PAD]."""
    slot = SlotBatch(
        original_ids=torch.tensor([[2, 5, 6, 3, 0]] * 2),
        input_ids=torch.tensor([PLAIN] * 2),
        attention=torch.tensor([[1, 1, 1, 1, 0]] * 2),
        content=torch.tensor([[False, True, True, False, False]] * 2),
        masked=torch.tensor([[False, False, True, False, False]] * 2),
        present=torch.tensor([True, True]),
        edited=None if edited is None else torch.tensor(edited),
        noise=torch.zeros(2, 5) if noise else None,
    )
    plan = Composition({"s": Slot(("passage",), corruption=corruption)}, (), generator=GeneratorSpec(scope=scope))
    return fill_masks(slot, "s", plan, ConstantGenerator()).tolist()  # type: ignore[arg-type]


PLAIN, FILLED, EVERYWHERE = [2, 5, 4, 3, 0], [2, 5, 9, 3, 0], [2, 9, 9, 9, 0]


def test_fill_masks_keeps_padding_and_first_token() -> None:
    assert fill_rows("replaced", "masked") == [FILLED, FILLED]
    assert fill_rows("replaced", "all") == [EVERYWHERE, EVERYWHERE]
    assert fill_rows("inserted", "all") == [FILLED, FILLED]  # inserted tokens only
    assert fill_rows("mask", "all") == [PLAIN, PLAIN]
    assert fill_rows("replaced", "masked", noise=False) == [PLAIN, PLAIN]
    # edits sampled per example: the first row has replaced tokens, the second an insertion
    assert fill_rows("any", "all", edited=[[-1] * 5, [0, 0, 1, 0, 0]]) == [EVERYWHERE, FILLED]
