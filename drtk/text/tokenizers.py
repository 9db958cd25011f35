"""Load tokenizers, and count and split texts by their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drtk.errors import DrtkError, MismatchError
from drtk.runtime.manifest import check_folder, read_manifest_if_any
from drtk.text.sentences import word_spans


def load_tokenizer(name: str) -> Any:
    """The transformers tokenizer of a model folder, or of a hub name with an optional @revision.

    Of a model with an encoder for each side, the passages' one. Raises DrtkError where there is none.
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
        return open_tokenizer(place, revision=revision)
    except DrtkError:
        raise
    except Exception as error:  # tokenizers raises plain Exception for a damaged tokenizer.json
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DrtkError(f"{name}: no tokenizer could be loaded: {reason}") from error


_ALSO = ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model")  # alternatives to a family's own files
_VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "spm.model")
_ADVICE = "copy them from the model it was made from"


def open_tokenizer(place: str, *, revision: str | None = None) -> Any:
    """Load the tokenizer of a folder or hub name with transformers.

    Raises MismatchError if its vocabulary is missing: transformers would create a tokenizer without one.
    """
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    def exists(name: str) -> bool:
        return cached_file(place, name, revision=revision, _raise_exceptions_for_missing_entries=False) is not None

    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise MismatchError(f"{place}: its tokenizer needs remote code, which drtk does not run") from error
        if not Path(place).is_dir() or any(map(exists, (*_ALSO, *_VOCABULARIES))):
            raise
        raise MismatchError(f"{place}: has no tokenizer files (tokenizer.json); {_ADVICE}") from error
    files = {key: name for key, name in type(tokenizer).vocab_files_names.items() if name and "config" not in key}
    if not files or any(map(exists, _ALSO)):  # without files: byte or character tokenizers
        return tokenizer
    own = [name for key, name in files.items() if key != "tokenizer_file"]
    merges = files.get("merges_file")
    if not any(exists(name) for name in own if name != merges) or (merges and not exists(merges)):
        wanted = " or ".join(["tokenizer.json", *([" and ".join(own)] if own else [])])
        raise MismatchError(f"{place}: has no tokenizer files ({wanted}); {_ADVICE}")
    return tokenizer


def portable(tokenizer: Any, name: str) -> str:
    """The JSON of a transformers tokenizer's Rust half, which another process can take up without transformers.

    Raises MismatchError for a tokenizer written in Python alone: it does not say where in the text its pieces lie.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise MismatchError(f"{name}: is a tokenizer without a fast version; passages cannot be cut by its word pieces")
    return backend.to_str()


_AT_ONCE = 4096  # texts: what the tokenizer notes about them is many times their size


class Units(NamedTuple):
    """Where the units of a text begin, and before which of them it may be parted; both have one entry a unit."""

    begins: list[int]
    may_part: list[bool]

    def boundary(self, begin: int, latest: int) -> int:
        """The last unit up to `latest` before which the text may be parted, so that begin < unit.

        Where one word reaches over all of it, it is cut at `latest` after all, though never within a character.
        """
        for unit in range(latest, begin, -1):
            if self.may_part[unit]:
                return unit
        for unit in [*range(latest, begin, -1), *range(latest + 1, len(self.begins))]:
            if self.begins[unit] > self.begins[unit - 1]:
                return unit
        return len(self.begins)


class Words:
    """Counts words as `str.split` sees them."""

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Words of each text."""
        return [len(text.split()) for text in texts]

    def units(self, text: str) -> Units:
        """The words of one text."""
        begins = [begin for begin, _ in word_spans(text)]
        return Units(begins, [True] * len(begins))


class WordPieces:
    """Counts word pieces, special tokens apart.

    definition: a tokenizer as `portable` gives it.
    """

    def __init__(self, definition: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(definition)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Word pieces of each text, tokenised by itself."""
        found: list[int] = []
        for begin in range(0, len(texts), _AT_ONCE):
            encoded = self._tokenizer.encode_batch_fast(list(texts[begin : begin + _AT_ONCE]), add_special_tokens=False)
            found.extend(len(pieces) for pieces in encoded)
        return found

    def units(self, text: str) -> Units:
        """The word pieces of one text. It may be parted where a word begins: for the tokenizer, or after white space."""
        pieces = self._tokenizer.encode(text, add_special_tokens=False)
        words = pieces.word_ids
        begins = [begin for begin, _ in pieces.offsets]
        may_part = [
            unit == 0
            or (
                begin > begins[unit - 1]
                and (words[unit] != words[unit - 1] or text[begin - 1].isspace() or text[begin].isspace())
            )
            for unit, begin in enumerate(begins)
        ]
        return Units(begins, may_part)
