"""drtk rerank-queries: label query expansions, train a model that ranks them, and apply it (EAR)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drtk.cli.decorators import TRAINING_MAY_DIFFER, filter_command, folder_command
from drtk.cli.help import Command, Group
from drtk.cli.options import Device, Folder, Output, Queries, Seed, make_argument, make_option, with_settings
from drtk.config import EVALUATION
from drtk.errors import UsageError
from drtk.query_expansion.config import LabelSettings, QueryRerankerConfig, SelectionSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.runners import RunnerSettings

Expansions = Annotated[str, make_argument("EXPANSIONS", "Candidates, output of drtk expand-queries; - is stdin.")]
IndexCorpus = Annotated[
    str | None, make_option("--corpus FILE", "Corpus of the index. [default: as recorded in the index]")
]


@with_settings(LabelSettings)
@filter_command("expansions")
def rerank_queries__label(
    queries: Queries,
    index: Annotated[str, make_option("--index DIR", "BM25 index folder, made by drtk index --type bm25 or bm25s.")],
    source: Expansions = "-",
    output: Output = "-",
    corpus: IndexCorpus = None,
    *,
    settings: LabelSettings,
    job: FilterJob,
) -> None:
    """Label expansions with the rank at which they retrieve an answer.

    Adds to each candidate "rank", the rank of the first passage with an answer (101 by default if there is none), "depth",
    the number of top passages checked, and "top1", title and text of the top passage.

    Examples:
    drtk rerank-queries label candidates.jsonl --queries questions.jsonl --index bm25 -o labels.jsonl
    drtk rerank-queries label candidates.jsonl --queries questions.jsonl --index bm25 --match regex -o labels.jsonl
    """
    from drtk.data.checks import describe_missing_texts, warn_if_texts_missing
    from drtk.indexing.config import SearchSettings
    from drtk.query_expansion.candidates import iter_expansion_lines, load_queries
    from drtk.query_expansion.label import AnswerCheck, Labeler
    from drtk.retrieval.search import PassageSearcher
    from drtk.runtime.manifest import describe_folder

    searching = SearchSettings(k1=settings.k1, b=settings.b, threads=settings.threads)
    texts = PassageSearcher(index, corpus=corpus, settings=searching)
    questions = load_queries(queries, job.tracker)
    job.tracker.inputs.append(describe_folder(index))
    job.lookups = (texts.corpus,)
    job.batch_size = settings.batch_size
    job.no_input_warning = "the input has no candidates, so nothing is labeled"
    candidates = iter_expansion_lines(source, questions, job.tracker, check=AnswerCheck(settings.match))
    job.find_problem = lambda _: describe_missing_texts(job.counts, texts.corpus)
    job.run_batches(candidates, Labeler(texts, settings).label, unit="candidates")
    warn_if_texts_missing(job.counts, texts.corpus)


@with_settings(QueryRerankerConfig, preset=True)
@folder_command("model", resume=True, may_differ=(*TRAINING_MAY_DIFFER, "max_lr", "micro_batch_size"))
def rerank_queries__train(
    labeled: Annotated[
        str, make_argument("LABELED", "Labeled candidates, output of drtk rerank-queries label; - is stdin.")
    ],
    output: Folder,
    queries: Queries,
    model: Annotated[str, make_option("--model MODEL", "Encoder to start from, a folder or Hub name.")],
    kind: Annotated[
        str | None, make_option("--kind NAME", "Train only on candidates of this expansion kind. [default: all]")
    ] = None,
    dev: Annotated[
        list[str] | None,
        make_option(
            "--dev [KIND=]FILE",
            "Labeled candidates for checkpoint selection; KIND=FILE for one kind of expansion; repeatable.",
            panel=EVALUATION,
            show_default=False,
        ),
    ] = None,
    dev_queries: Annotated[
        str | None,
        make_option("--dev-queries FILE", "Questions of the --dev candidates. [default: --queries]", panel=EVALUATION),
    ] = None,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: QueryRerankerConfig,
    job: FolderJob,
) -> None:
    """Train a model that ranks expansions by how well they retrieve.

    Makes a model folder; with --dev KIND=FILE, a folder with one model folder per kind.

    Examples:
    drtk rerank-queries train labels.jsonl --queries questions.jsonl --preset ear-ri --model deberta-v3-base -o scorer
    drtk rerank-queries train labels.jsonl --queries questions.jsonl --model bert-base-uncased --dev dev.jsonl -o scorer
    """
    devs = _parse_by_kind("--dev", dev or [])
    if "" in devs and len(devs) > 1:
        raise UsageError("--dev: give one FILE, or KIND=FILE for each kind")
    for name in devs:
        if name.startswith((".", "best-", "checkpoint")):
            raise UsageError(f"--dev: kind '{name}' cannot name the folder of its model; rename the kind")
    if "" not in devs and settings.dev_kind is not None:
        raise UsageError("`dev_kind` requires --dev FILE, without a kind")
    if not devs and dev_queries is not None:
        raise UsageError("--dev-queries requires --dev")
    from drtk.models.model_folder import resolve_model_folder
    from drtk.training.preflight import check_training_inputs

    check_training_inputs(settings.trainer, device, labeled, queries, *devs.values(), dev_queries)
    resolve_model_folder(model)
    from drtk.query_expansion.candidates import load_queries
    from drtk.query_expansion.config import INPUT_LENGTHS
    from drtk.query_expansion.labeled_candidates import LabeledCandidates, load_labeled_candidates
    from drtk.query_expansion.query_reranker_input import INPUT_ENTRY, RERANKERS_BY_KIND, InputFormat
    from drtk.query_expansion.train_reranker import init_query_reranker, plan_training, train_query_reranker
    from drtk.runtime.manifest import find_inputs
    from drtk.runtime.progress import log
    from drtk.runtime.streams import get_source_name
    from drtk.training.text_pairs import warn_of_overlap

    def load_candidates(source: str, questions: str, kind: str | None, *, training: bool) -> LabeledCandidates:
        return load_labeled_candidates(
            source,
            load_queries(questions, job.tracker),
            settings,
            kind=kind,
            for_training=training,
            tracker=job.tracker,
        )

    examples = load_candidates(labeled, queries, kind, training=True)
    if examples.num_tied:
        log(f"dropped {examples.num_tied:,} lists of candidates whose labels all have the same rank")
    dev_sets = {
        of: load_candidates(file, dev_queries or queries, of or settings.dev_kind or kind, training=False)
        for of, file in devs.items()
    }
    for file in dict.fromkeys(devs.values()):
        digests = set().union(*(dev_sets[kind].digests for kind in devs if devs[kind] == file))
        warn_of_overlap(digests, examples.digests, "questions", file=file, source=get_source_name(labeled))
    plan_training(len(examples), settings)
    input_format = InputFormat(settings.variant, settings.style, settings.max_length or INPUT_LENGTHS[settings.variant])
    start = init_query_reranker(model, input_format, max_length=settings.max_length, seed=seed)
    input_format = InputFormat(settings.variant, settings.style, start.max_length)
    folder = job.begin()
    facts = train_query_reranker(
        examples,
        folder,
        start=start,
        input_format=input_format,
        settings=settings,
        dev=dev_sets,
        seed=seed,
        device=device,
    )
    best = facts.pop("best", None)
    job.tracker.inputs += find_inputs({"model": str(resolve_model_folder(model))})
    job.counts |= {
        "questions": examples.num_questions,
        "lists": len(examples),
        "candidates": examples.num_candidates,
        "repeated": examples.num_repeated,
        "tied": examples.num_tied,
        **facts,
    }
    about: dict[str, Any] = {INPUT_ENTRY: input_format.to_dict(), "depth": examples.depth}
    if "" in dev_sets or not dev_sets:
        job.finish(**about, best=best)
        return
    for name in dev_sets:
        job.finish_subfolder(folder / name, **about, best=best and best[name])
    job.finish(kind=RERANKERS_BY_KIND, kinds=list(dev_sets), best=best)


def _parse_by_kind(flag: str, values: list[str]) -> dict[str, str]:
    """Parse [KIND=]NAME values; return {kind: name}, with kind "" for values without KIND."""
    names: dict[str, str] = {}
    for value in values:
        kind, separator, name = value.partition("=")
        if not separator or "/" in kind or Path(value).exists():
            kind, name = "", value
        elif not kind:
            raise UsageError(f"{flag} {value}: the kind before = is empty")
        if kind in names:
            raise UsageError(
                f"{flag}: given twice for {f'kind {kind}' if kind else 'all kinds'}; use KIND=NAME for one kind"
            )
        names[kind] = name
    return names


@with_settings(SelectionSettings)
@with_settings(RunnerSettings, name="runner_settings")
@folder_command("queries", resume=True)
def rerank_queries__apply(
    output: Folder,
    queries: Queries,
    source: Expansions = "-",
    model: Annotated[
        list[str] | None,
        make_option(
            "--model [KIND=]DIR",
            "Model of drtk rerank-queries train; KIND=DIR for one kind; repeatable (required by --select scorer).",
            show_default=False,
        ),
    ] = None,
    index: Annotated[
        str | None,
        make_option(
            "--index DIR",
            'BM25 index, to retrieve the top passage of candidates that have no "top1" field (EAR-RD only).',
        ),
    ] = None,
    corpus: IndexCorpus = None,
    device: Device = "auto",
    *,
    settings: SelectionSettings,
    runner_settings: RunnerSettings,
    job: FolderJob,
) -> None:
    """Select the best expansion of each kind for each question.

    Makes a folder with a file of queries per kind for drtk search: KIND.jsonl, or with --n-best above 1, KIND.1.jsonl,
    KIND.2.jsonl …

    Examples:
    drtk rerank-queries apply candidates.jsonl --queries questions.jsonl --model scorer -o selected
    drtk rerank-queries apply labels.jsonl --queries questions.jsonl --select oracle -o oracle
    """
    from drtk.query_expansion.candidates import load_queries
    from drtk.query_expansion.rerank import select_queries
    from drtk.runtime.progress import warn

    models = _parse_by_kind("--model", model or [])
    if settings.select == "scorer" and not models:
        raise UsageError("--select scorer, the default, requires --model")
    if settings.select != "scorer" and models:
        raise UsageError("--model requires --select scorer")
    if not models and (index is not None or corpus is not None):
        raise UsageError("--index and --corpus require --model")
    questions = load_queries(queries, job.tracker)
    if index is not None:
        from drtk.runtime.manifest import describe_folder

        job.tracker.inputs.append(describe_folder(index))
    counts = select_queries(
        source,
        questions,
        settings,
        models=models,
        device=device,
        index=index,
        corpus=corpus,
        runner_settings=runner_settings,
        job=job,
    )
    files, without = counts.pop("files"), counts["without a candidate"]
    if alone := files["unexpanded"]:
        none = f"; {without:,} of {len(questions):,} questions have no candidate at all" if without else ""
        warn(
            f"{alone:,} pairs of question and kind have no candidate; these questions are written without an expansion{none}"
        )
    job.counts |= {name: number for name, number in counts.items() if number and name not in ("in", "out")}
    job.counts |= {"questions": len(questions), "without a candidate": without}
    job.finish(queries=files)


rerank_queries = typer.Typer(
    cls=Group,
    help="Choose the expansions of questions that retrieve best (EAR): label, train, apply.",
    epilog="Documentation: docs/commands/rerank-queries.md",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)
rerank_queries.command("label", cls=Command)(rerank_queries__label)
rerank_queries.command("train", cls=Command)(rerank_queries__train)
rerank_queries.command("apply", cls=Command)(rerank_queries__apply)
