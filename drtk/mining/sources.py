"""Sources of candidates: runs, indexes and training examples."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar

from drtk.data import sniff
from drtk.data.ids import CorpusIds
from drtk.data.runs import group_runs, is_named
from drtk.data.sniff import kind_of
from drtk.data.trec import QueryHits, iter_grouped_hits
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.mining.config import MineSettings
from drtk.mining.pool import Asked, Ranked
from drtk.retrieval.queries import QueryEncoder, StoredQueries, StoredQuery, TextQueries
from drtk.retrieval.search import Collection, Wanted
from drtk.runtime.inputs import Intake
from drtk.runtime.manifest import folder_entry, read_manifest
from drtk.runtime.streams import STANDARD, name_of

Item = TypeVar("Item")
INDEX = "index"  # the kind in its manifest
_INSTEAD = {  # kind of a file -> where it belongs
    sniff.JUDGEMENTS: "; judgements: --qrels FILE",
    sniff.RANKED: "; judgements: --qrels FILE; ranked pairs: convert them with drtk convert FILE --as run; triples: convert them "
    "with drtk convert FILE --as examples",
    sniff.CANDIDATES: "; candidates: convert them with drtk convert FILE --as run | sort -s -k1,1",
    sniff.QUERIES: "; queries: --queries FILE",
    sniff.PASSAGES: "; passages: --corpus FILE",
    sniff.EITHER: "; queries: --queries FILE, passages: --corpus FILE",
}


@dataclass(frozen=True)
class Sources:
    """The arguments of mine-negatives, by what they are: name and file, or name and folders. names: in their order."""

    names: list[str]
    runs: dict[str, str]
    examples: dict[str, str]
    indexes: dict[str, list[str]]

    @property
    def paths(self) -> list[str]:
        """All files and folders, in their order."""
        of = {name: [path] for name, path in (self.runs | self.examples).items()} | self.indexes
        return [path for name in self.names for path in of[name]]


def sources_of(arguments: Sequence[str], intake: Intake, *, name: str = "") -> Sources:
    """Sort arguments, `NAME=PATH` or `PATH`; index folders of one name are parts of one collection.

    name: what a single source is called. Raises UsageError for names that clash, MismatchError for a folder of another kind.
    """
    if name and len(arguments) > 1:
        raise UsageError("one name for several runs; name each of them: NAME=FILE")
    if name and not is_named(arguments[0]):
        arguments = [f"{name}={arguments[0]}"]
        grouped = {name: [arguments[0].partition("=")[2]]}
    else:
        grouped = {called: [run.source for run in runs] for called, runs in group_runs(arguments).items()}
    found = Sources(list(grouped), {}, {}, {})
    for called, paths in grouped.items():
        folders = [path for path in paths if path != STANDARD and Path(path).is_dir()]
        for folder in folders:
            read_manifest(folder, kind=INDEX)
            intake.inputs.append(folder_entry(folder))
        if folders and len(folders) == len(paths):
            found.indexes[called] = folders
        elif len(paths) > 1:
            raise UsageError(f"two runs are called '{called}'; name them: NAME=FILE")
        elif _holds_json(paths[0], intake):
            found.examples[called] = paths[0]
        else:
            found.runs[called] = paths[0]
    return found


def _holds_json(source: str, intake: Intake) -> bool:
    """Whether a file holds examples, and not a run. Raises MismatchError where it seems to hold neither."""
    head = intake.peek(source)
    kind = kind_of(head)
    if kind not in (None, sniff.RUN, sniff.EXAMPLES):
        raise MismatchError(
            f"{name_of(source)}: seems to hold {kind}; what is mined is a TREC run (drtk search), an index folder or "
            f"training examples{_INSTEAD.get(kind, '')}"
        )
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


class Aligned(Generic[Item]):
    """Items by query in file order, taken in another file's order: only what was read too early is held.

    only: the queries worth holding.
    """

    def __init__(self, items: Iterable[tuple[str, Item]], *, only: Container[str] | None = None) -> None:
        self._items, self._only = iter(items), only
        self._held: dict[str, Item] = {}

    def take(self, query_id: str) -> Item | None:
        """What there is for a query, which is then gone; None where there is nothing."""
        if query_id in self._held:
            return self._held.pop(query_id)
        for found, item in self._items:
            if found == query_id:
                return item
            if self._only is None or found in self._only:
                self._held[found] = item
        return None

    def rest(self) -> Iterator[str]:
        """The queries that nobody took yet; they stay to be taken."""
        for found, item in self._items:
            if self._only is None or found in self._only:
                self._held[found] = item
        yield from list(self._held)


@dataclass
class Unknown:
    """Ids of one file that another lacks: the first is the complaint, all are counted."""

    intake: Intake
    what: str = "passage"
    where: str = "the corpus"
    first: RecordError | None = None
    count: int = 0
    ids: set[str] = field(default_factory=set)

    def note(self, place: str, id: str) -> None:
        """One more, at `file:line`; forgiven while --skip-bad allows it."""
        if self.first is None:
            try:
                self.intake.forgive(RecordError(place, f"{self.what} '{id}' is not in {self.where}"))
            except RecordError as error:
                self.first = error
            else:
                return
        self.count += 1
        self.ids.add(id)

    def check(self) -> None:
        """Raise the complaint, with how many there are. Call where the file was read to its end."""
        if self.first is None:
            return
        ids = f"{len(self.ids):,} such id{'s' if len(self.ids) > 1 else ''}"
        more = (
            f"; {ids} at {self.count:,} places of this file; --skip-bad N leaves out so many" if self.count > 1 else ""
        )
        raise RecordError(self.first.place, self.first.problem + more)


class Checked:
    """What a source names, held against the corpus and the queries; complaints come when the source was read to its end."""

    def __init__(self, source: str, known: CorpusIds | None, lacks: Callable[[str], bool], intake: Intake) -> None:
        self._name, self._known, self._lacks = name_of(source), known, lacks
        self._passages = Unknown(intake)
        self._queries = Unknown(intake, "query", "the queries")

    @property
    def is_good(self) -> bool:
        """Whether nothing was found yet that is not forgiven."""
        return self._passages.first is None and self._queries.first is None

    def has_query(self, query_id: str, line: int) -> bool:
        """Whether a query is there as far as it needs to be."""
        if self._lacks(query_id):
            self._queries.note(f"{self._name}:{line}", query_id)
            return False
        return True

    def unknown(self, ids: Iterable[str], lines: Iterable[int]) -> set[str]:
        """Those of `ids`, at `lines`, that the corpus lacks."""
        if self._known is None:
            return set()
        lacking = set()
        for id, line in zip(ids, lines, strict=False):
            if id not in self._known:
                self._passages.note(f"{self._name}:{line}", id)
                lacking.add(id)
        return lacking

    def check(self) -> None:
        """Raise what is not forgiven."""
        self._queries.check()
        self._passages.check()


def run_items(
    source: str, known: CorpusIds | None, intake: Intake, *, lacks: Callable[[str], bool] = lambda query_id: False
) -> Iterator[tuple[str, Ranked]]:
    """(query, its passages) of a TREC run.

    known: the passages there are. lacks: whether a query needs a text and has none.
    Raises RecordError for ids that are not there, when all of them were counted.
    """
    checked = Checked(source, known, lacks, intake)
    for hits in iter_grouped_hits(source, intake=intake):
        has_query = checked.has_query(hits.query_id, hits.lines[0])
        lacking = checked.unknown(hits.doc_ids, hits.lines)
        if has_query and checked.is_good:
            yield hits.query_id, _ranked(hits, lacking)
    checked.check()


def _ranked(hits: QueryHits, lacking: set[str]) -> Ranked:
    ranking = [hit for hit in hits.ranking() if hit[0] not in lacking]
    return Ranked([id for id, _ in ranking], [score for _, score in ranking])


def check_indexes(indexes: dict[str, list[str]], queries: str | None, query_vectors: str | None) -> None:
    """Raises UsageError where there is an index and nothing to ask it, or queries as vectors and no index."""
    if indexes and not queries and not query_vectors:
        name = next(iter(indexes))
        raise UsageError(f"{indexes[name][0]}: an index is asked with --queries FILE or --query-vectors DIR")
    if query_vectors and not indexes:
        raise UsageError("--query-vectors asks an index; there is none among the sources")


class Indexes:
    """Opened index folders by name; called with queries, it gives what each index finds for them.

    depth: passages searched for; None: all. query_vectors: an embeddings folder that indexes of vectors are asked with; others are asked with texts.
    Raises MismatchError where an index gives a passage that is not in the corpus, DrtkError for a score that is not finite.
    """

    def __init__(
        self,
        folders: Mapping[str, Sequence[str]],
        settings: MineSettings,
        *,
        depth: int | None,
        query_vectors: str | None = None,
        model: str | None = None,
        corpus: CorpusIds | None = None,
    ) -> None:
        searching = settings.searching()
        self._corpus = corpus
        self._asks: dict[str, Any] = {}
        self._depth = depth
        self.encodes = False  # whether some index is asked with texts that are made vectors
        for name, paths in folders.items():
            collection = Collection(paths, searching)
            if collection.reads == "vectors" and query_vectors is not None:
                self._asks[name] = StoredQueries(collection, query_vectors)
            else:
                encode = QueryEncoder(collection, searching, model) if collection.reads == "vectors" else None
                self.encodes |= encode is not None
                self._asks[name] = TextQueries(collection, encode)

    @property
    def needs_text(self) -> bool:
        """Whether some index is asked with texts."""
        return any(isinstance(ask, TextQueries) for ask in self._asks.values())

    @property
    def stored(self) -> StoredQueries | None:
        """The queries of the embeddings folder, where one is used."""
        return next((ask for ask in self._asks.values() if isinstance(ask, StoredQueries)), None)

    def __call__(self, window: Sequence[Asked]) -> Iterator[dict[str, Ranked]]:
        """For each query, what each index finds."""
        found: list[dict[str, Ranked]] = [{} for _ in window]
        for name, ask in self._asks.items():
            asked: Sequence[Any]
            if isinstance(ask, StoredQueries):
                asked = [StoredQuery(one.query_id, *(one.row or (0, 0))) for one in window]
            else:
                asked = [one.query for one in window]
            wanted = Wanted(self._depth or len(ask.collection))
            for place, (query_id, ranking) in zip(found, ask(asked, wanted) if window else (), strict=True):
                place[name] = self._checked(query_id, ranking, ask.collection.folders[0])
        yield from found

    def _checked(self, query_id: str, ranking: Sequence[tuple[str, float]], folder: str) -> Ranked:
        ids, scores = [id for id, _ in ranking], [score for _, score in ranking]
        if not isfinite(sum(scores)):
            raise DrtkError(f"{folder}: gives query '{query_id}' a score that is not finite")
        if self._corpus is not None:
            lacking = [id for id in ids if id not in self._corpus]
            if lacking:
                more = f", and {len(lacking) - 1:,} more of its {len(ids):,} hits" if len(lacking) > 1 else ""
                raise MismatchError(
                    f"{folder}: passage '{lacking[0]}', found for query '{query_id}', is not in the corpus{more}"
                )
        return Ranked(ids, scores)
