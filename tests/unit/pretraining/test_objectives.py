"""Known answers of token targets and contrastive terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drtk.pretraining.composition import ContrastiveObjective, TokenObjective
from drtk.pretraining.dataset import SlotBatch
from drtk.pretraining.objectives import CorrectiveLM, EditDetection, TokenPrediction, contrastive_loss


def make_slot(
    clean: Sequence[int],
    *,
    given: Sequence[int] = (),
    hidden: Sequence[int] = (),
    edited: Sequence[int] = (),
    pads: int = 0,
) -> SlotBatch:
    """Return one text with a special token on both sides of its content, then padding."""
    size = len(clean) + pads
    padding = [0] * pads
    return SlotBatch(
        original_ids=torch.tensor([[*clean, *padding]]),
        input_ids=torch.tensor([[*(given or clean), *padding]]),
        attention=torch.tensor([[1] * len(clean) + padding]),
        content=torch.tensor([[0 < at < len(clean) - 1 for at in range(size)]]),
        masked=torch.tensor([[at in hidden for at in range(size)]]),
        present=torch.tensor([True]),
        edited=torch.tensor([[*edited, *padding]]) if edited else None,
    )


class RecordedHead(nn.Module):
    """A head whose scores are the states: a state is the logarithms of the probabilities wanted."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.weight, self.bias = torch.eye(vocabulary), None

    def features(self, hidden: Tensor) -> Tensor:
        return hidden

    logits = features


def make_target(kind: Any, name: str, *, size: int = 3, predicts_next: bool = False, **options: Any) -> Any:
    """Make a target of an objective whose reader has `Said` for a head and states of `size`."""
    parts: Any = SimpleNamespace(
        get_head=lambda reader: RecordedHead(size),
        readers={"r": SimpleNamespace(predicts_next=predicts_next)},
        adapter=SimpleNamespace(hidden_size=size, config=SimpleNamespace()),
    )
    return kind(TokenObjective(reader="r", slot=("s",), target=name, **options), parts)


def make_two_class_target(reduction: Any = "mean") -> Any:
    """Make an `Edited` whose scores are the state."""
    made = make_target(EditDetection, "edited", size=2, classes=2, reduction=reduction)
    with torch.no_grad():
        made.head.weight.copy_(torch.eye(2))
        made.head.bias.zero_()
    return made


def make_states(*shares: float, of: int = 3) -> Tensor:
    """Return states (1, tokens, of) under which token 0 has a probability each, and the others share what is left."""
    rows = torch.tensor([[(1 - share) / (of - 1)] * of for share in shares])
    rows[:, 0] = torch.tensor(shares)
    return rows.log().unsqueeze(0)


def compute_mean_loss(made: Any, rows: Tensor, text: SlotBatch) -> tuple[int, float]:
    """Return the number of labels and the mean loss."""
    count = int(made.select_positions(text).sum())
    return count, made.sum_losses(rows, text, text.input_ids).item() / count


def test_labeled_positions_of_targets_all_and_masked() -> None:
    # Original tokens have .7 .2 .5: mean of -log is (.356675 + 1.609438 + .693147) / 3 = .886420.
    text, rows = make_slot([1, 0, 0, 0, 1], hidden=[2]), make_states(0.01, 0.7, 0.2, 0.5, 0.01)
    assert compute_mean_loss(make_target(TokenPrediction, "all"), rows, text) == (3, pytest.approx(0.886420, abs=2e-6))
    assert compute_mean_loss(make_target(TokenPrediction, "masked"), rows, text) == (
        1,
        pytest.approx(1.609438, abs=2e-6),
    )


def test_causal_labels_are_next_tokens_and_last_special_token() -> None:
    text, made = (
        make_slot([1, 2, 0, 1], pads=2),
        make_target(TokenPrediction, "all", predicts_next=True),
    )  # [CLS] a b [SEP]
    assert made.select_positions(text).tolist() == [[True, True, True, False, False, False]]
    rows = torch.full((1, 6, 3), 0.25).log()
    for place, following in enumerate((2, 0, 1)):
        rows[0, place, following] = torch.tensor(0.5).log()
    assert compute_mean_loss(made, rows, text) == (3, pytest.approx(0.693147, abs=5e-6))


def test_mean_all_labels_special_tokens_and_padding_as_original() -> None:
    # "original" has .9 .8 .3 .6, the third was replaced: .105361 + .223144 + .356675 + .510826 = 1.196005; a quarter is .299001.
    text = make_slot([5, 5, 5, 5], given=[5, 5, 6, 5], pads=2)
    rows = make_states(0.9, 0.8, 0.3, 0.6, 0.95, 0.95, of=2)
    assert compute_mean_loss(make_two_class_target(), rows, text) == (4, pytest.approx(0.299001, abs=2e-6))
    # and two pads at .95: (1.196005 + 2 x .051293) / 6 = .216432
    assert compute_mean_loss(make_two_class_target("mean_all"), rows, text) == (6, pytest.approx(0.216432, abs=2e-6))


def test_proposed_original_token_is_labeled_unchanged() -> None:
    text = make_slot([1, 5, 6, 1], given=[1, 5, 7, 1], hidden=[1, 2])
    assert make_two_class_target().build_labels(text, text.input_ids).tolist() == [[0, 0, 1, 0]]
    # Of edits sampled by the example, row 0 was replaced (-1 throughout): compare. Row 1 had tokens inserted: as noted.
    both = SlotBatch(
        original_ids=torch.tensor([[1, 5, 6, 1], [1, 5, 9, 1]]),
        input_ids=torch.tensor([[1, 5, 7, 1], [1, 5, 8, 1]]),
        attention=torch.ones(2, 4, dtype=torch.long),
        content=text.content.repeat(2, 1),
        masked=text.masked.repeat(2, 1),
        present=torch.tensor([True, True]),
        edited=torch.tensor([[-1, -1, -1, -1], [0, 1, 0, 0]]),
    )
    assert make_two_class_target().build_labels(both, both.input_ids).tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]


def test_absent_text_has_no_labeled_position() -> None:
    text = make_slot([1, 5, 1], hidden=[1], edited=[0, 1, 0])
    absent = SlotBatch(**vars(text) | {"present": torch.tensor([False])})
    tokens = [
        make_target(TokenPrediction, "all"),
        make_target(TokenPrediction, "masked"),
        make_target(TokenPrediction, "all", predicts_next=True),
    ]
    for made in [
        *tokens,
        make_two_class_target("mean_all"),
        make_two_class_target(),
        make_target(CorrectiveLM, "corrected"),
    ]:
        assert made.select_positions(text).any()
        assert not made.select_positions(absent).any()


LEFT, RIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.6, 0.8]])
UNEVEN = torch.tensor([[0.8, 0.6], [0.28, 0.96]])
COCONDENSER = {"candidates": "all", "symmetric": True}
COSINE = {"similarity": "cosine"}


def compute_loss(options: dict[str, Any], *vectors: Tensor, present: Sequence[bool] = ()) -> float:
    """Return the contrast of slots a, b and c; present: rows that have slot b"""
    rows = dict(zip("abc", vectors, strict=False))
    there = {name: torch.ones(len(each), dtype=torch.bool) for name, each in rows.items()}
    there |= {"b": torch.tensor(present)} if present else {}
    return contrastive_loss(ContrastiveObjective("a", "b", **options), rows, there).item()


@pytest.mark.parametrize(
    ("options", "vectors", "expected"),
    [
        # Rows .818925 1.096023 .818925 1.096023: the first sees .8, 0 and .6: log(1 + e^-.8 + e^-.2) = .818925.
        (COCONDENSER, (LEFT, RIGHT), 0.957474),
        ({"candidates": "all"}, (LEFT, RIGHT), 0.818925),  # of the first texts: rows 0 and 2
        # Rows of [[.8, .6], [.6, .8]]: log(1 + e^-.2) = .598139 each.
        ({}, (LEFT, RIGHT), 0.598139),
        # [[.8, .28], [.6, .96]]: log(1 + e^-.52) = .466573, log(1 + e^-.36) = .529260; lengths do not count for cosines
        (COSINE, (3 * LEFT, UNEVEN), 0.497917),
        # the other direction: log(1 + e^-.2) = .598139, log(1 + e^-.68) = .409868; mean of .497917 and .504003
        ({"symmetric": True}, (LEFT, UNEVEN), 0.500960),
        (COCONDENSER, (torch.ones(2048, 2),) * 2, 8.317522),  # ln 4095: all texts but oneself
        # Row 0 sees .8, .6 and the extras 0 and 1; row 1 sees .8, .6, 1 and 0: log(1 + e^-.2 + e^-.8 + e^.2) each.
        (
            {"extra_negatives": ("c",)},
            (LEFT, RIGHT, LEFT.flip(0)),
            math.log(1 + math.exp(-0.2) + math.exp(-0.8) + math.exp(0.2)),
        ),
        # Against itself a row sees 1 and 0: log(1 + e^-1) = .313262; mean of both positives.
        ({"extra_positives": ("c",)}, (LEFT, RIGHT, LEFT), (0.598139 + 0.313262) / 2),
    ],
)
def test_contrastive_loss_has_known_values(
    options: dict[str, Any], vectors: tuple[Tensor, ...], expected: float
) -> None:
    assert compute_loss(options, *vectors) == pytest.approx(expected, abs=2e-6, rel=1e-6)


@pytest.mark.parametrize("options", [{}, COCONDENSER, {"symmetric": True}])
def test_incomplete_pair_is_neither_query_nor_candidate(options: dict[str, Any]) -> None:
    left, right = (torch.cat([rows, torch.tensor([[5.0, 5.0]])]) for rows in (LEFT, RIGHT))
    found = compute_loss(options, left, right, present=[True, True, False])
    assert found == pytest.approx(compute_loss(options, LEFT, RIGHT), abs=2e-6)


def test_absent_extra_negatives_are_not_candidates() -> None:
    options, rows = {"extra_negatives": ("c",)}, {"a": LEFT, "b": RIGHT, "c": torch.full((2, 2), 5.0)}
    everybody = torch.tensor([True, True])
    found = contrastive_loss(
        ContrastiveObjective("a", "b", **options), rows, {"a": everybody, "b": everybody, "c": ~everybody}
    )
    assert found.item() == pytest.approx(0.598139, abs=2e-6)


def test_contrastive_loss_without_pairs_is_0_with_gradient() -> None:
    rows, absent = LEFT.clone().requires_grad_(), torch.tensor([False, False])
    found = contrastive_loss(ContrastiveObjective("a", "b"), {"a": rows, "b": RIGHT}, {"a": absent, "b": absent})
    found.backward()
    assert found.item() == 0.0
    assert rows.grad is not None
    assert not rows.grad.any()
