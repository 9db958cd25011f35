"""Labeled candidates: the training data of query rerankers (EAR; docs/methods/ear.md)."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import orjson

from drtk.errors import DrtkError, UsageError
from drtk.query_expansion.candidates import ExpansionList, describe_missing_label, iter_expansion_lists, select_distinct
from drtk.query_expansion.config import QueryRerankerConfig
from drtk.query_expansion.query_reranker_input import CandidateTexts
from drtk.records import Expansion, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import get_source_name
from drtk.training.folds import digest_question


class LabeledList(NamedTuple):
    """Candidates of a query and kind, and their labels: the ranks of the first passage with an answer, (candidates,), int64."""

    candidates: list[CandidateTexts]
    ranks: np.ndarray


class LabeledCandidates:
    """Sequence of `LabeledList`, stored in a temporary file. Ranks beyond the recorded search depth become `max_rank`.

    max_candidates: maximum number of distinct candidates per list; None keeps all
    keep_ties: keep lists whose ranks are all equal, which have no training signal
    num_tied: number of lists dropped because all ranks are equal
    num_repeated: number of candidates dropped because of a repeated text
    num_questions: number of queries, including those of dropped lists; digests: hashes of the query texts
    Raises UsageError if `max_rank` is not above the search depth, or for a list with several search depths.
    """

    def __init__(
        self,
        lists: Iterable[ExpansionList],
        *,
        max_rank: int,
        max_candidates: int | None = None,
        keep_ties: bool = False,
    ) -> None:
        # Data loader processes share the file, so reading must not move its position (pread).
        self._file = tempfile.TemporaryFile(prefix="drtk-")  # noqa: SIM115 - closed with this object
        self._offsets, self._starts, self._ranks = array("q", [0]), array("q", [0]), array("i")
        self._depths: set[int] = set()
        self.num_tied = self.num_repeated = 0
        queries: set[str] = set()
        self.digests: set[str] = set()
        size = 0
        for candidates in lists:
            query = candidates.query
            queries.add(query.id)
            self.digests.add(digest_question(query.text))
            distinct = select_distinct(candidates.expansions)
            self.num_repeated += len(candidates.expansions) - len(distinct)
            depths = sorted({expansion.depth or max_rank - 1 for expansion in candidates.expansions})
            if len(depths) > 1:
                raise UsageError(
                    f"query '{query.id}': candidates of kind '{candidates.kind}' were labeled with the depths {depths[0]} and {depths[1]}; "
                    "label all with the same depth"
                )
            self._depths |= {*depths}
            depth = depths[0]
            if max_rank <= depth:
                raise UsageError(f"`max_rank` {max_rank}: must be above the depth of the labels, {depth}")
            texts, ranks = [], []
            for expansion in distinct[:max_candidates]:
                rank = expansion.rank or max_rank
                top1 = expansion.top1 or {}
                texts.append((expansion.text, top1.get("title", ""), top1.get("text", "")))
                ranks.append(max_rank if rank > depth else rank)
            if not keep_ties and len(set(ranks)) < 2:
                self.num_tied += 1
                continue
            size += self._file.write(orjson.dumps((query.text, texts)))
            self._offsets.append(size)
            self._ranks.extend(ranks)
            self._starts.append(len(self._ranks))
        self._file.flush()
        self.num_questions = len(queries)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def depth(self) -> int | list[int]:
        """Number of hits searched for an answer when the candidates were labeled; a list if it differs between candidates."""
        return sorted(self._depths) if len(self._depths) > 1 else next(iter(self._depths))

    @property
    def num_candidates(self) -> int:
        """Number of candidates in all lists."""
        return len(self._ranks)

    def __getitem__(self, index: int) -> LabeledList:
        start, end = self._offsets[index], self._offsets[index + 1]
        query, texts = orjson.loads(os.pread(self._file.fileno(), end - start, start))
        return LabeledList([CandidateTexts(query, *candidate) for candidate in texts], self.get_ranks(index))

    def get_ranks(self, index: int) -> np.ndarray:
        """Return the rank labels of a list (see `LabeledList`), (candidates,), int64."""
        return np.array(self._ranks[self._starts[index] : self._starts[index + 1]], dtype=np.int64)


def load_labeled_candidates(
    source: str,
    queries: Mapping[str, Query],
    settings: QueryRerankerConfig,
    *,
    kind: str | None,
    for_training: bool,
    tracker: InputTracker,
) -> LabeledCandidates:
    """Load the labeled candidates of a file.

    kind: kind of expansions to load; None loads all kinds
    for_training: drop candidates beyond `settings.candidates`, and lists of equal ranks if `settings.skip_ties`
    Raises the errors of `iter_expansion_lists` and `LabeledCandidates`, DrtkError if there are no candidates.
    """

    def check(expansion: Expansion, _: Query) -> str | None:
        if kind not in (None, expansion.kind):
            return None
        return describe_missing_label(expansion, rank=True, top1=settings.variant == "rd")

    lists = iter_expansion_lists(source, queries, tracker, check=check)
    try:
        labeled = LabeledCandidates(
            (candidates for candidates in lists if kind in (None, candidates.kind)),
            max_rank=settings.max_rank,
            max_candidates=settings.candidates if for_training else None,
            keep_ties=not (for_training and settings.skip_ties),
        )
    except UsageError as error:
        raise UsageError(f"{get_source_name(source)}: {error}") from error
    if not len(labeled):
        problem = "contains no candidates; run `drtk rerank-queries label` first"
        if labeled.num_tied:
            problem = f"in each of the {labeled.num_tied:,} lists, all candidates have the same rank; label more candidates per query"
        elif kind is not None:
            problem = f"contains no candidates of kind '{kind}'; check the kind"
        raise DrtkError(f"{get_source_name(source)}: {problem}")
    return labeled
