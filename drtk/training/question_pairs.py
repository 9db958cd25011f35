"""Questions with what a GAR generator shall write for them, out of questions, a run and a corpus (methods, section 7.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from drtk.errors import DrtkError
from drtk.io.intake import Intake
from drtk.io.jsonl import read_queries
from drtk.io.known_hits import forgiven, known_hits
from drtk.io.progress import track, warn
from drtk.io.store import CorpusStore
from drtk.io.streams import name_of
from drtk.io.textless import PASSAGES, TEXTLESS, all_textless, warn_of_textless
from drtk.records import Passage, Query
from drtk.settings.writing import GeneratorSettings
from drtk.text.answer_targets import answer_target, sentence_target, title_target
from drtk.text.answers import MATCHES
from drtk.training.pairs import Pair

Asked = Callable[[str], str]  # how a question is put before the model


@dataclass
class QuestionPairs:
    """Questions and their targets by number (drtk.training.pairs.Pairs), and all that were read, with or without target.

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
    source: str, *, run: str | None, corpus: str | None, settings: GeneratorSettings, asked: Asked, intake: Intake
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
        if fault := all_textless(looked, corpus):
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
    settings: GeneratorSettings,
    intake: Intake,
    looked: Counter[str],
) -> Iterator[tuple[str, str | None]]:
    answers: Mapping[str, Sequence[str]] = {query.id: query.answers or () for query in known}
    store = CorpusStore.open(corpus)
    hits = known_hits(run, queries={query.id for query in read}, corpus=store, depth=settings.depth, intake=intake)
    invalid = 0
    for each in track(forgiven(hits, run, intake), "targets", total=len(read), unit="questions"):
        if each.query_id not in answers:
            continue
        contains = MATCHES[settings.match](answers[each.query_id])
        invalid += len(getattr(contains, "invalid", ()))
        if contains:
            passages = map(store.__getitem__, each.ranked_ids()[: settings.depth])
            yield each.query_id, _target(_counted(passages, looked, settings), contains, settings)
    if invalid:
        warn(f"{invalid:,} answers are no regular expressions and match nothing")


def _counted(passages: Iterator[Passage], looked: Counter[str], settings: GeneratorSettings) -> Iterator[Passage]:
    """The passages, counted as they are looked into, and those without a text (or title, where an answer may stand there)."""
    with_titles = settings.task == "gar-title" and settings.match_title
    for passage in passages:
        looked[PASSAGES] += 1
        looked[TEXTLESS] += not (passage.text.strip() or (with_titles and passage.title.strip()))
        yield passage


def _target(passages: Iterator[Passage], contains: Callable[[str], bool], settings: GeneratorSettings) -> str | None:
    if settings.task == "gar-sentence":
        return sentence_target(passages, contains)
    return title_target(
        passages,
        contains,
        mode=settings.title_mode,
        separator=settings.separator,
        match_title=settings.match_title,
    )
