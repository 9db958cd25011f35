"""Build training pairs for GAR generators and train one generator per fold."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from drtk.data.checks import (
    PASSAGES,
    WITHOUT_TEXT,
    describe_missing_texts,
    iter_known_hits,
    skip_unknown_ids,
    warn_of_missing_texts,
)
from drtk.data.corpus_store import CorpusStore
from drtk.data.jsonl import read_queries
from drtk.errors import DrtkError
from drtk.records import Passage, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log, track, warn
from drtk.runtime.streams import name_of
from drtk.text.answers import MATCHERS, Contains
from drtk.text.sentences import split_plain_sentences
from drtk.training.arguments import plan_schedule
from drtk.training.config import GeneratorConfig
from drtk.training.folds import get_fold_folder
from drtk.training.generator import Score, StartModel, load_start_model, train_generator
from drtk.training.text_pairs import Subset, TextPair, TextPairs, sample_pairs, split_held_out


def capitalize_words(answer: str) -> str:
    """Return an answer in capitals only with initial capitals; any other answer unchanged.

    >>> capitalize_words("DAVID BECKHAM"), capitalize_words("the BBC")
    ('David Beckham', 'the BBC')
    """
    return string.capwords(answer) if answer.isupper() else answer


def select_answer_target(answers: Sequence[str], *, case: Literal["kept", "initial"]) -> str | None:
    """Return the first answer that is not blank, on one line. case: initial: see `capitalize_words` (TriviaQA)"""
    first = next((text for answer in answers if (text := " ".join(answer.split()))), None)
    return capitalize_words(first) if first and case == "initial" else first


def select_sentence_target(passages: Iterable[Passage], contains: Contains) -> str | None:
    """Return the sentence with an answer in the first passage whose text has one.

    An answer across sentences gives the shortest stretch of sentences that contains it, the first of equal ones.
    """
    text = next((passage.text for passage in passages if contains(passage.text)), None)
    if text is None:
        return None
    sentences = split_plain_sentences(text)
    for size in range(1, len(sentences)):
        for begin in range(len(sentences) - size + 1):
            stretch = " ".join(sentences[begin : begin + size])
            if contains(stretch):
                return stretch
    return " ".join(text.split())


def build_title_target(
    passages: Iterable[Passage],
    contains: Contains,
    *,
    mode: Literal["all", "first"],
    separator: str,
    match_title: bool = False,
) -> str | None:
    """Return the distinct titles of answer-bearing passages in their order, joined; or the first only.

    match_title: an answer may be in the title (GAR's scripts), not only in the text (docs/methods/evaluation.md)
    """
    titles: dict[str, None] = {}
    for passage in passages:
        title = " ".join(passage.title.split())
        if title and contains(f"{title} {passage.text}" if match_title else passage.text):
            titles[title] = None
    return separator.join(list(titles)[:1] if mode == "first" else titles) or None


Format = Callable[[str], str]  # returns the model's input for a question


@dataclass
class QuestionPairs:
    """Questions with a target, by number (drtk.training.text_pairs.TextPairs); `read`: all questions.

    dropped: the number of questions without a target, by reason
    """

    read: list[Query]
    questions: list[Query] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    format: Format = str
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> TextPair:
        return TextPair(self.format(self.questions[number].text), self.targets[number])

    def key(self, number: int) -> str:
        """Return the id of the question."""
        return self.questions[number].id


def build_question_pairs(
    source: str,
    *,
    run: str | None,
    corpus: str | None,
    settings: GeneratorConfig,
    format: Format,
    tracker: InputTracker,
) -> QuestionPairs:
    """Return the questions of a file that have a target, in its order.

    run, corpus: for the sentence and title tasks, which search the passages of each question in the run for answers
    Raises DrtkError if no question has an answer or a target, or no passage a text; RecordError (file:line, and how many
    more) for a question of the run that is not in the file, and a passage that the corpus lacks.
    """
    pairs = QuestionPairs(list(read_queries(source, tracker=tracker)), format=format)
    known = [query for query in pairs.read if query.text.strip() and any(map(str.strip, query.answers or ()))]
    pairs.dropped["without answers"] = len(pairs.read) - len(known)
    if not known:
        raise DrtkError(f"{name_of(source)}: no question has an answer")
    if settings.task == "gar-answer":
        targets = {query.id: select_answer_target(query.answers or (), case=settings.answer_case) for query in known}
    else:
        assert run is not None
        assert corpus is not None
        looked: Counter[str] = Counter()
        targets = dict(_iter_targets(known, pairs.read, run, corpus, settings, tracker, looked))
        if fault := describe_missing_texts(looked, corpus):
            raise DrtkError(fault)
        warn_of_missing_texts(looked, corpus)
    for query in known:
        if target := targets.get(query.id):
            pairs.questions.append(query)
            pairs.targets.append(target)
    pairs.dropped["without answer-bearing passage"] = len(known) - len(pairs)
    if not len(pairs):
        raise DrtkError(f"{name_of(source)}: no question has a passage with its answer among its hits in {run}")
    return pairs


def _iter_targets(
    known: Sequence[Query],
    read: Sequence[Query],
    run: str,
    corpus: str,
    settings: GeneratorConfig,
    tracker: InputTracker,
    looked: Counter[str],
) -> Iterator[tuple[str, str | None]]:
    answers: Mapping[str, Sequence[str]] = {query.id: query.answers or () for query in known}
    store = CorpusStore.open(corpus)
    hits = iter_known_hits(
        run, queries={query.id for query in read}, corpus=store, depth=settings.depth, tracker=tracker
    )
    invalid = 0
    for each in track(skip_unknown_ids(hits, run, tracker), "targets", total=len(read), unit="questions"):
        if each.query_id not in answers:
            continue
        contains = MATCHERS[settings.match](answers[each.query_id])
        invalid += len(getattr(contains, "invalid", ()))
        if contains:
            passages = _count(map(store.__getitem__, each.to_ranked_ids()[: settings.depth]), looked, settings)
            if settings.task == "gar-sentence":
                yield each.query_id, select_sentence_target(passages, contains)
            else:
                how: dict[str, Any] = {"mode": settings.title_mode, "separator": settings.separator}
                yield each.query_id, build_title_target(passages, contains, **how, match_title=settings.match_title)
    if invalid:
        warn(f"{invalid:,} answers are no regular expressions and match nothing")


def _count(passages: Iterator[Passage], looked: Counter[str], settings: GeneratorConfig) -> Iterator[Passage]:
    """Yield the passages; count them, and those without a text (or a title that is searched too)."""
    with_titles = settings.task == "gar-title" and settings.match_title
    for passage in passages:
        looked[PASSAGES] += 1
        looked[WITHOUT_TEXT] += not (passage.text.strip() or (with_titles and passage.title.strip()))
        yield passage


Finish = Callable[
    [Path, StartModel, Mapping[str, Any]], None
]  # folder of a generator, its start, facts of its training


def exclude_fold(pairs: TextPairs, folds: Mapping[str, int], fold: int) -> Subset:
    """Return the pairs to train the generator of a fold on: those of all other folds."""
    return Subset(pairs, (number for number in range(len(pairs)) if folds[pairs.key(number)] != fold))


def split_pairs(pairs: TextPairs, dev: TextPairs | None, settings: GeneratorConfig) -> tuple[TextPairs, list[TextPair]]:
    """Return the pairs to train on and to evaluate with: those of `dev`, or a held-out share of `pairs`."""
    if settings.dev_share is None:
        return pairs, [] if dev is None else sample_pairs(dev, settings.dev_limit)
    trained, held = split_held_out(pairs, settings.dev_share)
    return trained, sample_pairs(held, settings.dev_limit)


def check_folds(pairs: TextPairs, folds: Mapping[str, int], dev: TextPairs | None, settings: GeneratorConfig) -> None:
    """Raise DrtkError if the pairs of a generator fill no batch, or leave none to evaluate with."""
    for fold in range(settings.folds or 0):
        trained, measured = split_pairs(exclude_fold(pairs, folds, fold), dev, settings)
        plan_schedule(len(trained), settings, what="pairs")
        if settings.dev_share is not None and not measured:
            raise DrtkError(
                f"without fold {fold}, `dev_share` {settings.dev_share} leaves no questions to evaluate with"
            )


def train_folds(
    pairs: TextPairs,
    folder: Path,
    *,
    model: str,
    folds: Mapping[str, int],
    settings: GeneratorConfig,
    dev: TextPairs | None = None,
    score: Score | None = None,
    seed: int = 42,
    device: str = "auto",
    done: Collection[int] = (),
    finish: Finish,
) -> None:
    """Train a generator for each fold into a subfolder of `folder`, and pass its facts to `finish`.

    folds: by the id of the question; done: folds that an earlier run finished
    dev: pairs to evaluate all of them with; otherwise each uses a share of its own, never its fold
    """
    for fold in range(settings.folds or 0):
        if fold in done:
            continue
        mine, measured = split_pairs(exclude_fold(pairs, folds, fold), dev, settings)
        log(f"fold {fold}: training on {len(mine):,} of {len(pairs):,} questions")
        start = load_start_model(model, settings)
        target = get_fold_folder(folder, fold)
        target.mkdir(exist_ok=True)
        facts = train_generator(
            mine, target, start=start, config=settings, dev=measured, score=score, seed=seed, device=device
        )
        finish(target, start, facts | {"pairs": len(mine), "dev pairs": len(measured), "fold": fold})
