"""What must be known beside the weights to encode a text right; no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from drtk.errors import MismatchError, UsageError

Role = Literal["query", "passage"]


@dataclass(frozen=True)
class Recipe:
    """How a model wants its texts, and how its vectors are compared; `meta.json` keeps it under "encoding".

    title: "join" (title, space, text), "sep" (title, separator token, text, as one text), "segment" (a pair of title and
           text) or "none"
    similarity: "cosine" or "dot"; None where the folder does not say
    """

    pooling: tuple[str, ...] = ("cls",)
    normalize: bool = False
    similarity: str | None = None
    include_prompt: bool = True
    query_prompt: str = ""
    passage_prompt: str = ""
    query_length: int = 512
    passage_length: int = 512
    title: str = "join"
    lowercase: bool = False
    truncate: int | None = None

    def prompt(self, role: Role) -> str:
        return self.query_prompt if role == "query" else self.passage_prompt

    def length(self, role: Role) -> int:
        return self.query_length if role == "query" else self.passage_length

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `meta.json` stores them."""
        return asdict(self) | {"pooling": list(self.pooling)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """The recipe stored in a `meta.json`; entries of later versions are passed over."""
        known = {name: value for name, value in content.items() if name in cls.__dataclass_fields__}
        return cls(**known | {"pooling": tuple(known.get("pooling", ("cls",)))})

    def changed(self, wishes: Mapping[str, Any], *, sealed: bool, folder: str) -> Recipe:
        """The recipe with what is not None in `wishes`.

        Raises MismatchError where the recipe is `sealed` (a model of drtk's own) and a wish differs from it.
        """
        wishes = {name: value for name, value in wishes.items() if value is not None}
        if isinstance(wishes.get("pooling"), str):
            wishes["pooling"] = tuple(wishes["pooling"].split("+"))
        for name, value in wishes.items():
            mine = getattr(self, name)
            if sealed and mine is not None and mine != value:
                raise MismatchError(
                    f"{folder}: was made for {name.replace('_', ' ')} {_shown(mine)}; {_shown(value)} contradicts it"
                )
        return replace(self, **wishes)

    def checked(self, poolings: tuple[str, ...]) -> Recipe:
        """Itself, if its pooling is known. Raises UsageError otherwise."""
        for mode in self.pooling:
            if mode not in poolings:
                raise UsageError(f"unknown pooling '{mode}'; choose from {', '.join(poolings)} (several: cls+mean)")
        return self


def _shown(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else repr(value) if isinstance(value, str) else str(value)
