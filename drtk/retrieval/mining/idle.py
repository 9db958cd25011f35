"""Options that would do nothing beside what else was asked for: whoever gives one is mistaken, and is told."""

from __future__ import annotations

from dataclasses import fields

from drtk.errors import UsageError
from drtk.io.progress import log
from drtk.retrieval.mining.checks import place_flags
from drtk.retrieval.mining.sources import Sources
from drtk.settings.mining import MinedIndexSettings, MineSettings

_ANYWHERE = ("threads", "device")  # true of a run without an index too
_ENCODING = ("model", "prompt", "max_length")


def check_index_options(settings: MineSettings, model: str | None, *, has_index: bool, encodes: bool) -> None:
    """Raise UsageError for an option of indexes where there is none, or of an encoder where none is asked.

    encodes: whether texts of queries are made vectors
    """
    given = ["model"] if model is not None else []
    given += [
        item.name
        for item in fields(MinedIndexSettings)
        if item.name not in _ANYWHERE and getattr(settings, item.name) != item.default
    ]
    for name in given:
        flag = "--" + name.replace("_", "-")
        if not has_index:
            raise UsageError(f"{flag}: only with an index among the sources")
        if name in _ENCODING and not encodes:
            raise UsageError(f"{flag}: only with an index of vectors that is asked with --queries, not --query-vectors")


def check_answer_options(settings: MineSettings, *, looks_for_answers: bool) -> None:
    """Raise UsageError for what says how answers are looked for, where nobody looks."""
    for flag, changed in (("--match", settings.match != MineSettings.match), ("--match-title", settings.match_title)):
        if changed and not looks_for_answers:
            raise UsageError(
                f"{flag}: only where answers are looked for: --policy nq, or --report with --queries and --corpus"
            )


def check_place_options(settings: MineSettings, sources: Sources) -> None:
    """Refuse filters by rank and score that would pass over everything; say it where they pass over a part."""
    flags = place_flags(settings)
    if not flags or not sources.examples:
        return
    if len(sources.examples) < len(sources.names):
        one = len(flags) == 1
        log(f"mine-negatives: {', '.join(flags)} {'goes' if one else 'go'} by what runs and indexes say, not examples")
        return
    by_score = [flag for flag in flags if flag != "--from-rank"]
    if by_score:
        raise UsageError(
            f"{by_score[0]} goes by scores of a retriever, which examples lack: name its run; --ce-margin and --ce-max "
            "go by those of a cross-encoder"
        )
