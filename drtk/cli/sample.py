"""drtk sample: build a retrieval collection from the docstrings of installed packages."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import folder_command
from drtk.cli.options import make_argument, with_settings
from drtk.runtime.folder_job import FolderJob
from drtk.text.config import SampleSettings


@with_settings(SampleSettings)
@folder_command("sample")
def sample(
    output: Annotated[str, make_argument("DIR", "Output folder.")], *, settings: SampleSettings, job: FolderJob
) -> None:
    """Build a retrieval collection from docstrings of installed Python packages.

    The summary line of a docstring is a query, and the rest its relevant document. The packages are parsed, not executed.

    Examples:
    drtk sample collection
    drtk sample collection --packages numpy --packages torch --limit 2000
    """
    from drtk.text.sample_collection import build_sample_collection

    build_sample_collection(settings, job)
