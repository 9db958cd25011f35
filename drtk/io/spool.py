"""Standard input read more than once."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import AbstractContextManager
from typing import Any

from drtk.io.intake import Intake
from drtk.io.progress import log
from drtk.io.streams import STANDARD


class spooled(AbstractContextManager[str]):  # noqa: N801 - used like a function
    """What comes from stdin, kept in a temporary file while it is read more than once; other sources stay as they are."""

    def __init__(self, source: str, intake: Intake) -> None:
        self._source, self._intake = source, intake
        self._file: Any = None

    def __enter__(self) -> str:
        if self._source == STANDARD:
            log("stdin is kept in a temporary file, for it is read more than once")
            self._file = tempfile.NamedTemporaryFile(prefix="drtk-")
            shutil.copyfileobj(sys.stdin.buffer, self._file)
            self._file.flush()
            self._intake.stand_ins[STANDARD] = self._file.name
        return self._source

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
