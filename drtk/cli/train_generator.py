"""drtk train-generator: a model learns to write queries for passages, or expansions for questions."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import OF_TRAINING, folder_maker
from drtk.cli.options import Device, Folder, Seed, with_settings
from drtk.errors import DrtkError, UsageError
from drtk.io.folders import FolderJob
from drtk.settings.writing import GeneratorSettings


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
    from drtk.models.hub import locate
    from drtk.training.beforehand import check_beforehand

    files = (source, queries, dev, run, dev_run)
    if settings.kind is not None:
        from drtk.cli.question_training import check_files, train_on_questions

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
    from drtk.evaluation.rouge import need_rouge, rouge
    from drtk.io.manifest import inputs_named
    from drtk.models.reading import RECIPE
    from drtk.training.generator import plan, start_from, train_generator
    from drtk.training.overlap import pairs_in_both, warn_of_overlap
    from drtk.training.pair_files import read_pairs
    from drtk.training.pairs import held_out, sampled

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
    job.intake.inputs += inputs_named({"corpus": corpus, "model": str(locate(model))})
    job.counts |= {"pairs": len(pairs), "dev pairs": min(len(held), settings.dev_limit) if measured else 0, **facts}
    job.finish(**{RECIPE: start.reading.to_dict(), "architecture": start.architecture, "best": best})
