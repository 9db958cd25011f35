"""Runs beside judgements, as the pictures of runs need them."""

from __future__ import annotations

from drtk.evaluation.plots.base import Request
from drtk.evaluation.rankings import View
from drtk.evaluation.runs import judgements_from, retrieved_by, tell_missing
from drtk.io.runs import NamedRun
from drtk.io.sources import source_of
from drtk.io.trec import Judgements


def judgements_of(request: Request) -> Judgements:
    """The judgements of a picture. Raises UsageError without --qrels."""
    return judgements_from(request.need_qrels(), request.intake)


def rankings_of(run: NamedRun, judgements: Judgements, request: Request) -> dict[str, list[str]]:
    """The rankings of judged queries; how many of them the run lacks is said."""
    found = retrieved_by(run, judgements, view_of(request), request.intake).rankings
    tell_missing(run.name, len(found), len(judgements), retrieved_only=False)
    return found


def view_of(request: Request) -> View:
    """How the settings want rankings to be looked at."""
    settings = request.settings
    by = source_of if settings.by == "source" else None
    return View(by=by, drop_same_id=bool(settings.drop_same_id), depth=settings.depth)


def rel_of(request: Request) -> int:
    """The grade from which on a document is relevant."""
    return 1 if request.settings.rel is None else request.settings.rel
