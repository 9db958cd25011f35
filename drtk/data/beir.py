"""The files of a BEIR collection: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, each perhaps compressed."""

from __future__ import annotations

from pathlib import Path

from drtk.errors import DrtkError
from drtk.runtime.progress import log
from drtk.runtime.streams import SUFFIXES

PACKED = ("", *SUFFIXES)


def find_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file with or without the suffix of a compression; None if there is none."""
    return next((path for path in (folder / f"{name}{suffix}" for suffix in PACKED) if path.is_file()), None)


def require_file(folder: Path, name: str) -> str:
    """Return the path of a file, as `find_file` does. Raises DrtkError if there is none."""
    path = find_file(folder, name)
    if path is None:
        raise DrtkError(f"{folder}: has no {name}")
    return str(path)


def list_splits(folder: Path) -> list[str]:
    """Return the sorted names of the splits that have judgements."""
    return sorted(
        {path.name.removesuffix(f".tsv{suffix}") for suffix in PACKED for path in folder.glob(f"qrels/*.tsv{suffix}")}
    )


def find_qrels(folder: Path, split: str) -> Path:
    """Return the path of the judgements of `split`, or of the only split of the collection, which is logged.

    Raises DrtkError if there are several others.
    """
    if path := find_file(folder / "qrels", f"{split}.tsv"):
        return path
    others = list_splits(folder)
    if len(others) == 1 and (only := find_file(folder / "qrels", f"{others[0]}.tsv")):
        log(f"{folder}: has no split '{split}'; taking its only one, '{others[0]}'")
        return only
    wanted = folder / "qrels" / f"{split}.tsv"
    raise DrtkError(f"{wanted}: No such file; `split` chooses from {', '.join(others) or 'nothing'}")


def choose_dev_split(folder: str | Path) -> str:
    """Return the split for choosing an encoder: dev, or else train, which is logged.

    Raises DrtkError if there is neither: test queries must not be used to choose.
    """
    if not Path(folder).is_dir():
        raise DrtkError(
            f"{folder}: no such folder; a probe is a BEIR folder: corpus.jsonl, queries.jsonl, qrels/dev.tsv"
        )
    there = list_splits(Path(folder))
    for split in ("dev", "train"):
        if split in there:
            if split != "dev":
                log(f"{folder}: has no qrels/dev.tsv; choosing by qrels/{split}.tsv")
            return split
    found = f", only {', '.join(there)}" if there else ""
    raise DrtkError(f"{folder}: has no qrels/dev.tsv or qrels/train.tsv to choose an encoder by{found}")
