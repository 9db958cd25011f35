"""Exceptions and their exit statuses."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def format_pip_command(*packages: str) -> str:
    """Return the shell command `PYTHON -m pip install …` for this Python. packages: requirements, or options of pip"""
    return " ".join([sys.executable or "python", "-m pip install", *map(shlex.quote, packages)])


class DrtkError(Exception):
    """Error with a one-line message, for example about a missing or damaged file; exit status 1."""

    status = 1


class UsageError(DrtkError):
    """Error in settings or options; exit status 2."""

    status = 2


class RecordError(DrtkError):
    """Error in an input record; the message begins with `file:line`."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, str]]:  # errors are pickled between processes
        return RecordError, (self.place, self.problem)


class MismatchError(DrtkError):
    """Error for inputs that do not match: unknown ids, different dimensions, or a folder of another kind."""


class MissingDependency(DrtkError):
    """Error for an optional package that is not installed; the message contains the command that installs it."""

    def __init__(self, package: str, purpose: str, command: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed; install it with: {command}")
        self.package, self.purpose, self.command = package, purpose, command

    def __reduce__(self) -> tuple[type[MissingDependency], tuple[str, str, str]]:
        return MissingDependency, (self.package, self.purpose, self.command)


@contextmanager
def convert_import_error(package: str, purpose: str, *packages: str) -> Iterator[None]:
    """Context manager that raises MissingDependency for an ImportError. packages: packages to install, by default `package`"""
    try:
        yield
    except ImportError as error:
        raise MissingDependency(package, purpose, format_pip_command(*(packages or [package]))) from error


class OutputClosed(DrtkError):
    """Error for an output pipe that its reader closed (`| head`); exit status 141, as for SIGPIPE in a shell."""

    status = 141
