"""drtk show: what a file or folder is, and what made it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from drtk.cli.jobs import plain_command


@plain_command
def show(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A file or folder that drtk made, or a file it can read.")
    ],
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=0, help="Records of a file to show.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON, and nothing else.")] = False,
) -> None:
    """Show what a file or folder is, what made it, from what, and its first records.

    The manifest (meta.json of a folder, NAME.meta.json beside a file) says what made it.
    """
    from drtk.cli.describing import describe, manifest_json

    sys.stdout.write(manifest_json(path) if json else describe(path, count=count))
