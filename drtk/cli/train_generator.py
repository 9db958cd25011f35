"""drtk train-generator: train a doc2query or GAR generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drtk.cli.decorators import OF_TRAINING, folder_maker
from drtk.cli.options import Device, Folder, Seed, with_settings
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.folder_job import FolderJob
from drtk.training.config import GeneratorSettings

if TYPE_CHECKING:
    from pathlib import Path

    from drtk.query_expansion.train_generator import QuestionPairs
    from drtk.training.generator import Start

EXPANDS = "expands"  # entry of meta.json: the kind of expansion a generator writes


def check_files(settings: GeneratorSettings, given: Mapping[str, str | None]) -> None:
    """Raises UsageError for files that the task does not read, or that are missing."""
    task = settings.task
    if given["queries"] is not None:
        raise UsageError(f"--queries: with --task {task}, INPUT holds the questions")
    if task == "gar-answer":
        for name in ("corpus", "run", "dev_run"):
            if given[name] is not None:
                raise UsageError(f"--{name.replace('_', '-')}: only with --task gar-sentence or gar-title")
        return
    for name in ("run", "corpus"):
        if given[name] is None:
            raise UsageError(f"--{name}: --task {task} looks for answers in the passages of a BM25 run; name the file")
    if (given["dev"] is None) != (given["dev_run"] is None):
        raise UsageError("--dev and --dev-run go together: questions to measure with, and their hits")


def train_on_questions(
    source: str,
    *,
    model: str,
    given: Mapping[str, str | None],
    seed: int,
    device: str,
    settings: GeneratorSettings,
    job: FolderJob,
) -> None:
    """Train the generator, or with --folds the generators, into the job's folder.

    given: corpus, queries, dev, run, dev_run: files by the names of their options
    """
    from drtk.evaluation.answers import need_rouge, rouge
    from drtk.models.model_folder import locate
    from drtk.query_expansion.train_generator import question_pairs, to_train_and_measure
    from drtk.records import Passage
    from drtk.runtime.manifest import find_inputs
    from drtk.training.folds import drawn_folds
    from drtk.training.generator import start_from
    from drtk.training.text_pairs import questions_in_both, warn_of_overlap

    dev = given["dev"]
    measured = dev is not None or settings.dev_share is not None
    if measured and settings.best_by != "loss":
        need_rouge()
    start = start_from(model, settings)
    reading, corpus = start.reading, given["corpus"]

    def read(file: str, run: str | None) -> QuestionPairs:
        return question_pairs(
            file,
            run=run,
            corpus=corpus,
            settings=settings,
            asked=lambda question: reading.text(Passage("", " ".join(question.split()))),
            intake=job.intake,
        )

    pairs = read(source, given["run"])
    held = None if dev is None else read(dev, given["dev_run"])
    if measured and not to_train_and_measure(pairs, held, settings)[1]:
        raise DrtkError(f"{dev or source}: no questions to measure with" + (" at this --dev-share" if not dev else ""))
    if dev is not None and held is not None:
        both = questions_in_both(pairs.questions, held.questions)
        warn_of_overlap(both, len(held), "questions", dev=dev, source=source)
    job.intake.inputs += find_inputs({"corpus": corpus, "model": str(locate(model))})
    job.counts |= {"questions": len(pairs.read), **pairs.dropped, "pairs": len(pairs)}
    folds = None if settings.folds is None else drawn_folds(pairs.read, settings.folds, seed=seed)
    score = rouge if measured and settings.best_by != "loss" else None
    training = {"settings": settings, "score": score, "seed": seed, "device": device}
    if folds is None:
        _train_one(pairs, held, start, training, job)
    else:
        _train_folds(pairs, held, model, folds, training, job)


def _train_one(
    pairs: QuestionPairs, dev: QuestionPairs | None, start: Start, training: dict[str, Any], job: FolderJob
) -> None:
    from drtk.query_expansion.train_generator import to_train_and_measure
    from drtk.training.generator import plan, train_generator

    trained, measured = to_train_and_measure(pairs, dev, training["settings"])
    plan(len(trained), training["settings"])
    resuming = job.resuming
    folder = job.begin()
    _record(pairs, None, folder, resuming)
    facts = train_generator(trained, folder, start=start, dev=measured, **training)
    best = facts.pop("best", None)
    job.counts |= {"trained with": len(trained), "dev pairs": len(measured), **facts}
    job.finish(**_facts(start, training["settings"]), best=best)


def _train_folds(
    pairs: QuestionPairs,
    dev: QuestionPairs | None,
    model: str,
    folds: dict[str, int],
    training: dict[str, Any],
    job: FolderJob,
) -> None:
    from drtk.query_expansion.train_generator import check_folds, train_folds
    from drtk.runtime.manifest import FOLDER_MANIFEST, Clock, complete_manifest, new_manifest, write_manifest
    from drtk.training.distributed import rank, wait_for_all
    from drtk.training.folds import KIND, fold_folder, write_record

    settings = training["settings"]
    check_folds(pairs, folds, dev, settings)
    resuming = job.resuming
    folder = job.begin()
    _record(pairs, folds, folder, resuming)
    numbers = range(settings.folds)
    done = [fold for fold in numbers if resuming and (fold_folder(folder, fold) / FOLDER_MANIFEST).exists()]
    clock = Clock()

    def finish(target: Path, begun: Start, facts: Mapping[str, Any]) -> None:
        if rank() == 0:
            # The folder is a generator in its own right: wherever it goes, it says what it was made from.
            write_record(target, (query for query in pairs.read if folds[query.id] != facts["fold"]))
            manifest = new_manifest("model", job.settings, program=job.command) | _facts(begun, settings)
            counts = {name: value for name, value in facts.items() if name not in ("best", "fold")}
            manifest |= {"best": facts.get("best"), "fold": facts["fold"]}
            found = complete_manifest(manifest, inputs=job.intake.inputs, counts=counts, seconds=clock.seconds)
            write_manifest(target, found)
        wait_for_all()

    train_folds(pairs, folder, model=model, folds=folds, dev=dev, done=done, finish=finish, **training)
    job.counts["generators"] = settings.folds
    job.finish(kind=KIND, folds=settings.folds, **{EXPANDS: settings.kind})


def _record(pairs: QuestionPairs, folds: dict[str, int] | None, folder: Path, resuming: bool) -> None:
    """Write down which questions there are, before anything is trained; what is resumed must have been begun with them.

    Raises MismatchError where it was not.
    """
    from drtk.training.distributed import rank
    from drtk.training.folds import QUESTIONS, record_lines, write_record

    if rank() != 0:
        return
    path = folder / QUESTIONS
    if resuming and path.exists():
        if path.read_bytes() != b"".join(record_lines(pairs.read, folds)):
            raise MismatchError(f"{folder}: was begun with other questions; --force without --resume begins again")
        return
    write_record(folder, pairs.read, folds)


def _facts(start: Start, settings: GeneratorSettings) -> dict[str, Any]:
    from drtk.models.generator_input import RECIPE

    return {
        RECIPE: start.reading.to_dict(),
        "architecture": start.architecture,
        EXPANDS: settings.kind,
        "target_length": settings.target_length,
    }


@with_settings(GeneratorSettings, preset=True)
@folder_maker("model", resume=True, may_differ=OF_TRAINING)
def train_generator(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Training examples; or, without --corpus, passages with queries; for GAR questions with answers.",
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="T5 or BART model to start from: a folder, or hub name.")
    ],
    output: Folder,
    corpus: Annotated[
        str | None, typer.Option("--corpus", metavar="FILE", help="Passages of the examples, or of the run.")
    ] = None,
    queries: Annotated[str | None, typer.Option("--queries", metavar="FILE", help="Queries of the examples.")] = None,
    dev: Annotated[
        str | None, typer.Option("--dev", metavar="FILE", help="What to measure with; the same kind of file as INPUT.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="FILE", help="GAR sentences and titles: BM25's hits for the questions."),
    ] = None,
    dev_run: Annotated[
        str | None, typer.Option("--dev-run", metavar="FILE", help="The same for the questions of --dev.")
    ] = None,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: GeneratorSettings,
    job: FolderJob,
) -> None:
    """Train a model that writes queries for passages, or expansions for questions.

    Makes a model folder that doc2query, or expand-queries, and transformers load; log.jsonl in it is the loss, and ROUGE on what
    was held out. With --folds, a folder of such folders.
    """
    settings.check()
    if dev is not None and settings.dev_share is not None:
        raise UsageError("--dev and --dev-share: choose one")
    measured = dev is not None or settings.dev_share is not None
    if settings.patience is not None and not measured:
        raise UsageError("--patience needs something to measure with: --dev or --dev-share")
    from drtk.models.model_folder import locate
    from drtk.training.preflight import check_beforehand

    files = (source, queries, dev, run, dev_run)
    if settings.kind is not None:
        given = {"corpus": corpus, "queries": queries, "dev": dev, "run": run, "dev_run": dev_run}
        check_files(settings, given)
        check_beforehand(settings.trainer, device, *files, kept=[corpus])
        locate(model)
        train_on_questions(source, model=model, given=given, seed=seed, device=device, settings=settings, job=job)
        return
    if run is not None or dev_run is not None:
        raise UsageError(f"{'--run' if run else '--dev-run'}: only with --task gar-sentence or gar-title")
    if (corpus is None) != (queries is None):
        raise UsageError("--corpus and --queries go together; without both, INPUT holds passages with their queries")
    check_beforehand(settings.trainer, device, *files, kept=[corpus])
    locate(model)
    from drtk.evaluation.answers import need_rouge, rouge
    from drtk.models.generator_input import RECIPE
    from drtk.runtime.manifest import find_inputs
    from drtk.training.generator import plan, start_from, train_generator
    from drtk.training.text_pairs import held_out, pairs_in_both, read_pairs, sampled, warn_of_overlap

    if measured and settings.best_by != "loss":
        need_rouge()
    start = start_from(model, settings)
    found = read_pairs(
        [source] if dev is None else [source, dev],
        corpus=corpus,
        queries=queries,
        source=start.reading.text,
        intake=job.intake,
    )
    pairs, held = held_out(found[0], settings.dev_share) if settings.dev_share is not None else (found[0], found[-1])
    if measured and not len(held):
        raise DrtkError(f"{dev or source}: no pairs to measure with" + (" at this --dev-share" if dev is None else ""))
    if dev is not None:
        warn_of_overlap(pairs_in_both(pairs, held), len(held), "pairs", dev=dev, source=source)
    plan(len(pairs), settings)
    facts = train_generator(
        pairs,
        job.begin(),
        start=start,
        settings=settings,
        dev=sampled(held, settings.dev_limit) if measured else (),
        score=rouge,
        seed=seed,
        device=device,
    )
    best = facts.pop("best", None)
    job.intake.inputs += find_inputs({"corpus": corpus, "model": str(locate(model))})
    job.counts |= {"pairs": len(pairs), "dev pairs": min(len(held), settings.dev_limit) if measured else 0, **facts}
    job.finish(**{RECIPE: start.reading.to_dict(), "architecture": start.architecture, "best": best})
