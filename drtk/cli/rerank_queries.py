"""drtk rerank-queries: label, train, apply (EAR)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drtk.cli.decorators import OF_TRAINING, folder_maker, record_filter
from drtk.cli.options import Device, Folder, Output, Queries, Seed, with_settings
from drtk.errors import DrtkError, UsageError
from drtk.query_expansion.config import ChooseSettings, LabelSettings, QueryRerankerConfig
from drtk.records import Expansion, Query
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.runners import RunnerSettings

if TYPE_CHECKING:
    from drtk.query_expansion.candidates import Candidates
    from drtk.query_expansion.train_reranker import LabelledCandidates


@with_settings(LabelSettings)
@record_filter("expansions")
def rerank_queries__label(
    queries: Queries,
    index: Annotated[str, typer.Option("--index", metavar="DIR", help="Index of words (drtk index --type bm25).")],
    source: Annotated[
        str,
        typer.Argument(metavar="EXPANSIONS", help="Candidates of drtk expand-queries; - is stdin.", show_default=False),
    ] = "-",
    output: Output = "-",
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", metavar="FILE", help="The index's passages. [default: where the index says]"),
    ] = None,
    *,
    settings: LabelSettings,
    job: FilterJob,
) -> None:
    """Label expansions of questions with the rank at which an answer is found.

    Searches every expanded question, and writes each candidate again with "rank", that of the first passage that contains
    an answer, and "top1", title and text of its first passage.
    """
    from drtk.data.checks import describe_textless, warn_of_textless
    from drtk.indexing.config import SearchSettings
    from drtk.query_expansion.candidates import questions_by_id, read_asked
    from drtk.query_expansion.label import AnswerCheck, Labelling
    from drtk.retrieval.search import PassageSearcher
    from drtk.runtime.progress import log

    settings.check()
    searching = SearchSettings(k1=settings.k1, b=settings.b, threads=settings.threads)
    texts = PassageSearcher(index, corpus=corpus, settings=searching)
    questions = questions_by_id(queries, job.intake)
    job.intake.inputs += texts.inputs
    job.lookups = (texts.corpus,)
    job.window = settings.batch
    job.no_input = "no candidate came in, so nothing is labelled"
    labelling = Labelling(texts, settings)
    asked = read_asked(source, questions, job.intake, check=AnswerCheck(settings.match))
    job.find_problem = lambda _: describe_textless(job.counts, texts.corpus)
    job.run_windows(asked, labelling.pump, unit="candidates")
    warn_of_textless(job.counts, texts.corpus)
    if labelling.searched:
        rate = labelling.searched / labelling.seconds
        log(f"rerank-queries label: {labelling.searched:,} queries searched, {rate:,.0f} queries/s with their answers")


Kind = str | None


@with_settings(QueryRerankerConfig, preset=True)
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
    settings: QueryRerankerConfig,
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
    from drtk.models.model_folder import locate
    from drtk.training.preflight import check_beforehand

    check_beforehand(settings.trainer, device, labelled, queries, *devs.values(), dev_queries)
    locate(model)
    from drtk.query_expansion.config import READ
    from drtk.query_expansion.query_reranker import start_query_reranker
    from drtk.query_expansion.query_reranker_input import INPUT_ENTRY, KIND_OF_SEVERAL, QueryInput
    from drtk.query_expansion.train_reranker import plan, train_query_reranker
    from drtk.runtime.manifest import find_inputs
    from drtk.runtime.progress import log
    from drtk.runtime.streams import name_of
    from drtk.training.text_pairs import warn_of_overlap

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
        warn_of_overlap(asked, groups.asked, "questions", file=file, source=name_of(labelled))
    plan(len(groups), settings)
    reading = QueryInput(settings.scorer, settings.style, settings.max_length or READ[settings.scorer])
    start = start_query_reranker(model, reading, max_length=settings.max_length, seed=seed)
    reading = QueryInput(settings.scorer, settings.style, start.max_length)
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
    job.intake.inputs += find_inputs({"model": str(locate(model))})
    job.counts |= {
        "questions": groups.questions,
        "lists": len(groups),
        "candidates": groups.candidates,
        "repeated": groups.repeated,
    }
    job.counts |= {"tied": groups.tied, **facts}
    about = {INPUT_ENTRY: reading.to_dict(), "depth": groups.depth}
    if "" in measured or not measured:
        job.finish(**about, best=best)
        return
    for each in measured:
        job.finish_part(folder / each, "model", **about, best=best and best[each])
    job.finish(kind=KIND_OF_SEVERAL, kinds=list(measured), best=best)


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
    settings: QueryRerankerConfig,
    job: FolderJob,
    told: set[str],
    *,
    training: bool,
) -> LabelledCandidates:
    from drtk.query_expansion.candidates import questions_by_id, read_candidates
    from drtk.query_expansion.config import DEPTH
    from drtk.query_expansion.label import LabelDepths
    from drtk.query_expansion.train_reranker import LabelledCandidates, unlabelled
    from drtk.runtime.progress import warn
    from drtk.runtime.streams import name_of

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


WINDOW = 64  # questions (of one kind) between two places to go on from: each has dozens of candidates


@with_settings(ChooseSettings)
@with_settings(RunnerSettings, name="running")
@folder_maker("queries", resume=True)
def rerank_queries__apply(
    output: Folder,
    queries: Queries,
    source: Annotated[
        str,
        typer.Argument(metavar="EXPANSIONS", help="Candidates of drtk expand-queries; - is stdin.", show_default=False),
    ] = "-",
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="[KIND=]DIR",
            help="scorer: model of drtk rerank-queries train, for all kinds or for one; repeatable.",
            show_default=False,
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option("--index", metavar="DIR", help="rd scorers: index of words, asked for candidates without 'top1'."),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", metavar="FILE", help="The index's passages. [default: where the index says]"),
    ] = None,
    device: Device = "auto",
    *,
    settings: ChooseSettings,
    running: RunnerSettings,
    job: FolderJob,
) -> None:
    """Choose the best expansion of each question and kind.

    Makes a folder with a file of queries for each kind, KIND.jsonl, that drtk search takes as they are.
    """
    from drtk.data.checks import warn_of_textless
    from drtk.query_expansion.candidates import questions_by_id
    from drtk.query_expansion.rerank import GREEDY, LINES, LUCENE_CLAUSES, questions_without, write_queries
    from drtk.runtime.progress import warn
    from drtk.runtime.streams import name_of

    settings.check()
    models = _by_kind(model or [])
    if (settings.select == "scorer") != bool(models):
        raise UsageError("--model and --select scorer go together")
    for flag, given in (("--index", index), ("--corpus", corpus)):
        if given is not None and not models:
            raise UsageError(f"{flag}: goes with --model")
    for flag, value in (("--k1", settings.k1), ("--b", settings.b)):
        if value is not None and index is None:
            raise UsageError(f"{flag}: goes with --index")
    questions = questions_by_id(queries, job.intake)
    if index is not None:
        from drtk.runtime.manifest import folder_entry

        job.intake.inputs.append(folder_entry(index))
    folder = job.begin()
    counts = _choose(source, questions, folder, (settings, models, device, index, corpus), running, job)
    if not counts["chosen"]:  # of --select greedy alone: every other way takes one where there are any
        raise DrtkError(
            f'{name_of(source)}: no candidate says "decode": "{GREEDY}", as those of drtk expand-queries --decode greedy do; '
            "--select first takes the first"
        )
    without = questions_without(folder, questions)
    made = write_queries(folder, questions, settings.top)
    if alone := made["asked alone"]:
        none = f"; {without:,} of {len(questions):,} questions have no candidate at all" if without else ""
        warn(f"{alone:,} times a question has no candidate of a kind: asked as it is, in the file of that kind{none}")
    warn_of_textless(counts, _corpus(index, corpus))
    if counts.get("cut"):
        warn(f"{counts['cut']:,} queries were cut to {settings.max_clauses:,} distinct words")
    if over := counts.get("above Lucene's limit"):
        warn(
            f"{over:,} queries have more than {LUCENE_CLAUSES:,} distinct words: drtk search takes them, Lucene elsewhere "
            f"refuses them as it comes; --max-clauses {LUCENE_CLAUSES} cuts them"
        )
    job.counts |= {name: number for name, number in counts.items() if number and name not in ("in", "out")}
    job.counts |= {"questions": len(questions), "without a candidate": without}
    (folder / f"{LINES}.meta.json").unlink()
    job.finish(queries=made)


def _by_kind(named: list[str]) -> dict[str, str]:
    """Models by kind, "" for one that is for all others. Raises UsageError where two are for one kind."""
    found: dict[str, str] = {}
    for each in named:
        kind, separator, model = each.partition("=")
        if not separator or "/" in kind or Path(each).exists():
            kind, model = "", each
        if kind in found:
            raise UsageError(f"--model: two are for {f'kind {kind}' if kind else 'all kinds'}")
        found[kind] = model
    return found


def _corpus(index: str | None, corpus: str | None) -> str:
    """Where passages are looked up, as complaints name it: the file, or the index where it does not say."""
    from drtk.runtime.manifest import read_manifest

    if corpus is not None or index is None:
        return str(corpus)
    return str(read_manifest(index).get("corpus") or index)


def _check(select: str, models: dict[str, str], index: str | None) -> Callable[[Expansion, Any], str | None]:
    """What is wrong with a candidate for this way of choosing; None: nothing."""
    from drtk.query_expansion.rerank import unlabelled

    readings = {}
    if models:
        from drtk.query_expansion.query_reranker_input import load_query_input

        readings = {kind: load_query_input(model) for kind, model in models.items()}

    def wrong(expansion: Expansion, _: Any) -> str | None:
        if select == "oracle":
            return unlabelled(expansion)
        reading = readings.get(expansion.kind, readings.get(""))
        if models and reading is None:
            return f"no model is for kind '{expansion.kind}': --model {expansion.kind}=DIR, or one for all"
        if reading is not None and reading.scorer == "rd" and expansion.top1 is None and index is None:
            return f"'{expansion.id}' has no 'top1', which the model reads; drtk rerank-queries label adds it, or --index DIR"
        return None

    return wrong


def _at_least_one(groups: Iterable[Candidates], source: str) -> Iterator[Candidates]:
    """The groups. Raises DrtkError where there is none: no kind is known then, and so no file to write queries into."""
    from drtk.runtime.streams import name_of

    empty = True
    for group in groups:
        empty = False
        yield group
    if empty:
        raise DrtkError(f"{name_of(source)}: holds no candidates; there is nothing to choose from")


def _choose(
    source: str,
    questions: dict[str, Query],
    folder: Path,
    given: tuple[ChooseSettings, dict[str, str], str, str | None, str | None],
    running: RunnerSettings,
    job: FolderJob,
) -> dict[str, Any]:
    """Make the folder's choices.jsonl, or go on with it, or take it as it is; its counts."""
    from drtk.data.checks import describe_textless
    from drtk.query_expansion.candidates import read_candidates
    from drtk.query_expansion.rerank import LINES, ChooseQueries
    from drtk.runtime.filter_job import FilterJob
    from drtk.runtime.integrity import read_json
    from drtk.runtime.manifest import is_done, manifest_path
    from drtk.runtime.runners import run_filter

    place = str(folder / LINES)
    manifest = manifest_path(place)
    inner = FilterJob(
        *(job.command, "choices", place, job.settings),
        resume=job.resume,
        force=job.force,
        log_summary=False,
        intake=job.intake,
    )
    inner.recover()
    if job.resume and is_done(place, job.settings, program=job.command):  # killed while the queries were written
        known = {entry["path"] for entry in job.intake.inputs}
        job.intake.inputs += [entry for entry in read_json(manifest)["inputs"] if entry["path"] not in known]
    else:
        settings, models, _, index, corpus = given
        inner.find_problem = lambda _: describe_textless(inner.counts, _corpus(index, corpus))
        groups = read_candidates(source, questions, job.intake, check=_check(settings.select, models, index))
        groups = _at_least_one(groups, source)
        run_filter(groups, inner, ChooseQueries, *given, running=running, window=WINDOW, unit="questions")
    counts: dict[str, Any] = read_json(manifest)["counts"]
    return counts


rerank_queries = typer.Typer(
    help="Choose among expansions of questions those that retrieve best (EAR): label, train, apply.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)
rerank_queries.command("label")(rerank_queries__label)
rerank_queries.command("train")(rerank_queries__train)
rerank_queries.command("apply")(rerank_queries__apply)
