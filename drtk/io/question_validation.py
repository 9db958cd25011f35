"""What `drtk validate` looks for in candidate expansions and predictions, and how a file of them is recognised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby, islice
from typing import TYPE_CHECKING, Literal

from drtk.io import formats, kinds
from drtk.io.findings import Findings, note_repeated
from drtk.io.grouping import Grouping
from drtk.io.intake import Intake
from drtk.io.kinds import LOOKED_AT, is_surely_passage, kind_of_row
from drtk.io.leaks import digest
from drtk.io.rows import Row, parse_row
from drtk.io.streams import is_stream
from drtk.records import Expansion, Prediction

if TYPE_CHECKING:
    from drtk.io.validation import Against

_CALLED: dict[str | None, Literal["examples", "expansions", "predictions"]] = {
    kinds.EXAMPLES: "examples",
    kinds.EXPANSIONS: "expansions",
    kinds.PREDICTIONS: "predictions",
}


Recognised = Literal["run", "qrels", "examples", "expansions", "predictions", "passages"]


def recognised(source: str, intake: Intake) -> Recognised | None:
    """What a file holds, judged by its first record; None where that is of no kind that can be told from all others.

    Runs and judgements are recognized by the columns of their first lines, passages by an early one that has a title.
    """
    if (columns := kinds.columns_of(intake.peek(source))) is not None:
        return columns
    rows = _first_of_stream(intake.peek(source)) if is_stream(source) else _first_of_file(source)
    first = next(rows, None)
    if first is None:
        return None
    if (called := _CALLED.get(kind_of_row(first))) is not None:
        return called
    early = [first, *rows]
    alike = {kind_of_row(row) for row in early} <= {kinds.PASSAGES, kinds.EITHER}
    return "passages" if alike and any(is_surely_passage(row) for row in early) else None


def _first_of_file(source: str) -> Iterator[Row]:
    return (row for _, row in islice(formats.json_rows(source, Intake()), LOOKED_AT) if isinstance(row, dict))


def _first_of_stream(beginning: bytes) -> Iterator[Row]:
    lines = beginning.splitlines(keepends=True)
    if len(lines) > 1 and not lines[-1].endswith(b"\n"):  # cut off
        lines.pop()
    for line in islice(filter(bytes.strip, lines), LOOKED_AT):
        with suppress(ValueError):
            yield parse_row(line)


def check_expansions(found: Iterator[tuple[int, Expansion]], findings: Findings, against: Against) -> None:
    """Note what the commands of `drtk rerank-queries` refuse or pass over, candidate by candidate."""
    ids, texts, lists = Grouping(), Grouping(), Grouping()
    seen: set[str] = set()
    for query_id, block in groupby(found, key=lambda item: item[1].query_id):
        begun: set[str] = set()
        depths: dict[str, int] = {}
        for line, each in block:
            if query_id not in seen:
                against.check_query(query_id, line, findings)
            seen.add(query_id)
            if each.kind not in begun:
                lists.add(f"{query_id} {each.kind}", str(line))
            begun.add(each.kind)
            ids.add(each.id, str(line))
            texts.add(digest("\n".join((query_id, each.kind, " ".join(each.text.split())))), str(line))
            depth = depths.setdefault(each.kind, each.depth) if each.depth is not None else None
            if depth != each.depth:
                problem = f"'{each.id}' was looked at to depth {each.depth}, those before it to depth {depth}"
                findings.add("mixed-depth", line, problem)
    note_repeated(ids, texts, findings)
    for key, lines in lists.repeated():
        query_id, kind = key.split()
        for place in lines[1:]:
            findings.add("split-query", int(place), f"candidates of '{query_id}' for '{kind}' begin in line {lines[0]}")
    _note_missing(seen, "no-candidates", "has no candidate", findings, against)


def check_predictions(found: Iterator[tuple[int, Prediction]], findings: Findings, against: Against) -> None:
    """Note what `drtk eval --exact-match` refuses or passes over, prediction by prediction."""
    places = Grouping()
    seen: set[str] = set()
    for line, each in found:
        if each.query_id not in seen:
            against.check_query(each.query_id, line, findings)
        seen.add(each.query_id)
        places.add(each.query_id, f"{line} {'' if each.score is None else 'scored'}")
        if not each.answer.strip():
            findings.add("empty-text", line, f"the answer to question '{each.query_id}' is empty")
    for query_id, values in places.repeated():
        first, *others = (value.split() for value in values)
        for line_now, *_ in others:
            problem = f"question '{query_id}' has a prediction in line {first[0]} already"
            findings.add("repeated-prediction", int(line_now), problem)
        for line_now, *scored in (first, *others):
            if not scored:
                problem = f"question '{query_id}' has several predictions, and this one has no score"
                findings.add("no-score", int(line_now), problem)
    _note_missing(seen, "no-prediction", "has no prediction", findings, against)


def _note_missing(seen: Iterable[str], check: str, problem: str, findings: Findings, against: Against) -> None:
    for query_id in (against.queries or {}).keys() - set(seen):
        findings.add(check, 0, f"query '{query_id}' {problem}")
