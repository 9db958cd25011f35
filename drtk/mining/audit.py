"""Audit of a mining run: the positives, negatives and rejected candidates per query, and suspected false negatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError
from drtk.mining.candidates import Candidate, CandidatePool, Rejection
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.streams import Output, is_replaceable, open_input, read_lines

AuditRow = dict[str, Any]
SUSPICIOUS_OVERLAP, SUSPICIOUS_COSINE = 0.8, 0.95  # a negative is suspicious from this value on
SUSPICIONS = {
    "above": "score in its source at least the positive's",
    "ce": "cross-encoder score at least the positive's",
    "answer": "contains an answer of the query",
    "overlap": f"overlap of {SUSPICIOUS_OVERLAP:.0%} or more with a positive, in three-word shingles",
    "cosine": f"cosine of {SUSPICIOUS_COSINE} or more with a positive",
}


def build_audit_row(pool: CandidatePool) -> AuditRow:
    """Return the audit row of a query: its positives, negatives (unless it is skipped) and rejected candidates.

    `gap` is the lowest score of a positive minus the passage's score, both in the passage's source; `ce_gap` is the same
    for cross-encoder scores.
    """
    reference_scores = {source: pool.find_reference_score(source) for source in pool.query.hits}
    ce_scores = [pool.values.get(id, {}).get("ce") for id in pool.reference_positives]
    lowest_ce = min((score for score in ce_scores if score is not None), default=None)
    reference_ce = None if None in ce_scores else lowest_ce

    def describe(candidate: Candidate) -> AuditRow:
        row: AuditRow = {"id": candidate.id, "source": candidate.source}
        if pool.has_rank(candidate):
            row["rank"] = candidate.rank
        if candidate.score is not None:
            row["score"] = candidate.score
        row |= pool.values.get(candidate.id, {})
        reference_score = reference_scores.get(candidate.source)
        if reference_score is not None and candidate.score is not None:
            row["gap"] = reference_score - candidate.score
        if reference_ce is not None and "ce" in row:
            row["ce_gap"] = reference_ce - row["ce"]
        return row

    def describe_rejection(rejection: Rejection) -> AuditRow:
        limits = {"value": rejection.value, "limit": rejection.limit}
        row = describe(rejection.candidate) | {"by": rejection.filter}
        return row | {name: value for name, value in limits.items() if value is not None}

    row: AuditRow = {"query_id": pool.query_id}
    if pool.skipped:
        row["skipped"] = pool.skipped
    row["positives"] = [_describe_positive(pool, id) for id in pool.positives]
    if not pool.skipped:
        row["kept"] = [_add_suspicions(describe(negative)) for negative in pool.negatives]
        row["not_sampled"] = pool.num_not_sampled
    row["dropped"] = [describe_rejection(rejection) for rejection in pool.rejected.values()]
    if pool.rejected_random:
        row["random_rejected"] = [describe_rejection(rejection) for rejection in pool.rejected_random.values()]
    return row


def _describe_positive(pool: CandidatePool, id: str) -> AuditRow:
    row: AuditRow = {"id": id, **pool.values.get(id, {})}
    if id in pool.promoted:
        row["promoted"] = True
    ranks = {}
    for source, hits in pool.query.hits.items():
        if id in hits.ids:
            position = hits.ids.index(id)
            ranks[source] = [position + 1, hits.scores[position] if hits.scores else None]
    return row | {"found": ranks}


def _add_suspicions(row: AuditRow) -> AuditRow:
    tests = {
        "above": row.get("gap", 1) <= 0,
        "ce": row.get("ce_gap", 1) <= 0,
        "answer": row.get("answer", 0) >= 1,
        "overlap": row.get("overlap", 0) >= SUSPICIOUS_OVERLAP,
        "cosine": row.get("cosine", 0) >= SUSPICIOUS_COSINE,
    }
    suspicions = [name for name, is_suspicious in tests.items() if is_suspicious]
    return row | {"suspicious": suspicions} if suspicions else row


class Audit:
    """Writer of the mining audit: JSON lines, one per query. A resumed job appends to the file.

    target: path of the audit file, or of the report with `scratch`
    scratch: write REPORT.rows.part next to the report, and delete it at the end
    """

    def __init__(self, target: str, job: FilterJob, *, scratch: bool) -> None:
        self._target, self._job, self._scratch = f"{target}.rows" if scratch else target, job, scratch
        self._opened: Output | None = None

    def add(self, pools: Sequence[CandidatePool]) -> None:
        """Write a row for the query of each pool, and record the file size in the job's counts, for its journal."""
        output = self._open_output()
        for pool in pools:
            output.write(orjson.dumps(build_audit_row(pool), option=orjson.OPT_APPEND_NEWLINE))
        self._job.counts["audit"] = {"bytes": output.end_frame()}
        output.keep_part = is_replaceable(self._job.output)

    def read(self) -> Iterator[AuditRow]:
        """Yield all rows written so far, in the order of the queries."""
        output = self._open_output()
        output.end_frame()
        stream, _ = open_input(str(output.part))
        with stream:
            for _, line in read_lines(stream, str(output.part)):
                yield orjson.loads(line)

    def commit(self) -> None:
        """Rename the audit to its final name, unless `scratch`; must be called before the job renames its output."""
        output = self._open_output()
        if not self._scratch:
            output.commit()

    def _open_output(self) -> Output:
        if self._opened is None:  # opened late, after the job has read its journal
            offset = self._job.counts.get("audit", {}).get("bytes", 0)
            part, final = Path(f"{self._target}.part"), Path(self._target)
            if offset and not self._scratch and not part.exists() and final.exists():
                final.rename(part)  # the job was killed after it renamed this file, before it renamed its own
            self._opened = Output(self._target, append_at=offset or None)
            self._job.side_outputs.append(self._opened)
            self._opened.begin()  # after it is stored, so that an interrupt in between does not leave the file
        return self._opened

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._opened is not None and (kind is not None or self._scratch):
            if kind is None or not self._job.journal_path.exists():  # nothing resumes from these rows
                self._opened.keep_part = False
            self._opened.discard()


def check_output_path(path: str, job: FilterJob) -> None:
    """Raise DrtkError if no audit or report can be written to `path`.

    `path` must not be a folder, a stream or in a missing folder. A file may exist if `job` overwrites or resumes.
    """
    if (target := Path(path)).is_dir():
        raise DrtkError(f"{path}: is a folder; give the path of a file")
    if not is_replaceable(path):
        raise DrtkError(f"{path}: is a stream, which cannot be read again; give the path of a file")
    if target.exists() and not job.force and not (job.resume and job.journal_path.exists()):
        raise DrtkError(f"{path}: exists already; `force` replaces it")
    if not target.parent.is_dir():
        raise DrtkError(f"{path}: folder {target.parent} does not exist; create it first")
