"""What is measured with that was trained with too: it shows, and selects for, what was learned by heart."""

from __future__ import annotations

from collections.abc import Iterable

from drtk.io.progress import warn
from drtk.records import Query
from drtk.training.folds import digest_of
from drtk.training.pairs import Pairs


def pairs_in_both(pairs: Pairs, dev: Pairs) -> int:
    """How many pairs of `dev` are among `pairs` too: of the same key, with the same words to be written."""
    keys = {dev.key(number) for number in range(len(dev))}
    # Texts are looked up for keys of both alone: there are few, where all is well.
    known = {
        (key, digest_of(pairs[number].target)) for number in range(len(pairs)) if (key := pairs.key(number)) in keys
    }
    mine = {key for key, _ in known}
    return sum(
        (key, digest_of(dev[number].target)) in known for number in range(len(dev)) if (key := dev.key(number)) in mine
    )


def questions_in_both(questions: Iterable[Query], dev: Iterable[Query]) -> int:
    """How many questions of `dev` are among the others too, whatever their ids."""
    asked = [digest_of(query.text) for query in dev]
    wanted = set(asked)
    known = {digest for query in questions if (digest := digest_of(query.text)) in wanted}
    return sum(digest in known for digest in asked)


def warn_of_overlap(both: int, of: int, what: str, *, dev: str, source: str) -> None:
    """Warn where there is something in both: `both` of the `of` questions, or pairs, that the file `dev` holds."""
    if both:
        warn(
            f"{dev}: {both:,} of its {of:,} {what} are in {source} too: the weights that are kept are then those that know "
            "them best by heart"
        )
