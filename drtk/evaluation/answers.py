"""Answer accuracy of runs, and exact match and F1 of predictions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from drtk.data.checks import PASSAGES, TEXTLESS, all_textless, warn_of_textless
from drtk.data.corpus_store import CorpusStore
from drtk.data.jsonl import read_predictions, read_queries
from drtk.data.runs import NamedRun
from drtk.data.trec import Judgements, query_hits
from drtk.errors import DrtkError, MismatchError, MissingDependency, RecordError, UsageError, pip_install
from drtk.evaluation.config import EvalSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, Value, View, tell_shallow
from drtk.evaluation.judged_runs import retrieved_by, tell_missing
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.tables import table_lines
from drtk.records import Prediction
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import Progress, detail, warn
from drtk.runtime.streams import name_of
from drtk.runtime.workers import Workers, cores
from drtk.text.answers import MATCHES, exact_match, token_f1

ROUGE_MEASURES = ("rouge1", "rouge2", "rougeL")
_WORD = re.compile(r"[^\W_]+")


class _Words:
    """Runs of letters and digits of every script in lower case: on ASCII the words of rouge-score, which drops all others."""

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


def need_rouge() -> None:
    """Raises MissingDependency where the library is not installed."""
    try:
        import rouge_score.rouge_scorer  # noqa: F401
    except ImportError as error:
        raise MissingDependency("rouge-score", "ROUGE", pip_install("rouge-score")) from error


def rouge(written: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """F1 over words, over pairs of words, and of the longest common subsequence (Lin 2004), in [0, 1], averaged over the texts.

    written, wanted: a text each, in the same order; without stemming. No texts: all are 0.
    Raises MissingDependency where the library is not installed.
    """
    need_rouge()
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE_MEASURES), tokenizer=_Words())
    found = [scorer.score(target, text) for text, target in zip(written, wanted, strict=True)]
    return {name: sum(float(each[name].fmeasure) for each in found) / max(1, len(found)) for name in ROUGE_MEASURES}


ANSWER_MEASURES = ("EM", "F1")


def prediction_lines(runs: Sequence[NamedRun], questions: str, settings: EvalSettings, intake: Intake) -> Iterator[str]:
    """Lines of the table, a file of predictions a row. Raises UsageError for a measure that is neither EM nor F1."""
    names = settings.measures.split() or list(ANSWER_MEASURES)
    if unknown := [name for name in names if name not in ANSWER_MEASURES]:
        raise UsageError(f"--measures: {unknown[0]} is not for predictions; choose from {', '.join(ANSWER_MEASURES)}")
    measures = [Measure(name, "own", name) for name in dict.fromkeys(names)]
    answers = answers_of(questions, "tokens", intake)
    results = []
    for run in runs:
        chosen = best_predictions(run.source, intake)
        known = {id: prediction for id, prediction in chosen.items() if id in answers}
        if not chosen:
            warn(f"{run.name}: there are no predictions")
        elif not known:
            raise MismatchError(
                f"{name_of(run.source)}: no prediction is for a question with answers; it has '{next(iter(chosen))}', "
                f"the questions have '{next(iter(answers))}'"
            )
        if extra := len(chosen) - len(known):
            detail(f"{run.name}: {extra:,} predictions for questions without answers left out")
        tell_missing(
            run.name,
            len(known),
            len(answers),
            retrieved_only=settings.retrieved_only,
            right="answers",
            where="among the predictions",
        )
        results.append(_scored(run.name, known, answers, [m.name for m in measures], settings.retrieved_only))
    return table_lines(results, measures, format=settings.format, per_query=settings.per_query, digits=settings.digits)


def best_predictions(source: str, intake: Intake) -> dict[str, str]:
    """The predicted answer to each question: of several the one with the highest score, of equals the first.

    Raises RecordError (file:line) where a question has several and one of them has no score.
    """
    chosen: dict[str, Prediction] = {}
    for prediction in read_predictions(source, intake=intake):
        known = chosen.setdefault(prediction.query_id, prediction)
        if known is prediction:
            continue
        if known.score is None or prediction.score is None:
            place = f"{name_of(source)}:{intake.line}"
            raise RecordError(
                place, f"question '{prediction.query_id}' has several predictions, and not all have scores"
            )
        if prediction.score > known.score:
            chosen[prediction.query_id] = prediction
    return {id: prediction.answer for id, prediction in chosen.items()}


def _scored(
    name: str,
    predictions: Mapping[str, str],
    answers: Mapping[str, tuple[str, ...]],
    measures: Sequence[str],
    retrieved_only: bool,
) -> Evaluation:
    """Values per question and their means; a question without a prediction counts 0, or not at all."""
    compute = {"EM": lambda text, right: float(exact_match(text, right)), "F1": token_f1}
    per_query: dict[str, dict[str, Value]] = {}
    for id, right in answers.items():
        if id in predictions:
            per_query[id] = {measure: compute[measure](predictions[id], right) for measure in measures}
        elif not retrieved_only:
            per_query[id] = dict.fromkeys(measures, 0.0)
    if not per_query:
        raise DrtkError(f"{name}: nothing to score")
    count = len(per_query)
    overall: dict[str, Value] = {m: sum(float(v[m]) for v in per_query.values()) / count for m in measures}
    return Evaluation(name, per_query, overall)


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
