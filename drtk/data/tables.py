"""Read Parquet files and Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from drtk.data.rows import Row
from drtk.errors import DrtkError, convert_import_error
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import find_inputs
from drtk.runtime.streams import digest_file, is_stream

HUB_PREFIX = "hf:"
_ROWS_PER_READ = 1024  # rows turned into Python objects at once


def is_hub_dataset(source: str) -> bool:
    """Return whether `source` is `hf:NAME`, a dataset of the Hugging Face hub."""
    return source.startswith(HUB_PREFIX)


def is_table(source: str) -> bool:
    """Return whether `source` is a Parquet file, a folder of Parquet files, a saved dataset, or `hf:NAME`."""
    if is_hub_dataset(source):
        return True
    if is_stream(source):  # its first bytes could not be read again
        return False
    path = Path(source)
    if path.is_dir():
        return _is_saved_dataset(path) or bool(list_parquet_files(path))
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PAR1"
    except (OSError, ValueError):
        return False


def iter_table_rows(source: str, tracker: InputTracker) -> Iterator[tuple[int, Row | ValueError]]:
    """Yield (row number from 1, row without null fields) of a table, and add the table to the inputs of `tracker`.

    A row with a value that JSON cannot represent is yielded as a ValueError.
    Raises MissingDependency without pyarrow or datasets, DrtkError for a table that cannot be read.
    """
    number = 0
    for number, row in enumerate(_iter_rows(source), start=1):
        try:
            plain = _drop_nulls(row)
        except ValueError as error:
            yield number, error
            continue
        yield number, plain
    if is_hub_dataset(source):
        tracker.inputs.append({"path": source, "digest": f"{number} rows"})
    else:
        (entry,) = find_inputs({"source": source})
        tracker.inputs.append(entry | {"digest": entry["digest"] or digest_file(source)})


def _iter_rows(source: str) -> Iterator[Row]:
    if is_hub_dataset(source):
        return _iter_hub_rows(source.removeprefix(HUB_PREFIX))
    path = Path(source)
    if path.is_dir() and _is_saved_dataset(path):
        datasets = require_library("datasets", "reading a saved dataset")
        with _convert_errors(str(path)):
            dataset = datasets.load_from_disk(str(path))
        return iter(_get_only_split(dataset, str(path), separator="/"))
    return _iter_parquet_rows(list_parquet_files(path) if path.is_dir() else [path])


def list_parquet_files(path: Path) -> list[Path]:
    """Return the Parquet files of a folder, or else of its subfolders, as in datasets of the hub."""
    return sorted(path.glob("*.parquet")) or sorted(path.glob("*/*.parquet"))


def _is_saved_dataset(path: Path) -> bool:
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def _iter_parquet_rows(paths: list[Path]) -> Iterator[Row]:
    parquet = require_library("pyarrow", "reading Parquet").parquet
    for path in paths:
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_ROWS_PER_READ):
                    yield from batch.to_pylist()
        except (OSError, ValueError) as error:  # pyarrow's errors are subclasses
            raise DrtkError(
                f"{path}: cannot be read as Parquet: {' '.join(str(error).split())}; check the file"
            ) from error


def _iter_hub_rows(name: str) -> Iterator[Row]:
    """Stream the rows of a dataset of the hub, `NAME[@REVISION][:SPLIT]` or `NAME[@REVISION]:CONFIG:SPLIT`."""
    name, *parts = name.split(":")
    datasets, path, revision = _split_hub_name(name)
    config, split = parts[:2] if len(parts) > 1 else ("", parts[0] if parts else "")
    with _convert_errors(f"{HUB_PREFIX}{path}"):
        dataset = datasets.load_dataset(path, config or None, split=split or None, revision=revision, streaming=True)
        yield from _get_only_split(dataset, f"{HUB_PREFIX}{path}", separator=":")


def _split_hub_name(name: str) -> tuple[Any, str, str | None]:
    """Return (library datasets, NAME, REVISION or None) for `NAME[@REVISION]`."""
    path, _, revision = name.partition("@")
    return require_library("datasets", "reading a dataset of the hub"), path, revision or None


@contextmanager
def _convert_errors(name: str) -> Iterator[None]:
    """Raise DrtkError for the errors of datasets, which are of many kinds, also of the network."""
    try:
        yield
    except DrtkError:
        raise
    except Exception as error:
        problem = (str(error) or type(error).__name__).splitlines()[0].replace("`", "'")  # they name no options
        raise DrtkError(f"{name}: cannot be loaded ({problem}); check the name and its files") from error


def list_configurations(name: str) -> list[str]:
    """Return the names of the configurations of a dataset, `NAME[@REVISION]`; [] if it cannot be loaded."""
    datasets, path, revision = _split_hub_name(name)
    try:
        return datasets.get_dataset_config_names(path, revision=revision)
    except Exception:  # noqa: BLE001 - many kinds; reading the dataset reports the problem
        return []


def list_hub_splits(name: str, configuration: str) -> list[str]:
    """Return the names of the splits of a dataset, `NAME[@REVISION]`. Raises DrtkError if it cannot be loaded."""
    datasets, path, revision = _split_hub_name(name)
    with _convert_errors(f"{HUB_PREFIX}{name}"):
        return list(datasets.get_dataset_split_names(path, configuration, revision=revision))


def get_version(name: str, configuration: str) -> str:
    """Return the version of a dataset: a digest of its revision, or of its files if it is local."""
    datasets, path, revision = _split_hub_name(name)
    with _convert_errors(f"{HUB_PREFIX}{name}"):
        return str(datasets.load_dataset_builder(path, configuration, revision=revision).hash)


def _get_only_split(dataset: Any, name: str, *, separator: str) -> Any:
    """Return a dataset, or the only split of a dictionary of splits. Raises DrtkError if there are several splits."""
    if not isinstance(dataset, dict):
        return dataset
    if len(dataset) != 1:
        example = f"{name}{separator}{next(iter(dataset), 'SPLIT')}"
        raise DrtkError(f"{name}: has the splits {', '.join(dataset)}; name one, such as {example}")
    return next(iter(dataset.values()))


def _drop_nulls(value: Any) -> Any:
    """Remove null fields from nested objects; tables have null in place of missing fields.

    Raises ValueError for a value of a type that JSON cannot represent.
    """
    if isinstance(value, dict):
        return {name: _drop_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_drop_nulls(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ValueError(f"has a value of type {type(value).__name__}, which JSON cannot represent")


def require_library(name: str, purpose: str) -> Any:
    """Import and return pyarrow (with its Parquet module) or datasets. Raises MissingDependency if it is not installed."""
    with convert_import_error(name, purpose, "datasets", "pyarrow"):
        import_module("pyarrow.parquet")
        return import_module(name)
