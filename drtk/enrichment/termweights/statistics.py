"""What a collection says about its words: sums over passages, so that parts add up to the whole.

A file has a line a window of passages; files are joined by `cat`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.io.intake import Intake
from drtk.io.streams import name_of

Sums = dict[str, list[float]]
KINDS = {"counts": 2, "attention": 1}  # numbers a word


class Statistics:
    """Sums over the passages of a collection.

    kind: "counts" (for each word the passages with it, and its occurrences) or "attention" (its saturated attention)
    made_by: the choices that decide them; only statistics of the same choices add up
    length: words of letters or digits, occurrences counted
    """

    def __init__(self, kind: str, made_by: Mapping[str, Any]) -> None:
        self.kind, self.made_by = kind, dict(made_by)
        self.documents = 0
        self.length = 0
        self.words: Sums = {}

    def add(self, words: Mapping[str, Sequence[float]], *, length: int, documents: int = 1) -> None:
        """Add what was found of words in a passage, or in several."""
        self.documents += documents
        self.length += length
        sums = self.words
        for word, values in words.items():
            known = sums.get(word)
            if known is None:
                sums[word] = [*values]
            else:
                for at, value in enumerate(values):
                    known[at] += value

    def line(self) -> bytes:
        """As a line of a file."""
        row = {
            "statistics": self.kind,
            "made_by": self.made_by,
            "documents": self.documents,
            "length": self.length,
            "words": self.words,
        }
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def read_statistics(
    sources: Iterable[str], kind: str, check: Callable[[Mapping[str, Any], str], None], *, intake: Intake
) -> Statistics:
    """The sum of all lines of all files.

    check: raises where the choices of a line, at a place, are not those wanted
    Raises RecordError for what is no line of statistics, MismatchError for statistics of another kind,
    DrtkError where there is none.
    """
    total: Statistics | None = None
    source = ""
    for source in sources:
        for number, line in intake.lines(source):
            if not line.strip():
                continue
            place = f"{name_of(source)}:{number}"
            row = _row(line, place)
            if row["statistics"] != kind:
                raise MismatchError(f"{place}: statistics of {row['statistics']}, but this method needs {kind}")
            if total is None:
                check(row["made_by"], place)
                total = Statistics(kind, row["made_by"])
            elif row["made_by"] != total.made_by:
                raise MismatchError(f"{place}: was collected with {_differences(row['made_by'], total.made_by)}")
            total.add(row["words"], length=row["length"], documents=row["documents"])
    if total is None or not total.documents:
        raise DrtkError(f"{name_of(source)}: holds no statistics of a passage")
    return total


def _row(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
        wanted = KINDS[row["statistics"]]
        whole = isinstance(row["made_by"], dict) and row["documents"] >= 0 and row["length"] >= 0
        if not whole or any(len(values) != wanted for values in row["words"].values()):
            raise ValueError
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(place, "is no line of statistics; drtk termweight --collect makes them") from error
    found: dict[str, Any] = row
    return found


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return ", ".join(f"{name} {one.get(name)}, not {other.get(name)}" for name in names)
