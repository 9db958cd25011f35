"""Memory in training: time traded for it, and a lack of it told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from drtk.errors import DrtkError
from drtk.training.soundness import short_of_memory


@contextmanager
def within_memory(device: torch.device | str, advice: str) -> Iterator[None]:
    """Tell in one line that memory was too small, and what may help."""
    try:
        yield
    except RuntimeError as error:  # of which torch's own kind is one
        if short_of_memory(error):
            raise DrtkError(f"{device}: out of memory; {advice} may help") from error
        raise


def relief(*, anew: str, micro: int = 1, chunk: str = "", checkpointing: bool = True) -> str:
    """What makes a step smaller: first what an interrupted run can go on with, then what it must begin anew with.

    micro: how much a device has at once, as --micro-batch counts it; chunk: what --cache-chunk can still do
    checkpointing: it is used already, or cannot be
    """
    ways = [f"a smaller --micro-batch (it is {micro})"] if micro > 1 else []
    ways += [chunk] if chunk else []
    ways += [] if checkpointing else ["--gradient-checkpointing"]
    return ", ".join(ways) + (" or, begun anew, " if ways else "beginning anew with ") + anew


def allow_checkpointing(backbone: Any) -> None:
    """Let a backbone trade time for memory: activations are computed again in the backward pass."""
    backbone.config.use_cache = False  # for generation; transformers would turn it off itself, and say so
    enable = getattr(backbone, "activation_checkpointing_enable", None)
    try:
        if enable is not None:
            enable(activation_checkpointing_kwargs={"use_reentrant": False})
        else:
            backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise DrtkError(f"--gradient-checkpointing: {str(error).splitlines()[0]}") from error
