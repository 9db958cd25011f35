"""Read arrays from disk, scale vectors, and write and read ragged arrays (rows of different lengths)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from drtk.errors import DrtkError

_CHUNK = 1 << 16  # rows


def read_array(path: Path, *, dimensions: int = 1, mmap: Literal["r", "c"] | None = None) -> np.ndarray:
    """Return the array in a .npy file. Raises DrtkError if it is unreadable or has not `dimensions` dimensions."""
    try:
        array: np.ndarray = np.load(path, mmap_mode=mmap, allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.ndim != dimensions:
            raise ValueError(f"expected an array with {dimensions} dimensions")
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror or 'is damaged'}; rebuild the folder") from error
    except Exception as error:  # numpy's parsers raise ValueError, EOFError, BadZipFile, SyntaxError, OverflowError ...
        raise DrtkError(f"{path}: is damaged; rebuild the folder") from error
    return array


def scale_to_unit_length(vectors: np.ndarray) -> np.ndarray:
    """L2-normalize each row of (rows, dimension) float32; zero vectors are unchanged."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


class RaggedWriter:
    """Writer of a ragged array, row by row.

    `NAME.values` has all values, `NAME.starts` the positions in them where rows start and the last ends, (rows + 1,).
    """

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._values: BinaryIO = open(folder / f"{name}.values", "wb", buffering=1 << 20)  # noqa: SIM115 - closed by close
        self._starts: BinaryIO = open(folder / f"{name}.starts", "wb", buffering=1 << 16)  # noqa: SIM115
        self._starts.write(np.zeros(1, np.int64).tobytes())
        self.num_rows = self.num_values = 0

    def extend(self, rows: Sequence[np.ndarray]) -> None:
        """Append rows of shape (values,)."""
        if not rows:
            return
        self._values.write(np.concatenate(rows).astype(self._dtype, copy=False).tobytes())
        starts = self.num_values + np.cumsum([len(row) for row in rows], dtype=np.int64)
        self._starts.write(starts.tobytes())
        self.num_rows += len(rows)
        self.num_values = int(starts[-1])

    def close(self) -> None:
        """Close the files."""
        self._values.close()
        self._starts.close()


class RaggedArray:
    """A memory-mapped ragged array written by RaggedWriter; `array[row]` has shape (values,)."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._values = map_array(folder / f"{name}.values", dtype)
        self._starts = map_array(folder / f"{name}.starts", "int64")  # (rows + 1,)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self._values[self._starts[row] : self._starts[row + 1]]

    def iter_rows(self, rows: np.ndarray) -> Iterator[memoryview]:
        """Yield the values of each of the rows; faster than one by one. rows: row numbers, (n,)"""
        values = self._values.data
        for at in range(0, len(rows), _CHUNK):
            chunk = rows[at : at + _CHUNK]
            for start, end in zip(self._starts[chunk].tolist(), self._starts[chunk + 1].tolist(), strict=True):
                yield values[start:end]

    @property
    def lengths(self) -> np.ndarray:
        """The number of values of each row, (rows,) int64."""
        return np.diff(self._starts)


def map_array(path: Path, dtype: str) -> np.ndarray:
    """Memory-map a file of numbers as a read-only one-dimensional array. Raises OSError if it cannot be read."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
