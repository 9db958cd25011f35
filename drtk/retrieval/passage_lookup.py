"""Look up the texts of retrieved passages in the corpora of their indexes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from drtk.data.checks import find_origins
from drtk.data.corpus_store import CorpusStore
from drtk.errors import MismatchError
from drtk.records import Passage
from drtk.retrieval.search import IndexGroup, PassageStore
from drtk.runtime.integrity import compute_content_digest
from drtk.runtime.progress import warn


class PassageLookup:
    """Passages of indexes by id: from `corpus`, or else from the corpora recorded in the indexes, or from indexes that store them.

    names: of the files and index folders that have the passages; [] if none was found
    Warns about a corpus whose content differs from the indexed one, so that its texts may differ from those ranked.
    """

    def __init__(self, indexes: IndexGroup, corpus: str | None = None) -> None:
        recorded = sorted({manifest["corpus"] for manifest in indexes.manifests if manifest.get("corpus")})
        paths = [corpus] if corpus else [path for path in recorded if Path(path).exists()]
        self._corpora: dict[str, PassageStore] = {path: CorpusStore.open(path) for path in paths}
        self._indexes = {} if corpus else indexes.stores
        for folder, manifest in zip(indexes.folders, indexes.manifests, strict=True):
            texts = corpus or manifest.get("corpus")
            if texts in self._corpora and Path(texts).is_file():
                origins = {origin.digest for origin in find_origins(folder)}
                if origins and compute_content_digest(Path(texts)) not in origins:
                    warn(
                        f"{texts}: differs from the corpus of {folder}, so texts may differ from those ranked; index it again"
                    )

    @property
    def names(self) -> list[str]:
        return [*self._corpora, *self._indexes]

    def get(self, id: str) -> Passage | None:
        """Return a passage; None for an unknown id. Raises MismatchError if different passages have the id."""
        return _find_passage(id, self._corpora) or _find_passage(id, self._indexes)


def _find_passage(id: str, stores: Mapping[str, PassageStore]) -> Passage | None:
    first, result = "", None
    for name, store in stores.items():
        passage = store.get(id)
        if result is None:
            first, result = name, passage
        elif passage is not None and passage != result:
            raise MismatchError(f"{first} and {name} have different passages '{id}'; search their indexes separately")
    return result
