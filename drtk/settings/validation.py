"""What a file is checked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob

Kind = Literal["passages", "queries", "qrels", "run", "examples", "expansions", "predictions"]


@dataclass(frozen=True)
class ValidationSettings:
    """drtk validate."""

    kind: Kind | None = knob(
        None,
        "What the file contains. [default: recognized, except queries, passages without titles, and judgements or MS MARCO runs "
        "of three columns]",
        flag="--as",
    )
    corpus: str | None = knob(None, "Passages that the ids of documents must be among.")
    queries: str | None = knob(None, "Queries that the ids of queries must be among.")
    qrels: str | None = knob(None, "Judgements that runs, queries and examples are compared with.")
    leak: str | None = knob(
        None, "Another file; texts that both hold (case and white space aside) are errors, as between train and test."
    )
    show: int = knob(10, "Most problems of a kind shown with their place; all are counted.", at_least=0)
    json: bool = knob(False, "Write the findings as one JSON object.")
