"""Candidate expansions without a generator: sentences, titles and frequent words of retrieved passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

from drtk.data.checks import count_texts, iter_known_hits, skip_unknown_ids
from drtk.data.corpus_store import CorpusStore
from drtk.query_expansion.candidates import CandidateWriter
from drtk.query_expansion.config import PASSAGE_KINDS, ExpansionSettings
from drtk.records import Passage, Query
from drtk.runtime.filter_job import WindowResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.runners import BatchFunction
from drtk.text.sentences import split_plain_sentences
from drtk.text.words import extract_content_words


@dataclass(frozen=True, slots=True)
class QuestionPassages:
    """A question and its retrieved passages, best first."""

    query_id: str
    question: str
    passages: list[Passage]


def iter_question_passages(
    run: str, *, queries: dict[str, Query], corpus: CorpusStore, depth: int, tracker: InputTracker
) -> Iterator[QuestionPassages]:
    """Yield the questions of a run in its order, with their first `depth` passages.

    Raises RecordError (file:line, and how many more) for ids that queries or corpus lack, unless `tracker` skips them.
    """
    known = iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, tracker=tracker)
    for hits in skip_unknown_ids(known, run, tracker):
        passages = [Passage(each.id, each.text, each.title) for each in corpus.get_many(hits.to_ranked_ids()[:depth])]
        yield QuestionPassages(hits.query_id, queries[hits.query_id].text, passages)


class PassageBasedExpander(BatchFunction):
    """Make expansions of questions, of one kind or of all, from their passages.

    The counts include passages without a text, except for titles alone, which need none.
    """

    def __init__(self, kind: str | None, settings: ExpansionSettings) -> None:
        self._kinds = PASSAGE_KINDS if kind is None else (kind,)
        self._settings = settings

    def __call__(self, prepared: list[QuestionPassages]) -> WindowResult:
        """Return the expansions, questions in order, as JSON lines."""
        candidates = CandidateWriter()
        for each in prepared:
            for kind in self._kinds:
                candidates.add(each.query_id, each.question, kind, make_candidates(each, kind, self._settings))
        done = candidates.done()
        if self._kinds == ("title",):
            return done
        return WindowResult(
            done.lines, done.counts | count_texts(passage for each in prepared for passage in each.passages)
        )


def make_candidates(each: QuestionPassages, kind: str, settings: ExpansionSettings) -> list[str]:
    """Return at most `settings.candidates` distinct texts of a kind: sentence, title or terms."""
    texts: Iterator[str]
    if kind == "sentence":
        texts = iter_sentences(each.question, each.passages)
    elif kind == "title":
        texts = (" ".join(passage.title.split()) for passage in each.passages)
    else:
        texts = iter_terms(each.question, each.passages, feedback=settings.feedback, size=settings.terms)
    kept: dict[str, None] = {}
    for text in texts:
        if text:
            kept[text] = None
        if len(kept) == settings.candidates:
            break
    return list(kept)


def iter_sentences(question: str, passages: Sequence[Passage]) -> Iterator[str]:
    """Yield the best sentence of each passage in their order, then the second of each, and so on.

    The best shares the most distinct words with the question, without function words; of equal ones the earlier.
    """
    asked = set(extract_content_words(question))

    @cache  # most passages are never split
    def rank_sentences(at: int) -> list[str]:
        return sorted(
            split_plain_sentences(passages[at].text),
            key=lambda sentence: -len(asked & set(extract_content_words(sentence))),
        )

    for place in count():
        left = False
        for at in range(len(passages)):
            if place < len(rank_sentences(at)):
                left = True
                yield rank_sentences(at)[place]
        if not left:
            return


def iter_terms(question: str, passages: Sequence[Passage], *, feedback: int, size: int) -> Iterator[str]:
    """Yield the `size` words that most of the first `feedback` passages share, then the most frequent of each passage.

    Words of the question and function words are excluded. Of equal ones the more frequent come first, then the earlier.
    """
    asked = set(extract_content_words(question))

    def words_of(passage: Passage) -> Counter[str]:
        return Counter(word for word in extract_content_words(f"{passage.title} {passage.text}") if word not in asked)

    holders: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for words in map(words_of, passages[:feedback]):
        holders.update(words.keys())
        total.update(words)
    # sorted() and most_common() keep the order of first occurrence among equals
    yield " ".join(sorted(total, key=lambda word: (-holders[word], -total[word]))[:size])
    for words in map(words_of, passages):
        yield " ".join(word for word, _ in words.most_common(size))
