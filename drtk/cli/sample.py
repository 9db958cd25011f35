"""drtk sample: a real retrieval collection out of what every installation has."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.decorators import folder_maker
from drtk.cli.options import with_settings
from drtk.runtime.folder_job import FolderJob
from drtk.text.config import SampleSettings


@with_settings(SampleSettings)
@folder_maker("sample")
def sample(
    output: Annotated[str, typer.Argument(metavar="DIR", help="Folder to make.", show_default=False)],
    *,
    settings: SampleSettings,
    job: FolderJob,
) -> None:
    """Make a retrieval collection out of the documentation of the installed Python packages.

    The summary line of a documentation string is a query, the rest of it the document to be found. Sources are parsed, never run.
    """
    from drtk.text.sample_collection import make_sample

    make_sample(settings, job)
