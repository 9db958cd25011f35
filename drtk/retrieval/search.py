"""Search one or several indexes, passages or whole documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.corpus_store import CorpusStore
from drtk.errors import DrtkError, MismatchError
from drtk.indexing.base import Ranking, best_first, unit_length
from drtk.indexing.building import encoder_differences, index_class, wants_unit_length
from drtk.indexing.config import SearchSettings
from drtk.records import Passage
from drtk.runtime.manifest import Manifest, folder_entry, read_manifest
from drtk.runtime.progress import warn

GROWTH = 4  # how much deeper a search goes that did not find enough


@dataclass(frozen=True)
class Wanted:
    """What a ranking shall hold.

    by: a passage's document; a document's score is then that of its best passage (MaxP).
    drop_same_id: leave out the document (or passage) that is called what the query is called.
    """

    k: int
    by: Callable[[str], str] | None = None
    drop_same_id: bool = False

    def of(self, query_id: str, found: Ranking) -> Ranking:
        """All of `found`, grouped and freed of the query's own document, best first; not yet cut."""
        if self.by is not None:
            best: dict[str, float] = {}
            for id, score in found:
                best.setdefault(self.by(id), score)
            found = best_first(list(best), list(best.values()))
        return [hit for hit in found if hit[0] != query_id] if self.drop_same_id else found


def search(
    collection: Collection, query_ids: Sequence[str], batch: Sequence[str] | np.ndarray, wanted: Wanted
) -> list[Ranking]:
    """Rankings of `wanted.k` for each query, fewer only where the indexes give no more.

    batch: texts, or vectors (queries, dimension). Raises DrtkError for a vector with NaN or infinite numbers.
    Documents have several passages, so k passages rarely give k documents: queries that are short of them are searched
    again, deeper, until k documents are found whose scores no passage further down could reach.
    """
    if isinstance(batch, np.ndarray) and not (finite := np.isfinite(batch).all(axis=1)).all():
        raise DrtkError(
            f"query '{query_ids[int(np.argmin(finite))]}': its vector has NaN or infinite numbers; encode it again"
        )
    found: list[Ranking] = [[] for _ in query_ids]
    waiting = list(range(len(query_ids)))
    depth = wanted.k + wanted.drop_same_id
    while waiting:
        part = batch[waiting] if isinstance(batch, np.ndarray) else [batch[place] for place in waiting]
        unsettled = []
        for place, ranking in zip(waiting, collection.search(part, depth), strict=True):
            found[place] = wanted.of(query_ids[place], ranking)
            exhausted = len(ranking) < depth or depth >= len(collection)
            if not exhausted and not _settled(found[place], ranking, wanted):
                unsettled.append(place)
        waiting, depth = unsettled, min(depth * GROWTH, len(collection))
    return [ranking[: wanted.k] for ranking in found]


def _settled(kept: Ranking, ranking: Ranking, wanted: Wanted) -> bool:
    if wanted.by is None:
        return True  # one passage more was asked for where one might go
    return len(kept) >= wanted.k and ranking[-1][1] < kept[wanted.k - 1][1]


INDEX_KIND = "index"
_KEYS = {"type": str, "encoder": dict | None, "dimension": int | None, "bm25": dict | None}  # of its meta.json


class Collection:
    """Opened indexes of one type and one encoder; `reads` says whether they are asked with texts or vectors.

    Raises MismatchError for folders that are unfinished, no indexes, or unlike in type, encoder or dimension.
    """

    def __init__(self, folders: Sequence[str], settings: SearchSettings) -> None:
        self.folders = list(folders)
        self.manifests: list[Manifest] = [read_manifest(folder, kind=INDEX_KIND, **_KEYS) for folder in folders]
        self.manifest = self.manifests[0]
        for folder, manifest in zip(folders, self.manifests, strict=True):
            self._check_alike(folder, manifest)
        engine = index_class(self.manifest["type"])
        self.reads: str = engine.reads
        self.tunable: bool = getattr(engine, "tunable", False)
        advised: dict[str, float] = self.manifest.get("bm25") or {}
        # k1 and b that an index of weights was made for, where no others were asked for
        self.advised = {name: value for name, value in advised.items() if getattr(settings, name) is None}
        settings = replace(settings, **self.advised)  # type: ignore[arg-type]
        self.indexes: list[Any] = [_open_index(engine, folder, settings) for folder in folders]
        self.encoder: dict[str, Any] | None = self.manifest.get("encoder")
        self._unit = wants_unit_length(self.encoder)
        if self.tunable and len(folders) > 1:
            warn("each BM25 index scores by its own word statistics: scores of several are comparable only roughly")

    def _check_alike(self, folder: str, manifest: Manifest) -> None:
        first, first_folder = self.manifest, self.folders[0]
        if manifest["type"] != first["type"]:
            raise MismatchError(
                f"{folder}: is an index of type {manifest['type']}; {first_folder} of type {first['type']}"
            )
        if differences := encoder_differences(manifest, first):
            raise MismatchError(
                f"{folder}: holds vectors of another encoder than {first_folder} (different {', '.join(differences)}); "
                "search indexes of one encoder"
            )
        if manifest.get("bm25") != first.get("bm25"):
            raise MismatchError(
                f"{folder} and {first_folder}: are not of weights of one scale, or one is not of weights"
            )
        if manifest.get("dimension") != first.get("dimension"):
            raise MismatchError(f"{folder}: has dimension {manifest['dimension']}; {first_folder} {first['dimension']}")

    def __len__(self) -> int:
        return sum(len(index) for index in self.indexes)

    def search(self, batch: Sequence[str] | np.ndarray, k: int) -> list[Ranking]:
        """Up to `k` passages of all indexes for each text, or for each row of (queries, dimension) float32.

        Raises MismatchError for vectors of another dimension, and for a passage that stands in two indexes.
        """
        if isinstance(batch, np.ndarray):
            if batch.shape[1] != self.indexes[0].dimension:
                raise MismatchError(
                    f"{self.folders[0]}: has vectors of dimension {self.indexes[0].dimension}; "
                    f"those of the queries have {batch.shape[1]}"
                )
            batch = unit_length(batch) if self._unit else batch
        found = [index.search(batch, k) for index in self.indexes]
        if len(found) == 1:
            return found[0]
        return [self._merged(rankings, k) for rankings in zip(*found, strict=True)]

    def _merged(self, rankings: Sequence[Ranking], k: int) -> Ranking:
        ids = [id for ranking in rankings for id, _ in ranking]
        if len(set(ids)) < len(ids):
            twice = next(id for position, id in enumerate(ids) if id in ids[:position])
            holders = [folder for folder, found in zip(self.folders, rankings, strict=True) if twice in dict(found)]
            raise MismatchError(f"passage '{twice}' stands in {' and in '.join(holders)}; shards must not overlap")
        return best_first(ids, [score for ranking in rankings for _, score in ranking], k)


def _open_index(engine: Any, folder: str, settings: SearchSettings) -> Any:
    """Open the index in a folder. Raises DrtkError for an exception of the engine's library."""
    try:
        return engine.open(Path(folder), settings)
    except (DrtkError, OSError):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DrtkError(
            f"{folder}: cannot be opened: {reason}; drtk validate {folder} reports damaged files"
        ) from error


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
