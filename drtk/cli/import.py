"""drtk import: import files and folders of common formats as documents."""

# ruff: noqa: N999 - modules of commands are named like the commands

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Output, make_argument, with_settings
from drtk.data.config import ImportSettings
from drtk.runtime.filter_job import FilterJob


@with_settings(ImportSettings)
@filter_command("corpus")
def import_(
    sources: Annotated[list[str], make_argument("PATH…", "Folders and files to import.")],
    output: Output = "-",
    *,
    settings: ImportSettings,
    job: FilterJob,
) -> None:
    """Import text, Markdown, HTML, PDF, DOCX, notebooks, e-mail, CSV and JSON files as documents.

    The id of a document is the path of its file in the folder; with several folders, it begins with the folder's name.
    Rows and messages have the id FILE:NUMBER. Headings and page numbers are kept.

    Examples:
    drtk import docs | drtk chunk -o passages.jsonl
    drtk import notes products.csv --exclude drafts/ --field text=description -o documents.jsonl
    """
    from drtk.data.import_files import import_files

    import_files(sources, settings, job)
