"""drtk rerank-queries apply: the best expansion of each question, as queries to search with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drtk.cli.jobs import folder_maker
from drtk.cli.options import Device, Folder, Queries, with_settings
from drtk.errors import DrtkError, UsageError
from drtk.io.folders import FolderJob
from drtk.records import Expansion, Query
from drtk.settings.query_reranking import ChooseSettings
from drtk.settings.running import RunnerSettings

if TYPE_CHECKING:
    from drtk.io.candidates import Candidates

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
    from drtk.io.candidates import questions_by_id
    from drtk.io.progress import warn
    from drtk.io.streams import name_of
    from drtk.io.textless import warn_of_textless
    from drtk.questions.applying import LINES, LUCENE_CLAUSES, questions_without, write_queries
    from drtk.questions.choosing import GREEDY

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
        from drtk.io.manifest import folder_entry

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
    from drtk.io.manifest import read_manifest

    if corpus is not None or index is None:
        return str(corpus)
    return str(read_manifest(index).get("corpus") or index)


def _check(select: str, models: dict[str, str], index: str | None) -> Callable[[Expansion, Any], str | None]:
    """What is wrong with a candidate for this way of choosing; None: nothing."""
    from drtk.questions.choosing import unlabelled

    readings = {}
    if models:
        from drtk.models.query_reading import reading_of

        readings = {kind: reading_of(model) for kind, model in models.items()}

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
    from drtk.io.streams import name_of

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
    from drtk.io.candidates import read_candidates
    from drtk.io.filtering import FilterJob
    from drtk.io.json_files import read_json
    from drtk.io.manifest import is_done, manifest_path
    from drtk.io.textless import all_textless
    from drtk.questions.applying import LINES, ChooseQueries
    from drtk.runners.base import run_filter

    place = str(folder / LINES)
    manifest = manifest_path(place)
    inner = FilterJob(
        *(job.command, "choices", place, job.settings),
        resume=job.resume,
        force=job.force,
        told=False,
        intake=job.intake,
    )
    inner.recover()
    if job.resume and is_done(place, job.settings, program=job.command):  # killed while the queries were written
        known = {entry["path"] for entry in job.intake.inputs}
        job.intake.inputs += [entry for entry in read_json(manifest)["inputs"] if entry["path"] not in known]
    else:
        settings, models, _, index, corpus = given
        inner.vain = lambda: all_textless(inner.counts, _corpus(index, corpus))
        groups = read_candidates(source, questions, job.intake, check=_check(settings.select, models, index))
        groups = _at_least_one(groups, source)
        run_filter(groups, inner, ChooseQueries, *given, running=running, window=WINDOW, unit="questions")
    counts: dict[str, Any] = read_json(manifest)["counts"]
    return counts
