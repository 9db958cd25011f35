"""Build training pairs for GAR generators and train one generator per fold."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from drtk.data.checks import PASSAGES, TEXTLESS, describe_textless, iter_known_hits, skip_faulty, warn_of_textless
from drtk.data.corpus_store import CorpusStore
from drtk.data.jsonl import read_queries
from drtk.errors import DrtkError
from drtk.records import Passage, Query
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import log, track, warn
from drtk.runtime.streams import name_of
from drtk.text.answers import MATCHES, Contains
from drtk.text.sentences import split_plain_sentences
from drtk.training.arguments import plan_schedule
from drtk.training.config import GeneratorConfig
from drtk.training.folds import fold_folder
from drtk.training.generator import Score, Start, start_from, train_generator
from drtk.training.text_pairs import Pair, Pairs, Subset, sample_pairs, split_held_out


def initial_capitals(answer: str) -> str:
    """An answer in capitals alone with each word's first letter as a capital; any other answer as it is.

    >>> initial_capitals("DAVID BECKHAM"), initial_capitals("the BBC")
    ('David Beckham', 'the BBC')
    """
    return string.capwords(answer) if answer.isupper() else answer


def answer_target(answers: Sequence[str], *, case: Literal["kept", "initial"]) -> str | None:
    """The first answer that is not blank, on one line; None where there is none.

    case: initial: one in capitals alone (TriviaQA) with initial capitals
    """
    found = next((text for answer in answers if (text := " ".join(answer.split()))), None)
    return initial_capitals(found) if found and case == "initial" else found


def sentence_target(passages: Iterable[Passage], contains: Contains) -> str | None:
    """The sentence with an answer, of the first passage whose text has one; None where no passage has.

    An answer that goes over the end of a sentence is in the fewest sentences that hold it, the first ones of equals.
    """
    passage = next((passage for passage in passages if contains(passage.text)), None)
    return None if passage is None else _around_answer(passage.text, contains)


def _around_answer(text: str, contains: Contains) -> str:
    sentences = split_plain_sentences(text)
    for size in range(1, len(sentences)):
        for begin in range(len(sentences) - size + 1):
            stretch = " ".join(sentences[begin : begin + size])
            if contains(stretch):
                return stretch
    return " ".join(text.split())


def title_target(
    passages: Iterable[Passage],
    contains: Contains,
    *,
    mode: Literal["all", "first"],
    separator: str,
    match_title: bool = False,
) -> str | None:
    """Titles of answer-bearing passages in their order, each once, joined; or the first alone. None where there is none.

    match_title: an answer may stand in the title (GAR's scripts), and not in the text alone (methods, section 8.5)
    """
    titles = dict.fromkeys(_titles_with_answer(passages, contains, match_title=match_title))
    if mode == "first":
        return next(iter(titles), None)
    return separator.join(titles) or None


def _titles_with_answer(passages: Iterable[Passage], contains: Contains, *, match_title: bool) -> Iterator[str]:
    for passage in passages:
        title = " ".join(passage.title.split())
        if title and contains(f"{title} {passage.text}" if match_title else passage.text):
            yield title


Asked = Callable[[str], str]  # how a question is put before the model


@dataclass
class QuestionPairs:
    """Questions and their targets by number (drtk.training.text_pairs.Pairs), and all that were read, with or without target.

    dropped: why questions have no pair, and how many
    """

    read: list[Query]
    questions: list[Query] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    asked: Asked = str
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> Pair:
        return Pair(self.asked(self.questions[number].text), self.targets[number])

    def key(self, number: int) -> str:
        """The id of the question."""
        return self.questions[number].id


def question_pairs(
    source: str, *, run: str | None, corpus: str | None, settings: GeneratorConfig, asked: Asked, intake: Intake
) -> QuestionPairs:
    """The questions of a file that have a target, in its order.

    run, corpus: for the sentence and title tasks, which look for answers in the passages of each question in the run
    Raises DrtkError where no question has an answer, none of them a target, or no passage a text; RecordError (file:line, and how many more)
    for a question of the run that is not among these, and a passage that the corpus lacks.
    """
    pairs = QuestionPairs(list(read_queries(source, intake=intake)), asked=asked)
    known = [query for query in pairs.read if query.text.strip() and any(map(str.strip, query.answers or ()))]
    pairs.dropped["without answers"] = len(pairs.read) - len(known)
    if not known:
        raise DrtkError(f"{name_of(source)}: no question has an answer")
    if settings.task == "gar-answer":
        found = {query.id: answer_target(query.answers or (), case=settings.answer_case) for query in known}
    else:
        assert run is not None
        assert corpus is not None
        looked: Counter[str] = Counter()
        found = dict(_found_targets(known, pairs.read, run, corpus, settings, intake, looked))
        if fault := describe_textless(looked, corpus):
            raise DrtkError(fault)
        warn_of_textless(looked, corpus)
    for query in known:
        if target := found.get(query.id):
            pairs.questions.append(query)
            pairs.targets.append(target)
    pairs.dropped["without answer-bearing passage"] = len(known) - len(pairs)
    if not len(pairs):
        raise DrtkError(f"{name_of(source)}: no question has a passage with its answer among its hits in {run}")
    return pairs


def _found_targets(
    known: Sequence[Query],
    read: Sequence[Query],
    run: str,
    corpus: str,
    settings: GeneratorConfig,
    intake: Intake,
    looked: Counter[str],
) -> Iterator[tuple[str, str | None]]:
    answers: Mapping[str, Sequence[str]] = {query.id: query.answers or () for query in known}
    store = CorpusStore.open(corpus)
    hits = iter_known_hits(run, queries={query.id for query in read}, corpus=store, depth=settings.depth, intake=intake)
    invalid = 0
    for each in track(skip_faulty(hits, run, intake), "targets", total=len(read), unit="questions"):
        if each.query_id not in answers:
            continue
        contains = MATCHES[settings.match](answers[each.query_id])
        invalid += len(getattr(contains, "invalid", ()))
        if contains:
            passages = map(store.__getitem__, each.ranked_ids()[: settings.depth])
            yield each.query_id, _target(_counted(passages, looked, settings), contains, settings)
    if invalid:
        warn(f"{invalid:,} answers are no regular expressions and match nothing")


def _counted(passages: Iterator[Passage], looked: Counter[str], settings: GeneratorConfig) -> Iterator[Passage]:
    """The passages, counted as they are looked into, and those without a text (or title, where an answer may stand there)."""
    with_titles = settings.task == "gar-title" and settings.match_title
    for passage in passages:
        looked[PASSAGES] += 1
        looked[TEXTLESS] += not (passage.text.strip() or (with_titles and passage.title.strip()))
        yield passage


def _target(passages: Iterator[Passage], contains: Callable[[str], bool], settings: GeneratorConfig) -> str | None:
    if settings.task == "gar-sentence":
        return sentence_target(passages, contains)
    return title_target(
        passages,
        contains,
        mode=settings.title_mode,
        separator=settings.separator,
        match_title=settings.match_title,
    )


Finish = Callable[[Path, Start, Mapping[str, Any]], None]  # folder of a generator, what it is, facts of its training


def pairs_without(pairs: Pairs, folds: Mapping[str, int], fold: int) -> Subset:
    """The pairs that the generator of a fold is trained with: those of all other folds."""
    return Subset(pairs, (number for number in range(len(pairs)) if folds[pairs.key(number)] != fold))


def to_train_and_measure(pairs: Pairs, dev: Pairs | None, settings: GeneratorConfig) -> tuple[Pairs, list[Pair]]:
    """(pairs to train with, pairs to measure with): a share of the former is held out for the latter where there is no `dev`."""
    if settings.dev_share is None:
        return pairs, [] if dev is None else sample_pairs(dev, settings.dev_limit)
    trained, held = split_held_out(pairs, settings.dev_share)
    return trained, sample_pairs(held, settings.dev_limit)


def check_folds(pairs: Pairs, folds: Mapping[str, int], dev: Pairs | None, settings: GeneratorConfig) -> None:
    """Raises DrtkError where the pairs of some generator fill no batch, or leave none to measure with."""
    for fold in range(settings.folds or 0):
        trained, measured = to_train_and_measure(pairs_without(pairs, folds, fold), dev, settings)
        plan_schedule(len(trained), settings, what="pairs")
        if settings.dev_share is not None and not measured:
            raise DrtkError(
                f"without fold {fold}, --dev-share {settings.dev_share} leaves no questions to measure with"
            )


def train_folds(
    pairs: Pairs,
    folder: Path,
    *,
    model: str,
    folds: Mapping[str, int],
    settings: GeneratorConfig,
    dev: Pairs | None = None,
    score: Score | None = None,
    seed: int = 42,
    device: str = "auto",
    done: Collection[int] = (),
    finish: Finish,
) -> list[dict[str, Any]]:
    """Train a generator for each fold into a folder of its own below `folder`; facts of those that were trained now.

    folds: of each question by its id. done: folds that an earlier run has finished
    dev: pairs to measure all of them with; otherwise each measures with a share of its own, never with its fold
    """
    facts = []
    for fold in range(settings.folds or 0):
        if fold in done:
            continue
        mine, measured = to_train_and_measure(pairs_without(pairs, folds, fold), dev, settings)
        log(f"fold {fold}: trained with {len(mine):,} of {len(pairs):,} questions")
        start = start_from(model, settings)
        target = fold_folder(folder, fold)
        target.mkdir(exist_ok=True)
        found = train_generator(
            mine, target, start=start, config=settings, dev=measured, score=score, seed=seed, device=device
        )
        found |= {"pairs": len(mine), "dev pairs": len(measured), "fold": fold}
        finish(target, start, found)
        facts.append(found)
    return facts
