"""How wrong usage is told: one line that names the command and where its help is, whoever noticed."""

from __future__ import annotations

import os
from typing import Any

from drtk.cli.options import NO_WHOLE

# What pydantic, which reads values for Typer, calls a text that is no number.
_NO_NUMBER = {
    "int_parsing": NO_WHOLE,
    "int_from_float": NO_WHOLE,
    "float_parsing": "is not a number",
}


def usage_line(problem: str, command: str) -> str:
    """The line for a request that cannot be meant; command: "search", "rerank-queries label", or "" for drtk itself.

    What is wrong with a file, such as a preset, begins with its place, and no help of a command has more on it.
    """
    place = problem.partition(": ")[0]
    if place != problem and os.path.exists(place.removeprefix("preset ")):
        return problem
    asked = " ".join(["drtk", command, "--help"]) if command else "drtk --help"
    begins = "" if not command or problem.startswith(f"{command}: ") else f"{command}: "
    return f"{begins}{problem}{' See' if problem.endswith('?') else '; see'} {asked}"


def parsing_fault(error: Exception) -> str | None:
    """What the parser of the command line complains about, in our words; None for an error that is none of its.

    Told by what the parser's errors can do, since which class they are differs between versions of Typer.
    """
    tell = getattr(error, "format_message", None)
    if tell is None or not hasattr(error, "exit_code"):
        return None
    told = " ".join(str(tell()).split()).rstrip(".").replace(". Did you mean", "; did you mean")
    possible = getattr(error, "possibilities", None)
    if possible and hasattr(error, "option_name"):
        *others, last = sorted(possible)
        near = f"{', '.join(others)} or {last}" if others else last
        told = f"no such option {error.option_name}; did you mean {near}?"
    what, value = told.partition(": ")[0], _refused(error)
    if value is not None and what != told:
        told = f"{what}: {value}"
    return told[:1].lower() + told[1:]


def _refused(error: Exception) -> str | None:
    """The value that was refused and why, where pydantic says it."""
    faults: Any = getattr(error.__cause__, "errors", None)
    if not callable(faults):
        return None
    first = faults()[0]
    why = _NO_NUMBER.get(first.get("type", "")) or str(first.get("msg", ""))
    for begin in ("Value error, ", "Input "):
        why = why.removeprefix(begin)
    value = f"'{first.get('input')}' "
    return value + why.removeprefix(value).rstrip(".")
