"""What an index of words finds, with the texts: for those who look into passages, or show them to a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drtk.errors import MismatchError
from drtk.io.manifest import folder_entry
from drtk.io.store import CorpusStore
from drtk.records import Passage
from drtk.retrieval.base import Ranking
from drtk.retrieval.collection import Collection
from drtk.settings.retrieval import SearchSettings


class FoundTexts:
    """An index of words, and the corpus it was made from.

    index: a folder, opened with `settings`, or one that is open already, searched as it is
    corpus: a file; None: where the index says it is
    Raises MismatchError for an index of vectors, and where the corpus is not known or not there; what opening raises.
    """

    def __init__(
        self, index: str | Collection, *, corpus: str | None = None, settings: SearchSettings | None = None
    ) -> None:
        if isinstance(index, str):
            index = Collection([index], settings or SearchSettings())
        self.collection = index
        index = index.folders[0]
        if self.collection.reads != "passages":
            raise MismatchError(f"{index}: holds vectors; an index of words is needed (drtk index --type bm25)")
        self._index = index
        self.corpus = str(corpus or self.collection.manifest.get("corpus") or "")
        if not self.corpus or not Path(self.corpus).exists():
            where = f"its corpus is not at {self.corpus}" if self.corpus else "it does not say which corpus it is of"
            raise MismatchError(f"{index}: {where}; name the file: --corpus FILE")
        self._store = CorpusStore.open(self.corpus)

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """The index as a manifest lists it among inputs."""
        return [folder_entry(self._index)]

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Up to `k` passages for each text, best first; equal texts are searched once."""
        different = list(dict.fromkeys(texts))
        found = dict(zip(different, self.collection.search(different, k), strict=True))
        return [found[text] for text in texts]

    def passage(self, id: str) -> Passage:
        """A passage that was found. Raises MismatchError where the corpus lacks it."""
        found = self._store.get(id)
        if found is None:
            raise MismatchError(
                f"{self.corpus}: has no passage '{id}', which {self._index} finds: is it the index's corpus?"
            )
        return found
