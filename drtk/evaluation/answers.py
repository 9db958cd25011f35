"""Evaluate against gold answers: top-k accuracy of runs, exact match and F1 of predictions, ROUGE of generated texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from drtk.data.checks import PASSAGES, WITHOUT_TEXT, describe_missing_texts, warn_if_texts_missing
from drtk.data.corpus_store import CorpusStore
from drtk.data.readers import read_predictions, read_queries
from drtk.data.runs import NamedRun
from drtk.data.trec import Judgments, iter_query_hits
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError, convert_import_error
from drtk.evaluation.config import EvalSettings, ScoringSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, RankingBuilder, Value, log_shallow_runs
from drtk.evaluation.judged_runs import JudgedRankings, log_missing_queries, read_rankings
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.result_table import format_results
from drtk.models.generator_input import format_passage
from drtk.records import Prediction
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import Progress, log_detail, warn
from drtk.runtime.runners import Workers
from drtk.runtime.sharding import count_cores
from drtk.runtime.streams import get_source_name
from drtk.text.answers import MATCHERS, compute_token_f1, is_exact_match

ROUGE_MEASURES = ("rouge1", "rouge2", "rougeL")
PREDICTION_MEASURES = ("EM", "F1")
ANSWER_MEASURES = "Answer@1 Answer@5 Answer@20 Answer@100"
_WORD = re.compile(r"[^\W_]+")
_BATCH = 32  # questions per task of a worker
_MIN_PARALLEL = 20_000  # passages; with fewer, starting processes takes longer than the work

Answers = Mapping[str, tuple[str, ...]]  # by question
Question = tuple[str, tuple[str, ...], list[str]]  # id, answers, ids of passages to read


class _UnicodeTokenizer:
    """ROUGE tokenizer that splits text into lower-case words; rouge-score's own tokenizer drops non-ASCII characters."""

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


def require_rouge() -> None:
    """Raise MissingDependency if rouge-score is not installed."""
    with convert_import_error("rouge-score", "ROUGE"):
        import rouge_score.rouge_scorer  # noqa: F401


def compute_rouge(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the mean ROUGE-1, ROUGE-2 and ROUGE-L F1 of texts (Lin 2004), without stemming; 0 if `texts` is empty.

    Raises MissingDependency if rouge-score is not installed.
    """
    require_rouge()
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE_MEASURES), tokenizer=_UnicodeTokenizer())
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {name: sum(float(score[name].fmeasure) for score in scores) / max(1, len(scores)) for name in ROUGE_MEASURES}


def evaluate_predictions(
    runs: Sequence[NamedRun], questions: str, settings: EvalSettings, tracker: InputTracker
) -> Iterator[str]:
    """Evaluate files of predicted answers by exact match and F1; return the lines of the results.

    The lines are those of `format_results`.
    Raises UsageError for other measures, MismatchError for a file without a prediction for one of the questions.
    """
    given = " ".join(PREDICTION_MEASURES) if settings.measures is None else settings.measures
    names = list(dict.fromkeys(given.upper().replace(",", " ").split())) or [""]
    if unknown := [name for name in names if name not in PREDICTION_MEASURES]:
        raise UsageError(f"`measures`: expected {' or '.join(PREDICTION_MEASURES)} for predictions, got '{unknown[0]}'")
    answers = read_answers(questions, "tokens", tracker)
    only = settings.retrieved_only
    results = []
    for run in runs:
        predictions = read_best_predictions(run.source, tracker)
        answered = {id: prediction for id, prediction in predictions.items() if id in answers}
        if not predictions:
            warn(f"{run.name}: contains no predictions")
        elif not answered:
            raise MismatchError(
                f"{get_source_name(run.source)}: no prediction has the id of a question with answers (predictions: "
                f"'{next(iter(predictions))}', questions: '{next(iter(answers))}'); pass the questions that were answered"
            )
        if extra := len(predictions) - len(answered):
            log_detail(f"{run.name}: ignored {extra:,} predictions for questions without answers")
        where = "among the predictions"
        log_missing_queries(
            run.name, len(answered), len(answers), retrieved_only=only, judged_by="answers", where=where
        )
        results.append(_score_predictions(run.name, answered, answers, names, only))
    return format_results(results, [Measure(name, "builtin", name) for name in names], settings)


def read_best_predictions(source: str, tracker: InputTracker) -> dict[str, str]:
    """Return the highest-scored prediction of each question; the first one wins ties.

    Raises RecordError (file:line) if a question has several predictions and one of them has no score.
    """
    best: dict[str, Prediction] = {}
    for prediction in read_predictions(source, tracker=tracker):
        previous = best.setdefault(prediction.query_id, prediction)
        if previous is prediction:
            continue
        if previous.score is None or prediction.score is None:
            problem = f"question '{prediction.query_id}' has several predictions, but not all have scores; add scores"
            raise RecordError(f"{get_source_name(source)}:{tracker.line}", problem)
        if prediction.score > previous.score:
            best[prediction.query_id] = prediction
    return {id: prediction.answer for id, prediction in best.items()}


def _score_predictions(
    name: str, predictions: Mapping[str, str], answers: Answers, measures: Sequence[str], retrieved_only: bool
) -> Evaluation:
    """Evaluate predictions; questions without a prediction count as 0, or are ignored if `retrieved_only`."""
    compute = {"EM": lambda text, gold: float(is_exact_match(text, gold)), "F1": compute_token_f1}
    per_query: dict[str, dict[str, Value]] = {
        id: {m: compute[m](predictions[id], gold) if id in predictions else 0.0 for m in measures}
        for id, gold in answers.items()
        if id in predictions or not retrieved_only
    }
    if not per_query:
        raise DrtkError(f"{name}: no question has a prediction; omit `retrieved_only`")
    overall: dict[str, Value] = {m: fmean(float(values[m]) for values in per_query.values()) for m in measures}
    return Evaluation(name, per_query, overall)


def evaluate_by_answers(
    runs: Sequence[NamedRun], questions: str, corpus: str, settings: EvalSettings, tracker: InputTracker
) -> Iterator[str]:
    """Evaluate runs by answer matching; return the lines of the results (see `format_results`).

    Raises the errors of `AnswerJudge`.
    """
    judge = AnswerJudge(questions, corpus, settings, tracker, workers=settings.num_workers)
    results = []
    for run in runs:
        rankings = judge(run)
        only = settings.retrieved_only
        log_missing_queries(run.name, len(rankings.ids), len(judge.answers), retrieved_only=only, judged_by="answers")
        results.append(Evaluator(judge.judgments, judge.measures)(run.name, rankings.ids, retrieved_only=only))
    judge.check_texts()
    log_shallow_runs(results, judge.measures, judged_by="answers")
    return format_results(results, judge.measures, settings)


def parse_answer_measures(text: str) -> list[Measure]:
    """Parse measures that depend only on the first relevant passage. Raises UsageError for other measures."""
    measures = parse_measures(text, answers=True)
    for measure in measures:
        is_first_only = measure.key == "Answer" or measure.key.startswith(("recip_rank", "success_"))
        if not is_first_only or measure.judged_only or measure.rel != 1:
            raise UsageError(
                f"`measures`: {measure.name} requires `qrels`; with `answers`, choose from Answer@k, Success@k and RR"
            )
    return measures


def read_answers(source: str, match: str, tracker: InputTracker) -> dict[str, tuple[str, ...]]:
    """Return the gold answers by question id; warn about invalid regular expressions and questions without answers.

    match: tokens or regex
    Raises DrtkError if no question has an answer.
    """
    answers: dict[str, tuple[str, ...]] = {}
    num_without = 0
    for query in read_queries(source, tracker=tracker):
        matcher = MATCHERS[match](query.answers or ())
        invalid = getattr(matcher, "invalid", ())
        for pattern in invalid:
            warn(
                f"{get_source_name(source)}:{tracker.line}: '{pattern}' is not a valid regular expression and matches nothing"
            )
        if query.answers and (matcher or invalid):  # a question whose patterns are all invalid counts as wrong
            answers[query.id] = query.answers
        else:
            num_without += 1
    if not answers:
        raise DrtkError(f"{get_source_name(source)}: no question has an answer; expected the field 'answers'")
    if num_without:
        total = num_without + len(answers)
        warn(f"{get_source_name(source)}: {num_without:,} of {total:,} questions have no answer and are ignored")
    return answers


class AnswerJudge:
    """Judge rankings by answer matching: the first passage that contains an answer is relevant.

    `judgments` has the relevant passages of all runs judged so far. Passages below the first relevant one are not judged,
    because the measures of `parse_answer_measures` do not depend on them.
    workers: number of processes; None: one per core, or a single one for few passages
    Raises UsageError for `by=source`, `rel` other than 1, and measures that `parse_answer_measures` rejects.
    Calls raise MismatchError (file:line) for a passage that is not in the corpus.
    """

    def __init__(
        self,
        questions: str,
        corpus: str,
        settings: ScoringSettings,
        tracker: InputTracker,
        *,
        workers: int | None = None,
    ) -> None:
        if settings.by == "source" or settings.rel != 1:
            raise UsageError("`by=source` and `rel` cannot be combined with `answers`; omit them")
        self.measures = parse_answer_measures(ANSWER_MEASURES if settings.measures is None else settings.measures)
        self.answers = read_answers(questions, settings.match, tracker)
        self.judgments: Judgments = {id: {} for id in self.answers}
        self._corpus, self._settings, self._tracker, self._workers = corpus, settings, tracker, workers
        self._counts: Counter[str] = Counter()
        CorpusStore.open(corpus).close()  # its index is built once here, not by every worker

    def __call__(self, run: NamedRun) -> JudgedRankings:
        """Read a run, judge its rankings to the largest cut-off (fully if a measure has none), and return them."""
        rankings = read_rankings(
            run, self.judgments, RankingBuilder.from_settings(self._settings), self._tracker, judged_by="answers"
        )
        cutoffs = [measure.cutoff for measure in self.measures]
        depth = None if None in cutoffs else max(cutoff for cutoff in cutoffs if cutoff is not None)
        work: list[Question] = [(id, self.answers[id], ids[:depth]) for id, ids in rankings.ids.items()]
        size = sum(len(ids) for _, _, ids in work)
        count = self._workers or (count_cores() if size >= _MIN_PARALLEL else 1)
        batches = [work[at : at + _BATCH] for at in range(0, len(work), _BATCH)]
        arguments = self._corpus, self._settings.match, self._settings.match_title
        with (
            Workers(AnswerFinder, *arguments, count=count) as workers,
            Progress("eval", unit="questions", total=len(work)) as progress,
        ):
            for batch in workers.map(batches):
                for match in batch:
                    if match.absent is not None:
                        place = _locate_passage(run.source, match.query_id, match.absent)
                        raise MismatchError(
                            f"{place}: passage '{match.absent}' is not in the corpus {self._corpus}; pass the corpus of this run"
                        )
                    if match.relevant is not None:
                        self.judgments[match.query_id][match.relevant] = 1
                    self._counts.update(match.counts)
                progress.add(len(batch))
        return rankings

    def check_texts(self) -> None:
        """Raise DrtkError if all passages read were empty; warn if some were."""
        if problem := describe_missing_texts(self._counts, self._corpus):
            raise DrtkError(problem)
        warn_if_texts_missing(self._counts, self._corpus)


class AnswerMatch(NamedTuple):
    """Result of searching the passages of a ranking for an answer.

    relevant: id of the first passage with an answer; absent: id of a passage that is missing from the corpus
    counts: numbers of passages read and of passages without text
    """

    query_id: str
    relevant: str | None
    absent: str | None
    counts: dict[str, int]


class AnswerFinder:
    """Worker that finds the first passage with an answer for each question.

    title: search title and text (GAR) instead of only the text (DPR)
    """

    def __init__(self, corpus: str, match: str, title: bool) -> None:  # sent to workers
        self._store, self._match, self._title = CorpusStore.open(corpus), MATCHERS[match], "join" if title else "none"

    def __call__(self, questions: Sequence[Question]) -> list[AnswerMatch]:
        return [self._find_answer(*question) for question in questions]

    def _find_answer(self, query_id: str, answers: tuple[str, ...], ids: Sequence[str]) -> AnswerMatch:
        contains = self._match(answers)
        counts = {PASSAGES: 0, WITHOUT_TEXT: 0}
        for id in ids:
            passage = self._store.get(id)
            if passage is None:
                return AnswerMatch(query_id, None, id, counts)
            text = format_passage(passage, self._title)
            counts[PASSAGES] += 1
            counts[WITHOUT_TEXT] += not text.strip()
            if contains(text):
                return AnswerMatch(query_id, id, None, counts)
        return AnswerMatch(query_id, None, None, counts)


def _locate_passage(source: str, query: str, passage: str) -> str:
    """Return file:line of a passage in a run, or the file name if the run cannot be read again."""
    try:
        for hits in iter_query_hits(source):
            if hits.query_id == query and passage in hits.doc_ids:
                return f"{get_source_name(source)}:{hits.lines[hits.doc_ids.index(passage)]}"
    except (DrtkError, OSError):
        pass
    return get_source_name(source)
