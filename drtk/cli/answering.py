"""Questions answered on the terminal: one, or line by line with everything kept loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from drtk.errors import RecordError, UsageError
from drtk.io.progress import printable

if TYPE_CHECKING:
    from drtk.questions.answering import Chosen
    from drtk.records import Passage
    from drtk.retrieval.asking import TextQueries
    from drtk.retrieval.base import Ranking
    from drtk.retrieval.collection import Collection

SEED = 42  # as drtk expand-queries has it, unless told otherwise
LINES = "-"  # the question that stands for lines of stdin
Answer = Callable[[str], tuple[list[str], "Ranking"]]  # of a question: lines to show before the passages, and these


def answer_questions(question: str, answer: Answer, collection: Collection, corpus: str | None) -> None:
    """Print what `answer` finds for a question, or for each line of stdin, as soon as it has come, under the line itself.

    corpus: where the texts are, in the place of what the index says
    Raises UsageError for an empty question, RecordError for a line that is not UTF-8.
    """
    page = _Page(collection, corpus)
    if question != LINES:
        if not question.strip():
            raise UsageError("--query: the query is empty")
        page.show(question, *answer(question))
        return
    for line in _lines():
        print(page.mark(printable(line)))
        page.show(line, *answer(line))


def plain(ask: TextQueries, k: int) -> Answer:
    """The way a question is answered by searching with it as it is."""
    from drtk.records import Query
    from drtk.retrieval.searching import Wanted

    def answer(question: str) -> tuple[list[str], Ranking]:
        ((_, ranking),) = ask([Query("question", question)], Wanted(k))
        return [], ranking

    return answer


def expanding(
    expand: Sequence[str],
    prompts: Sequence[str],
    query_reranker: Sequence[str],
    candidates: int | None,
    ask: TextQueries,
    k: int,
    *,
    corpus: str | None,
    device: str,
) -> Answer:
    """The way a question is answered through generators and query re-rankers, which are loaded here.

    Raises UsageError where they do not go together, and what loading raises.
    """
    from drtk.io.textless import TEXTLESS, warn_of_textless
    from drtk.models.query_reading import reading_of
    from drtk.questions.answering import Chain, expanders_of
    from drtk.questions.reranking import ANY, QueryReranker
    from drtk.records import Query
    from drtk.retrieval.found_texts import FoundTexts
    from drtk.retrieval.searching import Wanted
    from drtk.settings.expansion import ExpansionSettings

    models: dict[str, str] = {}
    for kind, model in map(_named, query_reranker):
        if models.setdefault(kind or ANY, model) != model:
            raise UsageError(f"--query-reranker: two are for {f'kind {kind}' if kind else 'all kinds'}")
    settings = ExpansionSettings(decode="greedy", n=1) if not models else ExpansionSettings(n=candidates or 50)
    asked: dict[str, str] = {}
    for kind, text in map(_prompt, prompts):
        if asked.setdefault(kind, text) != text:
            raise UsageError(f"--expand-prompt: two are for {f'kind {kind}' if kind else 'all kinds'}")
    expanders = expanders_of([*map(_named, expand)], settings, prompts=asked, seed=SEED, device=device)
    reranker, texts = None, None
    if models:
        if any(reading_of(model).scorer == "rd" for model in models.values()):
            if len(ask.collection.folders) > 1:
                raise UsageError("--query-reranker: one that reads passages (rd) asks one index of words")
            texts = FoundTexts(ask.collection, corpus=corpus)  # the search's own: what it finds first is what is read
        reranker = QueryReranker(models, device=device, texts=texts)
        for kind in expanders:
            reranker.scorer(kind)  # now, not at the first question

    def search(texts: Sequence[str], depth: int) -> list[Ranking]:
        queries = [Query(f"q{number}", text) for number, text in enumerate(texts)]
        return [ranking for _, ranking in ask(queries, Wanted(depth))]

    chain = Chain(expanders, reranker, search)
    told = False

    def answer(question: str) -> tuple[list[str], Ranking]:
        nonlocal told
        chosen, ranking = chain(question, k)
        if reranker is not None and texts is not None and not told and reranker.looked_up[TEXTLESS]:
            told = True  # once, with the first question that lacks one: stdin may go on for hours
            warn_of_textless(reranker.looked_up, texts.corpus)
        return [_told(each) for each in chosen], ranking

    return answer


def _named(given: str) -> tuple[str, str]:
    """KIND and model of KIND=MODEL; an empty kind where it is a model alone."""
    from pathlib import Path

    kind, separator, model = given.partition("=")
    return ("", given) if not separator or "/" in kind or Path(given).exists() else (kind, model)


def _prompt(given: str) -> tuple[str, str]:
    """KIND and text of KIND=TEXT; an empty kind where no single word stands before the first =."""
    kind, separator, text = given.partition("=")
    return (kind, text) if separator and kind.split() == [kind] else ("", given)


def _told(chosen: Chosen) -> str:
    """A line about the query of one kind."""
    notes = []
    if not chosen.candidates:
        notes.append("nothing was written")
    elif chosen.estimate is not None:
        notes.append(f"estimate {chosen.estimate:.4f}, the lowest of {chosen.candidates}")
    if chosen.seen:
        notes.append("the generator was trained with this question")
    return f"{chosen.kind}: {chosen.query}" + (f"  ({'; '.join(notes)})" if notes else "")


def _lines() -> Iterator[str]:
    """Questions of stdin, each as soon as its line is complete; blank lines are passed over."""
    import sys

    from drtk.io.streams import raw_lines

    for number, line in enumerate(raw_lines(sys.stdin.buffer, "<stdin>"), start=1):
        try:
            question = " ".join(line.decode("utf-8-sig" if number == 1 else "utf-8").split())
        except UnicodeDecodeError as error:
            raise RecordError(f"<stdin>:{number}", "not UTF-8") from error
        if question:
            yield question


def _warn_if_corpus_changed(collection: Collection, shown: Sequence[str]) -> None:
    """Warn if the corpus of an index changed after indexing: its texts are then not those that were ranked."""
    from pathlib import Path

    from drtk.io.cache import content_digest
    from drtk.io.lineage import origins_of
    from drtk.io.progress import warn

    paths = {Path(path).resolve() for path in shown}
    for folder, manifest in zip(collection.folders, collection.manifests, strict=True):
        corpus = Path(manifest.get("corpus") or "")
        origins = {origin.digest for origin in origins_of(folder)}
        if corpus.is_file() and corpus.resolve() in paths and origins and content_digest(corpus) not in origins:
            warn(f"{corpus}: changed since {folder} was made; texts may differ from those ranked: index it again")


class _Page:
    """Passages as a person sees them; the corpora are opened once."""

    def __init__(self, collection: Collection, corpus: str | None) -> None:
        import os
        import sys
        from pathlib import Path

        from drtk.io.progress import log
        from drtk.io.store import CorpusStore

        self._named = [corpus] if corpus else sorted({at["corpus"] for at in collection.manifests if at.get("corpus")})
        self._stores = [CorpusStore.open(path) for path in self._named if corpus or Path(path).exists()]
        _warn_if_corpus_changed(collection, self._named)
        self._told = False
        if not self._stores:
            log("ids alone: the corpus is not where the index says, or it says nothing; name it with --corpus FILE")
        styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.mark: Callable[[str], str] = "\033[1m{}\033[0m".format if styled else str

    def show(self, question: str, before: list[str], ranking: Ranking) -> None:
        """Print the lines before, and the passages with the part of each that speaks of the question."""
        import shutil

        from drtk.io.progress import log
        from drtk.retrieval.snippets import shown

        for line in before:
            print(printable(line))
        if not ranking:
            log("nothing found")
        passages = [self._text(id) for id, _ in ranking]
        if self._stores and None in passages and not self._told:
            self._told = True
            log(f"{', '.join(self._named)}: lacks some of these passages; is it the corpus the index was made from?")
        width = shutil.get_terminal_size().columns
        for line in shown(question, ranking, passages, width=width, mark=self.mark):
            print(line, flush=True)

    def _text(self, id: str) -> Passage | None:
        return next((found for store in self._stores if (found := store.get(id)) is not None), None)
