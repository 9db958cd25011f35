"""What held-out passages tell about pre-training: losses, the worth of the bottleneck, and how vectors spread."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from drtk.objectives.batch import Batch
from drtk.objectives.network import Network, compared_terms
from drtk.objectives.recover import Recovery
from drtk.objectives.views import Views, moved
from drtk.settings.composition import Contrast

_ROWS_AT_MOST = 2048  # vectors compared with each other


@torch.no_grad()
def measured(network: Network, batches: Sequence[Batch], device: torch.device) -> dict[str, float]:
    """Means over the batches, in evaluation mode.

    held_out_TERM: each loss, by the number of labelled tokens even where training takes their sum; gain_TERM: the loss with another passage's vector minus that with the right one (near 0: the
    bottleneck is ignored); alignment, uniformity: of the vectors, on the unit sphere (Wang and Isola 2020)
    """
    was = network.training
    network.eval()
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    vectors: dict[str, list[Tensor]] = {}
    there: dict[str, list[Tensor]] = {}

    def add(name: str, value: Tensor, count: Tensor | float) -> None:
        sums[name] = sums.get(name, 0.0) + float(value)
        counts[name] = counts.get(name, 0.0) + float(count)

    try:
        for held in batches:
            batch = moved(held, device)
            views = Views(batch, network)
            for name, recovery in network.recoveries.items():
                assert isinstance(recovery, Recovery)
                count = recovery.count(batch)
                loss = recovery(views)
                add(f"held_out_{name}", loss, count)
                if recovery.bottlenecked:
                    add(f"gain_{name}", recovery(views, other_sources=True) - loss, count)
            rows = len(next(iter(batch.values())).present)
            present = {name: slot.present for name, slot in batch.items()}
            compared = network.vectors(batch) if network.contrasted else {}
            for name, value in compared_terms(network.composition, compared, present).items():
                add(f"held_out_{name}", value * rows, rows)
            for name in bottlenecks(network):
                vectors.setdefault(name, []).append(F.normalize(views.vector(name).float(), dim=-1))
                there.setdefault(name, []).append(present[name])
    finally:
        network.train(was)
    found = {name: total / max(counts[name], 1.0) for name, total in sums.items()}
    return found | _spread(
        network,
        {name: torch.cat(rows)[:_ROWS_AT_MOST] for name, rows in vectors.items()},
        {name: torch.cat(rows)[:_ROWS_AT_MOST] for name, rows in there.items()},
    )


def bottlenecks(network: Network) -> list[str]:
    """Slots whose vectors something is asked of; else the first slot there is."""
    found: list[str] = []
    for objective in network.composition.objectives:
        names = [objective.a, objective.b] if isinstance(objective, Contrast) else [*objective.source]
        found += [name for name in names if name not in found]
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
