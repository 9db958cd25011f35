"""Candidate expansions without a generator: sentences, titles and frequent words of what a first search found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

from drtk.data.checks import count_texts, iter_known_hits, skip_faulty
from drtk.data.corpus_store import CorpusStore
from drtk.query_expansion.candidates import Gathered
from drtk.query_expansion.config import PASSAGE_KINDS, ExpansionSettings
from drtk.records import Passage, Query
from drtk.runtime.filter_job import Done
from drtk.runtime.inputs import Intake
from drtk.runtime.runners import BatchFunction
from drtk.text.sentences import split_plain_sentences
from drtk.text.words import content_words


@dataclass(frozen=True, slots=True)
class Found:
    """A question, and the passages that a first search found for it, best first."""

    query_id: str
    question: str
    passages: list[Passage]


def found_passages(
    run: str, *, queries: dict[str, Query], corpus: CorpusStore, depth: int, intake: Intake
) -> Iterator[Found]:
    """The questions of a run in its order, with their first `depth` passages.

    Raises RecordError (file:line, and how many more) for ids that queries or corpus lack, unless `intake` forgives them.
    """
    for hits in skip_faulty(
        iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, intake=intake), run, intake
    ):
        passages = [Passage(each.id, each.text, each.title) for each in corpus.many(hits.ranked_ids()[:depth])]
        yield Found(hits.query_id, queries[hits.query_id].text, passages)


class FromPassages(BatchFunction):
    """Expansion records of questions, of one kind or of all kinds, from passages found for them.

    The counts tell of passages without a text, too, but for titles alone, which need none.
    """

    def __init__(self, kind: str | None, settings: ExpansionSettings) -> None:
        self._kinds = PASSAGE_KINDS if kind is None else (kind,)
        self._settings = settings

    def __call__(self, prepared: list[Found]) -> Done:
        """The window's expansions, questions in order, as JSON lines."""
        gathered = Gathered()
        for each in prepared:
            for kind in self._kinds:
                gathered.add(each.query_id, each.question, kind, candidates(each, kind, self._settings))
        done = gathered.done()
        if self._kinds == ("title",):
            return done
        return Done(done.lines, done.counts | count_texts(passage for each in prepared for passage in each.passages))


def candidates(found: Found, kind: str, settings: ExpansionSettings) -> list[str]:
    """At most `settings.candidates` different texts of a kind: sentence, title or terms."""
    makers: dict[str, Callable[[], Iterator[str]]] = {
        "sentence": lambda: sentences(found.question, found.passages),
        "title": lambda: (" ".join(passage.title.split()) for passage in found.passages),
        "terms": lambda: frequent_terms(
            found.question, found.passages, feedback=settings.feedback, size=settings.terms
        ),
    }
    kept: dict[str, None] = {}
    for text in makers[kind]():
        if text:
            kept[text] = None
        if len(kept) == settings.candidates:
            break
    return list(kept)


def sentences(question: str, passages: Sequence[Passage]) -> Iterator[str]:
    """First the best sentence of each passage in their order, then the second of each, and so on.

    The best shares the most different words with the question (function words left out); of equals, the earlier one.
    """
    asked = set(content_words(question))

    @cache  # a passage is parted when it is first looked at: most are never
    def ordered(at: int) -> list[str]:
        parted = split_plain_sentences(passages[at].text)
        return sorted(parted, key=lambda sentence: -len(asked & set(content_words(sentence))))

    for place in count():
        left = False
        for at in range(len(passages)):
            if place < len(ordered(at)):
                left = True
                yield ordered(at)[place]
        if not left:
            return


def frequent_terms(question: str, passages: Sequence[Passage], *, feedback: int, size: int) -> Iterator[str]:
    """First the `size` words that the most of the first `feedback` passages share, then those of each passage by itself.

    Words of the question and function words are left out. Of equals come first those that occur more often, then those that
    occur earlier.
    """
    asked = set(content_words(question))

    def words_of(passage: Passage) -> Counter[str]:
        return Counter(word for word in content_words(f"{passage.title} {passage.text}") if word not in asked)

    holders: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for words in map(words_of, passages[:feedback]):
        holders.update(words.keys())
        total.update(words)
    # sorted() and most_common() keep the order of first occurrence among equals
    yield " ".join(sorted(total, key=lambda word: (-holders[word], -total[word]))[:size])
    for words in map(words_of, passages):
        yield " ".join(word for word, _ in words.most_common(size))
