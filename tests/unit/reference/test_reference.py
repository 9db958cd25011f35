"""What holds for every pre-training loss (methods, section 5), on the references with a small random BERT."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, GPT2Config, GPT2Model

from tests.reference.bert import behind, hidden_states, through, vocabulary_logits
from tests.reference.cocondenser import cocondenser
from tests.reference.condenser import condenser, head_rows
from tests.reference.cotmae import causal_logits, cotmae, cotmae_causal
from tests.reference.diffcse import Edited, diffcse, difference_labels, generated
from tests.reference.master import PASS_OF, Tasks, master
from tests.reference.means import token_loss, token_mean
from tests.reference.mlm import mlm
from tests.reference.parts import (
    CLS,
    MASK,
    SEP,
    VOCABULARY,
    binary_head,
    fresh_layers,
    gpt2_layers,
    last_layers,
    linear_head,
    projector_modules,
    small_bert,
    small_discriminator,
)
from tests.reference.retromae import retromae
from tests.reference.simcse import projected, simcse
from tests.reference.simlm import replaced, simlm, simlm_ae, simlm_joint, simlm_mlm, simlm_rtd
from tests.reference.text import Text, masked

Terms = dict[str, Tensor]
WIDTH = 16


def words(seed: int, count: int) -> list[int]:
    """[CLS], random words, [SEP]."""
    draw = random.Random(seed)
    return [CLS, *(draw.randrange(5, VOCABULARY) for _ in range(count)), SEP]


def covered(seed: int, count: int, *, rate: float = 0.4) -> Text:
    """A random text with some of its words masked, at least one."""
    original = words(seed, count)
    hidden = sorted(random.Random(seed + 1).sample(range(1, count + 1), max(1, round(rate * count))))
    return masked(original, hidden, special=[0, count + 1], mask=MASK)


def changed(seed: int, count: int, *, rate: float) -> Text:
    """A random text with some of its words replaced by others, one of them by itself."""
    text = covered(seed, count, rate=rate)
    draw = random.Random(seed + rate)
    inputs = [draw.randrange(5, VOCABULARY) if at in text.hidden else token for at, token in enumerate(text.original)]
    inputs[text.hidden[0]] = text.original[text.hidden[0]]
    return Text(text.original, inputs, text.hidden, text.special)


SIZES = (3, 6, 4)  # words of the three examples: no two of a length
TEXTS = [covered(10 * number, size) for number, size in enumerate(SIZES)]
OTHERS = [covered(10 * number + 5, 9 - size) for number, size in enumerate(SIZES)]
PAIRS = list(zip(TEXTS, OTHERS, strict=True))
REPLACED = [
    (changed(10 * number, size, rate=0.4), changed(10 * number, size, rate=0.8)) for number, size in enumerate(SIZES)
]
MASKED = [(text, covered(10 * number, len(text.content()), rate=0.8)) for number, text in enumerate(TEXTS)]
SENTENCES = [text.original for text in TEXTS]
SEEN = [
    [
        [0, *(at for at in range(1, len(text.original)) if at != row and (at + row) % 2)]
        for row in range(len(text.original))
    ]
    for text in TEXTS
]


def tasks(number: int, *, successor: bool = True) -> Tasks:
    """The work of MASTER for one of the three examples."""
    size = SIZES[number]
    passes = {
        name: covered(10 * number, size, rate=rate) for name, rate in (("mlm", 0.3), ("mlm_cmp", 0.5), ("mlm_npr", 0.4))
    }
    targets = {name: covered(100 * place + number, 4 + place, rate=0.5) for place, name in enumerate(PASS_OF)}
    if not successor:
        del targets["npr"], passes["mlm_npr"]
    return Tasks(passes, targets)


TASKS = [tasks(0), tasks(1, successor=False), tasks(2)]


def edits(texts: list[list[int]]) -> list[Edited]:
    """For both views of every sentence, the sentence with two words changed."""
    made = []
    for view in (0, 1):
        for number, original in enumerate(texts):
            inputs = list(original)
            inputs[1 + view] = 5 + (inputs[1 + view] + 3) % 30
            made.append(Edited(inputs, difference_labels(original, inputs), number, view, [1 + view, 3]))
    return made


def sides(**options: object) -> Callable[[BertForMaskedLM, bool], Terms]:
    """DiffCSE with fresh modules; the second views are other sentences, as there is no dropout to tell them apart."""
    second = [words(70 + number, size) for number, size in enumerate(SIZES)]

    def run(model: BertForMaskedLM, detach: bool) -> Terms:
        given = {
            "discriminator": small_discriminator(),
            "head": linear_head(WIDTH, 2),
            "edited": edits(SENTENCES),
            "weight": 1.0,
        } | options
        return diffcse(model, projector_modules(), (SENTENCES, second), detach_cls=detach, **given)

    return run


LAYERS = fresh_layers(2)
DECODERS = {name: fresh_layers(2, seed=900 + 10 * place) for place, name in enumerate(PASS_OF)}

# name -> terms of three examples, the term of the decoder
OBJECTIVES: dict[str, tuple[Callable[[BertForMaskedLM, bool], Terms], str]] = {
    "condenser": (lambda model, cut: condenser(model, LAYERS, TEXTS, skip=2, detach_cls=cut), "head"),
    "cocondenser": (lambda model, cut: cocondenser(model, LAYERS, PAIRS, skip=2, detach_cls=cut), "head"),
    "cotmae": (lambda model, cut: cotmae(model, LAYERS, PAIRS, detach_cls=cut), "context"),
    "cotmae-causal": (lambda model, cut: cotmae_causal(model, LAYERS[:1], PAIRS, detach_cls=cut), "context"),
    "cotmae-gpt2": (lambda model, cut: cotmae_causal(model, gpt2_layers(1), PAIRS, detach_cls=cut), "context"),
    "simlm": (lambda model, cut: simlm(model, last_layers(model, 2), REPLACED, detach_cls=cut), "decoder"),
    "simlm-mlm": (lambda model, cut: simlm_mlm(model, last_layers(model, 2), MASKED, detach_cls=cut), "decoder"),
    "simlm-rtd": (
        lambda model, cut: simlm_rtd(
            model,
            last_layers(model, 2),
            REPLACED,
            encoder_head=binary_head(seed=1),
            decoder_head=binary_head(seed=2),
            detach_cls=cut,
        ),
        "decoder",
    ),
    "simlm-ae": (lambda model, cut: simlm_ae(model, LAYERS, TEXTS, mask=MASK, detach_cls=cut), "decoder"),
    "retromae": (lambda model, cut: retromae(model, LAYERS[0], TEXTS, SEEN, detach_cls=cut), "decoder"),
    **{f"master-{name}": (lambda model, cut: master(model, DECODERS, TASKS, detach_cls=cut), name) for name in PASS_OF},
    "diffcse": (sides(), "difference"),
    "diffcse-mlm": (sides(task="mlm", head=linear_head(WIDTH, VOCABULARY)), "difference"),
    "diffcse-clm": (
        sides(task="clm", head=linear_head(WIDTH, VOCABULARY), copy_head=linear_head(WIDTH, 1)),
        "difference",
    ),
}
ONCE = [name for name in OBJECTIVES if not name.startswith("master") or name == "master-npr"]


def reached(module: nn.Module) -> bool:
    """Whether any weight of the module has a gradient that is not zero."""
    return any(weight.grad is not None and bool(weight.grad.abs().sum() > 0) for weight in module.parameters())


def plain(terms: Terms) -> dict[str, float]:
    return {name: value.item() for name, value in terms.items()}


def close(terms: Terms, *, abs: float = 2e-5) -> object:
    return pytest.approx(plain(terms), abs=abs)


# --- the small BERT is BERT ----------------------------------------------------------------------------------------


def padded(rows: list[list[int]], *, fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


@pytest.mark.parametrize("fill", [0, 23])
def test_hidden_states_and_logits_are_those_of_transformers_in_a_padded_batch(fill: int):
    model = small_bert()
    attention = padded([[1] * len(text.inputs) for text in TEXTS], fill=0)
    types = [[0] * 2 + [1] * (len(text.inputs) - 2) for text in TEXTS]
    given = {"attention_mask": attention, "token_type_ids": padded(types, fill=0)}
    output = model(padded([text.inputs for text in TEXTS], fill=fill), output_hidden_states=True, **given)
    for number, text in enumerate(TEXTS):
        length = len(text.inputs)
        hidden = hidden_states(model.bert, text.inputs, types[number])
        for layer in range(5):
            torch.testing.assert_close(
                torch.stack(hidden[layer]), output.hidden_states[layer][number, :length], atol=2e-5, rtol=1e-4
            )
        logits = torch.stack([vocabulary_logits(model, row) for row in hidden[-1]])
        torch.testing.assert_close(logits, output.logits[number, :length], atol=5e-5, rtol=1e-4)


def test_blocks_of_gpt2_are_those_of_transformers():
    config = GPT2Config(n_embd=WIDTH, n_head=2, n_layer=2, n_positions=32, vocab_size=VOCABULARY)
    model = GPT2Model(config).eval()
    for block, wanted in zip(model.h, gpt2_layers(2), strict=True):
        block.load_state_dict(wanted.state_dict())
    rows = torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(0))
    model.wpe.weight.data.zero_()
    model.ln_f = nn.Identity()
    expected = model(inputs_embeds=rows).last_hidden_state[0]
    output = through(list(model.h), list(rows[0]), [list(range(row + 1)) for row in range(5)])
    torch.testing.assert_close(torch.stack(output), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("fill", [0, 23])
def test_masked_language_modelling_is_the_loss_of_transformers(fill: int):
    model = small_bert()
    labels = [[t if at in text.hidden else -100 for at, t in enumerate(text.original)] for text in TEXTS]
    expected = model(
        padded([text.inputs for text in TEXTS], fill=fill),
        attention_mask=padded([[1] * len(text.inputs) for text in TEXTS], fill=0),
        labels=padded(labels, fill=-100),
    ).loss
    assert mlm(model, TEXTS)["total"].item() == pytest.approx(expected.item(), abs=1e-5)


def batched_simlm(model: BertForMaskedLM, decoder: list[nn.Module], *, fill: int) -> Tensor:
    """SimLM with transformers' own modules, on a padded batch."""
    attention = padded([[1] * len(text.inputs) for text, _ in REPLACED], fill=0)
    labels = padded([[-100, *text.original[1:-1], -100] for text, _ in REPLACED], fill=-100)
    mask = (1.0 - attention[:, None, None, :]) * torch.finfo(torch.float32).min
    above = model.bert(padded([text.inputs for text, _ in REPLACED], fill=fill), attention).last_hidden_state
    rows = model.bert.embeddings(padded([text.inputs for _, text in REPLACED], fill=fill))
    rows = torch.cat([above[:, :1], rows[:, 1:]], dim=1)
    for layer in decoder:
        rows = layer(rows, mask)
    losses = [nn.functional.cross_entropy(model.cls(side).flatten(0, 1), labels.flatten()) for side in (above, rows)]
    return losses[0] + losses[1]


@pytest.mark.parametrize("fill", [0, 23])
def test_simlm_and_its_gradients_are_those_of_a_padded_batch(fill: int):
    found: list[list[Tensor]] = []
    totals = []
    for batched in (False, True):
        model, decoder = small_bert(), fresh_layers(2)
        total = batched_simlm(model, decoder, fill=fill) if batched else simlm(model, decoder, REPLACED)["total"]
        total.backward()
        totals.append(total.item())
        weights = [*model.parameters(), *(weight for layer in decoder for weight in layer.parameters())]
        found.append([weight.grad for weight in weights])
    assert totals[0] == pytest.approx(totals[1], abs=1e-5)
    for own, batch in zip(*found, strict=True):
        torch.testing.assert_close(own, batch, atol=2e-5, rtol=1e-3)


# --- the frame of section 5.0 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_decoder_alone_trains_every_layer_of_the_encoder(name: str):
    run, term = OBJECTIVES[name]
    model = small_bert()
    run(model, False)[term].backward()
    assert [reached(layer) for layer in model.bert.encoder.layer] == [True] * 4


@pytest.mark.parametrize("name", OBJECTIVES)
def test_without_the_way_through_the_vector_the_decoder_trains_what_it_shares(name: str):
    run, term = OBJECTIVES[name]
    model = small_bert()
    run(model, True)[term].backward()
    # Condenser reads hidden[2], so layers 1 and 2 are still reached; everybody else goes through the vector alone
    expected = [True, True, False, False] if "condenser" in name else [False] * 4
    assert [reached(layer) for layer in model.bert.encoder.layer] == expected
    shares_embeddings = not name.startswith("diffcse")
    shares_head = shares_embeddings and name != "simlm-rtd"
    # the word embeddings are also the last matrix of the head, so the embeddings are told by their positions
    assert reached(model.bert.embeddings.position_embeddings) == shares_embeddings
    assert reached(model.cls.predictions.transform) == shares_head


@pytest.mark.parametrize("name", ONCE)
def test_cutting_the_way_changes_no_value(name: str):
    run, _ = OBJECTIVES[name]
    model = small_bert()
    assert plain(run(model, True)) == close(run(model, False))


def test_the_generator_of_simlm_has_no_gradient():
    model, generator = small_bert(), small_bert(seed=5)
    draw = torch.Generator().manual_seed(0)
    examples = [
        (replaced(generator, seen, draw=draw), replaced(generator, rebuilt, draw=draw)) for seen, rebuilt in MASKED
    ]
    simlm(model, LAYERS, examples)["total"].backward()
    assert not reached(generator)
    for (seen, _), (text, _) in zip(MASKED, examples, strict=True):
        kept = [at for at in range(len(seen.original)) if at not in seen.hidden]
        assert [text.inputs[at] for at in kept] == [seen.original[at] for at in kept]
        assert [text.inputs[at] for at in seen.hidden] != [seen.inputs[at] for at in seen.hidden]


def test_a_generator_that_learns_with_simlm_learns_from_its_own_loss_alone():
    model, generator, alone = small_bert(), small_bert(seed=5), small_bert(seed=5)
    terms = simlm_joint(model, LAYERS, REPLACED, generator=generator, masked=TEXTS)
    terms["total"].backward()
    (0.2 * mlm(alone, TEXTS)["mlm"]).backward()
    for joint, own in zip(generator.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(joint.grad, own.grad)
    apart = simlm(model, LAYERS, REPLACED)["total"] + 0.2 * terms["generator"]
    assert terms["total"].item() == pytest.approx(apart.item(), abs=1e-5)


def test_the_generator_of_diffcse_has_no_gradient_and_keeps_the_first_token():
    generator = small_bert(seed=5)
    everywhere = generated(generator, TEXTS[1])
    inside = generated(generator, TEXTS[1], scope="masked")
    assert everywhere[0] == inside[0] == CLS
    for at, token in enumerate(TEXTS[1].original):
        assert inside[at] == (everywhere[at] if at in TEXTS[1].hidden else token)
    assert inside != everywhere  # a random generator is wrong about words that it sees, too
    original = TEXTS[1].original
    edited = [Edited(everywhere, difference_labels(original, everywhere), 1, view) for view in (0, 1)]
    sides(edited=edited)(small_bert(), False)["total"].backward()
    assert not reached(generator)


@pytest.mark.parametrize("reduction", ["mean_all", "mean_valid", "sum"])
def test_padding_changes_the_mean_over_all_positions_and_nothing_else(reduction: str):
    model = small_bert()
    short, long = (plain(sides(reduction=reduction, length=size)(model, False)) for size in (8, 12))
    assert short["contrast"] == long["contrast"]
    assert (short["difference"] == long["difference"]) is (reduction != "mean_all")


def test_the_three_reductions_are_of_the_same_losses():
    # lengths 5, 8, 6, twice over: 38 real positions; padded to 8 there are 48
    model = small_bert()
    total, valid, both = (
        sides(reduction=reduction)(model, False)["difference"].item() for reduction in ("sum", "mean_valid", "mean_all")
    )
    assert total == pytest.approx(38 * valid, rel=1e-5)
    assert both > total / 48  # the ten pads cost something, too
    longest = [text for text in edits(SENTENCES) if len(text.inputs) == 8]
    found = [
        sides(edited=longest, reduction=way)(model, False)["difference"].item() for way in ("mean_all", "mean_valid")
    ]
    assert found[0] == found[1]  # no pads


def shuffled_terms(name: str, model: BertForMaskedLM) -> Terms:
    """The terms of the three examples in another order."""
    order = [2, 0, 1]

    def mixed(items: list) -> list:
        return [items[number] for number in order]

    if name == "retromae":
        return retromae(model, LAYERS[0], mixed(TEXTS), mixed(SEEN))
    calls: dict[str, Callable[[], Terms]] = {
        "condenser": lambda: condenser(model, LAYERS, mixed(TEXTS), skip=2),
        "cocondenser": lambda: cocondenser(model, LAYERS, mixed(PAIRS), skip=2),
        "cotmae": lambda: cotmae(model, LAYERS, mixed(PAIRS)),
        "cotmae-causal": lambda: cotmae_causal(model, LAYERS[:1], mixed(PAIRS)),
        "simlm": lambda: simlm(model, last_layers(model, 2), mixed(REPLACED)),
        "simlm-mlm": lambda: simlm_mlm(model, last_layers(model, 2), mixed(MASKED)),
        "simlm-ae": lambda: simlm_ae(model, LAYERS, mixed(TEXTS), mask=MASK),
        "master-npr": lambda: master(model, DECODERS, mixed(TASKS)),
    }
    return calls[name]()


@pytest.mark.parametrize(
    "name",
    ["condenser", "cocondenser", "cotmae", "cotmae-causal", "simlm", "simlm-mlm", "simlm-ae", "retromae", "master-npr"],
)
def test_the_order_of_the_batch_changes_no_loss(name: str):
    model = small_bert()
    assert plain(shuffled_terms(name, model)) == close(OBJECTIVES[name][0](model, False))


@pytest.mark.parametrize("name", ONCE)
def test_the_total_is_the_sum_of_the_terms(name: str):
    terms = plain(OBJECTIVES[name][0](small_bert(), False))
    total = terms.pop("total")
    assert total == pytest.approx(sum(terms.values()), abs=1e-4)
    assert len(set(terms.values())) == len(terms)
    assert min(terms.values()) > 0


# --- Condenser -----------------------------------------------------------------------------------------------------


def test_a_head_that_does_nothing_on_the_last_layer_is_the_encoder():
    terms = condenser(small_bert(), [nn.Identity(), nn.Identity()], TEXTS, skip=4)
    assert terms["head"].item() == terms["mlm"].item()


def test_the_head_reaches_the_last_layer_in_row_0_only():
    model = small_bert()
    hidden = hidden_states(model.bert, TEXTS[1].inputs, [])
    for row in hidden[-1]:
        row.retain_grad()
    rows = head_rows(LAYERS, hidden, skip=2)
    token_loss(vocabulary_logits(model, rows[2]), 9).backward()
    gradients = [row.grad for row in hidden[-1]]
    assert gradients[0].abs().sum() > 0
    assert gradients[1:] == [None] * (len(hidden[-1]) - 1)


def test_corom_has_no_head():
    terms = cocondenser(small_bert(), None, PAIRS)
    assert list(terms) == ["mlm", "contrast", "total"]
    with_head = cocondenser(small_bert(), LAYERS, PAIRS, skip=2)
    assert plain({name: terms[name] for name in ("mlm", "contrast")}) == close(
        {name: with_head[name] for name in ("mlm", "contrast")}
    )


def test_the_contrastive_term_is_of_vectors_before_any_projection():
    model = small_bert()
    vectors = [hidden_states(model.bert, text.inputs, [])[-1][0] for pair in PAIRS for text in pair]
    scores = torch.stack(vectors) @ torch.stack(vectors).T
    scores.fill_diagonal_(-torch.inf)
    expected = nn.functional.cross_entropy(scores, torch.tensor([1, 0, 3, 2, 5, 4]))
    found = cocondenser(model, LAYERS, PAIRS, skip=2)["contrast"]
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)


# --- CoT-MAE -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [cotmae, cotmae_causal])
def test_another_neighbour_changes_the_context_term_alone(run: Callable[..., Terms]):
    model = small_bert()
    before = plain(run(model, LAYERS[:1], PAIRS))
    after = plain(run(model, LAYERS[:1], [(PAIRS[0][0], covered(77, 5)), *PAIRS[1:]]))
    assert before["mlm"] == after["mlm"]
    assert before["context"] != after["context"]


@pytest.mark.parametrize("run", [cotmae, cotmae_causal])
def test_exchanged_vectors_change_the_context_term_alone(run: Callable[..., Terms]):
    model = small_bert()
    before = plain(run(model, LAYERS[:1], PAIRS))
    (first, mine), (second, yours), last = PAIRS
    after = plain(run(model, LAYERS[:1], [(second, mine), (first, yours), last]))
    assert after["mlm"] == pytest.approx(before["mlm"], abs=1e-5)
    assert abs(after["context"] - before["context"]) > 1e-3


@pytest.mark.parametrize("layers", [fresh_layers(1), gpt2_layers(1)], ids=["bert", "gpt2"])
def test_a_window_of_three_ends_after_three_tokens(layers: list[nn.Module]):
    # position 2 is seen from positions 2, 3 and 4
    model = small_bert()
    cls = hidden_states(model.bert, TEXTS[0].inputs, [])[-1][0]
    logits = []
    for token in (11, 12):
        tokens = words(3, 8)
        tokens[2] = token
        text = Text(tokens, tokens, [], [0, 9])
        logits.append(causal_logits(model, layers, cls, text, width=3, norm=None))
    assert len(logits[0]) == 9  # [CLS] and eight words predict eight words and [SEP]
    changes = [not torch.equal(one, other) for one, other in zip(*logits, strict=True)]
    assert changes == [False, False, True, True, True, False, False, False, False]


def test_the_causal_decoder_predicts_every_next_token():
    # a second text of three words has four predictions: three words and [SEP]
    model = small_bert()
    cls = hidden_states(model.bert, TEXTS[0].inputs, [])[-1][0]
    tokens = words(3, 3)
    text = Text(tokens, tokens, [], [0, 4])
    logits = causal_logits(model, LAYERS[:1], cls, text, width=3, norm=None)
    losses = [token_loss(row, token) for row, token in zip(logits, tokens[1:], strict=True)]
    terms = cotmae_causal(model, LAYERS[:1], [(TEXTS[0], text)])
    assert len(losses) == 4
    assert terms["context"].item() == pytest.approx(sum(losses).item() / 4, abs=1e-5)


def test_the_norm_behind_the_causal_layers_is_applied():
    norm = nn.LayerNorm(WIDTH)
    nn.init.constant_(norm.weight, 0.5)
    with_norm = cotmae_causal(small_bert(), gpt2_layers(1), PAIRS, norm=norm)["context"]
    assert abs(with_norm.item() - cotmae_causal(small_bert(), gpt2_layers(1), PAIRS)["context"].item()) > 1e-3


# --- SimLM ---------------------------------------------------------------------------------------------------------


def test_simlm_counts_every_word_and_its_masked_variant_the_hidden_ones():
    model, decoder = small_bert(), fresh_layers(2)
    text = MASKED[1][0]
    last = hidden_states(model.bert, text.inputs, [])[-1]
    losses = {at: token_loss(vocabulary_logits(model, last[at]), text.original[at]) for at in range(1, 7)}
    everywhere = simlm(model, decoder, [(text, text)])["encoder"]
    hidden = simlm_mlm(model, decoder, [(text, text)])["encoder"]
    assert everywhere.item() == pytest.approx(sum(losses.values()).item() / 6, abs=1e-5)
    assert hidden.item() == pytest.approx(sum(losses[at] for at in text.hidden).item() / len(text.hidden), abs=1e-5)
    assert len(text.hidden) == 2


def test_the_autoencoder_sees_the_text_in_the_encoder_only():
    # what the decoder is shown has no words, so it does not matter what `inputs` held
    model = small_bert()
    bare = [Text(text.original, text.original, [], text.special) for text in TEXTS]
    terms = simlm_ae(model, LAYERS, bare, mask=MASK)
    assert list(terms) == ["decoder", "total"]
    assert terms["total"].item() == simlm_ae(model, LAYERS, TEXTS, mask=MASK)["total"].item()


def test_the_two_heads_of_replaced_token_detection_are_two():
    model, decoder = small_bert(), fresh_layers(2)
    one, two = binary_head(seed=1), binary_head(seed=2)
    terms = simlm_rtd(model, decoder, REPLACED, encoder_head=one, decoder_head=two)
    terms["encoder"].backward()
    assert (reached(one), reached(two)) == (True, False)
    other_way = simlm_rtd(model, decoder, REPLACED, encoder_head=two, decoder_head=one)
    assert plain(terms) != close(other_way)


def test_replaced_tokens_are_detected_as_such_and_kept_ones_as_kept():
    # words 1 and 3 of four differ, word 2 was drawn again: labels 1 0 1 0, as binary cross-entropy has it
    model, head = small_bert(), binary_head(seed=1)
    text = Text([CLS, 7, 8, 9, 10, SEP], [CLS, 17, 8, 19, 10, SEP], [1, 2, 3], [0, 5])
    last = hidden_states(model.bert, text.inputs, [])[-1]
    logits = torch.cat([head(row) for row in last[1:5]])
    expected = nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    terms = simlm_rtd(model, LAYERS, [(text, text)], encoder_head=head, decoder_head=head)
    assert terms["encoder"].item() == pytest.approx(expected.item(), abs=1e-5)


# --- RetroMAE ------------------------------------------------------------------------------------------------------


def test_a_row_learns_nothing_of_what_it_does_not_see():
    # row 3 sees 0 and 2; another word at 1 changes the rows that see 1, not the loss of row 3
    model = small_bert()
    original = words(3, 3)
    encoder = Text(words(4, 3), words(4, 3), [], [0, 4])
    seen = [[0], [0, 2], [0, 1], [0, 2], [0]]
    results = []
    for token in (11, 12):
        original[1] = token
        text = Text(list(original), encoder.inputs, [], [0, 2, 1, 4])  # only row 3 is predicted
        results.append(retromae(model, LAYERS[0], [text], [seen])["decoder"].item())
        text = Text(list(original), encoder.inputs, [], [0, 1, 3, 4])  # only row 2 is predicted
        results.append(retromae(model, LAYERS[0], [text], [seen])["decoder"].item())
    assert results[0] == results[2]
    assert results[1] != results[3]


def test_retromae_reads_the_unmasked_text_in_its_decoder():
    # with everything visible, two streams of the same vectors are one ordinary layer
    model = small_bert()
    text = TEXTS[1]
    last = hidden_states(model.bert, text.inputs, [])[-1]
    shown = Text(text.original, text.original, [], text.special)
    context = behind(last[0], model.bert.embeddings, shown)
    visible = [[at for at in range(8) if at != row] or [0] for row in range(8)]
    rows = [last[0] + model.bert.embeddings.position_embeddings.weight[row] for row in range(8)]
    mask = torch.full((8, 8), torch.finfo(torch.float32).min)
    for row in range(8):
        mask[row, visible[row]] = 0.0
    attention = LAYERS[0].attention
    split = [
        torch.stack([part(row) for row in side]).view(8, 2, WIDTH // 2).transpose(0, 1)
        for part, side in ((attention.self.query, rows), (attention.self.key, context), (attention.self.value, context))
    ]
    mixed = nn.functional.scaled_dot_product_attention(*split, attn_mask=mask).transpose(0, 1).reshape(8, WIDTH)
    output = LAYERS[0].feed_forward_chunk(attention.output(mixed, torch.stack(rows)))
    expected = [token_loss(vocabulary_logits(model, output[at]), text.original[at]) for at in range(1, 7)]
    found = retromae(model, LAYERS[0], [text], [visible])["decoder"]
    wanted = token_mean([expected])
    assert found.item() == pytest.approx(wanted.item(), abs=1e-5)
    weights = [*model.bert.encoder.parameters(), *model.bert.embeddings.parameters(), *LAYERS[0].parameters()]
    gradients = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in (found, wanted)]
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, atol=2e-5, rtol=1e-3)


def test_a_row_that_sees_itself_is_refused():
    with pytest.raises(ValueError, match="row 1"):
        retromae(small_bert(), LAYERS[0], [TEXTS[0]], [[[0, 1]] * 5])


# --- MASTER --------------------------------------------------------------------------------------------------------


def test_a_passage_without_successor_leaves_the_mean_of_that_decoder():
    model = small_bert()
    all_three, two = master(model, DECODERS, TASKS), master(model, DECODERS, [TASKS[0], TASKS[2]])
    assert all_three["npr"].item() == pytest.approx(two["npr"].item(), abs=1e-5)
    assert all_three["mlm_npr"].item() == pytest.approx(two["mlm_npr"].item(), abs=1e-5)
    assert all_three["mkp"].item() != pytest.approx(two["mkp"].item(), abs=1e-4)


def test_every_decoder_reads_the_vector_of_its_own_pass():
    # another mask in one pass moves its masked LM and the decoders behind it
    model = small_bert()
    before = plain(master(model, DECODERS, [TASKS[0]]))
    moved = {}
    for name in ("mlm", "mlm_cmp", "mlm_npr"):
        # masked at other places: the encoder's vector is another one
        passes = TASKS[0].passes | {name: covered(0, SIZES[0], rate=1.0)}
        after = plain(master(model, DECODERS, [Tasks(passes, TASKS[0].targets)]))
        moved[name] = {term for term in before if abs(before[term] - after[term]) > 1e-6} - {"total"}
    assert moved == {"mlm": {"mlm", "mkp", "dor", "gor"}, "mlm_cmp": {"mlm_cmp", "cmp"}, "mlm_npr": {"mlm_npr", "npr"}}


def test_one_pass_gives_every_decoder_its_vector():
    only = [Tasks({"mlm": task.passes["mlm"]}, task.targets) for task in TASKS]
    terms = master(small_bert(), DECODERS, only)
    assert list(terms) == ["mlm", "mkp", "cmp", "npr", "dor", "gor", "total"]
    dropped = master(small_bert(), {name: DECODERS[name] for name in ("npr", "dor", "gor")}, only)
    assert list(dropped) == ["mlm", "npr", "dor", "gor", "total"]
    assert dropped["dor"].item() == terms["dor"].item()


# --- SimCSE and DiffCSE --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bn", "tanh"])
@pytest.mark.parametrize("running", [False, True])
def test_the_projector_is_that_of_torch(kind: str, running: bool):
    modules = projector_modules(kind=kind)
    rows = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(3))
    found = torch.stack(projected(modules, list(rows), running=running))
    torch.testing.assert_close(found, nn.Sequential(*modules).train(not running)(rows), atol=1e-5, rtol=1e-4)


def test_batch_statistics_are_of_both_views_together():
    model, modules = small_bert(), projector_modules()
    second = [words(70 + number, size) for number, size in enumerate(SIZES)]
    raw = torch.stack([hidden_states(model.bert, ids, [])[-1][0] for ids in (*SENTENCES, *second)])
    vectors = nn.functional.normalize(nn.Sequential(*modules).train()(raw))
    expected = nn.functional.cross_entropy(vectors[:3] @ vectors[3:].T / 0.05, torch.arange(3))
    assert simcse(model, modules, (SENTENCES, second))["total"].item() == pytest.approx(expected.item(), abs=1e-4)


def test_simcse_is_diffcse_without_its_second_term():
    model = small_bert()
    second = [words(70 + number, size) for number, size in enumerate(SIZES)]
    own = simcse(model, projector_modules(), (SENTENCES, second))["contrast"]
    terms = sides(weight=0.0)(model, False)
    assert terms["total"].item() == pytest.approx(own.item(), abs=1e-5)


def test_the_weight_multiplies_the_difference():
    terms = plain(sides(weight=0.005)(small_bert(), False))
    assert terms["total"] == pytest.approx(terms["contrast"] + 0.005 * terms["difference"], abs=1e-5)
    alone = plain(sides(contrastive=False)(small_bert(), False))
    assert list(alone) == ["difference", "total"]
    assert alone["difference"] == terms["difference"]


def test_the_discriminator_is_told_the_vector_of_the_right_sentence_and_view():
    # view 1 of sentence 2 is another sentence: only what is told its vector sees it (tanh: no batch statistics)
    model = small_bert()
    for told, moves in (((2, 1), True), ((2, 0), False), ((1, 1), False)):
        inputs = words(50, 4)
        edited = [Edited(inputs, [0] * 6, *told)]
        results = []
        for changed_view in (words(91, 4), words(92, 4)):
            views = (SENTENCES, [*SENTENCES[:2], changed_view])
            terms = diffcse(
                model,
                projector_modules(kind="tanh"),
                views,
                discriminator=small_discriminator(),
                head=linear_head(WIDTH, 2),
                edited=edited,
            )
            results.append(terms["difference"].item())
        assert (results[0] != results[1]) is moves


def test_the_discriminator_is_that_of_transformers_with_the_vector_in_place_of_the_first_embedding():
    model, discriminator, head = small_bert(), small_discriminator(), linear_head(WIDTH, 2)
    modules, edited = projector_modules(kind="tanh"), edits(SENTENCES)
    raw = torch.stack([hidden_states(model.bert, ids, [])[-1][0] for ids in SENTENCES])
    vectors = nn.Sequential(*modules)(raw)
    rows = discriminator.embeddings(padded([text.inputs for text in edited], fill=0))
    rows = torch.cat([vectors[[text.sentence for text in edited]][:, None], rows[:, 1:]], dim=1)
    attention = padded([[1] * len(text.inputs) for text in edited], fill=0)
    mask = (1.0 - attention[:, None, None, :]) * torch.finfo(torch.float32).min
    for layer in discriminator.encoder.layer:
        rows = layer(rows, mask)
    labels = padded([text.targets for text in edited], fill=0)
    losses = nn.functional.cross_entropy(head(rows).flatten(0, 1), labels.flatten(), reduction="none")
    real = attention.flatten() == 1
    expected = {"mean_all": losses.mean(), "mean_valid": losses[real].mean(), "sum": losses[real].sum()}
    for reduction, value in expected.items():
        found = diffcse(
            model,
            modules,
            (SENTENCES, SENTENCES),
            discriminator=discriminator,
            head=head,
            edited=edited,
            reduction=reduction,
        )
        assert found["difference"].item() == pytest.approx(value.item(), rel=1e-4)


def test_a_changed_sentence_as_a_positive_is_a_second_term_and_as_negatives_more_columns():
    model, modules = small_bert(), projector_modules(kind="tanh")  # no batch statistics: vectors stay as they are
    second = [words(70 + number, size) for number, size in enumerate(SIZES)]
    third = [words(80 + number, size) for number, size in enumerate(SIZES)]
    given = {"discriminator": small_discriminator(), "head": linear_head(WIDTH, 2), "edited": edits(SENTENCES)}
    first_term = simcse(model, modules, (SENTENCES, second))["contrast"].item()
    second_term = simcse(model, modules, (SENTENCES, third))["contrast"].item()
    found = diffcse(model, modules, (SENTENCES, second), augmented=third, **given)["contrast"].item()
    assert found == pytest.approx((first_term + second_term) / 2, abs=1e-5)

    vectors = [
        nn.functional.normalize(
            nn.Sequential(*modules)(torch.stack([hidden_states(model.bert, ids, [])[-1][0] for ids in view]))
        )
        for view in (SENTENCES, second, third)
    ]
    scores = torch.cat([vectors[0] @ vectors[1].T, vectors[0] @ vectors[2].T], dim=1) / 0.05
    expected = nn.functional.cross_entropy(scores, torch.arange(3)).item()
    found = diffcse(model, modules, (SENTENCES, second), augmented=third, augmented_as="negative", **given)
    assert found["contrast"].item() == pytest.approx(expected, abs=1e-4)


def test_a_copy_head_goes_with_corrective_lm():
    with pytest.raises(ValueError, match="copy head"):
        sides(task="clm", head=linear_head(WIDTH, VOCABULARY))(small_bert(), False)
