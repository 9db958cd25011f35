"""Views: functions that select a text of a corpus row, such as the passage, a span of it, or one of its queries.

A view is a function (ViewInput, **options) that returns {key: text}, or None for a row without such a text. A view with one text has
the key "". If a view has several texts, a slot (model input of a preset) selects one as VIEW.KEY, such as "pair.a".

Options of several views: title: see `add_title`    crop: see `ViewInput.crop`
limit: use the first `limit` texts; None: all
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import Any, Literal, NamedTuple

import numpy as np

from drtk.errors import MismatchError, UsageError
from drtk.pretraining.config import Count, Share, needs_fields
from drtk.registry import Registry
from drtk.text.token_dataset import TokenCorpus, TokenizedText

ViewTexts = dict[str, TokenizedText]
Crop = Literal["head", "random"]
Title = Literal["none", "join", "sep", "segment"]
Separator = int | Sequence[int]  # token ids between two texts; RoBERTa has two in a pair
MAX_DISTANCE = 100  # between a passage and a random other passage of its document, in passages
Spans = Literal["random", "nearby", "overlap", "mixed", "distinct"]
MIXED: tuple[Spans, ...] = ("random", "nearby", "overlap")
_ROUNDING = 1e-9  # tolerance when a share of a count is rounded

VIEWS = Registry(
    "view",
    {
        "passage": (f"{__name__}:passage_view", "the passage itself"),
        "next": (f"{__name__}:next_passage_view", "the next passage of the document"),
        "halves": (f"{__name__}:halves_view", "the two halves of the passage"),
        "pair": (f"{__name__}:passage_pair_view", "two passages of one document, possibly overlapping"),
        "query": (f"{__name__}:query_view", "one of the passage's queries"),
        "queries": (f"{__name__}:queries_view", "the passage's queries, joined"),
        "continuation": (f"{__name__}:continuation_view", "a generated continuation of the passage"),
        "crop": (f"{__name__}:crop_view", "a random span of the passage"),
        "crop-pair": (f"{__name__}:crop_pair_view", "two random spans of the passage"),
        "ict": (
            f"{__name__}:ict_view",
            "a sentence, and the passage, usually without this sentence (inverse cloze task)",
        ),
    },
)


class ViewInput(NamedTuple):
    """Arguments of a view, the function that selects a text of a passage or document.

    row: index of a passage in the corpus, or of a document if examples are documents    rng: random number generator
    max_tokens: maximum length of each text, without the special tokens before and after it
    separator: id or ids of the separator tokens between two texts; None: no separator
    """

    corpus: TokenCorpus
    row: int
    rng: np.random.Generator
    max_tokens: int
    separator: Separator | None = None

    def choose(self, choices: Sequence[Any]) -> Any:
        """Return one of `choices`, sampled uniformly; None if `choices` is empty."""
        return choices[int(self.rng.integers(len(choices)))] if len(choices) else None

    def crop(self, text: TokenizedText, mode: Crop, max_tokens: int | None = None) -> TokenizedText:
        """Crop a text to at most `max_tokens` tokens: its first tokens (mode "head") or a random span (mode "random").

        max_tokens: None: the `max_tokens` of this input
        """
        count, max_tokens = len(text.ids), self.max_tokens if max_tokens is None else max_tokens
        if count <= max_tokens:
            return text
        begin = int(self.rng.integers(count - max_tokens + 1)) if mode == "random" else 0
        return slice_text(text, begin, begin + max_tokens)

    def build_passage(
        self, row: int, title: Title, crop: Crop, *, text: TokenizedText | None = None, max_tokens: int | None = None
    ) -> TokenizedText:
        """Return passage `row` with its title, cropped to at most `max_tokens` tokens.

        title: see `add_title`    crop: see `crop`    text: text to use instead of the passage's text
        max_tokens: None: the `max_tokens` of this input
        """
        text = self.corpus.get_text(row) if text is None else text
        max_tokens = self.max_tokens if max_tokens is None else max_tokens
        pair_limit = max_tokens if crop == "head" else None
        titled = add_title(self.corpus, row, text, title, self.separator, max_tokens=pair_limit)
        return self.crop(titled, crop, max_tokens)


def slice_text(text: TokenizedText, begin: int, end: int) -> TokenizedText:
    """Return the tokens [begin, end) of a text; word indices and token types start from 0 again."""
    words = text.words[begin:end]
    is_word = words >= 0
    lowest = words[is_word].min() if is_word.any() else 0
    return TokenizedText(
        text.ids[begin:end],
        np.where(is_word, words - lowest, words) if lowest else words,
        None if text.weights is None else text.weights[begin:end],
        None if text.types is None or begin >= end else text.types[begin:end] - text.types[begin],
    )


def join_texts(texts: Sequence[TokenizedText], separator: Separator | None = None) -> TokenizedText:
    """Concatenate texts, with `separator` between two texts. Separators have word index -1 and weight 0.

    The result has no token types. It has weights only if all texts have weights.
    """
    between = np.array([] if separator is None else separator, np.int32, ndmin=1)
    gap = TokenizedText(between, np.full(len(between), -1, np.int32), np.zeros(len(between), np.float32))
    parts: list[TokenizedText] = []
    firsts: list[int] = []  # index of the first word of each part in the result
    num_words = 0
    for text in texts:
        parts += [gap, text] if parts else [text]
        firsts += [0, num_words] if firsts else [num_words]
        num_words += int(text.words.max(initial=-1)) + 1
    words = np.concatenate([part.words for part in parts])
    words += np.where(words >= 0, np.repeat(np.array(firsts, np.int32), [len(part.ids) for part in parts]), 0)
    weights = [part.weights for part in parts if part.weights is not None]
    is_weighted = len(weights) == len(parts)
    ids = np.concatenate([part.ids for part in parts])
    return TokenizedText(ids, words, np.concatenate(weights) if is_weighted else None)


def add_title(
    corpus: TokenCorpus,
    row: int,
    text: TokenizedText,
    title: Title,
    separator: Separator | None,
    *,
    max_tokens: int | None = None,
) -> TokenizedText:
    """Add the title of passage `row` before `text`.

    title: "none": no title; "join": title and text; "sep": title, separator and text; "segment": title, separator and text,
        with token type 1 for the text
    max_tokens: maximum length of title, separator and text (title "segment" only); the longer text is truncated first
    Raises MismatchError if the text has weights and the title has none.
    """
    if title == "none":
        return text
    heading = corpus.get_title(row)
    if not len(heading.ids):
        return text
    if text.weights is not None and heading.weights is None:
        raise MismatchError(
            f"passage '{corpus.get_id(row)}' has weights but no 'title_weights'; "
            'run `drtk termweight --set title=join`, or use title = "none"'
        )
    if title != "segment":
        return join_texts([heading, text], None if title == "join" else separator)
    if max_tokens is not None and separator is not None:
        heading, text = truncate_longest_first(heading, text, max_tokens - np.size(separator))
    joined = join_texts([heading, text], separator)
    types = np.zeros(len(joined.ids), np.int32)
    types[len(types) - len(text.ids) :] = 1
    return joined._replace(types=types)


def truncate_longest_first(
    first: TokenizedText, second: TokenizedText, max_tokens: int
) -> tuple[TokenizedText, TokenizedText]:
    """Truncate two texts to at most `max_tokens` tokens in total, the longer first; two long texts get half each."""
    sizes = len(first.ids), len(second.ids)
    if sum(sizes) > max_tokens:
        short = max(0, min(*sizes, max_tokens // 2))
        long = max(0, max_tokens - short)
        sizes = (short, long) if sizes[0] <= sizes[1] else (long, short)
    return slice_text(first, 0, sizes[0]), slice_text(second, 0, sizes[1])


def passage_view(view: ViewInput, *, title: Title = "none", crop: Crop = "head") -> ViewTexts:
    """Return the passage as the only text, {"": passage}."""
    return {"": view.build_passage(view.row, title, crop)}


@needs_fields("documents")
def next_passage_view(view: ViewInput, *, title: Title = "none", crop: Crop = "head") -> ViewTexts | None:
    """Return the next passage of the document (MASTER); None if it is not in the corpus."""
    other = view.corpus.get_next_passage(view.row)
    return None if other is None else {"": view.build_passage(other, title, crop)}


def halves_view(view: ViewInput, *, title: Title = "none", crop: Crop = "head") -> ViewTexts | None:
    """Return the first half of the passage as "a" and the second half as "b"; None for a passage of one token.

    The passage is first cropped to 2 * max_tokens tokens. MASTER's released code uses "b" instead of the next passage.
    """
    text = view.build_passage(view.row, title, crop, max_tokens=2 * view.max_tokens)
    middle = len(text.ids) // 2
    if not middle:
        return None
    return {"a": slice_text(text, 0, middle), "b": slice_text(text, middle, len(text.ids))}


@needs_fields("queries")
def query_view(view: ViewInput, *, limit: Count | None = None, crop: Crop = "head") -> ViewTexts | None:
    """Return a random query among the first `limit` queries of the passage; None for a passage without queries."""
    text = view.choose(view.corpus.get_queries(view.row)[:limit])
    return None if text is None else {"": view.crop(text, crop)}


@needs_fields("queries")
def queries_view(view: ViewInput, *, limit: Count | None = 10, crop: Crop = "random") -> ViewTexts | None:
    """Return the first `limit` queries of the passage, joined by the separator and cropped; None without queries.

    Source: docs/methods/doc2query.md.
    """
    texts = view.corpus.get_queries(view.row)[:limit]
    return {"": view.crop(join_texts(texts, view.separator), crop)} if texts else None


@needs_fields("continuations")
def continuation_view(view: ViewInput, *, limit: Count | None = None, crop: Crop = "head") -> ViewTexts:
    """Return a random one of the first `limit` continuations of the passage; without any, the passage (MASTER's released code)."""
    text = view.choose(view.corpus.get_continuations(view.row)[:limit])
    return {"": view.crop(view.corpus.get_text(view.row)._replace(weights=None) if text is None else text, crop)}


@needs_fields("documents", spans={"overlap": "sentences", "mixed": "sentences"})
def passage_pair_view(
    view: ViewInput, *, spans: Spans = "random", title: Title = "none", crop: Crop = "head"
) -> ViewTexts | None:
    """Return the passage as "a" and another passage of its document as "b"; None for a document of one passage.

    "nearby" and "overlap" also return None if neither the previous nor the next passage is in the corpus.
    spans: how "b" is chosen (CoT-MAE): "random": at most 100 passages away; "nearby": the previous or next passage;
        "overlap": a text that overlaps with "a"; "mixed": one of these three, sampled at random, or "random" if the
        others are impossible;
        "distinct": the row is a document, and "a" and "b" are two random passages of the document (coCondenser)
    """
    corpus, own, text = view.corpus, view.row, None
    members = corpus.get_document_passages(own if spans == "distinct" else corpus.get_document(own))
    if len(members) < 2:
        return None
    neighbors, index = (members, 0) if spans == "distinct" else corpus.get_consecutive_passages(own)
    if spans == "mixed":
        spans = view.choose(MIXED if len(neighbors) > 1 else MIXED[:1])
    other: int | None
    if spans == "distinct":
        own, other = map(int, members[view.rng.choice(len(members), size=2, replace=False)])
    elif spans == "random":
        other = int(members[sample_other_passage(int(np.flatnonzero(members == own)[0]), len(members), rng=view.rng)])
    elif spans == "nearby":
        other = view.choose([int(neighbors[at]) for at in (index - 1, index + 1) if 0 <= at < len(neighbors)])
    else:
        other = own if len(neighbors) > 1 else None  # the overlapping text gets the title of a
        text = _build_overlapping_text(view, neighbors, index) if len(neighbors) > 1 else None
    if other is None:
        return None
    return {"a": view.build_passage(own, title, crop), "b": view.build_passage(other, title, crop, text=text)}


def crop_view(view: ViewInput, *, shortest: Share = 0.05, longest: Share = 0.5) -> ViewTexts:
    """Return a random span of the passage; start and length are sampled uniformly. Its length is at most `max_tokens`.

    shortest, longest: minimum and maximum length, as shares of the passage length, in [0, 1]
    Raises UsageError if `shortest` exceeds `longest`.
    """
    if shortest > longest:
        raise UsageError(f"view 'crop': shortest = {shortest} exceeds longest = {longest}; lower shortest")
    text = view.corpus.get_text(view.row)
    count = len(text.ids)
    low = max(1, ceil(shortest * count - _ROUNDING))
    high = max(low, floor(longest * count + _ROUNDING))
    length = min(int(view.rng.integers(low, high + 1)), view.max_tokens)
    begin = int(view.rng.integers(count - length + 1))
    return {"": slice_text(text, begin, begin + length)}


def crop_pair_view(view: ViewInput, *, shortest: Share = 0.05, longest: Share = 0.5) -> ViewTexts:
    """Return two independent random spans as "a" and "b" (see `crop_view`)."""
    return {name: crop_view(view, shortest=shortest, longest=longest)[""] for name in ("a", "b")}


@needs_fields("sentences")
def ict_view(view: ViewInput, *, remove: Share = 0.9, title: Title = "none", crop: Crop = "head") -> ViewTexts | None:
    """Return a random sentence as "query" and the passage as "context" (inverse cloze task); None for a one-sentence passage.

    remove: probability that the sentence is removed from the context    title: format of the context's title
    """
    sentences = view.corpus.get_sentence_spans(view.row)
    if len(sentences) < 2:
        return None
    text = view.corpus.get_text(view.row)
    begin, end = view.choose(sentences)
    context = text
    if view.rng.random() < remove:
        context = join_texts([slice_text(text, 0, begin), slice_text(text, end, len(text.ids))])
    sentence = view.crop(slice_text(text, begin, end), crop)
    return {"query": sentence, "context": view.build_passage(view.row, title, crop, text=context)}


def sample_other_passage(position: int, count: int, *, rng: np.random.Generator) -> int:
    """Return the index of a random passage of a document except `position`, at most MAX_DISTANCE away (CoT-MAE).

    count: number of passages in the document, at least 2
    """
    first, last = max(0, position - MAX_DISTANCE), min(count, position + MAX_DISTANCE + 1)
    others = [other for other in range(first, last) if other != position]
    return others[int(rng.integers(len(others)))]


def sample_overlap(
    position: int, lengths: Sequence[Sequence[int]], max_length: int, *, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Sample a text that overlaps with passage `position`; return its sentences as sorted (passage, sentence) indices (CoT-MAE).

    The text begins r sentences before the end of the passage, where r is from 1 to half of the passage's sentences. For the
    last passage, the text instead ends after the first r sentences of the passage and begins in earlier passages.

    lengths: for each passage, the lengths of its sentences in tokens
    max_length: maximum length of the text in tokens; a single longer sentence is allowed
    """
    num_sentences = len(lengths[position])
    shared = int(rng.integers(1, max(1, num_sentences // 2) + 1))
    flat = [(passage, sentence) for passage, sizes in enumerate(lengths) for sentence in range(len(sizes))]
    if position + 1 < len(lengths):
        order = flat[flat.index((position, num_sentences - shared)) :]
    else:
        order = flat[flat.index((position, shared - 1)) :: -1]
    selected: list[tuple[int, int]] = []
    size = 0
    for passage, sentence in order:
        size += lengths[passage][sentence]
        if size > max_length and selected:
            break
        selected.append((passage, sentence))
    return sorted(selected)


def _build_overlapping_text(view: ViewInput, passages: np.ndarray, index: int) -> TokenizedText:
    """Return a text that overlaps with passage `passages[index]`, sampled by `sample_overlap`.

    passages: (n,), rows of consecutive passages of a document
    """
    corpus, step = view.corpus, -1 if index == len(passages) - 1 else 1
    rows = [int(passages[index])]  # the passage, and the passages after it (or before the last) that the text can reach
    size = 0
    for at in range(index + step, len(passages) if step > 0 else -1, step):
        rows.append(int(passages[at]))
        size += corpus.get_sentence_spans(rows[-1])[-1][1]
        if size > view.max_tokens:
            break
    rows = rows[::step]
    sentences = [corpus.get_sentence_spans(row) for row in rows]
    lengths = [[end - begin for begin, end in inside] for inside in sentences]
    selected = sample_overlap(0 if step > 0 else len(rows) - 1, lengths, view.max_tokens, rng=view.rng)
    texts = {passage: corpus.get_text(rows[passage]) for passage in {passage for passage, _ in selected}}
    return join_texts([slice_text(texts[passage], *sentences[passage][sentence]) for passage, sentence in selected])
