"""What held-out passages tell about pre-training: losses, the worth of the bottleneck, and how vectors spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from drtk.pretraining.batch import Batch
from drtk.pretraining.composition import Contrast
from drtk.pretraining.network import Network, Views, compared_terms, moved

_ROWS_AT_MOST = 2048  # vectors compared with each other
GROUP = 64  # held-out examples among which a contrast is measured: its value depends on how many there are
AT_ONCE = 32  # of which go through the network together, and of which each is another's "other" for the gain


@torch.no_grad()
def measured(network: Network, batches: Sequence[Batch], device: torch.device) -> dict[str, float]:
    """Means over the batches, in evaluation mode.

    batches: of AT_ONCE examples, so that nothing measured depends on how training is cut into parts
    held_out_TERM: each loss, by the number of labelled tokens even where training takes their sum; gain_TERM: the loss with another passage's vector minus that with the right one (near 0: the
    bottleneck is ignored); alignment, uniformity: of the vectors, on the unit sphere (Wang and Isola 2020)
    """
    was = network.training
    network.eval()
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    vectors: dict[str, list[Tensor]] = {}
    there: dict[str, list[Tensor]] = {}
    rivals: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    def add(name: str, value: Tensor, count: Tensor | float) -> None:
        sums[name] = sums.get(name, 0.0) + float(value)
        counts[name] = counts.get(name, 0.0) + float(count)

    try:
        for held in batches:
            batch = moved(held, device)
            views = Views(batch, network)
            for name, recovery in network.summed():
                count = recovery.count(batch)
                loss = recovery(views)
                add(f"held_out_{name}", loss, count)
                if getattr(recovery, "bottlenecked", bool(recovery.wanted.vectors_of)):
                    add(f"gain_{name}", recovery(views, other_sources=True) - loss, count)
            present = {name: slot.present for name, slot in batch.items()}
            if network.contrasted:
                rivals.append((network.vectors(batch), present))
            for name in bottlenecks(network):
                vectors.setdefault(name, []).append(F.normalize(views.vector(name).float(), dim=-1))
                there.setdefault(name, []).append(present[name])
        for compared, present in grouped(rivals):
            rows = len(next(iter(present.values())))
            for name, value in compared_terms(network.composition, compared, present).items():
                add(f"held_out_{name}", value * rows, rows)
    finally:
        network.train(was)
    found = {name: total / max(counts[name], 1.0) for name, total in sums.items()}
    return found | _spread(
        network,
        {name: torch.cat(rows)[:_ROWS_AT_MOST] for name, rows in vectors.items()},
        {name: torch.cat(rows)[:_ROWS_AT_MOST] for name, rows in there.items()},
    )


def grouped(
    batches: Sequence[tuple[dict[str, Tensor], dict[str, Tensor]]],
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Vectors by name (rows, hidden), and which texts are there, by slot (rows,), of several batches in groups of GROUP rows.

    What is left is a group of its own, unless it is a single row, which has nothing to be told from.
    """
    if not batches:
        return
    vectors, present = (
        {name: torch.cat([each[at][name] for each in batches]) for name in batches[0][at]} for at in (0, 1)
    )
    count = len(next(iter(present.values())))
    for start in range(0, count, GROUP):
        if count - start > 1:
            end = start + GROUP
            yield (
                {name: rows[start:end] for name, rows in vectors.items()},
                {name: rows[start:end] for name, rows in present.items()},
            )


def bottlenecks(network: Network) -> list[str]:
    """Slots whose vectors something is asked of; else the first slot there is."""
    found: list[str] = []
    for objective in network.composition.objectives:
        found += [name for name in objective.vectors_of if name not in found]
    return found or [next(iter(network.composition.slots))]


def _spread(network: Network, vectors: dict[str, Tensor], there: dict[str, Tensor]) -> dict[str, float]:
    found: dict[str, float] = {}
    name, rows = next(iter(vectors.items()))
    first = rows[there[name]]
    if len(first) > 1:
        found["uniformity"] = float(torch.pdist(first).pow(2).mul(-2).exp().mean().log())
    for objective in network.composition.objectives:
        if isinstance(objective, Contrast):
            both = there[objective.a] & there[objective.b]
            if bool(both.any()):
                apart = vectors[objective.a][both] - vectors[objective.b][both]
                found["alignment"] = float(apart.pow(2).sum(dim=1).mean())
            break
    return found
