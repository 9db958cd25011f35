"""Names of runs (NAME=FILE), their manifests, and iteration over several runs by query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from drtk.errors import DrtkError, UsageError
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import Manifest, get_manifest_path, is_manifest
from drtk.runtime.streams import STANDARD, is_stream

SCORED = "scored"  # count in a manifest: {"depth": last rank that was scored by a model}
_ENDINGS = (".gz", ".zst", ".txt", ".tsv", ".run", ".trec", ".jsonl")
Found = TypeVar("Found")


@dataclass(frozen=True)
class NamedRun:
    """A run and its name in tables."""

    name: str
    source: str


def parse_runs(arguments: Sequence[str], *, name: str = "") -> list[NamedRun]:
    """Parse NAME=FILE or FILE; without a name, use that of the file, with its folder if it is ambiguous.

    name: the name of a single run
    Raises UsageError for a repeated name, and for stdin given twice.
    """
    if name and len(arguments) > 1:
        raise UsageError("one name for several runs; name each of them: NAME=FILE")
    if name and not is_named(arguments[0]):
        return [NamedRun(name, arguments[0])]
    plain = [argument for argument in arguments if not is_named(argument)]
    stems = [_get_stem(argument) for argument in plain]
    own = {
        source: str(Path(source).parent / stem) if stems.count(stem) > 1 else stem
        for source, stem in zip(plain, stems, strict=True)
    }
    return _name_runs(arguments, own)


def parse_logs(arguments: Sequence[str]) -> list[NamedRun]:
    """Parse training logs, NAME=FILE or FILE; runs/mlm/log.jsonl is named mlm, or runs/mlm if that is ambiguous.

    Raises UsageError as `parse_runs` does.
    """
    plain = [argument for argument in arguments if not is_named(argument)]
    own = dict(zip(plain, _find_unique_suffixes([_split_log_path(argument) for argument in plain]), strict=True))
    return _name_runs(arguments, own)


def _name_runs(arguments: Sequence[str], own: Mapping[str, str]) -> list[NamedRun]:
    """Return NAME=FILE as runs, and files with their own names.

    Raises UsageError for a repeated name, and for stdin given twice.
    """
    runs = [
        NamedRun(own[argument], argument) if argument in own else NamedRun(*argument.split("=", 1))
        for argument in arguments
    ]
    if sum(run.source == STANDARD for run in runs) > 1:
        raise UsageError("stdin can be only one of the runs")
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two runs are called '{name}'; name them: NAME=FILE")
    return runs


def _split_log_path(source: str) -> tuple[str, ...]:
    """Return the folders of a log and its name, without the name `log`."""
    folders = Path(source).parent.parts
    own = _get_stem(source)
    return folders if own == "log" and folders and folders[-1] not in ("..", "/") else (*folders, own)


def _find_unique_suffixes(ways: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the shortest suffix of each path that differs from the others."""
    lengths = [1] * len(ways)
    while True:
        names = [str(Path(*way[-length:])) for way, length in zip(ways, lengths, strict=True)]
        longer = [
            min(len(way), length + (names.count(name) > 1))
            for way, length, name in zip(ways, lengths, names, strict=True)
        ]
        if longer == lengths:
            return names
        lengths = longer


def group_runs(arguments: Sequence[str]) -> dict[str, list[NamedRun]]:
    """Return the runs by system: files with the same name (`dense=1.run dense=2.run`) are runs of one system.

    Raises UsageError for a repeated file, and for a name that is also that of a file without a name.
    """
    named = [tuple(argument.partition("=")[::2]) for argument in arguments if is_named(argument)]
    own = {run.source: run.name for run in parse_runs([argument for argument in arguments if not is_named(argument)])}
    for name, _ in named:
        if name in own.values():
            raise UsageError(f"'{name}' is the name of a system and of a file; name that too: NAME=FILE")
    found: dict[str, list[NamedRun]] = {}
    taken: set[str] = set()
    for argument in arguments:
        name, source = (own[argument], argument) if argument in own else argument.partition("=")[::2]
        if source in taken:
            raise UsageError("stdin can be only one of the runs" if source == STANDARD else f"{source} is given twice")
        taken.add(source)
        runs = found.setdefault(name, [])
        runs.append(NamedRun(name if not runs else f"{name}, run {len(runs) + 1}", source))
    return found


def is_named(argument: str) -> bool:
    """Return whether an argument is NAME=FILE, and not a file with an equals sign in its name."""
    name, equals, source = argument.partition("=")
    return bool(equals and name and source) and not Path(argument).exists()


def read_scored_depth(source: str) -> int | None:
    """Return the last rank that `drtk rerank` scored, from the manifest of the run; None if unknown."""
    depth = (_read_run_manifest(source).get("counts") or {}).get(SCORED, {}).get("depth")
    return depth if isinstance(depth, int) else None


def read_fused_runs(source: str) -> list[str]:
    """Return the inputs of a run made by `drtk fuse`, from its manifest; [] for any other run."""
    manifest = _read_run_manifest(source)
    return list(manifest["settings"].get("runs") or []) if manifest.get("program") == "fuse" else []


def _read_run_manifest(source: str) -> Manifest:
    """Return the manifest beside a run; {} for a stream, or if it is missing, damaged or of another file."""
    if is_stream(source) or not get_manifest_path(source).exists():
        return {}
    try:
        content = read_json(get_manifest_path(source))
    except DrtkError:
        return {}
    fits = is_manifest(content) and content.get("bytes") == Path(source).stat().st_size
    return dict(content) if fits else {}


def _get_stem(source: str) -> str:
    if source == STANDARD:
        return "stdin"
    name = Path(source).name
    while name.endswith(_ENDINGS) and not name.startswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return name


def iter_aligned(
    first: Iterator[tuple[str, Found]], others: Sequence[dict[str, Found]]
) -> Iterator[tuple[str, list[Found | None]]]:
    """Yield (query, its entry in each run), in the order of the first run; then for queries of the others only.

    Empties `others`.
    """
    for query_id, found in first:
        yield query_id, [found, *(run.pop(query_id, None) for run in others)]
    for query_id in dict.fromkeys(query_id for run in others for query_id in run):
        yield query_id, [None, *(run.pop(query_id, None) for run in others)]
