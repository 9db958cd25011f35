"""Options that would do nothing beside what else was asked for: whoever gives one is mistaken, and is told."""

from __future__ import annotations

from dataclasses import fields

from drtk.errors import UsageError
from drtk.settings.mining import MinedIndexSettings, MineSettings

_ANYWHERE = ("threads", "device")  # true of a run without an index too
_ENCODING = ("prompt", "max_length")


def check_index_options(settings: MineSettings, model: str | None, *, has_index: bool, encodes: bool) -> None:
    """Raise UsageError for an option of indexes where there is none, or of an encoder where none is asked.

    encodes: whether texts of queries are made vectors
    """
    given = ["--model"] if model is not None else []
    given += [
        "--" + item.name.replace("_", "-")
        for item in fields(MinedIndexSettings)
        if item.name not in _ANYWHERE and getattr(settings, item.name) != item.default
    ]
    for flag in given:
        if not has_index:
            raise UsageError(f"{flag}: only with an index among the sources")
        if not encodes and flag in ("--model", *("--" + name.replace("_", "-") for name in _ENCODING)):
            raise UsageError(f"{flag}: only with an index of vectors that is asked with --queries, not --query-vectors")


def check_answer_options(settings: MineSettings, *, looks_for_answers: bool) -> None:
    """Raise UsageError for what says how answers are looked for, where nobody looks."""
    for flag, changed in (("--match", settings.match != MineSettings.match), ("--match-title", settings.match_title)):
        if changed and not looks_for_answers:
            raise UsageError(
                f"{flag}: only where answers are looked for: --policy nq, or --report with --queries and --corpus"
            )
