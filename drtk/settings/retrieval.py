"""How indexes are built and searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob


@dataclass(frozen=True)
class DenseIndexSettings:
    """drtk index over vectors."""

    dtype: Literal["float32", "float16", "int8"] = knob("float32", "How a vector's numbers are stored for searching.")
    full: bool = knob(True, "Where vectors are stored with loss, keep the exact ones too, for --rescore.")
    hnsw_m: int = knob(32, "hnsw: links of a node.", at_least=2)
    ef_construction: int = knob(200, "hnsw: candidates looked at for each node's links.", at_least=1)
    nlist: int = knob(
        0, "ivf: number of clusters; 0 takes 4 times the square root of the number of vectors.", at_least=0
    )
    train_sample: int = knob(200_000, "Vectors drawn to train clusters and quantisers.", at_least=1)


@dataclass(frozen=True)
class DenseSearchSettings:
    """drtk search over vectors."""

    rescore: int = knob(
        4, "Score N times k candidates again with the exact vectors, where they are lossy; 0: do not.", at_least=0
    )
    ef_search: int = knob(
        0, "hnsw: candidates kept while walking the graph; 0 takes twice k, at least 128.", at_least=0
    )
    nprobe: int = knob(0, "ivf: clusters looked into; 0 takes a sixteenth of them, at least 8.", at_least=0)
    block: int = knob(16_384, "exact: vectors scored at a time.", at_least=1)
