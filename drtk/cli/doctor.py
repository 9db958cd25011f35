"""drtk doctor: what is installed, what is missing, and what mends it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from drtk.cli.jobs import plain_command


@plain_command
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON lines.")] = False,
) -> None:
    """Check this installation: libraries, GPU, Java, Lucene, model hub.

    Every line says what was found, or what is missing, what that costs, and the command that mends it. Exit status 1
    where something is missing that drtk cannot work without.
    """
    from drtk.cli.diagnosis import examine, healthy, printed

    findings = examine()
    sys.stdout.write(printed(findings, json=json))
    if not healthy(findings):
        raise typer.Exit(1)
