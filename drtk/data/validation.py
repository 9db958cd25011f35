"""Validate files of records and folders made by drtk, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any

from drtk.data import readers, sniff
from drtk.data.collection import iter_collection_files
from drtk.data.config import FileKind, ValidationSettings
from drtk.data.corpus_store import CorpusStore
from drtk.data.examples import ParsedExample
from drtk.data.findings import DuplicateFinder, Findings
from drtk.data.readers import load_qrels, read_queries
from drtk.data.rows import is_example
from drtk.data.sniff import MAX_LINES, is_surely_passage, sniff_row
from drtk.data.tables import is_table
from drtk.data.trec import Judgments
from drtk.data.tsv import parse_example_header
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.records import Hit, parse_document_id
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import find_damage, read_manifest
from drtk.runtime.progress import log
from drtk.runtime.streams import STANDARD, digest_bytes, get_source_name, is_stream


def validate_file(source: str, settings: ValidationSettings) -> Findings:
    """Check a file of records and return the findings.

    Raises UsageError for contradictory settings or an unclear kind, DrtkError if a file to compare with cannot be read.
    """
    findings = Findings(get_source_name(source), settings.kind or "", settings.show)
    tracker = FindingsTracker(findings)
    kind = settings.kind or detect_kind(source, tracker)
    if kind is None:
        raise UsageError(
            f"{get_source_name(source)}: its kind is unclear; set `as` to one of {', '.join(_CHECKERS)}; read documents with drtk import, vectors with drtk convert"
        )
    findings.kind = kind
    references = ReferenceFiles(settings, kind)
    try:
        _CHECKERS[kind](source, tracker, findings, references)
    except RecordError as error:  # damaged data; the following lines cannot be read
        tracker.skip_or_raise(RecordError(error.place, f"{error.problem}; the rest of the file was not read"))
    if settings.leak is not None:
        add_leaks(source, settings.leak, kind, findings, references.queries or {})
    return findings


def validate_collection(source: str, settings: ValidationSettings) -> Iterator[Findings]:
    """Check the files of a collection, and the ids in its judgments; yield the findings of each file.

    Skips the comparison of ids, with a message, for files with unreadable lines or repeated ids.
    Raises UsageError for settings that apply to single files only.
    """
    _check_no_file_settings(settings, f"{source} is a collection")
    files = list(iter_collection_files(source))
    valid: dict[str, str] = {}
    kinds: dict[str, FileKind] = {"corpus": "passages", "queries": "queries", "qrels": "qrels"}
    for part, file in files:
        if part == "qrels":
            for other in sorted({"corpus", "queries"} - valid.keys()):
                log(f"{file}: ids are not compared with the {other}, which has errors")
            settings = replace(settings, corpus=valid.get("corpus"), queries=valid.get("queries"))
        findings = validate_file(file, replace(settings, kind=kinds[part]))
        if not {"unreadable", "duplicate"} & {*findings.counts}:
            valid[part] = file
        yield findings


def _check_no_file_settings(settings: ValidationSettings, reason: str) -> None:
    for name in ("kind", "corpus", "queries", "qrels", "leak"):
        if getattr(settings, name) is not None:
            raise UsageError(f"`{'as' if name == 'kind' else name}` applies to files of records only; {reason}")


def validate_folder(folder: str, settings: ValidationSettings) -> Findings:
    """Compare the files of a folder made by drtk with the sizes and digests in its meta.json; return the findings.

    Raises UsageError for settings that apply to files of records only, DrtkError for an unfinished folder or one that
    drtk did not make.
    """
    manifest = read_manifest(folder, files=dict)
    _check_no_file_settings(settings, f"{folder} is a folder made by drtk")
    findings = Findings(folder, "files", settings.show)
    findings.num_records = len(manifest["files"])
    for name, problem in find_damage(Path(folder), manifest):
        findings.add("damaged-file", 0, f"{name}: {problem}")
    return findings


class FindingsTracker(InputTracker):
    """An `InputTracker` that skips all bad records and adds their problems to `findings`."""

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self.findings = findings

    def skip_or_raise(self, error: DrtkError) -> None:
        """Add a RecordError to the findings; raise any other error."""
        if not isinstance(error, RecordError):
            raise error
        line = error.place.rpartition(":")[2]
        check = "duplicate" if "a second time" in error.problem else "unreadable"
        self.findings.add(check, int(line) if line.isdecimal() else 0, error.problem)


class ReferenceFiles:
    """The corpus, queries and judgments with which the ids in a file are compared."""

    def __init__(self, settings: ValidationSettings, kind: str) -> None:
        for value, field, kinds in (
            (settings.corpus, "corpus", ("qrels", "run", "examples")),
            (settings.queries, "queries", ("qrels", "run", "examples")),
            (settings.qrels, "qrels", ("queries", "run", "examples")),
            (settings.leak, "leak", ("passages", "queries", "examples")),
        ):
            if value is not None and kind not in kinds:
                raise UsageError(f"`{field}` requires `as` to be {', '.join(kinds[:-1])} or {kinds[-1]}")
        self.queries: dict[str, str] | None = None
        self.qrels: Judgments | None = None
        self.corpus: CorpusStore | None = None
        if settings.queries is not None:
            self.queries = {query.id: query.text for query in read_queries(settings.queries)}
        if settings.qrels is not None:
            self.qrels = load_qrels(settings.qrels)
        if settings.corpus is not None:
            self.corpus = CorpusStore.open(settings.corpus)

    def check_query(self, id: str, line: int, findings: Findings) -> None:
        """Add a finding if the query is not in the file of queries."""
        if self.queries is not None and id not in self.queries:
            findings.add("unknown-query", line, f"query '{id}' is not among the queries")

    def check_passages(self, ids: list[str], line: int, findings: Findings) -> None:
        """Add a finding for each passage that is not in the corpus."""
        if self.corpus is None:
            return
        for id in self.corpus.find_missing(list(dict.fromkeys(ids))):
            document = parse_document_id(id)
            is_chunk = document != id and not self.corpus.find_missing([document])
            hint = f", but its document '{document}' is; give the corpus of passages" if is_chunk else ""
            if self.corpus.has_document(id):
                hint = ", but passages of it are; give the corpus of documents"
            findings.add("unknown-passage", line, f"document '{id}' is not in the corpus{hint}")


def _check_passages(source: str, tracker: FindingsTracker, findings: Findings, _: ReferenceFiles) -> None:
    ids, texts = DuplicateFinder(), DuplicateFinder()
    for line, passage in _count_valid(readers.iter_passages(source, tracker), findings):
        ids.add(passage.id, str(line))
        if passage.text.strip():
            texts.add(digest_bytes(f"{passage.title}\n{passage.text}".encode()), f"{line} {passage.id}")
        else:
            findings.add("empty-text", line, f"'{passage.id}' has no text{', only a title' if passage.title else ''}")
    _add_repeated_records(ids, texts, findings)


def _check_queries(source: str, tracker: FindingsTracker, findings: Findings, references: ReferenceFiles) -> None:
    ids, texts = DuplicateFinder(), DuplicateFinder()
    for line, query in _count_valid(readers.iter_queries(source, tracker), findings):
        ids.add(query.id, str(line))
        if query.text.strip():
            texts.add(digest_bytes(query.text.encode()), f"{line} {query.id}")
        else:
            findings.add("empty-text", line, f"'{query.id}' has no text")
        if query.answers is not None and not query.answers:
            findings.add("no-answers", line, f"'{query.id}' has an empty list of answers")
        if references.qrels is not None and query.id not in references.qrels:
            findings.add("not-judged", line, f"query '{query.id}' is not in the judgments")
    _add_repeated_records(ids, texts, findings)


def _check_qrels(source: str, tracker: FindingsTracker, findings: Findings, references: ReferenceFiles) -> None:
    pairs = DuplicateFinder()
    first: dict[str, int] = {}
    relevant: set[str] = set()
    for line, qrel in _count_valid(readers.iter_judgments(source, tracker), findings):
        pairs.add(f"{qrel.query_id} {qrel.doc_id}", f"{line} {qrel.grade}")
        first.setdefault(qrel.query_id, line)
        if qrel.grade > 0:
            relevant.add(qrel.query_id)
        elif qrel.grade < 0:
            findings.add("negative-grade", line, f"grade {qrel.grade} of '{qrel.doc_id}' for query '{qrel.query_id}'")
        references.check_query(qrel.query_id, line, findings)
        references.check_passages([qrel.doc_id], line, findings)
    for pair, places in pairs.iter_duplicates():
        before, grade = places[0].split()
        query_id, doc_id = pair.split()
        for place in places[1:]:
            line_now, grade_now = place.split()
            differs = "" if grade == grade_now else f" with grade {grade}, not {grade_now}"
            message = f"document '{doc_id}' of query '{query_id}' was already judged in line {before}{differs}"
            findings.add("duplicate", int(line_now), message)
    for query_id, line in first.items():
        if query_id not in relevant:
            findings.add("no-relevant", line, f"query '{query_id}' has no document with a grade above 0")


def _check_run(source: str, tracker: FindingsTracker, findings: Findings, references: ReferenceFiles) -> None:
    seen: set[str] = set()
    hits = _count_valid(readers.iter_hits(source, tracker), findings)
    for query_id, block in groupby(hits, key=lambda item: item[1].query_id):
        ranked = list(block)
        line = ranked[0][0]
        if query_id in seen:
            findings.add(
                "split-query", line, f"the lines of query '{query_id}' are not consecutive; sort the run: sort -s -k1,1"
            )
        else:
            references.check_query(query_id, line, findings)
            if references.qrels is not None and query_id not in references.qrels:
                findings.add("not-judged", line, f"query '{query_id}' is not in the judgments")
        seen.add(query_id)
        _check_ranking(ranked, findings)
        for line, hit in ranked if references.corpus is not None else ():
            references.check_passages([hit.doc_id], line, findings)
    for query_id in (references.queries or {}) if references.queries is not None else (references.qrels or {}):
        if query_id not in seen:
            findings.add("no-hits", 0, f"query '{query_id}' has no hits")


def _check_ranking(ranked: list[tuple[int, Hit]], findings: Findings) -> None:
    """Check the hits of a query: ranks must increase by line, and scores must decrease by rank."""
    query_id, documents = ranked[0][1].query_id, set[str]()
    for line, hit in ranked:
        if hit.doc_id in documents:
            findings.add("duplicate", line, f"document '{hit.doc_id}' is listed a second time for query '{query_id}'")
        documents.add(hit.doc_id)
    for (_, above), (line, hit) in pairwise(ranked):
        if hit.rank <= above.rank:
            findings.add("rank-order", line, f"rank {hit.rank} of query '{query_id}' follows rank {above.rank}")
    ranked = sorted(ranked, key=lambda item: item[1].rank)
    for (_, above), (line, hit) in pairwise(ranked):
        if hit.score > above.score:
            problem = f"query '{query_id}' has score {above.score:g} at rank {above.rank}, but {hit.score:g} at rank {hit.rank}"
            findings.add("score-order", line, problem)
        elif hit.score == above.score:
            findings.add(
                "tie", line, f"query '{query_id}' has score {hit.score:g} at ranks {above.rank} and {hit.rank}"
            )
    if [hit.rank for _, hit in ranked] != list(range(1, len(ranked) + 1)):
        findings.add("rank-gap", ranked[0][0], f"ranks of query '{query_id}' are not 1, 2, 3, …")


def _check_examples(source: str, tracker: FindingsTracker, findings: Findings, references: ReferenceFiles) -> None:
    queries = DuplicateFinder()
    for line, parsed in _count_valid(readers.iter_examples(source, tracker), findings):
        example = parsed.example
        queries.add(example.query_id, str(line))
        positives, negatives = set(example.positives), set(example.negatives)
        for id in positives & negatives:
            findings.add("positive-and-negative", line, f"'{id}' is a positive and a negative")
        for side, ids in (("positive", example.positives), ("negative", example.negatives)):
            for id, count in Counter(ids).items():
                for _ in range(count - 1):
                    findings.add(f"repeated-{side}", line, f"'{id}' is repeated among the {side}s")
        if not negatives:
            findings.add("no-negatives", line, f"the example of query '{example.query_id}' has no negatives")
        for passage in parsed.passages:
            if not passage.text.strip():
                findings.add("empty-text", line, f"passage '{passage.id}' has no text")
        if parsed.query is None:
            references.check_query(example.query_id, line, findings)
        elif not parsed.query.text.strip():
            findings.add("empty-text", line, f"query '{example.query_id}' has no text")
        if not parsed.passages:
            references.check_passages([*example.positives, *example.negatives], line, findings)
        if references.qrels is not None:
            grades = references.qrels.get(example.query_id, {})
            is_judged = bool(grades)
            if not is_judged:
                findings.add("not-judged", line, f"query '{example.query_id}' is not in the judgments")
            grades = {id: grades.get(id, grades.get(parse_document_id(id), 0)) for id in positives | negatives}
            for id in dict.fromkeys(example.negatives):
                if grades[id] > 0:
                    findings.add("judged-relevant", line, f"negative '{id}' is judged relevant")
            for id in dict.fromkeys(example.positives) if is_judged else ():
                if grades[id] <= 0:
                    findings.add("not-relevant", line, f"positive '{id}' is not judged relevant")
    add_repeated(
        queries, "repeated-query", findings, lambda key, line: f"query '{key}' has another example in line {line}"
    )


def _count_valid(
    records: readers.ParsedRecords[readers.Record], findings: Findings
) -> Iterator[tuple[int, readers.Record]]:
    """Yield and count the valid records; add the others to the findings."""
    for line, record in records:
        if isinstance(record, ValueError):
            findings.add("unreadable", line, str(record))
        else:
            findings.num_records += 1
            yield line, record


def detect_kind(source: str, tracker: InputTracker) -> str | None:
    """Return the kind of a file from its first records; None if it is unclear.

    Runs and judgments are detected by their columns, examples in TSV by their header; other examples by the fields of the
    first record; passages by `title`, `contents` or `docid` in one of the first ten records; queries by `question`, `query`
    or `answers` in all of them, and `answer` in none.
    """
    if not is_table(source) and (columns := sniff.sniff_columns(tracker.peek(source))) is not None:
        return columns
    head = b"" if is_table(source) else tracker.peek(source).removeprefix(b"\xef\xbb\xbf")
    if parse_example_header(head.partition(b"\n")[0]) is not None:
        return "examples"
    if is_stream(source):
        records = readers.parse_jsonl(enumerate(sniff.split_whole_lines(tracker.peek(source))))
    else:
        records = readers.iter_json_rows(source, InputTracker())
    rows = [row for _, row in islice(records, MAX_LINES) if isinstance(row, dict)]
    if not rows:
        return None
    if (kind := sniff_row(rows[0])) in (sniff.EXAMPLES, sniff.JUDGMENTS):
        return "examples" if kind == sniff.EXAMPLES else "qrels"
    kinds = {sniff_row(row) for row in rows}
    if kinds == {sniff.QUERIES} and not any("answer" in row for row in rows):
        return "queries"
    may_be_passages = kinds <= {sniff.PASSAGES, sniff.EITHER}
    return "passages" if may_be_passages and any(map(is_surely_passage, rows)) else None


def add_repeated(
    duplicates: DuplicateFinder, check: str, findings: Findings, describe: Callable[[str, str], str]
) -> None:
    """Add a finding for each repetition of a key in `duplicates`.

    check: the kind of problem, a key of CHECKS; describe: returns the message for a key and its first line
    """
    for key, lines in duplicates.iter_duplicates():
        for line in lines[1:]:
            findings.add(check, int(line), describe(key, lines[0]))


def _add_repeated_records(ids: DuplicateFinder, texts: DuplicateFinder, findings: Findings) -> None:
    add_repeated(ids, "duplicate", findings, lambda key, line: f"id '{key}' is already used in line {line}")
    for _, places in texts.iter_duplicates():
        (first, first_id), *others = (place.split() for place in places)
        for line, id in others:
            if id != first_id:  # a repeated id is reported above
                findings.add("same-text", int(line), f"has the same text as line {first}")


def add_leaks(source: str, other: str, kind: str, findings: Findings, queries: Mapping[str, str]) -> None:
    """Add a finding for each text of `source` that also occurs in `other`.

    Compare passage texts without titles; compare training examples by query text.
    queries: texts of queries by id, for training examples without texts
    Raises UsageError for stdin, DrtkError if the text of a query is unknown.
    """
    if STANDARD in (source, other):
        raise UsageError("`leak` cannot be used with stdin; give two files")
    shared = DuplicateFinder()
    other_kind = "passages" if kind == "passages" else "queries"
    for side, name, kind_of_side in (("here", source, kind), ("there", other, other_kind)):
        for line, id, text in _iter_texts(name, kind_of_side, queries):
            if text := " ".join(text.casefold().split()):
                shared.add(digest_bytes(text.encode()), f"{side} {line} {id}")
    texts = "texts of passages, without titles," if kind == "passages" else "texts of queries"
    findings.compared = f"{texts} compared with those of {other}, ignoring case and white space"
    for _, places in shared.iter_duplicates():
        parts = [place.split() for place in places]
        there = next((part for part in parts if part[0] == "there"), None)
        for side, place, id in parts:
            if there is not None and side == "here":
                findings.add("leak", int(place), f"'{id}' has the text of '{there[2]}' ({other}:{there[1]})")


def _iter_texts(source: str, kind: str, queries: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yield (line, id, text) of the valid records of a file; for training examples, id and text of the query.

    kind: "passages", "examples", or "queries" for a file of queries or JSON examples
    """
    tracker = InputTracker(skip_bad=2**62)
    records: Iterator[tuple[int, Any]]
    if kind == "passages":
        records = readers.iter_passages(source, tracker)
    elif kind == "queries" and not is_example(
        next((row for _, row in readers.iter_json_rows(source, InputTracker()) if isinstance(row, dict)), {})
    ):
        records = readers.iter_queries(source, tracker)
    else:
        records = readers.iter_examples(source, tracker)
    for line, record in records:
        if isinstance(record, ParsedExample):
            id = record.example.query_id
            text = record.query.text if record.query is not None else queries.get(id)
            if text is None:
                raise DrtkError(
                    f"{source}:{line}: the example has only the id of query '{id}'; `queries` with its text is required"
                )
            yield line, id, text
        elif not isinstance(record, ValueError):
            yield line, record.id, record.text


_CHECKERS: dict[str, Callable[[str, FindingsTracker, Findings, ReferenceFiles], None]] = {
    "passages": _check_passages,
    "queries": _check_queries,
    "qrels": _check_qrels,
    "run": _check_run,
    "examples": _check_examples,
}
