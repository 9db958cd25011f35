"""The second pass of a filter whose output depends on all records: where the first pass leaves its lines, and reading them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from drtk.io.progress import log
from drtk.io.streams import is_replaceable, open_input, read_lines


@contextmanager
def first_pass_at(output: str, command: str, *, revised: bool) -> Iterator[str]:
    """The target of the first pass: `output` itself, whose part is what a second pass reads, or a temporary file's name."""
    if not revised or is_replaceable(output):
        yield output
        return
    with TemporaryDirectory(prefix="drtk-") as folder:
        log(f"{command}: all records are worked on before the first is written; they wait in {folder}")
        yield str(Path(folder) / "records")


def lines_of(part: Path) -> Iterator[bytes]:
    """The lines of a part, whether compressed or not, without their ends. Raises RecordError where it is damaged."""
    stream, raw = open_input(str(part))
    with closing(raw):
        for _, line in read_lines(stream, str(part)):
            yield line
