"""What a person should know of a corpus before an encoder is trained on it: texts that are missing, and passages that are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from drtk.errors import MismatchError
from drtk.io.progress import log
from drtk.text.slots import Slotted, views_of
from drtk.training.material import Material

LOOKED_AT = 256  # examples that are made to see which texts they lack
_SHOWN = {
    "passage": 1,
    "next": 1,
    "pair": 1,
    "ict": 1,
    "halves": 2,
}  # views of passages, and how often their room they show


def notice(material: Material) -> dict[str, int]:
    """Say which slots lack texts and how many passages are longer than what is shown; counts of what was left out, or cut.

    Raises MismatchError for a slot that no example has a text for.
    """
    _notice_missing(material)
    cut = int(cropped(material).sum())
    corpus = material.corpus
    if cut:
        log(
            f"{corpus.sources}: {cut:,} of {len(corpus):,} passages are longer than any slot shows (--max-length "
            f"{material.settings.max_length}); they are cropped"
        )
    return {name: count for name, count in (("short", corpus.counts["short"]), ("cropped", cut)) if count}


def cropped(material: Material) -> np.ndarray:
    """(passages,): True where no slot that shows passages has room for the whole one. Views that show a part anyway do not count."""
    corpus, plan = material.corpus, material.composition
    found = []
    for name, slot in plan.slots.items():
        room = (slot.max_length or material.settings.max_length) - 2
        if slot.corruption in ("inserted", "any"):
            room = int(room / (1 + slot.rate))
        for view in views_of(plan, name):
            if view.name not in _SHOWN:
                continue
            lengths = corpus.lengths
            title = view.options.get("title", "none")
            if title != "none":
                between = {"sep": 1, "segment": len(material.frame.between)}.get(title, 0)
                lengths = lengths + corpus.title_lengths + (corpus.title_lengths > 0) * between
            found.append(lengths > room * _SHOWN[view.name])
    return np.logical_and.reduce(found) if found else np.zeros(len(corpus), dtype=bool)


def _notice_missing(material: Material) -> None:
    looked = material.glance(LOOKED_AT)
    total = len(looked)
    together: dict[tuple[int, ...], list[str]] = {}  # slots that lack the same examples, as the two of a pair do
    for name in material.composition.slots:
        lacking = _lacking(looked, name)
        if lacking:
            together.setdefault(lacking, []).append(name)
    for lacking, names in together.items():
        what = f"slot{'s' * (len(names) > 1)} {', '.join(repr(name) for name in names)}"
        unit = "documents" if material.composition.example == "document" else "passages"
        if len(lacking) == total:
            raise MismatchError(
                f"{material.corpus.sources}: none of {total:,} {unit} looked at has a text for {what}; nothing would be "
                "learnt from it"
            )
        exact = total == len(material.rows)
        share = f"{len(lacking):,} of {total:,} {unit}" if exact else f"about {len(lacking) / total:.0%} of the {unit}"
        log(f"{material.corpus.sources}: {share} have no text for {what}; they take no part in the terms that need it")


def _lacking(looked: Sequence[Mapping[str, Slotted]], name: str) -> tuple[int, ...]:
    return tuple(number for number, slots in enumerate(looked) if not slots[name].present)
