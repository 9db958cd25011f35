"""Several indexes of one kind, searched as the one collection they are parts of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from drtk.errors import DrtkError, MismatchError
from drtk.io.manifest import Manifest, read_manifest
from drtk.io.progress import warn
from drtk.retrieval.base import Ranking, best_first
from drtk.retrieval.building import encoder_differences, index_class, wants_unit_length
from drtk.retrieval.vectors import unit_length
from drtk.settings.retrieval import SearchSettings

KIND = "index"
_KEYS = {"type": str, "encoder": dict | None, "dimension": int | None, "bm25": dict | None}  # of its meta.json


class Collection:
    """Opened indexes of one type and one encoder; `reads` says whether they are asked with texts or vectors.

    Raises MismatchError for folders that are unfinished, no indexes, or unlike in type, encoder or dimension.
    """

    def __init__(self, folders: Sequence[str], settings: SearchSettings) -> None:
        self.folders = list(folders)
        self.manifests: list[Manifest] = [read_manifest(folder, kind=KIND, **_KEYS) for folder in folders]
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
