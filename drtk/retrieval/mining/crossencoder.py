"""The check by a cross-encoder: scores of a model, or those that the examples brought along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from drtk.errors import DrtkError, MismatchError
from drtk.retrieval.mining.pool import Pool
from drtk.retrieval.mining.texts import Texts

Pair = tuple[str, str]


class Scores(Protocol):
    """What the check needs of a cross-encoder; models.crossencoder.Scorer is one. bounds: of all scores it can give."""

    model: str

    @property
    def bounds(self) -> tuple[float, float]: ...

    def __call__(self, pairs: Sequence[Pair]) -> np.ndarray: ...


class CrossEncoderCheck:
    """How well a passage answers its query, in a cross-encoder's scores.

    scorer: without one, the scores are those of the examples. margin: negatives lie this much below the lowest reference.
    most: no negative has more. title: how a passage's is put before its text, as models.reading.text_of knows it.
    Raises MismatchError for a margin that no two scores of the scorer can have, DrtkError where examples lack a score that
    is needed.
    """

    name = "ce"

    def __init__(
        self,
        scorer: Scores | None,
        texts: Texts | None,
        *,
        margin: float | None = None,
        most: float | None = None,
        title: str = "join",
    ) -> None:
        self._scorer, self._texts = scorer, texts
        self._margin, self._most, self._title = margin, most, title
        if scorer is not None and margin is not None:
            _check_margin(scorer, margin)

    def measure(self, pools: Sequence[Pool], wanted: Sequence[Sequence[str]]) -> None:
        """Mark the wanted passages and the positives of each query."""
        lacking = [
            (pool, id)
            for pool, ids in zip(pools, wanted, strict=True)
            for id in dict.fromkeys((*pool.positives, *ids))
            if self.name not in pool.marks.get(id, {})
        ]
        if self._scorer is None or self._texts is None:
            for pool, id in lacking:
                raise DrtkError(
                    f"query '{pool.query_id}': passage '{id}' has no score of a cross-encoder; --scorer MODEL makes them"
                )
            return
        from drtk.models.reading import text_of  # with torch, which mining without a model does not load

        self._texts.hold(id for _, id in lacking)
        pairs = [
            (pool.asked.query.text if pool.asked.query else "", text_of(self._texts[id], self._title))
            for pool, id in lacking
        ]
        scores = self._scorer(pairs) if pairs else np.empty(0, dtype=np.float32)
        for (pool, id), score in zip(lacking, scores, strict=True):
            pool.mark(id, self.name, float(str(score)))  # the digits that tell numbers of float32 apart

    def limit(self, pool: Pool) -> float | None:
        """The highest score of a negative of this query."""
        limits = [] if self._most is None else [self._most]
        if self._margin is not None:
            limits.append(min(pool.marks[id][self.name] for id in pool.references) - self._margin)
        return min(limits, default=None)

    def is_beyond(self, value: float, limit: float) -> bool:
        """Whether a passage is to go. One that lies at the limit stays, as in BEIR's example."""
        return value > limit


def _check_margin(scorer: Scores, margin: float) -> None:
    low, high = scorer.bounds
    if margin >= high - low:
        raise MismatchError(
            f"{scorer.model}: gives scores between {low:g} and {high:g}, so that nothing can lie {margin:g} below a "
            "positive; name a smaller --ce-margin, or have its logits compared: --scorer-logits"
        )
