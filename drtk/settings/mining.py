"""How negatives are mined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob


@dataclass(frozen=True)
class MineSettings:
    """drtk mine-negatives."""

    policy: str = knob(
        "msmarco", "msmarco: keep 200 and fill up to 210 with random passages; tevatron: keep 128, fill nothing."
    )
    depth: int = knob(200, "Ranks of each run that are looked at.", at_least=1)
    keep: int | None = knob(
        None, "Mined negatives kept for a query, drawn at random; by default the policy's.", at_least=0
    )
    floor: int | None = knob(
        None, "Fewest negatives of a query; random passages of --corpus make up for those that lack.", at_least=0
    )
    positives: Literal["passage", "source"] = knob(
        "passage", "What judgements name: passage, or source: a document, whose best-ranked passage is the positive."
    )
    rel: int = knob(1, "The grade from which on a judged document is a positive.")
    source_name: str = knob(
        "", "What the negatives of a single run are called in `sources`; by default the file's name."
    )
