"""drtk train-generator: train a doc2query or GAR generator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from drtk.cli.decorators import TRAINING_MAY_DIFFER, folder_command
from drtk.cli.options import Device, Folder, Seed, make_argument, make_option, with_settings
from drtk.config import EVALUATION, to_dict
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.folder_job import FolderJob
from drtk.training.config import GeneratorConfig

if TYPE_CHECKING:
    from drtk.query_expansion.train_generator import QuestionPairs
    from drtk.training.generator import StartModel
    from drtk.training.text_pairs import TextPairs

EXPANDS = "expands"  # entry of meta.json: the kind of expansion a generator writes


def check_files(settings: GeneratorConfig, given: Mapping[str, str | None]) -> None:
    """Raise UsageError if the task does not use a given file, or requires a file that is not given."""
    task = settings.task
    needs_run = task in ("gar-sentence", "gar-title")
    for name in () if needs_run else ("run", "dev_run"):
        if given[name] is not None:
            raise UsageError(f"`{name}` requires `task` gar-sentence or gar-title")
    if task == "doc2query":
        if (given["corpus"] is None) != (given["queries"] is None):
            raise UsageError(
                "`corpus` and `queries` must be given together; omit both if INPUT is passages with queries"
            )
        return
    if given["queries"] is not None:
        raise UsageError(f"`queries` cannot be combined with `task` {task}, whose INPUT has the questions; omit it")
    if not needs_run and given["corpus"] is not None:
        raise UsageError("`corpus` requires `task` gar-sentence or gar-title")
    for name in ("run", "corpus") if needs_run else ():
        if given[name] is None:
            raise UsageError(
                f"`{name}` is required with `task` {task}, which searches the passages of a run for answers"
            )
    if needs_run and (given["dev"] is None) != (given["dev_run"] is None):
        raise UsageError("`dev` and `dev_run` must be given together")


def _read_question_pairs(
    source: str, given: Mapping[str, str | None], start: StartModel, settings: GeneratorConfig, job: FolderJob
) -> tuple[QuestionPairs, QuestionPairs | None]:
    """Return the (question, target) pairs to train on, and the pairs of `dev`; warn of questions in both."""
    from drtk.query_expansion.train_generator import build_question_pairs
    from drtk.records import Passage
    from drtk.training.folds import digest_question
    from drtk.training.text_pairs import warn_of_overlap

    def read_pairs(file: str, run: str | None) -> QuestionPairs:
        return build_question_pairs(
            file,
            run=run,
            corpus=given["corpus"],
            settings=settings,
            format=lambda question: start.input_format.format(Passage("", " ".join(question.split()))),
            tracker=job.tracker,
        )

    pairs, dev = read_pairs(source, given["run"]), given["dev"]
    job.counts |= {"questions": len(pairs.all_questions), **pairs.dropped, "pairs": len(pairs)}
    if dev is None:
        return pairs, None
    dev_pairs = read_pairs(dev, given["dev_run"])
    trained = {digest_question(query.text) for query in pairs.questions}
    digests = [digest_question(query.text) for query in dev_pairs.questions]
    warn_of_overlap(digests, trained, "questions", file=dev, source=source)
    return pairs, dev_pairs


def _read_passage_pairs(
    source: str, given: Mapping[str, str | None], start: StartModel, job: FolderJob
) -> tuple[TextPairs, TextPairs | None]:
    """Return the (passage, query) pairs to train on, and the pairs of `dev`; warn of pairs in both."""
    from drtk.training.text_pairs import digest_targets, read_pairs, warn_of_overlap

    files = [file for file in (source, given["dev"]) if file is not None]
    pairs, *dev_pairs = read_pairs(
        files,
        corpus=given["corpus"],
        queries=given["queries"],
        format_source=start.input_format.format,
        tracker=job.tracker,
    )
    if not dev_pairs:
        return pairs, None
    digests = digest_targets(dev_pairs[0])
    trained = set(digest_targets(pairs, keys={key for key, _ in digests}))
    warn_of_overlap(digests, trained, "pairs", file=files[1], source=source)
    return pairs, dev_pairs[0]


def _train_folds(
    pairs: QuestionPairs,
    dev: QuestionPairs | None,
    model: str,
    settings: GeneratorConfig,
    training: dict[str, Any],
    job: FolderJob,
) -> None:
    from drtk.query_expansion.train_generator import check_folds, train_folds
    from drtk.runtime.manifest import FOLDER_MANIFEST
    from drtk.training.distributed import get_rank, wait_for_all
    from drtk.training.folds import KIND, assign_folds, get_fold_folder, write_question_record

    numbers = range(settings.folds or 0)
    folds = assign_folds(pairs.all_questions, len(numbers), seed=training["seed"])
    check_folds(pairs, folds, dev, settings)
    resuming = job.is_resuming
    folder = job.begin()
    _write_questions(pairs, folds, folder, resuming)
    done = [fold for fold in numbers if resuming and (get_fold_folder(folder, fold) / FOLDER_MANIFEST).exists()]

    def finish(target: Path, start: StartModel, statistics: Mapping[str, Any]) -> None:
        if get_rank() == 0:
            # The folder can be used alone as a generator, so it records its own questions.
            write_question_record(
                target, (query for query in pairs.all_questions if folds[query.id] != statistics["fold"])
            )
            counts = {name: value for name, value in statistics.items() if name not in ("best", "fold")}
            entries = _describe_model(start, settings) | {"best": statistics.get("best"), "fold": statistics["fold"]}
            job.finish_subfolder(target, counts=counts, **entries)
        wait_for_all()

    train_folds(
        pairs, folder, model=model, folds=folds, settings=settings, dev=dev, done=done, finish=finish, **training
    )
    job.counts["generators"] = len(numbers)
    job.finish(kind=KIND, folds=len(numbers), **{EXPANDS: settings.expansion_type})


def _write_questions(pairs: QuestionPairs, folds: dict[str, int] | None, folder: Path, resuming: bool) -> None:
    """Write the file of training questions. Raises MismatchError if the interrupted run had other questions."""
    from drtk.training.distributed import get_rank
    from drtk.training.folds import QUESTIONS, format_question_record, write_question_record

    if get_rank() != 0:
        return
    path = folder / QUESTIONS
    if resuming and path.exists():
        if path.read_bytes() != b"".join(format_question_record(pairs.all_questions, folds)):
            raise MismatchError(f"{folder}: started with other questions; use `force` without `resume` to start over")
        return
    write_question_record(folder, pairs.all_questions, folds)


def _describe_model(start: StartModel, settings: GeneratorConfig) -> dict[str, Any]:
    from drtk.models.generator_input import INPUT_ENTRY

    about: dict[str, Any] = {INPUT_ENTRY: to_dict(start.input_format), "architecture": start.architecture}
    if settings.expansion_type is not None:
        about |= {EXPANDS: settings.expansion_type, "target_length": settings.target_length}
    return about


@with_settings(GeneratorConfig, preset=True)
@folder_command("model", resume=True, may_differ=TRAINING_MAY_DIFFER)
def train_generator(
    source: Annotated[
        str, make_argument("INPUT", "Training examples, passages with queries, or questions with answers (GAR).")
    ],
    model: Annotated[
        str, make_option("--model MODEL", "Encoder-decoder to start from, such as T5 or BART, a folder or Hub name.")
    ],
    output: Folder,
    corpus: Annotated[
        str | None, make_option("--corpus FILE", "Corpus with the passages of the examples or of --run.")
    ] = None,
    queries: Annotated[
        str | None, make_option("--queries FILE", "Query file; required if the examples contain only query ids.")
    ] = None,
    dev: Annotated[
        str | None,
        make_option("--dev FILE", "Data in the format of INPUT, to select the best checkpoint.", panel=EVALUATION),
    ] = None,
    run: Annotated[
        str | None, make_option("--run FILE", "TREC run of the questions (gar-sentence, gar-title).")
    ] = None,
    dev_run: Annotated[
        str | None,
        make_option("--dev-run FILE", "TREC run of the --dev questions (gar-sentence, gar-title).", panel=EVALUATION),
    ] = None,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: GeneratorConfig,
    job: FolderJob,
) -> None:
    """Train a model that generates queries for passages, or expansions for questions.

    Writes a model folder for drtk doc2query or drtk expand-queries, and for transformers; with --set folds, one per
    fold. Its log.jsonl has the loss and, for evaluation pairs, ROUGE (unless dev_measure is loss).

    Examples:
    drtk train-generator examples.jsonl --corpus corpus.jsonl --queries queries.jsonl --model t5-base -o doc2query
    drtk train-generator questions.jsonl --preset gar-answer --model facebook/bart-large --dev dev.jsonl -o gar-answer
    """
    if dev is not None and settings.dev_share is not None:
        raise UsageError("`dev` and `dev_share` cannot be combined; give one")
    measured = dev is not None or settings.dev_share is not None
    if settings.patience is not None and not measured:
        raise UsageError("`patience` requires `dev` or `dev_share`")
    given = {"corpus": corpus, "queries": queries, "dev": dev, "run": run, "dev_run": dev_run}
    check_files(settings, given)
    from drtk.models.model_folder import resolve_model_folder
    from drtk.training.preflight import check_training_inputs

    check_training_inputs(settings.trainer, device, source, queries, dev, run, dev_run, local_files=[corpus])
    resolve_model_folder(model)
    from drtk.evaluation.answers import compute_rouge, require_rouge

    if measured and settings.best_by != "loss":
        require_rouge()
    from drtk.query_expansion.train_generator import split_pairs
    from drtk.runtime.manifest import find_inputs
    from drtk.training import generator
    from drtk.training.arguments import plan_schedule

    start = generator.load_start_model(model, settings)
    questions: QuestionPairs | None = None
    pairs: TextPairs
    dev_pairs: TextPairs | None
    if settings.expansion_type is None:
        pairs, dev_pairs = _read_passage_pairs(source, given, start, job)
    else:
        pairs, dev_pairs = questions, dev_questions = _read_question_pairs(source, given, start, settings, job)
    trained, evaluated = split_pairs(pairs, dev_pairs, settings)
    if settings.dev_share is not None and not evaluated:
        raise DrtkError(f"{source}: no pairs are left for evaluation; increase `dev_share`")
    job.tracker.inputs += find_inputs({"corpus": corpus, "model": str(resolve_model_folder(model))})
    training: dict[str, Any] = {"score": compute_rouge, "seed": seed, "device": device}
    if questions is not None and settings.folds is not None:
        _train_folds(questions, dev_questions, model, settings, training, job)
        return
    plan_schedule(len(trained), settings, unit="pairs", source=source)
    resuming = job.is_resuming
    folder = job.begin()
    if questions is not None:
        _write_questions(questions, None, folder, resuming)
    facts = generator.train_generator(trained, folder, start=start, config=settings, dev=evaluated, **training)
    best = facts.pop("best", None)
    counts = {"pairs": len(trained)} if questions is None else {"trained with": len(trained)}
    job.counts |= {**counts, "dev pairs": len(evaluated), **facts}
    job.finish(**_describe_model(start, settings), best=best)
