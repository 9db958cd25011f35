"""Answers of a writing model to a batch of inputs: sampled, greedy, or by beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drtk.models.generation_wishes import alone
from drtk.models.sampling import drawn, filtered, uniforms
from drtk.models.seq2seq import Decoding, Writer
from drtk.settings.generation import GenerationSettings

_SPARSE = 0.75  # finished rows are taken out once so few of those in the batch are still being written


@torch.inference_mode()
def answers(
    writer: Writer, ids: Tensor, mask: Tensor, keys: Sequence[str], settings: GenerationSettings, *, seed: int
) -> list[list[list[int]]]:
    """Tokens of the answers to each input, without the one that ends them: [input][answer][token].

    Sampled answers depend on (seed, key of the input, number of the answer) alone. Greedy: one answer an input;
    greedy+sample: the first is that one, the others are the samples of their numbers.
    ids, mask: (inputs, tokens); keys: one an input
    """
    if settings.decode == "beam":
        return _beams(writer, ids, mask, settings)
    count = settings.n if "sample" in settings.decode else 1
    chance = None
    if "sample" in settings.decode:
        table = uniforms(keys, seed=seed, count=count, steps=settings.max_new_tokens)
        if settings.decode == "greedy+sample":
            table[:, 0] = 0.0  # falls into the share of the most likely token, which lies first
        chance = torch.from_numpy(table.reshape(len(keys) * count, -1)).to(ids.device)
    written = _written(writer, Decoding(writer, ids, mask), count, chance, settings)
    lists = [row[: int(end)].tolist() for row, end in zip(*written, strict=True)]
    return [lists[at : at + count] for at in range(0, len(lists), count)]


def _written(
    writer: Writer, decoding: Decoding, count: int, chance: Tensor | None, settings: GenerationSettings
) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, how many of them) of every answer: (answers, max_new_tokens), (answers,)"""
    decoding.repeat(count)
    total, device = len(decoding.logits), decoding.logits.device
    ends = torch.tensor(writer.ends, device=device)
    tokens = torch.zeros((total, settings.max_new_tokens), dtype=torch.long, device=device)
    lengths = torch.full((total,), settings.max_new_tokens, device=device)
    rows = torch.arange(total, device=device)  # the answer that each row of the batch belongs to
    open_ = torch.ones(total, dtype=torch.bool, device=device)  # of the rows of the batch
    for step in range(settings.max_new_tokens):
        chosen = _chosen(decoding.logits, None if chance is None else chance[rows, step], settings)
        ended = torch.isin(chosen, ends)
        lengths[rows[open_ & ended]] = step
        tokens[rows, step] = chosen
        open_ &= ~ended
        left = int(open_.sum())
        if left == 0 or step + 1 == settings.max_new_tokens:
            break
        if left < _SPARSE * len(open_):
            kept = open_.nonzero().squeeze(1)
            decoding.keep(kept)
            rows, chosen, open_ = rows[kept], chosen[kept], open_[kept]
        decoding.step(chosen)
    return tokens.cpu().numpy(), lengths.cpu().numpy()


def _chosen(logits: Tensor, uniform: Tensor | None, settings: GenerationSettings) -> Tensor:
    """logits: (rows, vocabulary); uniform: (rows,); returns: (rows,)"""
    if uniform is None:
        return logits.argmax(dim=-1)
    left = filtered(logits, top_k=settings.top_k, top_p=settings.top_p, temperature=settings.temperature)
    return drawn(*left, uniform)


def _beams(writer: Writer, ids: Tensor, mask: Tensor, settings: GenerationSettings) -> list[list[list[int]]]:
    """The n best of `settings.beams` beams, by transformers' own search."""
    model: Any = writer.model
    choices = {
        "do_sample": False,
        "num_beams": max(settings.beams, settings.n),
        "num_return_sequences": settings.n,
        "max_new_tokens": settings.max_new_tokens,
        "pad_token_id": writer.pad,
        "eos_token_id": list(writer.ends),
    }
    if writer.two_sided:
        choices |= {"decoder_start_token_id": writer.start, "forced_bos_token_id": writer.first}
    with alone(model, **choices) as config:
        found = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    begin = 1 if writer.two_sided else ids.shape[1]  # the start token, or the input itself
    lists = [_until_end(row[begin:].tolist(), writer) for row in found]
    return [lists[at : at + settings.n] for at in range(0, len(lists), settings.n)]


def _until_end(tokens: list[int], writer: Writer) -> list[int]:
    return tokens[: next((at for at, token in enumerate(tokens) if token in writer.ends), len(tokens))]
