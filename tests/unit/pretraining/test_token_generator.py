"""The proposals of a generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drtk.errors import MismatchError
from drtk.losses.language import token_losses_sum
from drtk.models.lm_head import LMHead
from drtk.pretraining.token_generator import Generator, sample
from tests.families import FAMILIES, masked_lm, padded, saved_masked_lm
from tests.tiny import tiny_model

HIDDEN = torch.tensor([[0, 1, 0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0]]).bool()


def frozen(model: Any) -> Generator:
    body = getattr(model, model.base_model_prefix)
    return Generator(body, LMHead(model, body), frozen=True)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_likeliest_tokens_stand_where_tokens_were_hidden(family: str) -> None:
    model = masked_lm(family)
    ids, attention = padded(model)
    found = frozen(model).fill(ids, attention, HIDDEN, decode="argmax", scope="masked")
    with torch.no_grad():
        likeliest = model(input_ids=ids, attention_mask=attention).logits.argmax(dim=-1)
    torch.testing.assert_close(found, torch.where(HIDDEN, likeliest, ids))
    assert (found[HIDDEN] != ids[HIDDEN]).any()


def test_with_scope_all_every_token_is_proposed_but_the_first_and_padding() -> None:
    model = masked_lm("bert")
    ids, attention = padded(model)
    found = frozen(model).fill(ids, attention, HIDDEN, decode="argmax", scope="all")
    with torch.no_grad():
        likeliest = model(input_ids=ids, attention_mask=attention).logits.argmax(dim=-1)
    everywhere = attention.bool()
    everywhere[:, 0] = False
    torch.testing.assert_close(found, torch.where(everywhere, likeliest, ids))


def test_a_draw_is_the_token_whose_stretch_of_the_unit_interval_holds_the_number() -> None:
    # p = .5 .2 0 .3, so ids stand at [0, .5), [.5, .7), nowhere and [.7, 1)
    scores = torch.tensor([0.5, 0.2, 0.0, 0.3]).log().repeat(8, 1)
    draws = torch.tensor([0.0, 0.49, 0.51, 0.69, 0.71, 0.99, 1.0, 0.2])
    assert sample(scores, draws).tolist() == [0, 0, 1, 1, 3, 3, 3, 0]


def test_draws_follow_the_softmax() -> None:
    # 100,000 draws at evenly spaced numbers: the share of each id is its probability to 1e-5
    scores = torch.randn(7, generator=torch.Generator().manual_seed(2))
    draws = (torch.arange(100_000) + 0.5) / 100_000
    share = torch.bincount(sample(scores.expand(100_000, 7), draws), minlength=7) / 100_000
    torch.testing.assert_close(share, scores.softmax(dim=0), atol=2e-5, rtol=0)


def test_a_sample_depends_on_its_own_number_and_not_on_its_row_or_its_batch() -> None:
    model = masked_lm("bert")
    ids, attention = padded(model)
    generator, numbers = frozen(model), noise(*ids.shape)
    whole = generator.fill(ids, attention, HIDDEN, decode="sample", scope="masked", noise=numbers)
    for row in range(3):
        length = int(attention[row].sum())
        part = slice(row, row + 1), slice(0, length)
        alone = generator.fill(
            ids[part], attention[part], HIDDEN[part], decode="sample", scope="masked", noise=numbers[part]
        )
        torch.testing.assert_close(alone, whole[part])
    others = generator.fill(ids, attention, HIDDEN, decode="sample", scope="masked", noise=noise(*ids.shape, seed=1))
    assert (others != whole).any()
    assert (others == whole)[~HIDDEN].all()


def test_a_sample_is_the_inverse_of_the_cumulative_softmax_of_the_models_scores() -> None:
    model = masked_lm("bert")
    ids, attention = padded(model)
    numbers = noise(*ids.shape)
    found = frozen(model).fill(ids, attention, HIDDEN, decode="sample", scope="masked", noise=numbers)
    with torch.no_grad():
        steps = model(input_ids=ids, attention_mask=attention).logits.softmax(dim=-1).cumsum(dim=-1)
    for row, place in HIDDEN.nonzero().tolist():
        expected = int((steps[row, place] <= numbers[row, place]).sum())
        assert int(found[row, place]) == expected


def test_a_frozen_generator_has_no_dropout_and_no_gradient_whatever_the_mode() -> None:
    model = masked_lm("bert")
    ids, attention = padded(model)
    generator = frozen(model)
    outer = torch.nn.ModuleList([generator]).train()
    assert outer.training
    assert not any(module.training for module in generator.modules())
    assert not any(parameter.requires_grad for parameter in generator.parameters())
    first, second = (
        generator.fill(ids, attention, HIDDEN, decode="sample", scope="masked", noise=noise(3, 9)) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_a_trained_one_proposes_without_dropout_and_goes_on_training() -> None:
    model = masked_lm("bert", hidden_dropout_prob=0.5)
    ids, attention = padded(model)
    generator = Generator.from_encoder(model.bert, LMHead(model, model.bert), init="copy").train()
    quiet = frozen(masked_lm("bert", hidden_dropout_prob=0.5))
    numbers = noise(3, 9)
    for _ in range(3):
        found = generator.fill(ids, attention, HIDDEN, decode="sample", scope="masked", noise=numbers)
        assert torch.equal(found, quiet.fill(ids, attention, HIDDEN, decode="sample", scope="masked", noise=numbers))
        assert generator.training
        assert generator.backbone.training


@pytest.mark.parametrize("init", ["copy", "random"])
def test_a_generator_beside_the_encoder_shares_nothing_with_it(init: Any) -> None:
    model = masked_lm("bert")
    head = LMHead(model, model.bert)
    torch.manual_seed(0)
    generator = Generator.from_encoder(model.bert, head, init=init)
    own = {id(parameter) for parameter in generator.parameters()}
    assert not own & {id(parameter) for parameter in model.parameters()}
    assert generator.head.weight is generator.backbone.embeddings.word_embeddings.weight
    same = torch.equal(generator.head.weight, head.weight)
    assert same is (init == "copy")
    if init == "random":  # normal(0, .02), norms 1 and 0, whatever the encoder's were
        spread = generator.backbone.encoder.layer[0].intermediate.dense.weight.std().item()
        assert spread == pytest.approx(0.02, rel=0.1)
        assert (generator.head.norm.weight == 1).all()
        assert generator.head.bias is not None
        assert (generator.head.bias == 0).all()
        assert generator.head.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_the_loss_of_a_trained_one_is_that_of_a_masked_language_model() -> None:
    model = masked_lm("bert")
    ids, attention = padded(model)
    labels = torch.where(HIDDEN, 11, -100)
    generator = Generator.from_encoder(model.bert, LMHead(model, model.bert), init="copy").eval()
    features = generator.features(ids, attention, HIDDEN)
    loss = token_losses_sum(features, generator.head.weight, generator.head.bias, labels[HIDDEN])
    expected = F.cross_entropy(model(input_ids=ids, attention_mask=attention).logits.flatten(0, 1), labels.flatten())
    assert loss.item() / int(HIDDEN.sum()) == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert generator.head.dense.weight.grad is not None
    assert model.bert.embeddings.word_embeddings.weight.grad is None


def test_a_folder_with_another_vocabulary_or_without_a_head_is_refused(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    saved_masked_lm("electra", tmp_path / "g")
    own = AutoTokenizer.from_pretrained(tmp_path / "g")
    generator = Generator.from_folder(tmp_path / "g", own)
    assert generator.frozen
    assert generator.longest == 64
    other = AutoTokenizer.from_pretrained(tiny_model(tmp_path / "e", vocab_size=60))
    with pytest.raises(
        MismatchError, match=r"the generator's vocabulary \(\d+ word pieces, .* is not the encoder's \(\d+\)"
    ):
        Generator.from_folder(tmp_path / "g", other)
    with pytest.raises(MismatchError, match="has no language-model head, so it proposes no tokens"):
        Generator.from_folder(tmp_path / "e", other)


def test_a_model_may_be_trained_on_as_it_is_or_with_weights_drawn_anew(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = saved_masked_lm("electra", tmp_path / "g")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "g")
    trained = Generator.from_folder(tmp_path / "g", tokenizer, frozen=False).train()
    assert trained.backbone.training
    assert all(parameter.requires_grad for parameter in trained.parameters())
    own = trained.backbone.encoder.layer[0].intermediate.dense.weight
    assert torch.equal(own, model.electra.encoder.layer[0].intermediate.dense.weight)
    drawn_anew = Generator.from_folder(tmp_path / "g", tokenizer, frozen=False, redrawn=True)
    assert type(drawn_anew.backbone) is type(trained.backbone)
    assert {name: each.shape for name, each in drawn_anew.named_parameters()} == {
        name: each.shape for name, each in trained.named_parameters()
    }
    assert not torch.equal(drawn_anew.backbone.encoder.layer[0].intermediate.dense.weight, own)
    assert bool((drawn_anew.head.norm.weight == 1).all())
    bare = tiny_model(tmp_path / "e")  # without a head there is nothing to train on, but something to draw
    assert not Generator.from_folder(bare, AutoTokenizer.from_pretrained(bare), frozen=False, redrawn=True).frozen
    with pytest.raises(MismatchError, match="has no language-model head"):
        Generator.from_folder(bare, AutoTokenizer.from_pretrained(bare), frozen=False)


def test_the_longest_input_leaves_out_the_places_roberta_does_not_use() -> None:
    assert frozen(masked_lm("roberta")).longest == 62  # positions 0 and 1 belong to padding
    assert frozen(masked_lm("bert")).longest == 64
