"""Drawing the next token: filters of a distribution, and draws that depend on what they are for alone."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

_MANTISSA = 1 << 53


def filtered(logits: Tensor, *, top_k: int, top_p: float, temperature: float) -> tuple[Tensor, Tensor]:
    """(probabilities, tokens), best first, of what is left of each distribution; what is cut off has probability 0.

    First the `top_k` most likely tokens are kept (0: all) and their probabilities brought to a sum of 1; of these the
    smallest set that reaches `top_p` is kept (Holtzman 2020), and brought to a sum of 1 again. The other order keeps more
    (methods: section 2.6).
    logits: (rows, vocabulary); returns: both (rows, top_k or vocabulary), float32 and int64
    """
    width = logits.shape[-1] if top_k == 0 else min(top_k, logits.shape[-1])
    best, tokens = logits.float().topk(width, dim=-1)
    probabilities = torch.softmax(best / temperature, dim=-1)
    if top_p < 1:
        before = probabilities.cumsum(dim=-1) - probabilities  # what more likely tokens hold together
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    return probabilities, tokens


def drawn(probabilities: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """The token of each row whose share of [0, 1) `uniform` falls into, shares lying side by side, the largest first.

    probabilities, tokens: (rows, width); uniform: (rows,); returns: (rows,)
    """
    reached = probabilities.cumsum(dim=-1)  # (rows, width)
    reached = reached / reached[:, -1:]  # rounding must not leave a gap below 1
    place = (reached <= uniform[:, None]).sum(dim=-1).clamp(max=tokens.shape[-1] - 1)
    last = (probabilities > 0).sum(dim=-1) - 1
    return tokens.gather(1, torch.minimum(place, last)[:, None]).squeeze(1)


def uniforms(keys: Sequence[str], *, seed: int, count: int, steps: int) -> np.ndarray:
    """Numbers in [0, 1) for each key, sample and step, decided by (seed, key, sample, step) alone.

    returns: (keys, count, steps), float64
    """
    rows = np.empty((len(keys), count, steps), dtype=np.float64)
    for at, key in enumerate(keys):
        for sample in range(count):
            name = f"{seed}\0{key}\0{sample}".encode(errors="surrogatepass")
            start = int.from_bytes(blake2b(name, digest_size=16).digest(), "big")
            rows[at, sample] = np.random.Generator(np.random.Philox(key=start)).random(steps)
    return rows
