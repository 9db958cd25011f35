"""drtk convert: from one format of the field into another."""

from __future__ import annotations

from drtk.cli.jobs import record_filter
from drtk.cli.options import Output, Source, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.conversion import ConversionSettings


@with_settings(ConversionSettings)
@record_filter("records", passages=True)
def convert(source: Source = "-", output: Output = "-", *, settings: ConversionSettings, job: FilterJob) -> None:
    """Bring passages, queries, judgements, runs or training examples into another format.

    The input's format is recognised by its content. drtk's own formats are written unless --to names another.
    """
    from drtk.io.conversion import convert as converted

    converted(source, settings, job)
