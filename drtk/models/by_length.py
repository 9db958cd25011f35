"""Padded texts through a model in groups of like length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

Parting = Callable[
    [np.ndarray], Iterable[np.ndarray]
]  # lengths (texts,) -> row numbers in groups, the longest of each first


def by_length(run: Callable[[Mapping[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], parting: Parting) -> Tensor:
    """What `run` gives for the texts, (texts, …), in their order; it is called a group at a time, which spares the padding.

    inputs: (texts, tokens) by name, among them "attention_mask"; with padding on the left, which cannot be cut off, all go at once
    """
    mask = inputs["attention_mask"]
    lengths = mask.sum(dim=1)
    groups = [*parting(lengths.numpy(force=True))] if bool(mask[:, 0].all()) else []
    if len(groups) < 2:
        return run(inputs)
    rows = [torch.from_numpy(group).to(mask.device) for group in groups]
    found = [run({name: each[chosen, : int(lengths[chosen[0]])] for name, each in inputs.items()}) for chosen in rows]
    return torch.cat(found)[torch.cat(rows).argsort()]
