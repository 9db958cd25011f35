"""drtk rerank-queries train: a model learns which expansion of a question retrieves best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drtk.cli.jobs import OF_TRAINING, folder_maker
from drtk.cli.options import Device, Folder, Queries, Seed, with_settings
from drtk.errors import DrtkError, UsageError
from drtk.io.folders import FolderJob
from drtk.records import Expansion, Query
from drtk.settings.query_reranking import QueryRerankerSettings

if TYPE_CHECKING:
    from drtk.training.labelled import LabelledCandidates

Kind = str | None


@with_settings(QueryRerankerSettings, preset=True)
@folder_maker("model", resume=True, may_differ=(*OF_TRAINING, "max_lr", "micro_batch"))
def rerank_queries__train(
    labelled: Annotated[
        str, typer.Argument(metavar="LABELLED", help="Candidates of drtk rerank-queries label; - is stdin.")
    ],
    output: Folder,
    queries: Queries,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Encoder to start from: a folder, or hub name.")
    ],
    kind: Annotated[
        Kind, typer.Option("--kind", metavar="NAME", help="Train on candidates of this kind alone (answer, title …).")
    ] = None,
    dev: Annotated[
        list[str] | None,
        typer.Option(
            "--dev",
            metavar="[KIND=]FILE",
            help="Measure with these labelled candidates, or with those of one kind; keep the best weights, "
            "or those of each kind; KIND=FILE is repeatable.",
            show_default=False,
        ),
    ] = None,
    dev_queries: Annotated[
        str | None, typer.Option("--dev-queries", metavar="FILE", help="--dev: its questions, if not in --queries.")
    ] = None,
    dev_kind: Annotated[
        Kind,
        typer.Option(
            "--dev-kind", metavar="NAME", help="--dev: measure with candidates of this kind alone. [default: --kind]"
        ),
    ] = None,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: QueryRerankerSettings,
    job: FolderJob,
) -> None:
    """Train a model to put expansions of a question into the order of what they retrieve.

    Makes a folder that rerank-queries apply loads, and sentence-transformers' CrossEncoder; LOWER numbers are better.
    With --dev KIND=FILE, a folder of such folders, one for each kind.
    """
    settings.check()
    devs = _files_by_kind(dev or [])
    if devs and "" not in devs and dev_kind is not None:
        raise UsageError("--dev-kind: --dev KIND=FILE names the kind already")
    if not devs:
        for flag, given in (
            ("--dev-queries", dev_queries), ("--dev-kind", dev_kind), ("--patience", settings.patience),
            ("--dev-questions", settings.dev_questions),
        ):  # fmt: skip
            if given is not None:
                raise UsageError(f"{flag}: goes with --dev")
    from drtk.models.hub import locate
    from drtk.training.beforehand import check_beforehand

    check_beforehand(settings.trainer, device, labelled, queries, *devs.values(), dev_queries)
    locate(model)
    from drtk.io.manifest import inputs_named
    from drtk.io.progress import log
    from drtk.io.streams import name_of
    from drtk.models.query_reading import BY_KIND, READING, QueryReading
    from drtk.models.query_reranker import start_query_reranker
    from drtk.settings.query_reranking import READ
    from drtk.training.overlap import warn_of_overlap
    from drtk.training.query_reranker import plan, train_query_reranker

    told: set[str] = set()
    groups = _read(labelled, queries, kind, settings, job, told, training=True)
    if groups.tied:
        log(
            f"{groups.tied:,} lists (a question's candidates of a kind) are of one rank alone, which teaches nothing: left out"
        )
    measured = {
        of: _read(file, dev_queries or queries, of or dev_kind or kind, settings, job, told, training=False)
        for of, file in devs.items()
    }
    for file in dict.fromkeys(devs.values()):
        asked = set().union(*(measured[kind].asked for kind in devs if devs[kind] == file))
        warn_of_overlap(len(asked & groups.asked), len(asked), "questions", dev=file, source=name_of(labelled))
    plan(len(groups), settings)
    reading = QueryReading(settings.scorer, settings.style, settings.max_length or READ[settings.scorer])
    start = start_query_reranker(model, reading, max_length=settings.max_length, seed=seed)
    reading = QueryReading(settings.scorer, settings.style, start.max_length)
    folder = job.begin()
    training: dict[str, Any] = {
        "start": start,
        "reading": reading,
        "settings": settings,
        "seed": seed,
        "device": device,
    }
    facts = train_query_reranker(groups, folder, dev=measured.get("", measured or None), **training)
    best = facts.pop("best", None)
    job.intake.inputs += inputs_named({"model": str(locate(model))})
    job.counts |= {
        "questions": groups.questions,
        "lists": len(groups),
        "candidates": groups.candidates,
        "repeated": groups.repeated,
    }
    job.counts |= {"tied": groups.tied, **facts}
    about = {READING: reading.to_dict(), "depth": groups.depth}
    if "" in measured or not measured:
        job.finish(**about, best=best)
        return
    for each in measured:
        job.finish_part(folder / each, "model", **about, best=best and best[each])
    job.finish(kind=BY_KIND, kinds=list(measured), best=best)


def _files_by_kind(named: list[str]) -> dict[str, str]:
    """The files of --dev by kind, "" for one that is for all together. Raises UsageError where that cannot be meant."""
    found: dict[str, str] = {}
    for each in named:
        kind, separator, file = each.partition("=")
        if not separator or "/" in kind or Path(each).exists():
            kind, file = "", each
        elif not kind or kind.startswith((".", "best-", "checkpoint")):
            raise UsageError(f"--dev {each}: '{kind}' cannot be the name of a folder for its model")
        if kind in found:
            raise UsageError(f"--dev: two are for {f'kind {kind}' if kind else 'all kinds'}; KIND=FILE names one each")
        found[kind] = file
    if "" in found and len(found) > 1:
        raise UsageError("--dev: either one FILE, or KIND=FILE for each kind")
    return found


def _read(
    source: str,
    queries: str,
    kind: Kind,
    settings: QueryRerankerSettings,
    job: FolderJob,
    told: set[str],
    *,
    training: bool,
) -> LabelledCandidates:
    from drtk.io.candidates import questions_by_id, read_candidates
    from drtk.io.label_depth import LabelDepths
    from drtk.io.progress import warn
    from drtk.io.streams import name_of
    from drtk.settings.query_reranking import DEPTH
    from drtk.training.labelled import LabelledCandidates, unlabelled

    depths = LabelDepths(source, given=settings.depth, otherwise=DEPTH, check=settings.check_depth, told=told)
    questions = questions_by_id(queries, job.intake)

    def check(expansion: Expansion, query: Query) -> str | None:
        wrong = unlabelled(expansion, scorer=settings.scorer)
        return depths(expansion, query) if wrong is None and kind in (None, expansion.kind) else wrong

    groups = read_candidates(source, questions, job.intake, check=check)
    found = LabelledCandidates(
        (group for group in groups if kind in (None, group.kind)),
        depth=depths.usual,
        max_rank=settings.max_rank,
        most=settings.candidates if training else None,
        ties=not (training and settings.skip_ties),
    )
    if len(found.beyond) > 1:
        ranks = ", ".join(map(str, sorted(found.beyond)[:3]))
        warn(
            f"{name_of(source)}: ranks beyond {depths.usual} ({ranks} …) are taken for none found, but differ; was looked deeper? "
            "--depth says how deep"
        )
    if not len(found):
        of_kind = "" if kind is None else f" of kind '{kind}'"
        why = f"{found.tied:,} lists of candidates, each of one rank alone" if found.tied else f"no candidates{of_kind}"
        raise DrtkError(f"{name_of(source)}: holds {why}; there is nothing to {'learn' if training else 'measure'}")
    return found
