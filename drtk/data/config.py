"""Options of convert, import and validate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import HARDWARE, INPUT, NoEffect, option

Kind = Literal["passages", "queries", "qrels", "run", "examples", "embeddings"]
VECTOR_FILE_SUFFIXES = (".npy", ".safetensors", ".parquet")
_NO_EXAMPLES = (NoEffect("requires --as examples", {"kind": ("passages", "queries", "qrels", "run", "embeddings")}),)
_NO_VECTORS = (NoEffect("requires --as embeddings", {"kind": ("passages", "queries", "qrels", "run", "examples")}),)


@dataclass(frozen=True)
class ConversionSettings:
    """Settings of `drtk convert`."""

    kind: Kind | None = option(
        None, "Kind of records in the input. [required, except with --masked-lm]", flag="--as", panel=INPUT
    )
    to: str | None = option(
        None, "Output format, such as beir or tevatron. [default: drtk's]", metavar="FORMAT", panel=INPUT
    )
    ids: str | None = option(
        None,
        "Ids of the vectors in a .npy or .safetensors file, one per line. [default: NAME.ids]",
        no_effect=_NO_VECTORS,
        metavar="FILE",
        panel=INPUT,
    )
    corpus: str | None = option(
        None,
        "Corpus; required by output formats that contain passage texts.",
        no_effect=_NO_EXAMPLES,
        metavar="FILE",
        panel=INPUT,
    )
    queries: str | None = option(
        None,
        "Queries; required by output formats that contain query texts.",
        no_effect=_NO_EXAMPLES,
        metavar="FILE",
        panel=INPUT,
    )


@dataclass(frozen=True)
class ImportSettings:
    """Settings of `drtk import`."""

    exclude: tuple[str, ...] = option(
        (), "Files and folders to skip, in the syntax of .gitignore; repeatable.", metavar="PATTERN", panel=INPUT
    )
    field: tuple[str, ...] = option(
        (),
        "Column or JSON field of _id, title or text, such as text=body; repeatable.",
        metavar="NAME=COLUMN",
        panel=INPUT,
    )
    num_workers: int = option(0, "Worker processes; 0: one per core.", at_least=0, panel=HARDWARE)


FileKind = Literal["passages", "queries", "qrels", "run", "examples"]


@dataclass(frozen=True)
class ValidationSettings:
    """Settings of `drtk validate`."""

    kind: FileKind | None = option(None, "Kind of records in the file. [default: detected]", flag="--as", panel=INPUT)
    corpus: str | None = option(
        None, "Corpus that must contain every passage id of the input.", metavar="FILE", panel=INPUT
    )
    queries: str | None = option(
        None, "Queries that must contain every query id of the input.", metavar="FILE", panel=INPUT
    )
    qrels: str | None = option(
        None,
        "Relevance judgments; report queries that have none, and examples that contradict them.",
        metavar="FILE",
        panel=INPUT,
    )
    leak: str | None = option(
        None, "Test set; report input texts that also occur in this file (leakage).", metavar="FILE", panel=INPUT
    )
    show: int = option(10, "Problems to print per check.", at_least=0)
    json: bool = option(False, "Print the findings as JSON.")
