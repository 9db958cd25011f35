"""Candidate expansions of a question as records: blank ones and repeats left out, lengths counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drtk.io.filtering import Done
from drtk.io.jsonl import dump
from drtk.records import Expansion
from drtk.text.expanded_query import expanded_query, plain_query


class Gathered:
    """The candidates of a window of questions, as lines and counts for the manifest."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._repeated, self._blank, self._without = 0, 0, 0
        self._words: dict[str, dict[str, int]] = {}

    def add(
        self,
        query_id: str,
        question: str,
        kind: str,
        texts: Iterable[str],
        *,
        fold: int | None = None,
        greedy: bool = False,
    ) -> None:
        """One question's candidates of a kind: the different texts in their order, numbered from 01.

        greedy: the first was written greedily, and its record says so
        """
        given = [" ".join(text.split()) for text in texts]
        written = [text for text in given if text]
        kept = list(dict.fromkeys(written))
        for number, text in enumerate(kept, start=1):
            extra = {"decode": "greedy"} if greedy and text == given[0] else {}
            name = f"{query_id}#{kind}#{number:02d}"
            self._lines.append(dump(Expansion(name, query_id, kind, text, fold=fold, extra=extra)))
        self._blank += len(given) - len(written)
        self._repeated += len(written) - len(kept)
        self._without += not kept
        words = self._words.setdefault(
            kind, dict.fromkeys(("questions", "without", "candidates", "question", "expanded"), 0)
        )
        words["questions"] += 1
        words["without"] += not kept
        words["candidates"] += len(kept)
        words["question"] += _words(plain_query(question))
        words["expanded"] += sum(_words(expanded_query(question, text)) for text in kept)

    def done(self) -> Done:
        """The lines, and the counts: candidates left out, questions without any, and `words` by kind."""
        counts = {"repeated": self._repeated, "blank": self._blank, "without candidates": self._without}
        return Done(self._lines, counts | {"words": self._words})


def _words(query: str) -> int:
    """Words of a query, the question mark that is set apart not being one."""
    return len(query.split()) - 1


def summary(words: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    """A line for each kind: different candidates a question, and mean lengths in words (the thesis' table 3.9).

    words: `Gathered`'s counts, added up over windows
    """
    for kind, sums in words.items():
        questions, candidates = sums["questions"], sums["candidates"]
        if not questions or not candidates:
            continue
        each = candidates / questions
        asked, expanded = sums["question"] / questions, sums["expanded"] / candidates
        yield (
            f"{kind}: {each:.1f} different candidates a question; words: question {asked:.1f}, "
            f"question with expansion {expanded:.1f}"
        )
