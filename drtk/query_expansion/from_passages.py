"""Expand queries without a generator: with sentences, titles or frequent words of retrieved passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

from drtk.data.checks import count_texts, iter_known_hits
from drtk.data.corpus_store import CorpusStore
from drtk.query_expansion.candidates import CandidateFormatter
from drtk.query_expansion.config import EXTRACTED_KINDS, ExpansionSettings
from drtk.records import Passage, Query
from drtk.runtime.filter_job import BatchResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.runners import BatchFunction
from drtk.text.sentences import split_english_sentences
from drtk.text.words import extract_content_words


@dataclass(frozen=True, slots=True)
class QuestionPassages:
    """A question and its retrieved passages, in rank order."""

    query_id: str
    question: str
    passages: list[Passage]


def iter_question_passages(
    run: str, *, queries: dict[str, Query], corpus: CorpusStore, depth: int, tracker: InputTracker
) -> Iterator[QuestionPassages]:
    """Yield the questions of a run with their top `depth` passages.

    Raises RecordError (file:line) for unknown ids, unless `tracker` skips them.
    """
    for hits in iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, tracker=tracker):
        hit_passages = corpus.get_many(hits.to_ranked_ids()[:depth])
        passages = [Passage(passage.id, passage.text, passage.title) for passage in hit_passages]
        yield QuestionPassages(hits.query_id, queries[hits.query_id].text, passages)


class PassageBasedExpander(BatchFunction):
    """Batch function that makes candidate expansions of questions from their passages.

    kind: "sentence", "title" or "terms"; None makes all three kinds
    """

    def __init__(self, kind: str | None, settings: ExpansionSettings) -> None:
        self._kinds = EXTRACTED_KINDS if kind is None else (kind,)
        self._settings = settings

    def __call__(self, batch: list[QuestionPassages]) -> BatchResult:
        """Return the candidates as JSON lines, and counts; passages without text are counted unless only titles are used."""
        candidates = CandidateFormatter()
        for question in batch:
            for kind in self._kinds:
                texts = make_candidates(question, kind, self._settings)
                candidates.add(question.query_id, question.question, kind, texts)
        result = candidates.build_result()
        if self._kinds == ("title",):
            return result
        text_counts = count_texts(passage.text for question in batch for passage in question.passages)
        return BatchResult(result.lines, result.counts | text_counts)


def make_candidates(record: QuestionPassages, kind: str, settings: ExpansionSettings) -> list[str]:
    """Return at most `settings.candidates` distinct texts of a kind: sentence, title or terms."""
    texts: Iterator[str]
    if kind == "sentence":
        texts = iter_sentences(record.question, record.passages)
    elif kind == "title":
        texts = (" ".join(passage.title.split()) for passage in record.passages)
    else:
        texts = iter_term_strings(record.question, record.passages, feedback=settings.feedback, size=settings.terms)
    distinct: dict[str, None] = {}
    for text in texts:
        if text:
            distinct[text] = None
        if len(distinct) == settings.candidates:
            break
    return list(distinct)


def iter_sentences(question: str, passages: Sequence[Passage]) -> Iterator[str]:
    """Yield the best sentence of each passage in rank order, then the second-best sentences, and so on.

    Sentences are ranked by the number of distinct content words shared with the question; ties keep the text order.
    """
    question_words = set(extract_content_words(question))

    @cache  # evaluated lazily, because most passages are not used
    def rank_sentences(index: int) -> list[str]:
        return sorted(
            split_english_sentences(passages[index].text),
            key=lambda sentence: -len(question_words & set(extract_content_words(sentence))),
        )

    for rank in count():
        has_more = False
        for index in range(len(passages)):
            if rank < len(rank_sentences(index)):
                has_more = True
                yield rank_sentences(index)[rank]
        if not has_more:
            return


def iter_term_strings(question: str, passages: Sequence[Passage], *, feedback: int, size: int) -> Iterator[str]:
    """Yield strings of up to `size` terms: the best of the top `feedback` passages, then the most frequent of each.

    The best terms are ranked by the number of passages that contain them, then by frequency; ties keep the order of first
    occurrence. Words of the question and stop words are excluded.
    """
    question_words = set(extract_content_words(question))

    def count_words(passage: Passage) -> Counter[str]:
        words = extract_content_words(f"{passage.title} {passage.text}")
        return Counter(word for word in words if word not in question_words)

    document_frequencies: Counter[str] = Counter()
    frequencies: Counter[str] = Counter()
    for words in map(count_words, passages[:feedback]):
        document_frequencies.update(words.keys())
        frequencies.update(words)
    # sorted() and most_common() keep the order of first occurrence among ties
    yield " ".join(sorted(frequencies, key=lambda word: (-document_frequencies[word], -frequencies[word]))[:size])
    for words in map(count_words, passages):
        yield " ".join(word for word, _ in words.most_common(size))
