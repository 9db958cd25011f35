"""How negatives are mined."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from drtk.config import Idle, knob
from drtk.indexing.config import BM25SearchSettings, DenseSearchSettings, SearchSettings
from drtk.training.config import PairTitle

_NO_SCORER = (Idle("goes with --scorer MODEL", {"scorer": ("",)}),)
_BESIDE_NOTHING = (Idle("goes with --margin or --max-share", {"margin": ((),), "max_share": ((),)}),)


@dataclass(frozen=True)
class MinedIndexSettings(DenseSearchSettings, BM25SearchSettings):
    """Where candidates come straight from an index."""

    batch: int = knob(1000, "Index: queries searched together.", at_least=1)
    prompt: str | None = knob(None, "Index: text put before each query; by default the model's.")
    max_length: int | None = knob(None, "Index: longest query, in tokens; by default the model's.", at_least=3)
    threads: int = knob(0, "CPU threads to use; 0 takes every core.", at_least=0)
    device: str = knob("auto", "Index and scorer: auto, cpu, cuda, cuda:1 …")

    def searching(self) -> SearchSettings:
        """The same as settings of a search."""
        mine = {item.name for item in fields(self)}
        return SearchSettings(
            **{item.name: getattr(self, item.name) for item in fields(SearchSettings) if item.name in mine}
        )


@dataclass(frozen=True)
class MinedFilterSettings:
    """What takes candidates out that may be positives nobody judged."""

    from_rank: int = knob(1, "Leave out the ranks before this one in each source.", at_least=1)
    max_score: tuple[str, ...] = knob((), "Drop what has more than this score: X, or of one source NAME=X; repeatable.")
    min_score: tuple[str, ...] = knob((), "Drop what has less than this score: X, or of one source NAME=X; repeatable.")
    margin: tuple[str, ...] = knob(
        (), "Drop what does not score at least this much below the positive: X, or of one source NAME=X; repeatable."
    )
    max_share: tuple[str, ...] = knob(
        (), "Drop what has more than this share of the positive's score (0.95: 95%): X or NAME=X; repeatable."
    )
    unretrieved: Literal["drop", "keep"] = knob(
        "drop",
        "margin, max-share: what to do where a source has not found the positive, and all it has stands above it.",
        idle=_BESIDE_NOTHING,
    )
    ce_margin: float | None = knob(
        None, "Drop what a cross-encoder does not score at least this much below the positive; sbert: 3."
    )
    ce_max: float | None = knob(None, "Drop what a cross-encoder gives more than this score.")
    max_overlap: float | None = knob(
        None,
        "Drop what shares this part (0 to 1) or more of its runs of three words with a positive; 1: the same words alone.",
        at_least=0,
        at_most=1,
    )
    max_cosine: float | None = knob(
        None, "Drop what has this cosine or more with a positive, by --vectors.", at_least=-1, at_most=1
    )


@dataclass(frozen=True)
class MineSettings(MinedIndexSettings, MinedFilterSettings):  # help lists the last base first
    """drtk mine-negatives."""

    policy: str = knob(
        "msmarco",
        "msmarco: keep 200 and fill up to 210 with random passages; tevatron: keep 128, fill nothing; nq: all of 100 without "
        "an answer, those with one are positives; sbert: 5 of each system, 3 below the positives by cross-encoder.",
    )
    depth: int | None = knob(
        None, "Ranks of each source that are looked at; by default the policy's: 200, nq 100, sbert all.", at_least=1
    )
    keep: int | None = knob(
        None, "Mined negatives kept for a query (sbert: of each source); by default the policy's.", at_least=0
    )
    floor: int | None = knob(
        None, "Fewest negatives of a query; random passages of --corpus make up for those that lack.", at_least=0
    )
    positives: Literal["passage", "source"] = knob(
        "passage", "What judgements name: passage, or source: a document, whose best-ranked passage is the positive."
    )
    rel: int = knob(1, "The grade from which on a judged document is a positive.")
    source_name: str = knob(
        "", "What the negatives of a single source are called in `sources`; by default the file's or folder's name."
    )
    match: Literal["tokens", "regex"] = knob(
        "tokens", "nq: how answers are looked for: tokens (DPR's matching), or regex (answers are patterns)."
    )
    match_title: bool = knob(False, "nq: look for answers in titles too, not in texts alone.")
    scorer: str = knob(
        "", "Folder or hub name of a cross-encoder that scores positives and candidates; scores are kept."
    )
    scorer_title: PairTitle | None = knob(
        None,
        "scorer: titles: colon (title: text), join (title text) or none. [default: as trained, or join]",
        idle=_NO_SCORER,
    )
    scorer_logits: bool = knob(
        False,
        "scorer: scores before the activation function (often a sigmoid) that its folder names.",
        idle=_NO_SCORER,
    )
    scorer_batch_tokens: int | None = knob(
        None,
        "Tokens of pairs at once, padding included. [default: 2,048 on a CPU, 65,536 on a GPU]",
        at_least=1,
        idle=_NO_SCORER,
    )
    scorer_dtype: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto",
        "Numbers the scorer computes with: auto is float32 on a CPU, half precision on a GPU.",
        idle=_NO_SCORER,
    )
