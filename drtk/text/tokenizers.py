"""Load tokenizers, and count and split texts by their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from drtk.errors import DrtkError, MismatchError
from drtk.runtime.manifest import check_folder, read_manifest_if_any
from drtk.runtime.progress import silence_transformers
from drtk.runtime.remote_code import TRUST_ADVICE, is_remote_code_trusted
from drtk.text.sentences import find_word_spans


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model folder or hub name[@revision]; of a model with two encoders, the passage tokenizer.

    Raises DrtkError if it cannot be loaded.
    """
    path = Path(name).expanduser()
    if path.exists() and not path.is_dir():
        raise DrtkError(f"{name}: is a file; expected the folder of a tokenizer")
    if path.is_dir():
        inner = path / "passage"
        check_folder(path, read_manifest_if_any(path))
        place, revision = str(inner if inner.is_dir() and not (path / "config.json").exists() else path), None
    else:
        place, _, tag = name.partition("@")
        revision = tag or None
        if place.count("/") > 1 or place.startswith((".", "/", "~")):
            raise DrtkError(f"{name}: no such folder")
    try:
        with silence_transformers():
            return open_tokenizer(place, revision=revision)
    except DrtkError:
        raise
    except Exception as error:  # tokenizers raises plain Exception for a damaged tokenizer.json
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DrtkError(f"{name}: no tokenizer could be loaded ({reason}); check the name and the folder") from error


# Alternatives to the files of a model family.
_COMMON_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model")
_VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "spm.model")
_ADVICE = "copy the tokenizer files from the original model"


def open_tokenizer(name: str, *, revision: str | None = None) -> Any:
    """Load the tokenizer of a folder or hub name with transformers, and check that its files are complete.

    Raises MismatchError if the vocabulary is missing, since transformers would create an empty one; if
    tokenizer_config.json is missing and transformers and tokenizer.json therefore differ in lower-casing; or if the
    tokenizer requires remote code that is not trusted. Errors of transformers are raised unchanged.
    """
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    def find_file(file: str) -> str | None:
        path = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False)
        return None if path is None else str(path)

    def has_file(file: str) -> bool:
        return find_file(file) is not None

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=is_remote_code_trusted())
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise MismatchError(f"{name}: its tokenizer requires remote code; {TRUST_ADVICE}") from error
        if not Path(name).is_dir() or any(map(has_file, (*_COMMON_FILES, *_VOCABULARIES))):
            raise
        raise MismatchError(f"{name}: has no tokenizer files (tokenizer.json); {_ADVICE}") from error
    definition = find_file("tokenizer.json")
    if definition is not None and not has_file("tokenizer_config.json"):
        written, loaded = Path(definition).read_text(encoding="utf-8"), tokenizer.backend_tokenizer.to_str()
        if _is_lowercasing(written) != _is_lowercasing(loaded):
            raise MismatchError(f"{name}: has no tokenizer_config.json, which tokenizer.json requires; {_ADVICE}")
    files = {key: file for key, file in type(tokenizer).vocab_files_names.items() if file and "config" not in key}
    if not files or any(map(has_file, _COMMON_FILES)):  # without files: byte or character tokenizers
        return tokenizer
    own = [file for key, file in files.items() if key != "tokenizer_file"]
    merges = files.get("merges_file")
    if not any(has_file(file) for file in own if file != merges) or (merges and not has_file(merges)):
        missing = " or ".join(["tokenizer.json", *([" and ".join(own)] if own else [])])
        raise MismatchError(f"{name}: has no tokenizer files ({missing}); {_ADVICE}")
    return tokenizer


def _is_lowercasing(definition: str) -> bool:
    """Return whether a tokenizer, as JSON of `tokenizers`, makes texts lower-case."""
    normalizer = orjson.loads(definition).get("normalizer") or {}
    return any(
        step.get("lowercase") or step.get("type") == "Lowercase" for step in normalizer.get("normalizers", [normalizer])
    )


def serialize_tokenizer(tokenizer: Any, name: str) -> str:
    """Serialize a transformers tokenizer as JSON for the tokenizers library, so that worker processes need no transformers.

    Raises MismatchError for a tokenizer without a fast version, which returns no offsets.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise MismatchError(f"{name}: has no fast tokenizer, which word-piece offsets require; use another model")
    return backend.to_str()


_BATCH = 4096  # texts encoded together: an encoding takes many times the memory of its text


class TextUnits(NamedTuple):
    """The units (words or word pieces) of a text.

    begins: character offset of the start of each unit; may_cut: whether the text may be split before each unit
    """

    begins: list[int]
    may_cut: list[bool]

    def find_boundary(self, begin: int, latest: int) -> int:
        """Return the index of the last unit in (begin, latest] before which the text may be split.

        If there is none, a word is split at `latest`, or at the nearest start of a character before it, else after it.
        """
        for unit in range(latest, begin, -1):
            if self.may_cut[unit]:
                return unit
        for unit in [*range(latest, begin, -1), *range(latest + 1, len(self.begins))]:
            if self.begins[unit] > self.begins[unit - 1]:
                return unit
        return len(self.begins)


class WordCounter:
    """Counter of the words of `str.split`."""

    def count_units(self, texts: Sequence[str]) -> list[int]:
        """Return the number of words of each text."""
        return [len(text.split()) for text in texts]

    def split_units(self, text: str) -> TextUnits:
        """Return the words of a text as units."""
        begins = [begin for begin, _ in find_word_spans(text)]
        return TextUnits(begins, [True] * len(begins))


class WordPieceCounter:
    """Counter of word pieces without special tokens.

    definition: a serialized tokenizer (see `serialize_tokenizer`)
    """

    def __init__(self, definition: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(definition)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count_units(self, texts: Sequence[str]) -> list[int]:
        """Return the number of word pieces of each text."""
        counts: list[int] = []
        for begin in range(0, len(texts), _BATCH):
            encoded = self._tokenizer.encode_batch_fast(list(texts[begin : begin + _BATCH]), add_special_tokens=False)
            counts.extend(map(len, encoded))
        return counts

    def split_units(self, text: str) -> TextUnits:
        """Return the word pieces of a text; it may be split at white space and where the tokenizer begins a word."""
        pieces = self._tokenizer.encode(text, add_special_tokens=False)
        words = pieces.word_ids
        begins = [begin for begin, _ in pieces.offsets]
        may_cut = [
            unit == 0
            or (
                begin > begins[unit - 1]
                and (words[unit] != words[unit - 1] or text[begin - 1].isspace() or text[begin].isspace())
            )
            for unit, begin in enumerate(begins)
        ]
        return TextUnits(begins, may_cut)
