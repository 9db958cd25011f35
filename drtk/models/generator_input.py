"""Format the input of a text generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drtk.errors import MismatchError, UsageError
from drtk.models.model_folder import read_meta_entry
from drtk.records import Passage

if TYPE_CHECKING:
    from drtk.models.seq2seq import GenerationModel

INPUT_ENTRY = "writing"  # entry of meta.json


@dataclass(frozen=True)
class GeneratorInputFormat:
    """Input format "prefix title text" of a generator, stored in the `meta.json` of trained models.

    title: "join" puts the title before the text, "none" omits it
    max_length: maximum input length in tokens
    """

    prefix: str = ""
    title: str = "join"
    max_length: int = 512

    def format(self, passage: Passage) -> str:
        """Return the input for a passage, without truncation."""
        body = format_passage(passage, self.title)
        return f"{self.prefix} {body}" if self.prefix else body


def format_passage(passage: Passage, title: str) -> str:
    """Return "TITLE TEXT" (`title` "join"), "TITLE: TEXT" ("colon") or the text only ("none", or a passage without title)."""
    if not passage.title.strip() or title == "none":
        return passage.text
    return f"{passage.title}: {passage.text}" if title == "colon" else f"{passage.title} {passage.text}"


def format_items(items: Sequence[Any], title: str) -> list[str]:
    """Return the texts of passages (as `format_passage`), queries or strings."""
    return [
        format_passage(item, title) if isinstance(item, Passage) else str(getattr(item, "text", item)) for item in items
    ]


def load_input_format(folder: Path, overrides: Mapping[str, Any], *, strict: bool) -> GeneratorInputFormat:
    """Return the input format in a generator's model folder, else the default, with the overrides that are not None.

    strict: raise MismatchError if the prefix or title format is overridden by another one than in the training
    """
    stated = read_meta_entry(folder, INPUT_ENTRY) or {}
    known = {name: value for name, value in stated.items() if name in GeneratorInputFormat.__dataclass_fields__}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    for name in ("prefix", "title"):
        if strict and name in overrides and name in known and overrides[name] != known[name]:
            raise MismatchError(
                f"{folder}: was trained with `{name}` '{known[name]}', not '{overrides[name]}'; omit it"
            )
    return GeneratorInputFormat(**known | overrides)


def get_max_input_length(model: GenerationModel, input_format: GeneratorInputFormat, *, new_tokens: int = 0) -> int:
    """Return the maximum input length in tokens.

    new_tokens: number of tokens to generate; in a decoder-only model, input and output share the positions
    Raises UsageError if new tokens and prefix leave no tokens for a passage.
    """
    limit = min(input_format.max_length, model.max_length)
    if not model.is_encoder_decoder:
        limit = min(input_format.max_length, model.max_length - new_tokens)
        if limit < 1:
            raise UsageError(
                f"`max_new_tokens` {new_tokens}: the model has {model.max_length} positions for input and output; lower it"
            )
    prefix_length = len(model.tokenizer(input_format.prefix)["input_ids"]) if input_format.prefix else 0
    if prefix_length >= limit:
        raise UsageError(f"`prefix`: {prefix_length} tokens leave no room in `max_length` {limit}; shorten it")
    return limit
