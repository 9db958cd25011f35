"""Evaluate systems on a folder of BEIR collections: a value for each, and their macro-average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drtk.data.beir import PACKED, find_qrels
from drtk.data.runs import NamedRun
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.config import EvalSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, RankingView, Value, warn_shallow
from drtk.evaluation.judged_runs import evaluate_run, read_judgements
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.result_table import RowLabels, format_results
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log, track, warn
from drtk.runtime.streams import STANDARD

MEASURES = "nDCG@10 R@100"
COLLECTIONS = RowLabels("collection", "collection", "rows", "average", is_ranked=True)
RUN_ENDINGS = ("", ".run", ".trec", ".txt", ".tsv")


@dataclass(frozen=True)
class BeirDataset:
    """A collection's name in the folder, `cqadupstack/android` for a member of a set, and its judgements."""

    name: str
    qrels: Path

    @property
    def set(self) -> str:
        """The set that it is averaged into first; its own name if it is in none."""
        return self.name.rpartition("/")[0] or self.name


def find_datasets(folder: Path, split: str) -> list[BeirDataset]:
    """Return the collections of a folder by name: NAME/qrels/SPLIT.tsv, and SET/NAME/qrels/SPLIT.tsv for those of a set.

    A collection with a single split of another name (MS MARCO's dev) is evaluated on it, which is logged.
    Raises DrtkError if there is none, or one has several splits but not `split`.
    """
    collections: list[BeirDataset] = []
    for path in sorted(item for item in folder.iterdir() if item.is_dir()):
        if (path / "qrels").is_dir():
            collections.append(BeirDataset(path.name, find_qrels(path, split)))
            continue
        members = sorted(item for item in path.iterdir() if (item / "qrels").is_dir())
        collections += [BeirDataset(f"{path.name}/{item.name}", find_qrels(item, split)) for item in members]
    if not collections:
        raise DrtkError(f"{folder}: is a folder that holds no collection: expected NAME/qrels/{split}.tsv")
    return collections


def find_run(folder: Path, collection: BeirDataset) -> Path | None:
    """Return a collection's run in a folder: NAME, or NAME.run, .trec, .txt, .tsv, each also compressed.

    The run of a member may be SET/NAME, SET-NAME or SET_NAME.
    """
    names = dict.fromkeys([collection.name, *(collection.name.replace("/", sign) for sign in "-_")])
    paths = (folder / f"{name}{ending}{packed}" for name in names for ending in RUN_ENDINGS for packed in PACKED)
    return next((path for path in paths if path.is_file()), None)


def evaluate_collections(
    systems: Sequence[NamedRun], folder: str, settings: EvalSettings, tracker: InputTracker
) -> Iterator[str]:
    """Return the lines of a table: a row per collection and set, then the average over sets.

    Raises MismatchError if a system lacks the run of a collection. With `retrieved_only` the collection is left out for
    every system instead, because averages over different collections cannot be compared.
    """
    if settings.format == "trec":
        raise UsageError("`format` trec is for one collection; choose table, jsonl, csv, markdown or latex")
    if settings.per_query:
        raise UsageError("`per_query` is for one collection: name its file of judgements")
    measures = parse_measures(settings.measures or MEASURES, rel=settings.rel)
    if unfit := [measure.name for measure in measures if measure.aggregate not in ("mean", "geometric")]:
        raise UsageError(f"`measures`: {unfit[0]} cannot be averaged over collections")
    collections = find_datasets(Path(folder), settings.split)
    runs = {system.name: _find_runs(system, collections, settings.retrieved_only) for system in systems}
    common = [c for c in collections if all(c.name in paths for paths in runs.values())]
    if not common:
        raise MismatchError(f"{folder}: there is no collection that every system has a run for")
    if left_out := [c.name for c in collections if c not in common]:
        warn(f"left out, for want of a run: {', '.join(left_out)}")
    view = RankingView.of(replace(settings, drop_same_id=settings.drop_same_id in (True, None)))
    values: dict[str, dict[str, dict[str, Value]]] = {name: {} for name in runs}
    depths: dict[str, int] = {}
    for collection in track(common, "eval", unit="collections", total=len(common)):
        evaluator = Evaluator(read_judgements(str(collection.qrels), tracker), measures)
        for name, paths in runs.items():  # one run in memory at a time
            run = NamedRun(f"{name}: {collection.name}", str(paths[collection.name]))
            result = evaluate_run(run, evaluator, view, tracker)
            values[name][collection.name], depths[run.name] = result.overall, result.deepest
    warn_shallow(depths, measures)
    sets = len({collection.set for collection in common})
    text = "1 set" if sets == 1 else f"{sets:,} sets"
    log(f"eval: averages are over {text if len(common) == sets else f'{text} ({len(common):,} collections)'}")
    results = [average_sets(name, common, values[name], measures) for name in values]
    return format_results(results, measures, settings, COLLECTIONS)


def _find_runs(system: NamedRun, collections: Sequence[BeirDataset], retrieved_only: bool) -> dict[str, Path]:
    folder = Path(system.source)
    if system.source == STANDARD or not folder.is_dir():
        raise UsageError(
            f"{system.source}: with a folder of collections, a system is a folder of runs, NAME.run for each"
        )
    paths = {collection.name: find_run(folder, collection) for collection in collections}
    found = {name: path for name, path in paths.items() if path is not None}
    missing = [name for name in paths if name not in found]
    if missing and not retrieved_only:
        raise MismatchError(
            f"{system.source}: has no run for {len(missing)} of {len(paths)} collections "
            f"({', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}); `retrieved_only` leaves them out for every system"
        )
    used = set(found.values())
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("meta.json"))
    if others := [path for path in files if path not in used]:
        log(
            f"{system.source}: {len(others):,} of its files are runs of no collection here, for example {others[0].name}"
        )
    return found


def average_sets(
    system: str,
    collections: Sequence[BeirDataset],
    values: Mapping[str, Mapping[str, Value]],
    measures: Sequence[Measure],
) -> Evaluation:
    """Return a row per collection, the mean of each set after its members, and the mean over sets as overall values."""

    def average(rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
        return {m.name: sum(float(row[m.name]) for row in rows) / len(rows) for m in measures}

    rows: dict[str, dict[str, Value]] = {}
    sets = list(dict.fromkeys(collection.set for collection in collections))
    for name in sets:
        members = [collection.name for collection in collections if collection.set == name]
        rows |= {member: dict(values[member]) for member in members}
        if members != [name]:
            rows[name] = average([values[member] for member in members])
    return Evaluation(system, rows, average([rows[name] for name in sets]))
