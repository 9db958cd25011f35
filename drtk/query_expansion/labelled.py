"""Labelled candidates: the training data of query re-rankers (EAR; docs/methods/ear.md)."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from drtk.errors import DrtkError, UsageError
from drtk.query_expansion.candidates import ExpansionList, find_missing, iter_expansion_lists, select_distinct
from drtk.query_expansion.config import DEPTH, QueryRerankerConfig
from drtk.query_expansion.label import PROGRAM
from drtk.query_expansion.query_reranker_input import CandidateTexts
from drtk.records import Expansion, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import get_manifest_path, is_manifest
from drtk.runtime.progress import warn
from drtk.runtime.streams import is_stream, name_of
from drtk.training.folds import digest_question


class DepthCheck:
    """Check the depth of the search for answers of the candidates of one file; a check for `iter_expansion_lists`.

    usual: depth of candidates that do not record it: from the manifest beside `source`, from `settings`, or assumed
    assumed: sources that were warned about because their depth is assumed; one file may be read several times
    Raises UsageError if the labels have another depth than `settings`, or one that is not below `max_rank`.
    """

    def __init__(self, source: str, settings: QueryRerankerConfig, assumed: set[str]) -> None:
        self._source, self._settings, self._assumed = source, settings, assumed
        noted = None if is_stream(source) else _read_depth(source)
        self._is_assumed = noted is None and settings.depth is None
        self.usual = noted or settings.depth or DEPTH
        self._checked: set[int] = set()
        self._query = ""
        self._by_kind: dict[str, int] = {}
        if noted is not None:
            self._check(noted)

    def __call__(self, expansion: Expansion, query: Query) -> str | None:
        """Return an error if the depth is not that of the other candidates in the list, whose ranks it is compared with."""
        depth = expansion.depth or self.usual
        if expansion.depth is not None or self._is_assumed:
            self._check(depth)
        if expansion.depth is None and self._is_assumed and self._source not in self._assumed:
            self._assumed.add(self._source)
            warn(
                f"{name_of(self._source)}: the depth of the search for answers is unknown ('{expansion.id}' has no 'depth'); "
                f"{depth} is assumed, so greater ranks mean none found; `depth` sets another"
            )
        if query.id != self._query:
            self._query, self._by_kind = query.id, {}
        first = self._by_kind.setdefault(expansion.kind, depth)
        if depth == first:
            return None
        return (
            f"'{expansion.id}' was labelled to depth {depth}, those before it of '{query.id}' for '{expansion.kind}' "
            f"to depth {first}: their ranks cannot be compared; label them alike"
        )

    def _check(self, depth: int) -> None:
        if depth not in self._checked:
            self._checked.add(depth)
            if self._settings.depth not in (None, depth):
                raise UsageError(
                    f"`depth` {self._settings.depth}: {name_of(self._source)} was labelled with `depth` {depth}"
                )
            self._settings.check_depth(depth)


def _read_depth(source: str) -> int | None:
    path = get_manifest_path(source)
    content: Any = read_json(path) if path.is_file() else None
    if not is_manifest(content) or content.get("program") != PROGRAM:
        return None
    depth = content["settings"].get("depth")
    return depth if isinstance(depth, int) else None


class LabelledList(NamedTuple):
    """The candidates of a query and kind, and the rank of each: (candidates,), int64."""

    candidates: list[CandidateTexts]
    ranks: np.ndarray


class LabelledCandidates:
    """Lists of candidates by number, in a temporary file. Ranks beyond the depth of the labels become `max_rank`.

    depth: of candidates that do not record it
    most: keep the first distinct candidates of a list; `repeated` counts those of a text that occurred before
    ties: keep lists whose ranks are all equal, from which nothing can be learned; `tied` counts those dropped
    digests: of the queries' texts; questions: the number of queries, those of tied lists included
    beyond: the ranks beyond `depth` of candidates that do not record it; several if the depth is wrong
    """

    def __init__(
        self,
        lists: Iterable[ExpansionList],
        *,
        depth: int,
        max_rank: int,
        most: int | None = None,
        ties: bool = False,
    ) -> None:
        # The file and its position belong to this process; readers in other processes use pread.
        self._file = tempfile.TemporaryFile(prefix="drtk-")  # noqa: SIM115 - it lives as long as this object
        self._offsets, self._starts, self._ranks = array("q", [0]), array("q", [0]), array("i")
        self._depths: set[int] = set()
        self.tied = self.repeated = 0
        queries: set[str] = set()
        self.digests: set[str] = set()
        self.beyond: set[int] = set()
        written = 0
        for each in lists:
            queries.add(each.query.id)
            self.digests.add(digest_question(each.query.text))
            distinct = select_distinct(each.expansions)
            self.repeated += len(each.expansions) - len(distinct)
            kept = distinct[:most]
            self._depths.update(one.depth or depth for one in kept)
            self.beyond.update(one.rank for one in kept if not one.depth and one.rank and one.rank > depth)
            ranks = [max_rank if (rank := one.rank or max_rank) > (one.depth or depth) else rank for one in kept]
            if not ties and len(set(ranks)) < 2:
                self.tied += 1
                continue
            top1 = [one.top1 or {} for one in kept]
            texts = [(one.text, top.get("title", ""), top.get("text", "")) for one, top in zip(kept, top1, strict=True)]
            written += self._file.write(orjson.dumps((each.query.text, texts)))
            self._offsets.append(written)
            self._ranks.extend(ranks)
            self._starts.append(len(self._ranks))
        self._file.flush()
        self.questions = len(queries)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def depth(self) -> int | list[int]:
        """The depth of the search for answers; all depths if lists differ."""
        return sorted(self._depths) if len(self._depths) > 1 else next(iter(self._depths))

    @property
    def candidates(self) -> int:
        """The number of candidates in all lists."""
        return len(self._ranks)

    def __getitem__(self, number: int) -> LabelledList:
        start, end = self._offsets[number], self._offsets[number + 1]
        query, texts = orjson.loads(os.pread(self._file.fileno(), end - start, start))
        return LabelledList([CandidateTexts(query, *each) for each in texts], self.ranks(number))

    def ranks(self, number: int) -> np.ndarray:
        """Return the ranks of a list, (candidates,), int64."""
        return np.array(self._ranks[self._starts[number] : self._starts[number + 1]], dtype=np.int64)


def load_labelled(
    source: str,
    queries: Mapping[str, Query],
    settings: QueryRerankerConfig,
    *,
    kind: str | None,
    training: bool,
    assumed: set[str],
    tracker: InputTracker,
) -> LabelledCandidates:
    """Load the labelled candidates of a file, of one kind or of all.

    training: drop tied lists and candidates beyond the number to train on
    Raises what reading and `DepthCheck` raise, DrtkError if nothing is left.
    """
    depths = DepthCheck(source, settings, assumed)

    def check(expansion: Expansion, query: Query) -> str | None:
        missing = find_missing(expansion, rank=True, top1=settings.variant == "rd")
        return depths(expansion, query) if missing is None and kind in (None, expansion.kind) else missing

    lists = iter_expansion_lists(source, queries, tracker, check=check)
    labelled = LabelledCandidates(
        (each for each in lists if kind in (None, each.kind)),
        depth=depths.usual,
        max_rank=settings.max_rank,
        most=settings.candidates if training else None,
        ties=not (training and settings.skip_ties),
    )
    if len(labelled.beyond) > 1:
        ranks = ", ".join(map(str, sorted(labelled.beyond)[:3]))
        warn(
            f"{name_of(source)}: ranks beyond {depths.usual} ({ranks} …) count as none found, but differ: if the labels have "
            "a greater depth, give `depth`"
        )
    if not len(labelled):
        missing = "no candidates" if kind is None else f"no candidates of kind '{kind}'"
        if labelled.tied:
            missing = f"{labelled.tied:,} lists of candidates, each of one rank"
        raise DrtkError(f"{name_of(source)}: holds {missing}; there is nothing to {'learn' if training else 'measure'}")
    return labelled
