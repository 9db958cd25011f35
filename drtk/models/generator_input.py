"""Format the input of a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drtk.errors import MismatchError, UsageError
from drtk.models.model_folder import read_training_entry
from drtk.models.seq2seq import GenerationModel
from drtk.records import Passage
from drtk.text.batching import TokenizedTexts

INPUT_ENTRY = "writing"  # entry of meta.json


@dataclass(frozen=True)
class GeneratorInput:
    """Prefix, space, title, space, text, truncated to `max_length` tokens; stored in `meta.json` of a trained model.

    title: "join" or "none"
    """

    prefix: str = ""
    title: str = "join"
    max_length: int = 512

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `meta.json` stores them."""
        return asdict(self)

    def text(self, passage: Passage) -> str:
        """Return the input for a passage, not truncated."""
        body = format_passage(passage, self.title)
        return f"{self.prefix} {body}" if self.prefix else body


def format_passage(passage: Passage, title: str) -> str:
    """Return title and text ("join": `title text`, "colon": `title: text`), or the text alone ("none")."""
    if not passage.title.strip() or title == "none":
        return passage.text
    return f"{passage.title}: {passage.text}" if title == "colon" else f"{passage.title} {passage.text}"


def load_generator_input(folder: Path, overrides: Mapping[str, Any], *, strict: bool) -> GeneratorInput:
    """Return the input that the model of a folder was trained with, with the overrides that are not None.

    Raises MismatchError if `strict` and an override contradicts the prefix or title of the training.
    """
    stated = read_training_entry(folder, INPUT_ENTRY) or {}
    known = {name: value for name, value in stated.items() if name in GeneratorInput.__dataclass_fields__}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    for name in ("prefix", "title"):
        if strict and name in overrides and name in known and overrides[name] != known[name]:
            raise MismatchError(
                f"{folder}: was trained with `{name}` '{known[name]}'; '{overrides[name]}' contradicts it"
            )
    return GeneratorInput(**known | overrides)


def max_input_length(model: GenerationModel, reading: GeneratorInput, *, new_tokens: int = 0) -> int:
    """Return the longest input in tokens. new_tokens: generated after the input; a decoder-only model needs room for them

    Raises UsageError if they, or the prefix, leave no room for a passage.
    """
    room = min(reading.max_length, model.longest)
    if not model.is_encoder_decoder:
        room = min(reading.max_length, model.longest - new_tokens)
        if room < 1:
            raise UsageError(f"`max_new_tokens` {new_tokens}: the model reads {model.longest} tokens in all")
    lead = len(model.tokenizer(reading.prefix)["input_ids"]) if reading.prefix else 0
    if lead >= room:
        raise UsageError(f"`prefix` is {lead} tokens long and leaves nothing of `max_length` {room} for a passage")
    return room


def tokenize_texts(texts: Sequence[str], tokenizer: Any, *, room: int, are_targets: bool = False) -> TokenizedTexts:
    """Return the tokens of each text, at most `room`, special tokens included. are_targets: for tokenizers that differ"""
    if not texts:
        return TokenizedTexts.from_lists([], None)
    name = "text_target" if are_targets else "text"
    encoding = tokenizer(
        **{name: list(texts)}, truncation=True, max_length=room, padding=False, return_attention_mask=False
    )
    return TokenizedTexts.from_lists(encoding["input_ids"], None)
