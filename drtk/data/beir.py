"""One collection in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, any of them compressed."""

from __future__ import annotations

from pathlib import Path

from drtk.errors import DrtkError
from drtk.runtime.progress import log
from drtk.runtime.streams import SUFFIXES

PACKED = ("", *SUFFIXES)


def part_of(folder: Path, name: str) -> Path | None:
    """The file of that name, or else of that name and a compression's ending; None where there is neither."""
    return next((path for path in (folder / f"{name}{suffix}" for suffix in PACKED) if path.is_file()), None)


def needed_part(folder: Path, name: str) -> str:
    """As `part_of`; raises DrtkError where the file is not there."""
    path = part_of(folder, name)
    if path is None:
        raise DrtkError(f"{folder}: has no {name}")
    return str(path)


def splits_of(folder: Path) -> list[str]:
    """The names of the splits that have judgements, sorted."""
    return sorted(
        {path.name.removesuffix(f".tsv{suffix}") for suffix in PACKED for path in folder.glob(f"qrels/*.tsv{suffix}")}
    )


def judgements_path(folder: Path, split: str) -> Path:
    """The judgements of `split`, or of the only split there is, which is said.

    Raises DrtkError where there are several others.
    """
    if path := part_of(folder / "qrels", f"{split}.tsv"):
        return path
    others = splits_of(folder)
    if len(others) == 1 and (only := part_of(folder / "qrels", f"{others[0]}.tsv")):
        log(f"{folder}: has no split '{split}'; taking its only one, '{others[0]}'")
        return only
    wanted = folder / "qrels" / f"{split}.tsv"
    raise DrtkError(f"{wanted}: No such file; --split chooses from {', '.join(others) or 'nothing'}")


def split_to_choose_by(folder: str | Path) -> str:
    """The split by which an encoder may be chosen: dev, or else train, which is said.

    Raises DrtkError where there is neither: what is chosen by the test queries cannot be judged by them any more.
    """
    if not Path(folder).is_dir():
        raise DrtkError(
            f"{folder}: no such folder; a probe is a BEIR folder: corpus.jsonl, queries.jsonl, qrels/dev.tsv"
        )
    there = splits_of(Path(folder))
    for split in ("dev", "train"):
        if split in there:
            if split != "dev":
                log(f"{folder}: has no qrels/dev.tsv; choosing by qrels/{split}.tsv")
            return split
    found = f", only {', '.join(there)}" if there else ""
    raise DrtkError(f"{folder}: has no qrels/dev.tsv or qrels/train.tsv to choose an encoder by{found}")
