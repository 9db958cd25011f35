"""Questions answered on the terminal: one, or line by line with everything kept loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from drtk.errors import RecordError, UsageError

if TYPE_CHECKING:
    from drtk.records import Passage
    from drtk.retrieval.base import Ranking
    from drtk.retrieval.collection import Collection

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
            raise UsageError("-q: the question is empty")
        page.show(question, *answer(question))
        return
    for line in _lines():
        print(page.mark(line))
        page.show(line, *answer(line))


def _lines() -> Iterator[str]:
    """Questions of stdin, each as soon as its line is complete; blank lines are passed over."""
    import sys

    for number, line in enumerate(iter(sys.stdin.buffer.readline, b""), start=1):
        try:
            question = " ".join(line.decode("utf-8-sig" if number == 1 else "utf-8").split())
        except UnicodeDecodeError as error:
            raise RecordError(f"<stdin>:{number}", "not UTF-8") from error
        if question:
            yield question


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
            print(line)
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
