"""Check inputs for plausible mistakes: unknown ids, swapped files, empty texts, another corpus."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from drtk.data import sniff
from drtk.data.ids import source_of
from drtk.data.runs import is_named
from drtk.data.tables import is_table
from drtk.data.trec import Judgements, Order, QueryHits, grouped_hits
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage, Query
from drtk.runtime.inputs import Intake
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import SOURCES, is_manifest, manifest_path, unchanged
from drtk.runtime.progress import warn
from drtk.runtime.streams import digest_file, is_stream, name_of, open_input

Item = TypeVar("Item")
Faulty = tuple[Item | None, list[RecordError]]  # a record, and what is wrong with its ids


class Texts(Protocol):
    """Where passages are looked up; io.store.CorpusStore is one."""

    def many(self, ids: Sequence[str]) -> list[Passage]: ...

    def missing(self, ids: Iterable[str]) -> Iterator[str]: ...


class JudgedHits:
    """Detect a run that retrieved none of the judged documents, probably one of another collection.

    Call `add` for each query. `found` counts the queries with a judged document among their hits.
    of: maps a passage id to its document id, if the judgements are of documents
    by_source: the option for judgements of documents, as the hint names it
    """

    def __init__(
        self,
        run: str,
        judgements: Judgements,
        *,
        of: Callable[[str], str] | None = None,
        by_source: str = "--by source scores documents",
    ) -> None:
        self._run, self._judgements, self._of, self._by_source = run, judgements, of, by_source
        self._example: tuple[str, str, str] | None = None
        self._names_documents = False
        self.found = 0

    def add(self, query_id: str, doc_ids: Sequence[str]) -> bool:
        """Return whether one of the ids is judged for the query."""
        judged = self._judgements.get(query_id)
        if not judged or not doc_ids:
            return False
        if any((id if self._of is None else self._of(id)) in judged for id in doc_ids):
            self.found += 1
            return True
        if self.found:
            return False
        self._example = self._example or (query_id, doc_ids[0], next(iter(judged)))
        self._names_documents |= self._of is None and any(source_of(id) in judged for id in doc_ids)
        return False

    def problem(self) -> str | None:
        """Return the problem, with an example id of each side; None if there is none."""
        if self.found or self._example is None:
            return None
        query, retrieved, judged = self._example
        hint = (
            f"the judgements are of documents: {self._by_source}"
            if self._names_documents
            else ("check that run and judgements are of the same collection")
        )
        return (
            f"{self._run}: no judged document was retrieved (query '{query}': retrieved '{retrieved}', "
            f"judged '{judged}'); {hint}"
        )

    def warn(self) -> None:
        """Warn of the problem, if there is one."""
        if (problem := self.problem()) is not None:
            warn(problem)


def known_hits(
    run: str, *, queries: Collection[str], corpus: Texts, depth: int, intake: Intake, order: Order = "score"
) -> Iterator[Faulty[QueryHits]]:
    """The queries of a run in its order, without the first `depth` hits that the corpus lacks, and what is wrong with them.

    queries: the ids there are
    """
    for hits in grouped_hits(run, intake=intake):
        if hits.query_id not in queries:
            place = f"{name_of(run)}:{hits.lines[0]}"
            yield None, [RecordError(place, f"the queries have no '{hits.query_id}'")]
            continue
        faults: list[RecordError] = []
        while absent := set(corpus.missing(hits.ranked_ids(order)[:depth])):  # again: others move up among the first
            faults += [
                RecordError(f"{name_of(run)}:{line}", f"the corpus has no '{id}'")
                for id, line in zip(hits.doc_ids, hits.lines, strict=True)
                if id in absent
            ]
            hits.keep([at for at, id in enumerate(hits.doc_ids) if id not in absent])
        yield (hits if hits.doc_ids else None), faults


def forgiven(found: Iterator[Faulty[Item]], source: str, intake: Intake) -> Iterator[Item]:
    """The records, once `intake` has forgiven their faults; the first that it does not is raised with the number of others."""
    for item, faults in found:
        for at, fault in enumerate(faults):
            try:
                intake.forgive(fault)
            except RecordError as error:
                more = len(faults) - at - 1
                with suppress(RecordError):  # a line further on that is no record
                    more += 0 if is_stream(source) else sum(len(others) for _, others in found)
                told = f"{error.problem} ({more:,} more ids are unknown)" if more else error.problem
                raise RecordError(error.place, told) from None
        if item is not None:
            yield item


_NEITHER = (sniff.JUDGEMENTS, sniff.RANKED, sniff.CANDIDATES, sniff.PASSAGES)
_NO_EXAMPLES = (*_NEITHER, sniff.RUN, sniff.PREDICTIONS, sniff.EXPANSIONS)
_NO_RUN = (*_NEITHER, sniff.EXAMPLES, sniff.QUERIES, sniff.EITHER)


def kind_of_file(path: str) -> str | None:
    """What a file seems to hold, in words of `drtk.data.sniff`; None for what its beginning does not tell, and for streams."""
    if is_stream(path) or is_table(path):
        return None
    stream, _ = open_input(path)
    with stream:
        try:
            return sniff.kind_of(stream.peek(1 << 12))  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - damaged data; reading it will say so, and where
            return None


def check_examples(source: str) -> None:
    """Raise MismatchError for a file that seems to hold something else than training examples."""
    if (kind := kind_of_file(source)) in _NO_EXAMPLES:
        raise MismatchError(
            f"{source}: seems to hold {kind}; training examples are wanted, which drtk mine-negatives makes"
        )


def check_run(source: str) -> None:
    """Raise MismatchError for a file that seems to hold something else than a run."""
    if (kind := kind_of_file(source)) in _NO_RUN:
        raise MismatchError(f"{source}: seems to hold {kind}; a TREC run is wanted, which drtk search makes")


def warn_if_swapped(corpus: str, queries: str) -> None:
    """Warn where --queries seems to hold passages, and --corpus does not."""
    if kind_of_file(queries) == sniff.PASSAGES and kind_of_file(corpus) in (sniff.QUERIES, sniff.EITHER):
        warn(f"{queries} seems to hold passages, and {corpus} queries: were --queries and --corpus swapped?")


Record = TypeVar("Record", Passage, Query)
PASSAGES, TEXTLESS = "passages", "without a text"  # counts: of passages that were used, and of those among them


class Seen:
    """Counts records that go by, and those among them of which there is nothing to read.

    read: what is read of a record
    """

    def __init__(self, read: Callable[[Any], str]) -> None:
        self._read = read
        self._all = self._blank = 0

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records as they come."""
        for record in records:
            self._all += 1
            self._blank += not self._read(record).strip()
            yield record

    def warn(self, source: str, unit: str) -> None:
        """Warn, with numbers, where there were such."""
        if self._blank:
            warn(
                f"{source}: {self._blank:,} of {self._all:,} {unit} have nothing to read; their vectors say "
                "nothing, and are found all the same"
            )


def looked_up(passages: Iterable[Passage]) -> dict[str, int]:
    """The counts of passages that were looked up; no entry for what there is none of."""
    blank = [not passage.text.strip() for passage in passages]
    return {name: number for name, number in ((PASSAGES, len(blank)), (TEXTLESS, sum(blank))) if number}


def all_textless(counts: Mapping[str, Any], corpus: str) -> str | None:
    """What is wrong where passages were used, and none of them had a text; None where one had."""
    if not counts.get(PASSAGES) or counts.get(TEXTLESS, 0) < counts[PASSAGES]:
        return None
    return f"{corpus}: none of the {counts[PASSAGES]:,} passages looked up there has a text: is it the right file?"


def warn_of_textless(counts: Mapping[str, Any], corpus: str) -> None:
    """Warn, with numbers, where some of the passages had no text, or none had one."""
    if told := all_textless(counts, corpus):
        warn(told)
    elif counts.get(TEXTLESS):
        warn(f"{corpus}: {counts[TEXTLESS]:,} of the {counts[PASSAGES]:,} passages looked up there have no text")


_MAKERS = ("encode", "index")  # commands whose `source` is a corpus, or leads to one
# Commands whose output has the ids of what they read, and so its origin: the settings that name it.
_COPIERS = {
    "convert": SOURCES,
    "fuse": ("runs",),
    "rerank": SOURCES,
    "score": SOURCES,
    "mine-negatives": ("candidates",),
}


class Origin(NamedTuple):
    """A corpus by the name it had, and its digest."""

    path: str
    digest: str


def origin_of(path: str) -> Origin | None:
    """The corpus that a run, examples, an index or embeddings were made from; None where no manifest tells."""
    return next(iter(origins_of(path)), None)


def origins_of(path: str) -> list[Origin]:
    """The same, of what was put together from several files one for each whose manifest tells."""
    manifest = _manifest(path)
    if manifest is None or manifest.get("kind") == "model":  # which has learnt from a corpus, and is of none
        return []
    if manifest["settings"].get("role") == "query":  # vectors of what is asked, not of what is searched
        return []
    program = str(manifest.get("program"))
    copied = _named(manifest, _COPIERS.get(program, ()))
    if program == "mine-negatives" and manifest["settings"].get("corpus"):
        copied = []  # all ids were looked up in there, whatever the runs are of
    entries = {entry["path"]: entry for entry in manifest["inputs"]}
    whole = [path for path in copied if path in entries and unchanged(entries[path])]
    found = [origin for path in whole for origin in origins_of(path)]
    if not found and (made := _made_from(manifest)) is not None:
        return [made]
    return found


def _named(manifest: Mapping[str, Any], settings: Sequence[str]) -> list[str]:
    """The files and folders that settings name; of NAME=FILE the latter."""
    named = [manifest["settings"].get(name) or [] for name in settings]
    paths = [path for value in named for path in (value if isinstance(value, list) else [value])]
    return [path.partition("=")[2] if is_named(path) else path for path in paths]


def _made_from(manifest: Mapping[str, Any]) -> Origin | None:
    named = manifest["settings"].get("corpus")
    if not named and manifest.get("program") in _MAKERS:
        named = next(iter(_named(manifest, SOURCES)), None)
    for entry in manifest["inputs"]:
        if entry["path"] == named and not Path(str(named)).is_dir():
            digest = entry.get("digest")
            if not digest and unchanged(entry):  # texts were looked up in it, so that nobody had read it to its end
                digest = digest_file(named)
            if digest:
                return Origin(entry["path"], digest)
    for entry in manifest["inputs"]:
        if Path(entry["path"]).is_dir() and unchanged(entry) and (found := origin_of(entry["path"])):
            return found
    return None


def check_origin(path: str, corpus: Origin, *, override: str) -> None:
    """Raises MismatchError where `path` is known to be made from another corpus. override: the option that lets it pass."""
    _check(path, origins_of(path), corpus, override=override)


def _check(path: str, origins: Sequence[Origin], corpus: Origin, *, override: str) -> None:
    for found in origins:
        if found.digest != corpus.digest:
            raise MismatchError(
                f"{path}: was made from another corpus ({found.path}, digest {found.digest[:8]}) than {corpus.path} "
                f"(digest {corpus.digest[:8]}); where ids mean the same in both: {override}"
            )


def check_looked_up(path: str, corpus: str, *, another: bool) -> None:
    """Raises MismatchError where `path` is known to be made from another corpus than the file its texts are looked up in.

    another: that is as it should be
    """
    if another or is_stream(path) or is_stream(corpus) or not Path(corpus).is_file() or not (found := origins_of(path)):
        return
    _check(path, found, Origin(corpus, digest_file(corpus)), override="--another-corpus")


def _manifest(path: str) -> dict[str, Any] | None:
    place = manifest_path(path)
    if not place.exists():
        return None
    try:
        content = read_json(place)
    except DrtkError:
        return None
    return content if is_manifest(content) else None
