"""The tokenizers that weighted passages name, or the one that is named in their place."""

from __future__ import annotations

from drtk.errors import DrtkError
from drtk.records import Passage
from drtk.text.word_pieces import WordPieceTokenizer


def recorded_name(passage: Passage) -> str:
    """What `metadata.weights_tokenizer` of a passage says, "" where that is nothing."""
    name = (passage.metadata or {}).get("weights_tokenizer")
    return name if isinstance(name, str) else ""


class RecordedTokenizers:
    """Recorded names to tokenizers, each loaded once.

    named: the tokenizer to take in place of all; "" where there is none. A folder may have moved since.
    Raises DrtkError where it cannot be loaded.
    """

    def __init__(self, named: str = "") -> None:
        self.named = WordPieceTokenizer(named) if named else None
        self._known: dict[str, WordPieceTokenizer] = {}

    def __call__(self, recorded: str) -> WordPieceTokenizer:
        """The tokenizer to read weights with that were made with `recorded`.

        Raises DrtkError where that cannot be loaded and none is named in its place, MismatchError where it can and the
        named one makes other pieces.
        """
        if recorded not in self._known:
            self._known[recorded] = self._load(recorded)
        return self._known[recorded]

    def _load(self, recorded: str) -> WordPieceTokenizer:
        try:
            found = WordPieceTokenizer(recorded) if recorded else None
        except DrtkError as error:
            if self.named is None:
                raise DrtkError(f"{error}; --tokenizer NAME says where it is now") from error
            return self.named
        if self.named is not None:
            if found is not None:
                self.named.check(recorded)
            return self.named
        if found is None:
            raise DrtkError("weights without the name of their tokenizer; --tokenizer NAME says it")
        return found
