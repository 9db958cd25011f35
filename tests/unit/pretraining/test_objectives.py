"""Known answers of token targets and contrastive terms (methods: sections 5.3, 5.4, 5.6, 5.10, 11)."""

from __future__ import annotations

import math
from math import log
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from drtk.pretraining.batch import SlotBatch
from drtk.pretraining.composition import Contrast
from drtk.pretraining.objectives import Corrected, Edited, NextTokens, Tokens, contrast_loss


def slot(clean: list[int], *, hidden: list[int] = (), edited: list[int] | None = None, pads: int = 0) -> SlotBatch:  # type: ignore[assignment]
    """One text with a special token on both sides of its content, then padding."""
    size = len(clean) + pads
    ids = torch.tensor([clean + [0] * pads])
    content = torch.tensor([[0 < at < len(clean) - 1 for at in range(size)]])
    return SlotBatch(
        clean=ids,
        given=ids,
        attention=torch.tensor([[1] * len(clean) + [0] * pads]),
        content=content,
        hidden=torch.tensor([[at in hidden for at in range(size)]]),
        present=torch.tensor([True]),
        edited=None if edited is None else torch.tensor([edited + [0] * pads]),
    )


class Said(nn.Module):
    """A head whose scores are the states themselves: a state is the logarithms of the probabilities wanted."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.weight, self.bias = torch.eye(vocabulary), None

    def features(self, hidden: Tensor) -> Tensor:
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


def states(*shares: float, token: int = 0, of: int = 3) -> Tensor:
    """(1, tokens, of): states under which `token` has a probability each, and the others share what is left."""
    rows = torch.tensor([[(1 - share) / (of - 1)] * of for share in shares])
    rows[:, token] = torch.tensor(shares)
    return rows.log().unsqueeze(0)


def test_simlm_counts_every_token_that_is_not_special_and_its_masked_variant_the_hidden_ones() -> None:
    # Original tokens have .7 .2 .5: mean of -log is (.356675 + 1.609438 + .693147) / 3 = .886420.
    text, seen = slot([1, 0, 0, 0, 1], hidden=[2]), states(0.01, 0.7, 0.2, 0.5, 0.01)
    everywhere, masked = (Tokens(Said(3), everywhere=each) for each in (True, False))
    assert everywhere.positions(text).sum().item() == 3
    assert everywhere.losses(seen, text, text.given).item() / 3 == pytest.approx(0.886420, abs=2e-6)
    assert masked.losses(seen, text, text.given).item() == pytest.approx(1.609438, abs=2e-6)
    assert masked.positions(text).sum().item() == 1


def test_a_causal_reader_predicts_what_comes_next_the_last_special_token_too() -> None:
    text = slot([1, 2, 0, 1], pads=2)  # [CLS] a b [SEP]
    target = NextTokens(Said(3))
    assert target.positions(text).tolist() == [[True, True, True, False, False, False]]
    seen = torch.full((1, 6, 3), 0.25).log()
    for place, following in enumerate((2, 0, 1)):
        seen[0, place, following] = torch.tensor(0.5).log()
    assert target.losses(seen, text, text.given).item() == pytest.approx(3 * 0.693147, abs=1e-5)


def two_class_head(width: int, *, over: Literal["content", "length"]) -> Edited:
    """An `Edited` whose scores are the first two entries of the state."""
    found: Any = Edited(width, classes=2, over=over)
    with torch.no_grad():
        found.head.weight.copy_(torch.eye(2, width))
        found.head.bias.zero_()
    return found


def test_a_sentence_of_four_tokens_to_tell_apart() -> None:
    # "original" has .9 .8 .3 .6, the third was replaced: .105361 + .223144 + .356675 + .510826 = 1.196005; a quarter is .299001.
    text = slot([1, 5, 5, 5, 5, 1], pads=0)
    given = torch.tensor([[1, 5, 5, 6, 5, 1]])
    seen = states(0.5, 0.9, 0.8, 0.3, 0.6, 0.5, of=2)
    target = two_class_head(2, over="content")
    assert target.positions(text).sum().item() == 4
    assert target.losses(seen, text, given).item() == pytest.approx(1.196005, abs=2e-6)


def test_the_released_mean_counts_special_tokens_and_padding_as_original() -> None:
    # The same four at .9 .8 .3 .6 and two pads at .95: (1.196005 + 2 x .051293) / 6 = .216432.
    text = slot([5, 5, 5, 5], pads=2)
    given = torch.tensor([[5, 5, 6, 5, 0, 0]])
    target = two_class_head(2, over="length")
    count = target.positions(text).sum().item()
    found = target.losses(states(0.9, 0.8, 0.3, 0.6, 0.95, 0.95, of=2), text, given).item()
    assert (count, found / count) == (6, pytest.approx(0.216432, abs=2e-6))


def test_one_logit_says_the_same_as_two_that_differ_by_it() -> None:
    text, given = slot([1, 5, 5, 1]), torch.tensor([[1, 5, 6, 1]])
    single: Any = Edited(2, classes=1, over="content")
    single.head = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        single.head.weight.copy_(torch.tensor([[-1.0, 1.0]]))
    seen = states(0.5, 0.9, 0.3, 0.5, of=2)
    double = two_class_head(2, over="content")
    assert single.losses(seen, text, given).item() == pytest.approx(double.losses(seen, text, given).item(), abs=2e-6)


def test_a_token_proposed_as_it_was_is_no_change() -> None:
    text = slot([1, 5, 6, 1], hidden=[1, 2])
    assert Edited(2, classes=2, over="content").labels(text, torch.tensor([[1, 5, 7, 1]])).tolist() == [[0, 0, 1, 0]]


def test_of_edits_drawn_by_the_example_each_has_its_own_labels() -> None:
    # Row 0 was replaced (-1 throughout): labels come from comparing. Row 1 had tokens inserted: labels are as noted.
    inserted = slot([1, 5, 9, 1], edited=[0, 0, 1, 0])
    both = SlotBatch(
        clean=torch.tensor([[1, 5, 6, 1], [1, 5, 9, 1]]),
        given=torch.tensor([[1, 5, 7, 1], [1, 5, 8, 1]]),
        attention=torch.ones(2, 4, dtype=torch.long),
        content=inserted.content.repeat(2, 1),
        hidden=inserted.hidden.repeat(2, 1),
        present=torch.tensor([True, True]),
        edited=torch.tensor([[-1, -1, -1, -1], [0, 0, 1, 0]]),
    )
    assert Edited(2, classes=2, over="content").labels(both, both.given).tolist() == [[0, 0, 1, 0], [0, 0, 1, 0]]


def test_the_copy_gate_adds_its_share_where_the_token_at_hand_is_right() -> None:
    # Gate at c = 1/4, original at .2: right at hand: -log(.25 + .75 x .2) = .916291; replaced: -log(.75 x .2) = 1.897120.
    target: Any = Corrected(Said(3), 3)
    with torch.no_grad():
        target.gate.weight.zero_()
        target.gate.bias.fill_(-log(3))  # its sigmoid is 1/4
    text = slot([1, 0, 0, 1])
    found = target.losses(states(0.2, 0.2, 0.2, 0.2), text, torch.tensor([[1, 0, 2, 1]]))
    assert found.item() == pytest.approx(0.916291 + 1.897120, abs=1e-5)


def test_an_example_without_the_text_has_no_position() -> None:
    text = slot([1, 5, 1], hidden=[1], edited=[0, 1, 0])
    absent = SlotBatch(**vars(text) | {"present": torch.tensor([False])})
    targets = [Tokens(Said(3), everywhere=True), Tokens(Said(3), everywhere=False), NextTokens(Said(3))]
    for target in [*targets, Edited(3, classes=2, over="length"), Corrected(Said(3), 3)]:
        assert target.positions(text).any()  # type: ignore[operator]
        assert not target.positions(absent).any()  # type: ignore[operator]


LEFT, RIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.6, 0.8]])


PAIRS = {"a": LEFT, "b": RIGHT}


COCONDENSER = {"candidates": "all", "symmetric": True}


def loss(wanted: Contrast, vectors: dict[str, Tensor], *, present: dict[str, Tensor] | None = None) -> float:
    everybody = {name: torch.ones(len(rows), dtype=torch.bool) for name, rows in vectors.items()}
    return contrast_loss(wanted, vectors, everybody | (present or {})).item()


def wanted(**changes: object) -> Contrast:
    return Contrast("a", "b", **changes)  # type: ignore[arg-type]


def test_two_pairs_of_cocondenser_find_each_other_among_all_texts() -> None:
    # Rows .818925 1.096023 .818925 1.096023: the first sees .8, 0 and .6, so its loss is log(1 + e^-.8 + e^-.2) = .818925.
    assert math.log(1 + math.exp(-0.8) + math.exp(-0.2)) == pytest.approx(0.818925, abs=2e-6)
    assert loss(wanted(**COCONDENSER), PAIRS) == pytest.approx(0.957474, abs=2e-6)


def test_one_direction_among_the_other_side_is_another_figure() -> None:
    # Rows of [[.8, .6], [.6, .8]]: log(1 + e^-.2) = .598139 each.
    assert loss(wanted(), PAIRS) == pytest.approx(0.598139, abs=2e-6)


def test_both_directions_among_the_other_sides_are_averaged() -> None:
    uneven = {"a": LEFT, "b": torch.tensor([[0.8, 0.6], [0.28, 0.96]])}
    one, other = loss(wanted(), uneven), loss(wanted(), {"a": uneven["b"], "b": uneven["a"]})
    assert one != pytest.approx(other, abs=1e-3)
    assert loss(wanted(symmetric=True), uneven) == pytest.approx((one + other) / 2, abs=2e-6)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.497917), (0.05, 0.000388370)])
def test_two_sentences_of_simcse(temperature: float, expected: float) -> None:
    # Cosines [[.8, .28], [.6, .96]]: log(1 + e^-.52) = .466573 and log(1 + e^-.36) = .529260, mean .497917.
    views = {"a": 3 * LEFT, "b": torch.tensor([[0.8, 0.6], [0.28, 0.96]])}  # lengths do not count
    simcse = wanted(similarity="cosine", temperature=temperature)
    assert loss(simcse, views) == pytest.approx(expected, abs=2e-6)


def test_identical_vectors_cost_the_logarithm_of_the_candidates() -> None:
    # 2,048 pairs: 4,096 texts but oneself, ln 4095; SimCSE with a batch of 64: ln 64.
    same = {"a": torch.ones(2048, 2), "b": torch.ones(2048, 2)}
    assert loss(wanted(**COCONDENSER), same) == pytest.approx(8.317522, abs=1e-5)
    few = {name: rows[:64] for name, rows in same.items()}
    assert loss(wanted(similarity="cosine", temperature=0.05), few) == pytest.approx(4.158883, abs=1e-5)


def test_extra_negatives_are_more_columns() -> None:
    # Row 0 sees .8, .6 and the extras 0 and 1: log(1 + e^-.2 + e^-.8 + e^.2); row 1 sees .8, .6, and 1 and 0: the same.
    with_extras = wanted(extra_negatives=("c",))
    found = loss(with_extras, PAIRS | {"c": torch.tensor([[0.0, 1.0], [1.0, 0.0]])})
    assert found == pytest.approx(math.log(1 + math.exp(-0.2) + math.exp(-0.8) + math.exp(0.2)), abs=2e-6)


def test_an_extra_positive_is_a_second_term_and_the_two_are_averaged() -> None:
    # Against itself a row sees 1 and 0: log(1 + e^-1) = .313262. Mean of .598139 and .313262.
    found = loss(wanted(extra_positives=("c",)), PAIRS | {"c": LEFT})
    assert found == pytest.approx((0.598139 + 0.313262) / 2, abs=2e-6)


@pytest.mark.parametrize("how", [{}, COCONDENSER], ids=["among the other side", "among all"])
def test_a_pair_that_lacks_a_side_neither_asks_nor_is_found(how: dict[str, object]) -> None:
    three = {name: torch.cat([rows, torch.tensor([[5.0, 5.0]])]) for name, rows in PAIRS.items()}
    there = torch.tensor([True, True, False])
    assert loss(wanted(**how), three, present={"b": there}) == pytest.approx(loss(wanted(**how), PAIRS), abs=2e-6)


def test_without_any_pair_there_is_no_loss_but_a_gradient_of_zero() -> None:
    rows = LEFT.clone().requires_grad_()
    absent = torch.tensor([False, False])
    found = contrast_loss(wanted(), {"a": rows, "b": RIGHT}, {"a": absent, "b": absent})
    found.backward()
    assert found.item() == 0.0
    assert rows.grad is not None
    assert not rows.grad.any()
