"""Evaluate systems on a folder of BEIR datasets: a value for each, and their macro-average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drtk.data.beir import PACKED, find_qrels
from drtk.data.runs import NamedRun
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.config import EvalSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, RankingView, Value, warn_shallow
from drtk.evaluation.judged_runs import evaluate_run, read_judgments
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
    """A dataset's name in the folder, such as scifact or cqadupstack/android, and its judgments."""

    name: str
    qrels: Path

    @property
    def group(self) -> str:
        """The group that is averaged first (cqadupstack); the name itself without a group."""
        return self.name.rpartition("/")[0] or self.name


def find_datasets(folder: Path, split: str) -> list[BeirDataset]:
    """Return the datasets of a folder, sorted by name: NAME/qrels/SPLIT.tsv, or GROUP/NAME/qrels/SPLIT.tsv.

    If the only split has another name (MS MARCO's dev), it is used and logged.
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
        raise DrtkError(f"{folder}: contains no collection; expected NAME/qrels/{split}.tsv")
    return collections


def find_run(folder: Path, collection: BeirDataset) -> Path | None:
    """Return a dataset's run in a folder: NAME, or NAME.run, .trec, .txt, .tsv, each also compressed.

    The run of a dataset in a group may be GROUP/NAME, GROUP-NAME or GROUP_NAME.
    """
    names = dict.fromkeys([collection.name, *(collection.name.replace("/", sign) for sign in "-_")])
    paths = (folder / f"{name}{ending}{packed}" for name in names for ending in RUN_ENDINGS for packed in PACKED)
    return next((path for path in paths if path.is_file()), None)


def evaluate_collections(
    systems: Sequence[NamedRun], folder: str, settings: EvalSettings, tracker: InputTracker
) -> Iterator[str]:
    """Evaluate systems on a folder of datasets; return the lines of a table: a row per dataset and group, and the average.

    Raises MismatchError if a system lacks the run of a dataset. With `retrieved_only` the dataset is left out for every
    system instead, because averages over different datasets cannot be compared.
    """
    if settings.format == "trec":
        raise UsageError("`format` trec needs a single collection; choose table, jsonl, csv, markdown or latex")
    if settings.per_query:
        raise UsageError("`per_query` needs a single collection: pass its file of judgments as `qrels`")
    measures = parse_measures(settings.measures or MEASURES, rel=settings.rel)
    if unfit := [measure.name for measure in measures if measure.aggregate not in ("mean", "geometric")]:
        raise UsageError(f"`measures`: {unfit[0]} cannot be averaged over collections; omit it")
    collections = find_datasets(Path(folder), settings.split)
    runs = {system.name: _find_runs(system, collections, settings.retrieved_only) for system in systems}
    common = [c for c in collections if all(c.name in paths for paths in runs.values())]
    if not common:
        raise MismatchError(f"{folder}: no collection has runs of all systems")
    if left_out := [c.name for c in collections if c not in common]:
        warn(f"left out because a run is missing: {', '.join(left_out)}")
    view = RankingView.from_settings(replace(settings, drop_same_id=settings.drop_same_id in (True, None)))
    values: dict[str, dict[str, dict[str, Value]]] = {name: {} for name in runs}
    depths: dict[str, int] = {}
    for collection in track(common, "eval", unit="collections", total=len(common)):
        evaluator = Evaluator(read_judgments(str(collection.qrels), tracker), measures)
        for name, paths in runs.items():  # one run in memory at a time
            run = NamedRun(f"{name}: {collection.name}", str(paths[collection.name]))
            result = evaluate_run(run, evaluator, view, tracker)
            values[name][collection.name], depths[run.name] = result.overall, result.deepest
    warn_shallow(depths, measures)
    num_groups = len({collection.group for collection in common})
    text = "1 collection" if num_groups == 1 else f"{num_groups:,} collections"
    log(
        f"eval: averages are over {text}"
        + f" ({len(common):,} before groups are averaged)" * (len(common) > num_groups)
    )
    results = [average_groups(name, common, values[name], measures) for name in values]
    return format_results(results, measures, settings, COLLECTIONS)


def _find_runs(system: NamedRun, collections: Sequence[BeirDataset], retrieved_only: bool) -> dict[str, Path]:
    folder = Path(system.source)
    if system.source == STANDARD or not folder.is_dir():
        raise UsageError(
            f"{system.source}: is not a folder; with several collections, a system is a folder of NAME.run"
        )
    paths = {collection.name: find_run(folder, collection) for collection in collections}
    runs = {name: path for name, path in paths.items() if path is not None}
    missing = [name for name in paths if name not in runs]
    if missing and not retrieved_only:
        raise MismatchError(
            f"{system.source}: has no run for {len(missing)} of {len(paths)} collections "
            f"({', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}); `retrieved_only` leaves them out for all systems"
        )
    used = set(runs.values())
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("meta.json"))
    if others := [path for path in files if path not in used]:
        log(f"{system.source}: {len(others):,} files belong to no collection, for example {others[0].name}")
    return runs


def average_groups(
    system: str,
    collections: Sequence[BeirDataset],
    values: Mapping[str, Mapping[str, Value]],
    measures: Sequence[Measure],
) -> Evaluation:
    """Return a row per dataset, the mean of each group after its members, and the mean over groups as overall values."""

    def average(rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
        return {m.name: sum(float(row[m.name]) for row in rows) / len(rows) for m in measures}

    rows: dict[str, dict[str, Value]] = {}
    groups = list(dict.fromkeys(collection.group for collection in collections))
    for name in groups:
        members = [collection.name for collection in collections if collection.group == name]
        rows |= {member: dict(values[member]) for member in members}
        if members != [name]:
            rows[name] = average([values[member] for member in members])
    return Evaluation(system, rows, average([rows[name] for name in groups]))
