"""Top-k answer accuracy: runs judged by whether passages contain an answer to the question (methods: 8.4, 8.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.evaluate import Evaluation, Evaluator
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.rankings import View
from drtk.evaluation.runs import retrieved_by, tell_missing
from drtk.evaluation.shallow import tell_shallow
from drtk.evaluation.tables import table_lines
from drtk.io.intake import Intake
from drtk.io.jsonl import read_queries
from drtk.io.progress import Progress, warn
from drtk.io.runs import NamedRun
from drtk.io.store import CorpusStore
from drtk.io.streams import name_of
from drtk.io.textless import PASSAGES, TEXTLESS, all_textless, warn_of_textless
from drtk.io.trec import Judgements, query_hits
from drtk.settings.evaluation import EvalSettings
from drtk.text.answers import MATCHES
from drtk.text.workers import Workers, cores

MEASURES = "Answer@1 Answer@5 Answer@20 Answer@100"
_BATCH = 32  # questions a worker is given at once
_WORTH_WORKERS = 20_000  # passages to look at; below, starting processes takes longer than the work

Question = tuple[str, tuple[str, ...], list[str]]  # id, answers, ids of passages to look at


class Looked(NamedTuple):
    """What became of a question: its first right passage, or one that the corpus lacks; and what was looked at till then."""

    query_id: str
    right: str | None
    absent: str | None
    counts: dict[str, int]


def answer_lines(
    runs: Sequence[NamedRun], questions: str, corpus: str, settings: EvalSettings, intake: Intake
) -> Iterator[str]:
    """Lines of the table.

    Raises UsageError for measures that need to know every right passage, DrtkError where no passage has a text.
    """
    if settings.by == "source" or settings.rel != 1:
        raise UsageError("--by source and --rel go with --qrels; with --answers a passage is right or not")
    measures = answer_measures(settings.measures or MEASURES)
    wanted = answers_of(questions, settings.match, intake)
    with closing(CorpusStore.open(corpus)) as store:  # indexed once, here, and not by every worker
        size = len(store)
    looked: Counter[str] = Counter()
    results = [evaluated_by_answers(run, wanted, corpus, measures, settings, intake, looked) for run in runs]
    _check_texts(looked, corpus)
    tell_shallow({result.name: result.deepest for result in results}, measures, right="answers", size=size)
    return table_lines(results, measures, format=settings.format, per_query=settings.per_query, digits=settings.digits)


def answer_measures(text: str) -> list[Measure]:
    """The measures of a text, all of which look at the first right passage alone. Raises UsageError for others."""
    measures = parse_measures(text, answers=True)
    for measure in measures:
        first_alone = measure.key in ("Answer", "RR", "recip_rank") or measure.key.startswith("success_")
        if not first_alone or measure.judged_only or measure.rel != 1:
            raise UsageError(
                f"--measures: {measure.name} needs judgements; answers tell the first right passage: Answer@k, Success@k, RR"
            )
    return measures


def answers_of(source: str, match: str, intake: Intake) -> dict[str, tuple[str, ...]]:
    """The answers of each question that has any; how many have none, and patterns that are none, are warnings.

    Raises DrtkError where no question has an answer.
    """
    found: dict[str, tuple[str, ...]] = {}
    without = 0
    for query in read_queries(source, intake=intake):
        matching = MATCHES[match](query.answers or ())
        invalid = getattr(matching, "invalid", ())
        for pattern in invalid:
            warn(f"{name_of(source)}:{intake.line}: '{pattern}' is no regular expression and matches nothing")
        if query.answers and (matching or invalid):  # what no pattern can match is wrong, not left out
            found[query.id] = query.answers
        else:
            without += 1
    if not found:
        raise DrtkError(f"{name_of(source)}: no question has an answer")
    if without:
        warn(f"{name_of(source)}: {without:,} of {without + len(found):,} questions have no answer and are left out")
    return found


def evaluated_by_answers(
    run: NamedRun,
    answers: Mapping[str, tuple[str, ...]],
    corpus: str,
    measures: Sequence[Measure],
    settings: EvalSettings,
    intake: Intake,
    looked: Counter[str],
) -> Evaluation:
    """The values of one run; `looked` counts the passages that were looked at. Raises MismatchError (file:line) for a passage that the corpus does not have."""
    view = View(order=settings.order, drop_same_id=bool(settings.drop_same_id), depth=settings.depth)
    asked: Judgements = {id: {} for id in answers}
    found = retrieved_by(run, asked, view, intake, right="answers")
    tell_missing(run.name, len(found.rankings), len(asked), retrieved_only=settings.retrieved_only, right="answers")
    _mark_right(asked, run, found.rankings, answers, corpus, measures, settings, looked)
    result = Evaluator(asked, measures)(run.name, found.rankings, retrieved_only=settings.retrieved_only)
    result.deepest = found.deepest
    return result


def judgements_by_answers(
    runs: Sequence[NamedRun],
    answers: Mapping[str, tuple[str, ...]],
    corpus: str,
    measures: Sequence[Measure],
    settings: EvalSettings,
    intake: Intake,
) -> Judgements:
    """For each question the first right passage of every run: what `answer_measures` need, whichever of the runs they score.

    Another run's first right passage contains an answer too, so it cannot stand above a run's own.
    Raises MismatchError (file:line) for a passage that the corpus does not have, DrtkError where no passage has a text.
    """
    CorpusStore.open(corpus).close()  # indexed once, here, and not by every worker
    view = View(order=settings.order, drop_same_id=bool(settings.drop_same_id), depth=settings.depth)
    judged: Judgements = {id: {} for id in answers}
    looked: Counter[str] = Counter()
    for run in runs:
        found = retrieved_by(run, judged, view, intake, right="answers")
        _mark_right(judged, run, found.rankings, answers, corpus, measures, settings, looked)
    _check_texts(looked, corpus)
    return judged


def _check_texts(looked: Counter[str], corpus: str) -> None:
    """Raise DrtkError where answers were looked for and no passage had a text; warn where some had none."""
    if fault := all_textless(looked, corpus):
        raise DrtkError(fault)
    warn_of_textless(looked, corpus)


def _mark_right(
    judged: Judgements,
    run: NamedRun,
    rankings: Mapping[str, list[str]],
    answers: Mapping[str, tuple[str, ...]],
    corpus: str,
    measures: Sequence[Measure],
    settings: EvalSettings,
    looked: Counter[str],
) -> None:
    """Judge the first right passage of each ranking, as far down as the measures look."""
    depth = _deepest(measures)
    work: list[Question] = [(id, answers[id], ids[:depth]) for id, ids in rankings.items()]
    for each in _first_right(work, corpus, settings):
        if each.absent is not None:
            place = _place(run.source, each.query_id, each.absent)
            raise MismatchError(f"{place}: passage '{each.absent}' is not in the corpus {corpus}")
        if each.right is not None:
            judged[each.query_id][each.right] = 1
        looked.update(each.counts)


def _deepest(measures: Sequence[Measure]) -> int | None:
    """How many passages have to be looked at; None: all."""
    depths = []
    for measure in measures:
        if measure.cutoff is None:
            return None
        depths.append(measure.cutoff)
    return max(depths)


def _first_right(work: Sequence[Question], corpus: str, settings: EvalSettings) -> Iterator[Looked]:
    """What was found for each question, in order."""
    size = sum(len(ids) for _, _, ids in work)
    count = settings.workers or (cores() if size >= _WORTH_WORKERS else 1)
    batches = [work[at : at + _BATCH] for at in range(0, len(work), _BATCH)]
    with (
        Workers(LookForAnswers, corpus, settings.match, settings.match_title, count=count) as workers,
        Progress("eval", unit="questions", total=len(work)) as progress,
    ):
        for batch in workers.map(batches):
            yield from batch
            progress.add(len(batch))


class LookForAnswers:
    """The first passage of each question that contains one of its answers.

    title: looked for in title and text together (GAR), otherwise in the text alone (DPR).
    """

    def __init__(self, corpus: str, match: str, title: bool) -> None:  # positional: they travel to other processes
        self._store, self._match, self._title = CorpusStore.open(corpus), MATCHES[match], title

    def __call__(self, questions: Sequence[Question]) -> list[Looked]:
        return [self._look(*question) for question in questions]

    def _look(self, query_id: str, answers: tuple[str, ...], ids: Sequence[str]) -> Looked:
        contains = self._match(answers)
        counts = {PASSAGES: 0, TEXTLESS: 0}
        for id in ids:
            passage = self._store.get(id)
            if passage is None:
                return Looked(query_id, None, id, counts)
            text = f"{passage.title} {passage.text}" if self._title and passage.title else passage.text
            counts[PASSAGES] += 1
            counts[TEXTLESS] += not text.strip()
            if contains(text):
                return Looked(query_id, id, None, counts)
        return Looked(query_id, None, None, counts)


def _place(source: str, query: str, passage: str) -> str:
    """Where a run names a passage: file:line, where it can be read a second time."""
    try:
        for hits in query_hits(source):
            if hits.query_id == query and passage in hits.doc_ids:
                return f"{name_of(source)}:{hits.lines[hits.doc_ids.index(passage)]}"
    except (DrtkError, OSError):
        pass
    return name_of(source)
