"""Log lines and progress bars on stderr."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from drtk.runtime.sharding import get_rank

DIGITS = 6  # significant digits of measured numbers; float32 has seven


def round_significant(value: Any, digits: int = DIGITS) -> Any:
    """Round a float to `digits` significant digits, and -0.0 to 0.0; return any other value unchanged."""
    return float(f"{value:z.{digits}g}") if isinstance(value, float) else value


Item = TypeVar("Item")
_LOGGER = logging.getLogger("drtk")
PLAIN_INTERVAL = 30.0  # seconds between progress lines if stderr is not a terminal
_FIELD_PATTERN = re.compile(r"`([a-z]\w*)(?:=([^`]+))?`")
OPTION_NAMES: dict[str, str] = {}  # how the running command sets a field, such as "--set NAME", if not by --NAME
_ESCAPES = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}  # control characters, which terminals execute


def escape_control_characters(text: str) -> str:
    """Escape the control characters that a terminal would interpret, not newline and tab; ESC becomes \\x1b."""
    return text.translate(_ESCAPES)


def name_options(text: str) -> str:
    """Write the `fields` in a message as options: `max_length` becomes --max-length.

    Library messages name fields of configuration classes, or `field=value`. The command line applies this function to
    its output.
    """

    def replace_name(match: re.Match[str]) -> str:
        flag = OPTION_NAMES.get(match[1]) or "--" + match[1].rstrip("_").replace("_", "-")
        separator = "=" if flag.startswith("--set ") else " "
        return flag if match[2] is None else f"{flag}{separator}{match[2]}"

    return _FIELD_PATTERN.sub(replace_name, text)


class _StderrHandler(logging.Handler):
    """Log handler that writes to the current stderr, above a progress bar, and ignores a full or closed stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        message = escape_control_characters(name_options(self.format(record)))
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
        with contextlib.suppress(OSError, ValueError):
            if bars is not None and sys.stderr is not None:
                bars.write(message, file=sys.stderr)
            elif sys.stderr is not None:
                print(message, file=sys.stderr, flush=True)  # noqa: T201 - the only place that prints messages


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Set which messages are printed. With several processes (torchrun), ranks other than 0 print errors only."""
    level = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    _LOGGER.setLevel(level if get_rank() == 0 else logging.ERROR)
    if not _LOGGER.handlers:
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("drtk: %(message)s"))
        _LOGGER.addHandler(handler)
        _LOGGER.propagate = False


def is_quiet() -> bool:
    """Return whether only warnings and errors are printed."""
    return _LOGGER.level == logging.WARNING


def log(message: str) -> None:
    """Log one line."""
    _LOGGER.info(message)


def log_detail(message: str) -> None:
    """Log one line that is printed in verbose mode only."""
    _LOGGER.debug(message)


def warn(message: str) -> None:
    """Log one warning, which is also printed in quiet mode."""
    _LOGGER.warning(message)


class Progress:
    """Progress report: a bar if stderr is a terminal, else a log line at most every 30 seconds; none in quiet mode.

    get_share: function that returns the share of the input that was read, or None; used to estimate an unknown total
    what: name of the work, for the bar and the log lines
    initial: number of units that earlier sessions finished, excluded from the rate
    first: seconds until the first log line
    note: text after the count; may be changed at any time
    """

    def __init__(
        self,
        what: str,
        *,
        total: int | None = None,
        get_share: Callable[[], float | None] | None = None,
        unit: str = "records",
        initial: int = 0,
        first: float = PLAIN_INTERVAL,
    ) -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, initial
        self.note = ""
        self._get_share = get_share if total is None else None
        self._pause = first
        self._initial = initial
        self._start = self._last = time.monotonic()
        self._bar = None
        if sys.stderr is not None and sys.stderr.isatty() and _LOGGER.isEnabledFor(logging.INFO):
            from tqdm import tqdm

            self._bar = tqdm(desc=what, total=total, unit=f" {unit}", initial=initial, leave=False, dynamic_ncols=True)

    def add(self, count: int = 1) -> None:
        """Advance the progress by `count` units."""
        self.done += count
        if self._get_share is not None and (share := self._get_share()):
            self.total = int(round_significant(self.done / share, 3))
            if self._bar is not None:
                self._bar.total = self.total
        if self._bar is not None:
            self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._last >= self._pause:
            self._last, self._pause = time.monotonic(), PLAIN_INTERVAL
            about = "about " if self._get_share is not None else ""
            of = f" of {about}{self.total:,}" if self.total else ""
            rate = (self.done - self._initial) / (self._last - self._start)
            pace = f"{1 / rate:,.1f} s each" if 0 < rate < 1 else f"{rate:,.1f}/s"
            seconds = round((self.total - self.done) / rate) if self.total and rate else 0
            left = f", {timedelta(seconds=seconds)} left" if self.total and rate else ""
            note = f", {self.note}" if self.note else ""
            log(f"{self.what}: {self.done:,}{of} {self.unit}, {pace}{left}{note}")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def track(
    items: Iterable[Item],
    what: str,
    *,
    total: int | None = None,
    get_share: Callable[[], float | None] | None = None,
    unit: str = "records",
) -> Iterator[Item]:
    """Yield the items and report progress (see `Progress` for the arguments)."""
    with Progress(what, total=total, get_share=get_share, unit=unit) as progress:
        for item in items:
            yield item
            progress.add()


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Context manager that silences the progress bars and warnings of transformers."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
