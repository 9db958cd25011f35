"""Parquet files and Hugging Face data sets as rows, through the `data` extra."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drtk.errors import DrtkError, MissingDependency, pip_install
from drtk.io.intake import Intake
from drtk.io.manifest import folder_entry
from drtk.io.rows import Row
from drtk.io.streams import digest_file, is_stream

HUB = "hf:"
_BATCH = 1024  # rows turned into Python objects at once


def is_of_hub(source: str) -> bool:
    """Whether `source` names a data set of the hub, and no file."""
    return source.startswith(HUB)


def is_table(source: str) -> bool:
    """Whether `source` is a Parquet file, a folder of them, a saved data set, or `hf:NAME`."""
    if is_of_hub(source):
        return True
    if is_stream(source):  # a look at its beginning would take that away
        return False
    path = Path(source)
    if path.is_dir():
        return _is_saved(path) or bool(_parquet_files(path))
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PAR1"
    except (OSError, ValueError):
        return False


def table_rows(source: str, intake: Intake) -> Iterator[tuple[int, Row | ValueError]]:
    """(row number from 1, row without its empty fields) of a table; the table is then among the intake's inputs.

    Raises MissingDependency without the `data` extra, DrtkError for a table that cannot be read.
    """
    number = 0
    for number, row in enumerate(_rows(source), start=1):
        try:
            plain = _without_nulls(row)
        except ValueError as error:
            yield number, error
            continue
        yield number, plain
    if is_of_hub(source):
        intake.inputs.append({"path": source, "digest": f"{number} rows"})
    elif Path(source).is_dir():
        intake.inputs.append(folder_entry(source))
    else:
        facts = Path(source).stat()
        entry = {"path": source, "bytes": facts.st_size, "digest": digest_file(source), "mtime_ns": facts.st_mtime_ns}
        intake.inputs.append(entry)


def _rows(source: str) -> Iterator[Row]:
    if is_of_hub(source):
        return _hub_rows(source.removeprefix(HUB))
    path = Path(source)
    if path.is_dir() and _is_saved(path):
        return _saved_rows(path)
    return _parquet_rows(_parquet_files(path) if path.is_dir() else [path])


def _parquet_files(path: Path) -> list[Path]:
    """Parquet files of a folder and of its subfolders, one deep, as data sets are laid out; a deeper search could take hours."""
    return sorted(path.glob("*.parquet")) or sorted(path.glob("*/*.parquet"))


def _is_saved(path: Path) -> bool:
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def _parquet_rows(paths: list[Path]) -> Iterator[Row]:
    parquet = arrow("reading Parquet").parquet
    for path in paths:
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_BATCH):
                    yield from batch.to_pylist()
        except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
            raise DrtkError(f"{path}: not readable as Parquet: {' '.join(str(error).split())}") from error


def _saved_rows(path: Path) -> Iterator[Row]:
    found = require_datasets("reading a saved data set").load_from_disk(str(path))
    if isinstance(found, dict):
        if len(found) != 1:
            raise DrtkError(
                f"{path}: holds the splits {', '.join(found)}; name one: {path / next(iter(found), 'SPLIT')}"
            )
        found = next(iter(found.values()))
    yield from found


def _hub_rows(name: str) -> Iterator[Row]:
    """Rows of `NAME[@REVISION]`, with `:SPLIT` or `:CONFIG:SPLIT` after it, streamed."""
    datasets = require_datasets("reading a data set of the hub")
    name, *parts = name.split(":")
    name, _, revision = name.partition("@")
    config, split = parts[:2] if len(parts) > 1 else ("", parts[0] if parts else "")
    try:
        found = datasets.load_dataset(
            name, config or None, split=split or None, revision=revision or None, streaming=True
        )
    except Exception as error:  # the library raises many kinds, its own and those of the network
        raise DrtkError(f"{HUB}{name}: cannot be loaded: {str(error).splitlines()[0]}") from error
    if isinstance(found, dict):
        if len(found) != 1:
            raise DrtkError(f"{HUB}{name}: holds the splits {', '.join(found)}; name one: {HUB}{name}:SPLIT")
        found = next(iter(found.values()))
    yield from found


def _without_nulls(value: Any) -> Any:
    """Columns hold a null where a row lacks a field: such fields go, at every depth of objects."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ValueError(f"holds a value of type {type(value).__name__}, which JSON cannot hold")


def arrow(purpose: str) -> Any:
    """pyarrow with its Parquet module. Raises MissingDependency where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency("pyarrow", purpose, pip_install("datasets", "pyarrow")) from error
    return pyarrow


def require_datasets(purpose: str) -> Any:
    """Hugging Face's `datasets`. Raises MissingDependency where it is not installed."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependency("datasets", purpose, pip_install("datasets", "pyarrow")) from error
    return datasets
