"""Format the input of a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from drtk.errors import MismatchError, UsageError
from drtk.models.seq2seq import GenerationModel
from drtk.records import Passage
from drtk.runtime.manifest import is_manifest, read_manifest_if_any
from drtk.text.batching import Tokens

INPUT_ENTRY = "writing"  # the entry of meta.json


@dataclass(frozen=True)
class GeneratorInput:
    """Prefix, space, title, space, text, cut to `max_length` tokens; `meta.json` of a trained model keeps it.

    title: "join" or "none"
    """

    prefix: str = ""
    title: str = "join"
    max_length: int = 512

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `meta.json` stores them."""
        return asdict(self)

    def text(self, passage: Passage) -> str:
        """The passage's input, whole."""
        body = format_passage(passage, self.title)
        return f"{self.prefix} {body}" if self.prefix else body


def format_passage(passage: Passage, title: str) -> str:
    """What is read of a passage: its title before its text ("join", or "colon": `title: text`), or its text alone ("none")."""
    if not passage.title.strip() or title == "none":
        return passage.text
    return f"{passage.title}: {passage.text}" if title == "colon" else f"{passage.title} {passage.text}"


def load_generator_input(folder: Path, overrides: Mapping[str, Any], *, strict: bool) -> GeneratorInput:
    """How the model of a folder was trained to read, with what is not None in `overrides`; the defaults where it does not say.

    Raises MismatchError where the folder says so, is `strict`, and another prefix or title is wished for.
    """
    content = read_manifest_if_any(folder)
    stated = content.get(INPUT_ENTRY) if is_manifest(content) else None
    known = {name: value for name, value in (stated or {}).items() if name in GeneratorInput.__dataclass_fields__}
    wanted = {name: value for name, value in overrides.items() if value is not None}
    for name in ("prefix", "title"):
        if strict and name in wanted and name in known and wanted[name] != known[name]:
            raise MismatchError(f"{folder}: was trained with --{name} '{known[name]}'; '{wanted[name]}' contradicts it")
    return replace(GeneratorInput(), **known | wanted)


def max_input_length(writer: GenerationModel, reading: GeneratorInput, *, written: int = 0) -> int:
    """The longest input in tokens. `written`: of what follows it, for a model that goes on where the input ends.

    Raises UsageError where that, or the prefix, leaves nothing for a passage.
    """
    room = min(reading.max_length, writer.longest)
    if not writer.is_encoder_decoder:
        room = min(reading.max_length, writer.longest - written)
        if room < 1:
            raise UsageError(f"--max-new-tokens {written}: the model reads {writer.longest} tokens in all")
    lead = len(writer.tokenizer(reading.prefix)["input_ids"]) if reading.prefix else 0
    if lead >= room:
        raise UsageError(f"--prefix is {lead} tokens long and leaves nothing of --max-length {room} for a passage")
    return room


def tokenize_texts(texts: Sequence[str], tokenizer: Any, *, room: int, written: bool = False) -> Tokens:
    """The tokens of each text, at most `room`, special ones included. `written`: as targets, where a tokenizer cares."""
    if not texts:
        return Tokens.of([], None)
    name = "text_target" if written else "text"
    found = tokenizer(
        **{name: list(texts)}, truncation=True, max_length=room, padding=False, return_attention_mask=False
    )
    return Tokens.of(found["input_ids"], None)
