"""Read arrays from the .npy files of drtk's folders."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from drtk.errors import DrtkError


def read_array(path: Path, *, dimensions: int = 1, mmap: Literal["r", "c"] | None = None) -> np.ndarray:
    """Return the array in a .npy file. Raises DrtkError if it is damaged or has another number of dimensions."""
    try:
        found: np.ndarray = np.load(path, mmap_mode=mmap, allow_pickle=False)
        if not isinstance(found, np.ndarray) or found.ndim != dimensions:
            raise ValueError(f"expected an array of {dimensions} dimensions")
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror or 'is damaged'}; rebuild the folder") from error
    except Exception as error:  # numpy's parsers raise ValueError, EOFError, BadZipFile, SyntaxError, OverflowError ...
        raise DrtkError(f"{path}: is damaged; rebuild the folder") from error
    return found
