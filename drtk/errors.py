"""What can go wrong, and the exit status each fault earns."""

from __future__ import annotations

import shlex
import sys


def pip_install(*packages: str) -> str:
    """The command that installs packages for the Python that runs. It names packages, not extras of drtk, which is not on PyPI;
    what a shell would read is quoted.
    """
    return " ".join([sys.executable or "python", "-m pip install", *map(shlex.quote, packages)])


class DrtkError(Exception):
    """A fault of data or resources, told in one line: exit status 1."""

    status = 1


class UsageError(DrtkError):
    """A request that cannot be meant: exit status 2."""

    status = 2


class RecordError(DrtkError):
    """A record that cannot be read; begins with the place, `file:line`."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, str]]:  # it travels between processes
        return RecordError, (self.place, self.problem)


class MismatchError(DrtkError):
    """Two things that should belong together and do not: ids, dimensions, the wrong kind of folder."""


class MissingDependency(DrtkError):
    """An optional package that is not installed; the message holds the command that installs it."""

    def __init__(self, package: str, purpose: str, command: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed; install it with: {command}")
        self.package, self.purpose, self.command = package, purpose, command

    def __reduce__(self) -> tuple[type[MissingDependency], tuple[str, str, str]]:
        return MissingDependency, (self.package, self.purpose, self.command)


class OutputClosed(DrtkError):
    """The reader of our output went away (`| head`): exit status 141, as the shell reports SIGPIPE."""

    status = 141
