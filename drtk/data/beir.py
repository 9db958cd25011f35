"""Find the files of a BEIR collection (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv), compressed or not."""

from __future__ import annotations

from pathlib import Path

from drtk.errors import DrtkError
from drtk.runtime.progress import log
from drtk.runtime.streams import SUFFIXES

FILE_SUFFIXES = ("", *SUFFIXES)


def find_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file, which may have the suffix .gz or .zst; None if there is none."""
    return next((path for path in (folder / f"{name}{suffix}" for suffix in FILE_SUFFIXES) if path.is_file()), None)


def require_file(folder: Path, name: str) -> str:
    """Return the path of a file, as `find_file` does. Raises DrtkError if there is none."""
    path = find_file(folder, name)
    if path is None:
        raise DrtkError(f"{folder}: has no {name}; expected a BEIR folder with this file")
    return str(path)


def list_splits(folder: Path) -> list[str]:
    """Return the names of the splits that have judgments, sorted."""
    return sorted(
        {
            path.name.removesuffix(f".tsv{suffix}")
            for suffix in FILE_SUFFIXES
            for path in folder.glob(f"qrels/*.tsv{suffix}")
        }
    )


def find_qrels(folder: Path, split: str) -> Path:
    """Return the path of the qrels of `split`. If the collection has a single other split, log and use that split.

    Raises DrtkError if the collection has several other splits or no judgments, or only test in place of train.
    """
    if path := find_file(folder / "qrels", f"{split}.tsv"):
        return path
    splits = list_splits(folder)
    only = find_file(folder / "qrels", f"{splits[0]}.tsv") if len(splits) == 1 else None
    if only and (split, splits[0]) != ("train", "test"):
        log(f"{folder}: has no split '{split}'; using its only split, '{splits[0]}'")
        return only
    has = f"only {', '.join(splits)}" if splits else "no judgments"
    raise DrtkError(f"{folder}: has no qrels/{split}.tsv, {has}; give a file of judgments, or another split")


def choose_dev_split(folder: str | Path) -> str:
    """Return the split for checkpoint selection: dev, or else train.

    Raises DrtkError if there is neither, because a checkpoint must not be selected on test queries.
    """
    if not Path(folder).is_dir():
        raise DrtkError(
            f"{folder}: no such folder; expected a BEIR folder with corpus.jsonl, queries.jsonl and qrels/dev.tsv"
        )
    splits = list_splits(Path(folder))
    for split in ("dev", "train"):
        if split in splits:
            if split != "dev":
                log(f"{folder}: has no qrels/dev.tsv; using qrels/{split}.tsv")
            return split
    others = f" (found: {', '.join(splits)})" if splits else ""
    raise DrtkError(f"{folder}: has neither qrels/dev.tsv nor qrels/train.tsv{others}; add one of them")
