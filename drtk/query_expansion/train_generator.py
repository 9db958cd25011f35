"""Build training pairs for generators of query expansions (GAR), and train a generator for each fold."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from drtk.data.checks import PASSAGES, WITHOUT_TEXT, describe_missing_texts, iter_known_hits, warn_if_texts_missing
from drtk.data.corpus_store import CorpusStore
from drtk.data.readers import read_queries
from drtk.errors import DrtkError
from drtk.records import Passage, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log, track, warn
from drtk.runtime.streams import get_source_name
from drtk.text.answers import MATCHERS, Contains
from drtk.text.sentences import split_english_sentences
from drtk.training.arguments import plan_schedule
from drtk.training.config import GeneratorConfig
from drtk.training.folds import get_fold_folder
from drtk.training.generator import Scorer, StartModel, load_start_model, train_generator
from drtk.training.text_pairs import TextPair, TextPairs, TextPairSubset, sample_pairs, split_held_out


def capitalize_words(answer: str) -> str:
    """Capitalize the words of an answer that is all upper case; return other answers unchanged.

    >>> capitalize_words("DAVID BECKHAM"), capitalize_words("the BBC")
    ('David Beckham', 'the BBC')
    """
    return string.capwords(answer) if answer.isupper() else answer


def select_answer_target(answers: Sequence[str], *, case: Literal["kept", "initial"]) -> str | None:
    """Return the first nonblank answer on one line; None if there is none.

    case: "initial" applies `capitalize_words`, for TriviaQA
    """
    first = next((text for answer in answers if (text := " ".join(answer.split()))), None)
    return capitalize_words(first) if first and case == "initial" else first


def select_sentence_target(passages: Iterable[Passage], contains: Contains) -> str | None:
    """Return the first sentence with an answer in the first passage with an answer; None if there is no such passage.

    If an answer spans several sentences, return the first of the shortest sequences of sentences that contain it.
    """
    text = next((passage.text for passage in passages if contains(passage.text)), None)
    if text is None:
        return None
    sentences = split_english_sentences(text)
    for length in range(1, len(sentences)):
        for start in range(len(sentences) - length + 1):
            sequence = " ".join(sentences[start : start + length])
            if contains(sequence):
                return sequence
    return " ".join(text.split())


def build_title_target(
    passages: Iterable[Passage],
    contains: Contains,
    *,
    mode: Literal["all", "first"],
    separator: str,
    match_title: bool = False,
) -> str | None:
    """Return the distinct titles of passages with an answer, joined in rank order; None if there is no such passage.

    mode: "all" titles, or only the "first"
    match_title: also match answers in titles, as in GAR's scripts
    """
    titles: dict[str, None] = {}
    for passage in passages:
        title = " ".join(passage.title.split())
        if title and contains(f"{title} {passage.text}" if match_title else passage.text):
            titles[title] = None
    return separator.join(list(titles)[:1] if mode == "first" else titles) or None


Format = Callable[[str], str]  # formats a question as model input


@dataclass
class QuestionPairs:
    """Sequence of training pairs of questions and targets.

    all_questions: all questions, with and without a target
    dropped: number of questions without a target, by reason
    """

    all_questions: list[Query]
    questions: list[Query] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    format: Format = str
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> TextPair:
        return TextPair(self.format(self.questions[index].text), self.targets[index])

    def get_group_key(self, index: int) -> str:
        """Return the id of the question."""
        return self.questions[index].id


def build_question_pairs(
    source: str,
    *,
    run: str | None,
    corpus: str | None,
    settings: GeneratorConfig,
    format: Format,
    tracker: InputTracker,
) -> QuestionPairs:
    """Build the training pairs of the questions in a file.

    run, corpus: required by tasks gar-sentence and gar-title, which search the hits of each question for answers
    Raises DrtkError if no question has an answer or a target, or no passage has text, RecordError (file:line) for unknown
    ids in the run.
    """
    pairs = QuestionPairs(list(read_queries(source, tracker=tracker)), format=format)
    answerable = [
        query for query in pairs.all_questions if query.text.strip() and any(map(str.strip, query.answers or ()))
    ]
    pairs.dropped["without answers"] = len(pairs.all_questions) - len(answerable)
    if not answerable:
        raise DrtkError(f"{get_source_name(source)}: no question has an answer; check the field with the answers")
    if settings.task == "gar-answer":
        targets = {
            query.id: select_answer_target(query.answers or (), case=settings.answer_case) for query in answerable
        }
    else:
        assert run is not None
        assert corpus is not None
        text_counts: Counter[str] = Counter()
        targets = dict(_iter_targets(answerable, pairs.all_questions, run, corpus, settings, tracker, text_counts))
        if problem := describe_missing_texts(text_counts, corpus):
            raise DrtkError(problem)
        warn_if_texts_missing(text_counts, corpus)
    for query in answerable:
        if target := targets.get(query.id):
            pairs.questions.append(query)
            pairs.targets.append(target)
    pairs.dropped["without answer-bearing passage"] = len(answerable) - len(pairs)
    if not len(pairs):
        raise DrtkError(
            f"{get_source_name(source)}: no question has an answer in its hits in {run}; check `match` and `depth`"
        )
    return pairs


def _iter_targets(
    answerable: Sequence[Query],
    all_questions: Sequence[Query],
    run: str,
    corpus: str,
    settings: GeneratorConfig,
    tracker: InputTracker,
    text_counts: Counter[str],
) -> Iterator[tuple[str, str | None]]:
    """Yield (query id, target) for the queries of a run; the target is None if no hit contains an answer."""
    answers: Mapping[str, Sequence[str]] = {query.id: query.answers or () for query in answerable}
    store = CorpusStore.open(corpus)
    query_ids = {query.id for query in all_questions}
    runs = iter_known_hits(run, queries=query_ids, corpus=store, depth=settings.depth, tracker=tracker)
    num_invalid = 0
    for hits in track(runs, "targets", total=len(all_questions), unit="questions"):
        if hits.query_id not in answers:
            continue
        contains = MATCHERS[settings.match](answers[hits.query_id])
        num_invalid += len(getattr(contains, "invalid", ()))
        if contains:
            passages = _iter_counted_passages(
                map(store.__getitem__, hits.to_ranked_ids()[: settings.depth]), text_counts, settings
            )
            if settings.task == "gar-sentence":
                yield hits.query_id, select_sentence_target(passages, contains)
            else:
                options: dict[str, Any] = {"mode": settings.title_mode, "separator": settings.separator}
                yield hits.query_id, build_title_target(passages, contains, **options, match_title=settings.match_title)
    if num_invalid:
        warn(f"{num_invalid:,} answers are not valid regular expressions and match nothing")


def _iter_counted_passages(
    passages: Iterator[Passage], text_counts: Counter[str], settings: GeneratorConfig
) -> Iterator[Passage]:
    """Yield the passages; count them, and those without text (without text and title, if titles are matched), in `text_counts`."""
    reads_titles = settings.task == "gar-title" and settings.match_title
    for passage in passages:
        text_counts[PASSAGES] += 1
        text_counts[WITHOUT_TEXT] += not (passage.text.strip() or (reads_titles and passage.title.strip()))
        yield passage


# Called with the folder of a trained generator, its start model, and facts about the training.
Finish = Callable[[Path, StartModel, Mapping[str, Any]], None]


def exclude_fold(pairs: TextPairs, folds: Mapping[str, int], fold: int) -> TextPairSubset:
    """Return the pairs of all folds except `fold`, the training data of the generator of this fold."""
    return TextPairSubset(pairs, (number for number in range(len(pairs)) if folds[pairs.get_group_key(number)] != fold))


def split_pairs(pairs: TextPairs, dev: TextPairs | None, settings: GeneratorConfig) -> tuple[TextPairs, list[TextPair]]:
    """Return the pairs for training and for evaluation.

    Up to `dev_limit` pairs for evaluation are sampled from a held-out `dev_share` of `pairs`, else from `dev`, if any.
    """
    if settings.dev_share is None:
        return pairs, [] if dev is None else sample_pairs(dev, settings.dev_limit)
    train_pairs, held_out = split_held_out(pairs, settings.dev_share)
    return train_pairs, sample_pairs(held_out, settings.dev_limit)


def check_folds(pairs: TextPairs, folds: Mapping[str, int], dev: TextPairs | None, settings: GeneratorConfig) -> None:
    """Raise DrtkError if a fold leaves too few pairs for a batch, or none for evaluation."""
    for fold in range(settings.folds or 0):
        train_pairs, dev_pairs = split_pairs(exclude_fold(pairs, folds, fold), dev, settings)
        plan_schedule(len(train_pairs), settings, unit="pairs")
        if settings.dev_share is not None and not dev_pairs:
            raise DrtkError(
                f"fold {fold}: no questions remain for evaluation with `dev_share={settings.dev_share}`; increase `dev_share`"
            )


def train_folds(
    pairs: TextPairs,
    folder: Path,
    *,
    model: str,
    folds: Mapping[str, int],
    settings: GeneratorConfig,
    dev: TextPairs | None = None,
    score: Scorer | None = None,
    seed: int = 42,
    device: str = "auto",
    done: Collection[int] = (),
    finish: Finish,
) -> None:
    """Train a generator for each fold, on the pairs of all other folds, and write it into a subfolder of `folder`.

    folds: fold of each question, by question id
    dev: pairs to evaluate every generator with, unless `dev_share` holds out a share of each generator's training pairs
    score: function that computes metrics of generated texts in evaluations
    done: folds that an earlier run finished
    finish: function that is called after the training of each fold
    """
    for fold in range(settings.folds or 0):
        if fold in done:
            continue
        train_pairs, dev_pairs = split_pairs(exclude_fold(pairs, folds, fold), dev, settings)
        log(f"fold {fold}: training on {len(train_pairs):,} of {len(pairs):,} questions")
        start = load_start_model(model, settings)
        target = get_fold_folder(folder, fold)
        target.mkdir(exist_ok=True)
        facts = train_generator(
            train_pairs, target, start=start, config=settings, dev=dev_pairs, score=score, seed=seed, device=device
        )
        finish(target, start, facts | {"pairs": len(train_pairs), "dev pairs": len(dev_pairs), "fold": fold})
