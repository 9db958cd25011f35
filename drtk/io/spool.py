"""Streams read more than once: stdin, and pipes that go by a name."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from tempfile import NamedTemporaryFile

from drtk.errors import DrtkError, UsageError
from drtk.io.intake import Intake
from drtk.io.progress import log
from drtk.io.streams import STANDARD, is_stream, name_of


class spooled(AbstractContextManager[str]):  # noqa: N801 - used like a function
    """What comes from streams, kept in temporary files while it is read more than once; files stay as they are.

    As a context manager it gives `source`; `intake` reads the copies in place of source and side files.
    Raises UsageError where one stream is to be two inputs, DrtkError for one that cannot be read.
    """

    def __init__(self, source: str, intake: Intake, side_files: Sequence[str] = ()) -> None:
        self._source, self._intake = source, intake
        self._streams = [name for name in (source, *side_files) if is_stream(name)]
        self._files = ExitStack()

    def __enter__(self) -> str:
        for name in self._streams:
            if self._streams.count(name) > 1:
                raise UsageError(f"{_plain(name)} can be only one of the inputs")
        with self._files:  # lets go of them where a later one cannot be read
            for name in self._streams:
                log(f"{_plain(name)} is kept in a temporary file, for it is read more than once")
                self._intake.stand_ins[name] = self._copy(name)
            self._files = self._files.pop_all()
        return self._source

    def _copy(self, name: str) -> str:
        file = self._files.enter_context(NamedTemporaryFile(prefix="drtk-"))  # noqa: SIM115 - the stack closes it
        try:
            if name == STANDARD:
                if sys.stdin is None:
                    raise DrtkError("<stdin>: is closed")
                shutil.copyfileobj(sys.stdin.buffer, file)
            else:
                with open(name, "rb") as stream:
                    shutil.copyfileobj(stream, file)
            file.flush()
        except OSError as error:
            raise DrtkError(f"{name_of(name)}: {error.strerror}") from error
        return file.name

    def __exit__(self, *_: object) -> None:
        self._files.close()


def _plain(name: str) -> str:
    return "stdin" if name == STANDARD else name
