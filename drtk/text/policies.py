"""Which sentences make a passage: pure functions over sentence lengths (methods: sections 1.2 and 1.4).

A policy returns groups, each a list of parts `(sentence, begin, end)`: units `begin` to `end` of that sentence, where a unit is
a word or a word piece. A whole sentence of length n is `(i, 0, n)`. Sentences of length 0 belong to no group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Part = tuple[int, int, int]
Group = list[Part]
Target = Callable[[int], int]  # the cap of the group with this number
Boundary = Callable[[int, int, int], int]  # (sentence, begin, latest) -> where to cut, begin < cut


def at_the_cap(sentence: int, begin: int, latest: int) -> int:
    """The boundary of text whose units may be parted anywhere."""
    return latest


def greedy(
    lengths: Sequence[int],
    cap: int,
    *,
    target: Target | None = None,
    boundary: Boundary = at_the_cap,
    overlap: int = 0,
) -> list[Group]:
    """Groups of whole sentences of at most `cap` units; a longer sentence is cut, its rest opens the next group.

    target: a smaller cap for some groups; it closes groups early and cuts no sentence.
    overlap: how many parts of a group are repeated at the start of the next, fewer where they do not fit.
    """
    groups = _Groups(target, cap)
    for sentence, length in enumerate(lengths):
        if length > cap:
            groups.close()
            begin = 0
            while length - begin > cap:
                end = boundary(sentence, begin, begin + cap)
                groups.add((sentence, begin, end))
                groups.close()
                begin = end
            if begin < length:
                groups.add((sentence, begin, length))
        elif length:
            if groups.size and groups.size + length > groups.limit:
                groups.close(repeat=overlap, room_for=length)
            groups.add((sentence, 0, length))
    return groups.finished()


def condenser(lengths: Sequence[int], cap: int, *, target: Target | None = None) -> list[Group]:
    """As `greedy`, but a sentence longer than `cap` makes a group of its own, uncut (Condenser's released code)."""
    groups = _Groups(target, cap)
    for sentence, length in enumerate(lengths):
        if groups.size and groups.size + length > groups.limit:
            groups.close()
        if length:
            groups.add((sentence, 0, length))
    return groups.finished()


def cotmae(lengths: Sequence[int], cap: int, *, target: Target | None = None) -> list[Group]:
    """Groups closed by the sentence that takes them over `cap` (the released code of CoT-MAE and query-as-context)."""
    groups = _Groups(target, cap)
    for sentence, length in enumerate(lengths):
        if length:
            groups.add((sentence, 0, length))
        if groups.size > groups.limit:
            groups.close()
    return groups.finished()


def blocks(count: int, cap: int, *, overlap: int = 0) -> list[tuple[int, int]]:
    """(begin, end) of consecutive blocks of `cap` words out of `count`, the last may be shorter (DPR).

    overlap: words repeated at the start of the next block; less than `cap`.
    """
    begins = range(0, max(count - overlap, min(count, 1)), cap - overlap)
    return [(begin, min(begin + cap, count)) for begin in begins]


class _Groups:
    """Groups closed so far, and the open one with its size and its cap."""

    def __init__(self, target: Target | None, cap: int) -> None:
        self._target, self._cap = target, cap
        self._closed: list[Group] = []
        self._open: Group = []
        self.size = 0
        self.limit = self._next_limit()

    def _next_limit(self) -> int:
        return self._cap if self._target is None else self._target(len(self._closed))

    def add(self, part: Part) -> None:
        self._open.append(part)
        self.size += part[2] - part[1]

    def close(self, *, repeat: int = 0, room_for: int = 0) -> None:
        """Close the open group; the next begins with up to `repeat` of its last parts, never with all of them."""
        if not self._open:
            return
        self._closed.append(self._open)
        again = self._open[max(1, len(self._open) - repeat) :] if repeat else []
        self._open, self.size, self.limit = [], 0, self._next_limit()
        room = self.limit - room_for
        for part in reversed(again):
            self.size += part[2] - part[1]
            if self.size > room:
                self.size -= part[2] - part[1]
                break
            self._open.insert(0, part)

    def finished(self) -> list[Group]:
        self.close()
        return self._closed
