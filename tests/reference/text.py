"""One text as plain lists: what it was, what the model is shown of it, and which positions matter."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """One text with its specials and without padding.

    original: its word pieces as ids, [CLS] first
    inputs: the ids that are shown to a model: masked, corrupted or replaced; as long as `original`
    hidden: positions chosen by the mask, those among them that kept or drew back their own token included
    special: positions of [CLS] and of every [SEP]
    types: segment of every position; all 0 if empty
    """

    original: list[int]
    inputs: list[int]
    hidden: list[int] = field(default_factory=list)
    special: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.original):
            raise ValueError(f"{len(self.inputs)} inputs for {len(self.original)} word pieces")
        if self.types and len(self.types) != len(self.original):
            raise ValueError(f"{len(self.types)} segments for {len(self.original)} word pieces")
        if set(self.hidden) & set(self.special):
            raise ValueError("a mask chose a special position")

    def content(self) -> list[int]:
        """Every position that is not special."""
        return [position for position in range(len(self.original)) if position not in self.special]


def masked(original: list[int], hidden: list[int], *, special: list[int], mask: int) -> Text:
    """The text with [MASK] at every hidden position."""
    inputs = [mask if position in hidden else token for position, token in enumerate(original)]
    return Text(original, inputs, hidden, special)
