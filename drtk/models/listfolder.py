"""What tells the folder of a list re-ranker from that of a cross-encoder, without torch."""

from __future__ import annotations

from pathlib import Path

CONFIG, WEIGHTS = "listreranker.json", "model.safetensors"


def is_list_reranker(folder: Path) -> bool:
    """Whether a model folder holds a list re-ranker, and not a cross-encoder."""
    return (folder / CONFIG).exists()
