"""A text as lists: original tokens, model input, and masked and special positions."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """A text with special tokens, without padding.

    original: token ids, including [CLS] and [SEP]
    inputs: token ids of the model input: masked, corrupted or replaced; as long as `original`
    hidden: positions selected for masking, including those that keep their original token
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
        """Return the positions of all tokens except special tokens."""
        return [position for position in range(len(self.original)) if position not in self.special]
