"""Evaluate systems on a folder of BEIR collections, with the macro-average over collections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drtk.data.beir import FILE_SUFFIXES, find_qrels
from drtk.data.runs import NamedRun
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.config import EvalSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, RankingBuilder, Value, log_shallow_runs
from drtk.evaluation.judged_runs import evaluate_run, read_judgments
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.result_table import RowLabels, format_results
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log, track, warn
from drtk.runtime.streams import STANDARD

MEASURES = "nDCG@10 R@100"
COLLECTIONS = RowLabels("collection", "collection", "rows", "average", has_system_columns=True)
RUN_ENDINGS = ("", ".run", ".trec", ".txt", ".tsv")


@dataclass(frozen=True)
class BeirCollection:
    """A BEIR collection. name: path below the root folder, such as scifact or cqadupstack/android; qrels: judgments file"""

    name: str
    qrels: Path

    @property
    def group_name(self) -> str:
        """Name of the group that is averaged first, such as cqadupstack; the collection's own name if it has no group."""
        return self.name.rpartition("/")[0] or self.name


def find_collections(folder: Path, split: str) -> list[BeirCollection]:
    """Return the collections of a folder, sorted by name: NAME/qrels/SPLIT.tsv, or GROUP/NAME/qrels/SPLIT.tsv.

    If a collection has a single split of another name (MS MARCO's dev), this split is used and logged.
    Raises DrtkError if there is no collection, or if a collection has no judgments, or several splits but not `split`.
    """
    collections: list[BeirCollection] = []
    for path in sorted(item for item in folder.iterdir() if item.is_dir()):
        if (path / "qrels").is_dir():
            collections.append(BeirCollection(path.name, find_qrels(path, split)))
            continue
        members = sorted(item for item in path.iterdir() if (item / "qrels").is_dir())
        collections += [BeirCollection(f"{path.name}/{item.name}", find_qrels(item, split)) for item in members]
    if not collections:
        raise DrtkError(f"{folder}: contains no collection; expected NAME/qrels/{split}.tsv")
    return collections


def find_run(folder: Path, collection: BeirCollection) -> Path | None:
    """Return the run file of a collection: NAME, or NAME.run, .trec, .txt, .tsv, each also compressed; None if missing.

    For a collection in a group, NAME is GROUP/NAME, GROUP-NAME or GROUP_NAME.
    """
    names = dict.fromkeys([collection.name, *(collection.name.replace("/", sign) for sign in "-_")])
    paths = (folder / f"{name}{ending}{packed}" for name in names for ending in RUN_ENDINGS for packed in FILE_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def evaluate_collections(
    systems: Sequence[NamedRun], folder: str, settings: EvalSettings, tracker: InputTracker
) -> Iterator[str]:
    """Evaluate systems on all collections of a folder; return the lines of a table.

    systems: folders with a run per collection (see `find_run`)
    The table has a row per collection, then a row per group of collections such as cqadupstack (the mean of its members),
    and last the macro-average, in which a group counts as one collection. Raises MismatchError if a system lacks the run of a collection. With `retrieved_only`,
    the collection is ignored for all systems instead, because averages over different collections cannot be compared.
    Raises UsageError for `per_query`, the format trec, a measure that is not a mean, and a system that is not a folder.
    """
    if settings.format == "trec":
        raise UsageError("`format=trec` requires a single collection; choose table, jsonl, csv, markdown or latex")
    if settings.per_query:
        raise UsageError("`per_query` requires a single collection; pass its judgments file as `qrels`")
    measures = parse_measures(MEASURES if settings.measures is None else settings.measures, rel=settings.rel)
    if unfit := [measure.name for measure in measures if measure.aggregate not in ("mean", "geometric")]:
        raise UsageError(f"`measures`: {unfit[0]} cannot be averaged over collections; omit it")
    collections = find_collections(Path(folder), settings.split)
    runs = {system.name: _find_runs(system, collections, settings.retrieved_only) for system in systems}
    common = [c for c in collections if all(c.name in paths for paths in runs.values())]
    if not common:
        raise MismatchError(f"{folder}: no collection has runs of all systems; add the missing runs")
    if ignored := [c.name for c in collections if c not in common]:
        warn(f"collections ignored because a run is missing: {', '.join(ignored)}")
    builder = RankingBuilder.from_settings(replace(settings, drop_same_id=settings.drop_same_id in (True, None)))
    values: dict[str, dict[str, dict[str, Value]]] = {name: {} for name in runs}
    results: list[Evaluation] = []
    for collection in track(common, "eval", unit="collections", total=len(common)):
        evaluator = Evaluator(read_judgments(str(collection.qrels), tracker), measures)
        for name, paths in runs.items():  # one run in memory at a time
            run = NamedRun(f"{name}: {collection.name}", str(paths[collection.name]))
            results.append(evaluate_run(run, evaluator, builder, tracker))
            values[name][collection.name] = results[-1].overall
    log_shallow_runs(results, measures)
    num_groups = len({collection.group_name for collection in common})
    text = "1 collection" if num_groups == 1 else f"{num_groups:,} collections"
    log(
        f"eval: averages are over {text}"
        + f" ({len(common):,} before averaging within groups)" * (len(common) > num_groups)
    )
    averages = [average_groups(name, common, values[name], measures) for name in values]
    return format_results(averages, measures, settings, COLLECTIONS)


def _find_runs(system: NamedRun, collections: Sequence[BeirCollection], retrieved_only: bool) -> dict[str, Path]:
    folder = Path(system.source)
    if system.source == STANDARD or not folder.is_dir():
        raise UsageError(
            f"{system.source}: not a folder; to evaluate several collections, pass a folder with NAME.run per collection"
        )
    paths = {collection.name: find_run(folder, collection) for collection in collections}
    runs = {name: path for name, path in paths.items() if path is not None}
    missing = [name for name in paths if name not in runs]
    if missing and not retrieved_only:
        raise MismatchError(
            f"{system.source}: has no run for {len(missing)} of {len(paths)} collections "
            f"({', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}); use `retrieved_only` to ignore them for all systems"
        )
    used = set(runs.values())
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("meta.json"))
    if others := [path for path in files if path not in used]:
        log(f"{system.source}: {len(others):,} files belong to no collection, for example {others[0].name}")
    return runs


def average_groups(
    system: str,
    collections: Sequence[BeirCollection],
    values: Mapping[str, Mapping[str, Value]],
    measures: Sequence[Measure],
) -> Evaluation:
    """Return the values of each collection, the mean of each group after its members, and the macro-average over groups."""

    def compute_means(rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
        return {m.name: sum(float(row[m.name]) for row in rows) / len(rows) for m in measures}

    rows: dict[str, dict[str, Value]] = {}
    groups = list(dict.fromkeys(collection.group_name for collection in collections))
    for name in groups:
        members = [collection.name for collection in collections if collection.group_name == name]
        rows |= {member: dict(values[member]) for member in members}
        if members != [name]:
            rows[name] = compute_means([values[member] for member in members])
    return Evaluation(system, rows, compute_means([rows[name] for name in groups]))
