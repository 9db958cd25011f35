"""What became of every candidate, a JSON line a query: kept, dropped and why, and what looks like a positive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError
from drtk.mining.pool import Drop, Pool, Sighting
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.streams import Output, is_replaceable, open_input, read_lines

Row = dict[str, Any]
# From where on a negative is called suspicious, where its value is known.
SUSPICIOUS_OVERLAP, SUSPICIOUS_COSINE = 0.8, 0.95
SUSPICIONS = {
    "above": "scores as high as the positive in its source, or higher",
    "ce": "a cross-encoder scores it as high as the positive, or higher",
    "answer": "contains an answer of the query",
    "overlap": f"shares {SUSPICIOUS_OVERLAP:.0%} or more of its runs of three words with a positive",
    "cosine": f"has a cosine of {SUSPICIOUS_COSINE} or more with a positive",
}


def audit_row(pool: Pool) -> Row:
    """A pool as a row: positives, what was kept, what was dropped and by which filter.

    `gap` is the score of the positive, in the same source, less that of the passage; `ce_gap` the same of a cross-encoder.
    """
    references = {source: pool.reference_score(source) for source in pool.asked.found}
    scored = [pool.marks[id]["ce"] for id in pool.references if "ce" in pool.marks.get(id, {})]
    ce = min(scored) if scored and len(scored) == len(pool.references) else None

    def shown(one: Sighting) -> Row:
        row: Row = {"id": one.id, "source": one.source}
        if pool.has_rank(one):
            row["rank"] = one.rank
        if one.score is not None:
            row["score"] = one.score
        row |= pool.marks.get(one.id, {})
        reference = references.get(one.source)
        if reference is not None and one.score is not None:
            row["gap"] = reference - one.score
        if ce is not None and "ce" in row:
            row["ce_gap"] = ce - row["ce"]
        return row

    row: Row = {"query_id": pool.query_id}
    if pool.left_out:
        row["left_out"] = pool.left_out
    row["positives"] = [_positive(pool, id) for id in pool.positives]
    if not pool.left_out:
        row["kept"] = [_suspected(shown(one)) for one in pool.kept]
        row["not_drawn"] = pool.seen - sum(one.rank > 0 for one in pool.kept) - len(pool.dropped) - len(pool.promoted)

    def told(drop: Drop) -> Row:
        limits = {"value": drop.value, "limit": drop.limit}
        named = {name: value for name, value in limits.items() if value is not None}
        return shown(drop.sighting) | {"by": drop.by} | named

    row["dropped"] = [told(drop) for drop in pool.dropped.values()]
    if pool.refused:
        row["random_refused"] = [told(drop) for drop in pool.refused.values()]
    return row


def _positive(pool: Pool, id: str) -> Row:
    row: Row = {"id": id, **pool.marks.get(id, {})}
    if id in pool.promoted:
        row["promoted"] = True
    found = {}
    for source, ranked in pool.asked.found.items():
        if id in ranked.ids:
            at = ranked.ids.index(id)
            found[source] = [at + 1, ranked.scores[at] if ranked.scores else None]
    return row | {"found": found}


def _suspected(row: Row) -> Row:
    tests = {
        "above": row.get("gap", 1) <= 0,
        "ce": row.get("ce_gap", 1) <= 0,
        "answer": row.get("answer", 0) >= 1,
        "overlap": row.get("overlap", 0) >= SUSPICIOUS_OVERLAP,
        "cosine": row.get("cosine", 0) >= SUSPICIOUS_COSINE,
    }
    found = [name for name, is_so in tests.items() if is_so]
    return row | {"suspicious": found} if found else row


class Audit:
    """Writes the rows beside the job's own output, and goes on with it where an interrupted job left it.

    target: the file. scratch: the rows are for a report alone, and go when that was made.
    """

    def __init__(self, target: str, job: FilterJob, *, scratch: bool) -> None:
        self._target, self._job, self._scratch = target, job, scratch
        self._resumable = is_replaceable(job.output)
        self._output: Output | None = None

    def add(self, pool: Pool) -> None:
        """Write a pool's row."""
        self._opened().write(orjson.dumps(audit_row(pool), option=orjson.OPT_APPEND_NEWLINE))

    def end_window(self) -> None:
        """Note how far the rows reach, for the job's journal."""
        output = self._opened()
        self._job.counts["audit"] = {"bytes": output.end_frame()}
        output.keep_part = self._resumable

    def rows(self) -> Iterator[Row]:
        """All rows written so far, from the first on."""
        output = self._opened()
        output.end_frame()
        stream, _ = open_input(str(output.part))
        with stream:
            for _, line in read_lines(stream, str(output.part)):
                yield orjson.loads(line)

    def commit(self) -> None:
        """Put the rows in their place, before the job's own output is; those of a report stay till the end."""
        output = self._opened()
        if not self._scratch:
            output.commit()

    def _opened(self) -> Output:
        if self._output is None:  # the job knows by the first window whether it is going on
            at = self._job.counts.get("audit", {}).get("bytes", 0)
            suffix = ".rows.part" if self._scratch else ".part"
            part, final = Path(self._target + suffix), Path(self._target)
            if at and not self._scratch and not part.exists() and final.exists():
                final.rename(part)  # the job was killed between this file's last step and its own
            self._output = Output(self._target, append_at=at or None, suffix=suffix, scratch=self._scratch)
            self._job.side_outputs.append(self._output)
            self._output.begin()  # known before it is there, so that a fault in between does not leave it
        return self._output

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._output is not None and (kind is not None or self._scratch):
            if not Path(f"{self._job.output}.part.json").exists():  # nobody goes on from these rows
                self._output.keep_part = False
            self._output.__exit__(kind, error, trace)


def check_target(path: str, job: FilterJob) -> None:
    """Raises DrtkError for a side file that cannot be made: there already, a folder, or without one."""
    place = Path(path)
    if place.is_dir():
        raise DrtkError(f"{path}: is a folder; expected a file")
    if not is_replaceable(path):
        raise DrtkError(f"{path}: must be a file, which can be read again")
    goes_on = job.resume and Path(f"{job.output}.part.json").exists()
    if place.exists() and not job.force and not goes_on:
        raise DrtkError(f"{path}: exists already; --force replaces it")
    if not place.parent.is_dir():
        raise DrtkError(f"{path}: there is no folder {place.parent}")
