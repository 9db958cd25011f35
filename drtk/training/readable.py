"""Whether there is anything to read in the passages that examples name, asked before hours of training on nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from drtk.errors import DrtkError
from drtk.io.parts import spread
from drtk.io.textless import PASSAGES, TEXTLESS, all_textless, looked_up, warn_of_textless
from drtk.records import Passage
from drtk.training.draws import Texts

_MOST = 100_000  # passages that are looked up, a matter of seconds; of more so many, evenly spread
_AT_ONCE = 1000


def check_readable(ids: Sequence[str], corpus: Texts, *, called: str, read: Callable[[Passage], str]) -> None:
    """Look the passages up: warn, with numbers, where some have no text.

    called: the name of the corpus in complaints; read: what a model is given of a passage, its title too maybe
    Raises DrtkError where there is nothing to read in any of them.
    """
    counts: Counter[str] = Counter()
    unread = 0
    chosen = list(spread(ids, _MOST, of=len(ids)))
    for begin in range(0, len(chosen), _AT_ONCE):
        passages = corpus.many(chosen[begin : begin + _AT_ONCE])
        counts.update(looked_up(passages))
        unread += sum(not read(passage).strip() for passage in passages)
    if told := all_textless({PASSAGES: counts[PASSAGES], TEXTLESS: unread}, called):
        raise DrtkError(told)
    warn_of_textless(counts, called)
