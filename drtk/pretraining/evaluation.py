"""Evaluation on held-out passages: losses, and use of the text vector by decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from drtk.pretraining.dataset import Batch, PackedBatches
from drtk.pretraining.network import EncodedBatch, PretrainingNetwork, Tensors, compute_contrastive_losses

GROUP_SIZE = 64  # batch size of the contrastive losses, whose value depends on it
BATCH_SIZE = 32  # examples of a held-out batch


@torch.no_grad()
def evaluate_network(network: PretrainingNetwork, batches: Sequence[Batch], device: torch.device) -> dict[str, float]:
    """Return the metrics of a network on held-out batches, {name: value}, computed in evaluation mode.

    held_out_NAME: loss of objective NAME, averaged over labeled tokens, or over examples for a contrastive objective
    gain_NAME: loss of a decoder that gets the text vector of another example, minus its loss with the correct vector;
        a value near 0 means that the decoder ignores the vector
    """
    was_training = network.training
    network.eval()
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    compared: list[tuple[Tensors, Tensors]] = []

    def add(name: str, value: Tensor, count: Tensor | float) -> None:
        sums[name] = sums.get(name, 0.0) + float(value)
        counts[name] = counts.get(name, 0.0) + float(count)

    try:
        for held_out in batches:
            [batch] = PackedBatches.pack([held_out]).to(device).unpack()
            encoded = EncodedBatch(network, batch)
            for name, token_loss in network.recoveries.items():
                count = token_loss.count_labels(batch)
                loss = token_loss(encoded)
                add(f"held_out_{name}", loss, count)
                if getattr(token_loss, "has_bottleneck", False):
                    add(f"gain_{name}", token_loss(encoded, other_sources=True) - loss, count)
            if network.contrastive_slots:
                present = {name: slot.present for name, slot in batch.items()}
                compared.append((network.collect_vectors(encoded), present))
        for group, present in regroup_rows(compared):
            rows = len(next(iter(present.values())))
            for name, value in compute_contrastive_losses(network.composition, group, present).items():
                add(f"held_out_{name}", value * rows, rows)
    finally:
        network.train(was_training)
    return {name: total / max(counts[name], 1.0) for name, total in sums.items()}


def regroup_rows(batches: Sequence[tuple[Tensors, Tensors]]) -> Iterator[tuple[Tensors, Tensors]]:
    """Concatenate the rows (examples) of all batches, and split them into groups of GROUP_SIZE; the last may be smaller.

    A group of a single row is dropped, because it has no negatives.
    batches, result: pairs (vectors, present). vectors: {key of `build_vector_key`: (rows, hidden)};
        present: {slot: (rows,) bool, False without text}
    """
    if not batches:
        return
    vectors, present = (
        {name: torch.cat([batch[at][name] for batch in batches]) for name in batches[0][at]} for at in (0, 1)
    )
    count = len(next(iter(present.values())))
    for start in range(0, count, GROUP_SIZE):
        if count - start > 1:
            rows = slice(start, start + GROUP_SIZE)
            yield (
                {name: tensor[rows] for name, tensor in vectors.items()},
                {name: tensor[rows] for name, tensor in present.items()},
            )
