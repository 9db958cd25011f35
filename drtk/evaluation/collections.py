"""A folder of BEIR collections: a value for each, and their macro-average (methods: section 8.7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from pathlib import Path

from drtk.data.beir import PACKED, judgements_path
from drtk.data.ids import source_of
from drtk.data.runs import NamedRun
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.config import EvalSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, Value, View, tell_shallow
from drtk.evaluation.judged_runs import judgements_from, scored
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.tables import Parts, table_lines
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import log, track, warn
from drtk.runtime.streams import STANDARD

MEASURES = "nDCG@10 R@100"
COLLECTIONS = Parts("collection", "collection", "rows", "average", ranked=True)
RUN_ENDINGS = ("", ".run", ".trec", ".txt", ".tsv")


@dataclass(frozen=True)
class Collection:
    """A collection by its name in the folder, `cqadupstack/android` for a member of a set, and its judgements."""

    name: str
    qrels: Path

    @property
    def set(self) -> str:
        """What it is averaged into first; its own name where it is no member."""
        return self.name.rpartition("/")[0] or self.name


@dataclass
class Found:
    """Collections of a folder, sorted by name, and the names of the sets among them."""

    collections: list[Collection] = attribute(default_factory=list)

    @property
    def sets(self) -> list[str]:
        """What the average is over, each once."""
        return list(dict.fromkeys(collection.set for collection in self.collections))


def find_collections(folder: Path, split: str) -> Found:
    """The collections of a folder: NAME/qrels/SPLIT.tsv, and SET/NAME/qrels/SPLIT.tsv for those of a set.

    A collection that has one split only, of another name (MS MARCO's dev), is taken with it, and this is said.
    Raises DrtkError where there is none, or one has several splits but not `split`.
    """
    found = Found()
    for path in sorted(item for item in folder.iterdir() if item.is_dir()):
        if (path / "qrels").is_dir():
            found.collections.append(Collection(path.name, judgements_path(path, split)))
            continue
        members = sorted(item for item in path.iterdir() if (item / "qrels").is_dir())
        found.collections += [Collection(f"{path.name}/{item.name}", judgements_path(item, split)) for item in members]
    if not found.collections:
        raise DrtkError(f"{folder}: is a folder that holds no collection: expected NAME/qrels/{split}.tsv")
    return found


def find_run(folder: Path, collection: Collection) -> Path | None:
    """The run of a collection in a folder of runs: NAME.run, or without an ending, or with .trec .txt .tsv, each also compressed.

    That of a member may lie in a folder of its set, or be called SET-NAME or SET_NAME.
    """
    names = [collection.name]
    if "/" in collection.name:
        names += [collection.name.replace("/", sign) for sign in "-_"]
    paths = (folder / f"{name}{ending}{packed}" for name in names for ending in RUN_ENDINGS for packed in PACKED)
    return next((path for path in paths if path.is_file()), None)


def collection_lines(systems: Sequence[NamedRun], folder: str, settings: EvalSettings, intake: Intake) -> Iterator[str]:
    """Lines of the table: a row a collection, then the average over sets, with a column a measure or a system.

    Raises MismatchError where a system lacks the run of a collection, unless `retrieved_only`: then the collection is
    left out for every system, and that is said, since averages over different sets cannot be compared.
    """
    if settings.format == "trec":
        raise UsageError("--format trec is for one collection; choose table, jsonl, csv, markdown or latex")
    if settings.per_query:
        raise UsageError("--per-query is for one collection: name its file of judgements")
    measures = parse_measures(settings.measures or MEASURES, rel=settings.rel)
    if unfit := [measure.name for measure in measures if measure.aggregate not in ("mean", "geometric")]:
        raise UsageError(f"--measures: {unfit[0]} cannot be averaged over collections")
    found = find_collections(Path(folder), settings.split)
    runs = {system.name: _runs(system, found, retrieved_only=settings.retrieved_only) for system in systems}
    common = [c for c in found.collections if all(c.name in paths for paths in runs.values())]
    if not common:
        raise MismatchError(f"{folder}: there is no collection that every system has a run for")
    if left_out := [c.name for c in found.collections if c not in common]:
        warn(f"left out, for want of a run: {', '.join(left_out)}")
    kept = Found(common)
    results: dict[str, dict[str, dict[str, Value]]] = {name: {} for name in runs}
    depths: dict[str, int] = {}
    for collection in track(common, "eval", unit="collections", total=len(common)):
        evaluator = Evaluator(judgements_from(str(collection.qrels), intake), measures)
        for name, paths in runs.items():  # one run in memory at a time
            run = NamedRun(f"{name}: {collection.name}", str(paths[collection.name]))
            result = scored(run, evaluator, _view(settings), intake)
            results[name][collection.name], depths[run.name] = result.overall, result.deepest
    tell_shallow(depths, measures)
    log(f"eval: averages are over {_counted(kept)}")
    tables = [averaged(name, kept, results[name], measures) for name in results]
    return table_lines(
        tables,
        measures,
        format=settings.format,
        per_query=True,
        digits=settings.digits,
        parts=COLLECTIONS,
    )


def _view(settings: EvalSettings) -> View:
    drop = True if settings.drop_same_id is None else settings.drop_same_id
    by = source_of if settings.by == "source" else None
    return View(order=settings.order, by=by, drop_same_id=drop, depth=settings.depth)


def _runs(system: NamedRun, found: Found, *, retrieved_only: bool) -> dict[str, Path]:
    """The run of each collection that a system has one for."""
    folder = Path(system.source)
    if system.source == STANDARD or not folder.is_dir():
        raise UsageError(
            f"{system.source}: with a folder of collections, a system is a folder of runs, NAME.run for each"
        )
    paths = {collection.name: find_run(folder, collection) for collection in found.collections}
    missing = [name for name, path in paths.items() if path is None]
    if missing and not retrieved_only:
        shown = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
        raise MismatchError(
            f"{system.source}: has no run for {len(missing)} of {len(paths)} collections ({shown}); "
            "--retrieved-only leaves them out for every system"
        )
    taken = {path for path in paths.values() if path is not None}
    others = [path for path in folder.rglob("*") if path.is_file() and path not in taken and not _is_manifest(path)]
    if others:
        log(
            f"{system.source}: {len(others):,} of its files are runs of no collection here, for example {others[0].name}"
        )
    return {name: path for name, path in paths.items() if path is not None}


def _is_manifest(path: Path) -> bool:
    return path.name.endswith("meta.json")


def averaged(
    system: str, found: Found, values: Mapping[str, Mapping[str, Value]], measures: Sequence[Measure]
) -> Evaluation:
    """Rows of a system: each collection, each set after its members as their mean, and over all the mean of the sets."""
    names = [measure.name for measure in measures]
    rows: dict[str, dict[str, Value]] = {}
    of_sets: list[dict[str, Value]] = []
    for name in found.sets:
        members = [collection.name for collection in found.collections if collection.set == name]
        for member in members:
            rows[member] = dict(values[member])
        if members != [name]:
            rows[name] = _means([values[member] for member in members], names)
        of_sets.append(rows[name])
    return Evaluation(system, rows, _means(of_sets, names))


def _means(rows: Sequence[Mapping[str, Value]], names: Sequence[str]) -> dict[str, Value]:
    return {name: sum(float(row[name]) for row in rows) / len(rows) for name in names}


def _counted(found: Found) -> str:
    sets, members = len(found.sets), len(found.collections)
    text = "1 set" if sets == 1 else f"{sets:,} sets"
    return text if members == sets else f"{text} ({members:,} collections)"
