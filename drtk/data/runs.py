"""Parse names of runs (NAME=FILE), read their manifests, and iterate over several runs by query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from drtk.errors import UsageError
from drtk.runtime.manifest import Manifest, load_output_manifest
from drtk.runtime.streams import STANDARD, is_stream

SCORED = "scored"  # count in a manifest: {"depth": last rank that was scored by a model}
_ENDINGS = (".gz", ".zst", ".txt", ".tsv", ".run", ".trec", ".jsonl")
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class NamedRun:
    """A run and its name in tables."""

    name: str
    source: str


def get_query_id(line: bytes) -> str:
    """Return the query id of a line of a run."""
    return line.decode().split(maxsplit=1)[0]


def parse_runs(arguments: Sequence[str], *, are_logs: bool = False) -> list[NamedRun]:
    """Parse arguments as `group_runs` does. Raises UsageError if two files have the same name."""
    systems = group_runs(arguments, are_logs=are_logs)
    for name, runs in systems.items():
        if len(runs) > 1:
            raise UsageError(f"the name '{name}' is given twice; give each its own: NAME=PATH")
    return [run for runs in systems.values() for run in runs]


def group_runs(arguments: Sequence[str], *, are_logs: bool = False) -> dict[str, list[NamedRun]]:
    """Parse arguments NAME=FILE or FILE, and group them by name (`dense=1.run dense=2.run` are runs of one system).

    Without NAME, use the file name without suffix, and folders if names are equal.
    are_logs: whether the files are training logs; runs/mlm/log.jsonl is named mlm
    Raises UsageError for stdin given twice, a file given twice under one name, and a NAME that is also the name of a file
    without NAME.
    """
    plain = [argument for argument in arguments if not is_named(argument)]
    names = _find_unique_suffixes([_split_path(path, are_logs) for path in plain])
    default_names = dict(zip(plain, names, strict=True))
    systems: dict[str, list[NamedRun]] = {}
    seen: set[tuple[str, str]] = set()  # (name, source); stdin once under any name
    for argument in arguments:
        name, source = (default_names[argument], argument) if argument in plain else argument.split("=", 1)
        key = ("", source) if source == STANDARD else (name, source)
        if key in seen:
            raise UsageError(
                "stdin can be given for one run only; use files for the others"
                if source == STANDARD
                else f"{source} is given twice; give each run once"
            )
        if argument not in plain and name in names:
            raise UsageError(f"the name '{name}' is given twice; give each its own: NAME=PATH")
        seen.add(key)
        runs = systems.setdefault(name, [])
        runs.append(NamedRun(name if not runs else f"{name}, run {len(runs) + 1}", source))
    return systems


def _split_path(source: str, is_log: bool) -> tuple[str, ...]:
    """Return the path components without the suffix; for NAME/log.jsonl with `is_log`, only the folders."""
    folders = Path(source).parent.parts
    stem = _get_stem(source)
    is_named_by_folder = is_log and stem == "log" and folders and folders[-1] not in ("..", "/")
    return folders if is_named_by_folder else (*folders, stem)


def _find_unique_suffixes(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the last components of each path, as few as distinguish it from the other paths."""
    lengths = [1] * len(paths)
    while True:
        names = [str(Path(*path[-length:])) for path, length in zip(paths, lengths, strict=True)]
        longer = [
            min(len(path), length + (names.count(name) > 1))
            for path, length, name in zip(paths, lengths, names, strict=True)
        ]
        if longer == lengths:
            return names
        lengths = longer


def is_named(argument: str) -> bool:
    """Return whether an argument is NAME=FILE, not a file name that contains an equals sign."""
    name, equals, source = argument.partition("=")
    return bool(equals and name and source) and not Path(argument).exists()


def read_scored_depth(source: str) -> int | None:
    """Return the last rank that `drtk rerank` scored, from the manifest of the run; None if unknown."""
    depth = (_read_run_manifest(source).get("counts") or {}).get(SCORED, {}).get("depth")
    return depth if isinstance(depth, int) else None


def read_fused_runs(source: str) -> list[str]:
    """Return the file names of the runs that `drtk fuse` combined into a run, from its manifest; [] for other runs."""
    manifest = _read_run_manifest(source)
    return list(manifest["settings"].get("runs") or []) if manifest.get("program") == "fuse" else []


def _read_run_manifest(source: str) -> Manifest:
    """Return the manifest of a run; {} for a stream, or if the manifest is missing, damaged or belongs to another file."""
    manifest = None if is_stream(source) else load_output_manifest(source)
    is_same_file = manifest is not None and manifest.get("bytes") == Path(source).stat().st_size
    return manifest if manifest is not None and is_same_file else {}


def _get_stem(source: str) -> str:
    if source == STANDARD:
        return "stdin"
    name = Path(source).name
    while name.endswith(_ENDINGS) and not name.startswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return name


def iter_aligned_rankings(
    first: Iterator[tuple[str, Entry]], others: Sequence[dict[str, Entry]]
) -> Iterator[tuple[str, list[Entry | None]]]:
    """Yield (query id, [ranking in each run, or None]): first the queries of `first`, then those in `others` only.

    first: (query id, ranking) pairs of the first run    others: {query id: ranking} of each other run
    Rankings are removed from `others` when they are yielded, to save memory.
    """
    for query_id, entry in first:
        yield query_id, [entry, *(run.pop(query_id, None) for run in others)]
    for query_id in dict.fromkeys(query_id for run in others for query_id in run):
        yield query_id, [None, *(run.pop(query_id, None) for run in others)]
