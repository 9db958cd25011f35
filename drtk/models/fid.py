"""Fusion-in-Decoder: passages encoded one by one, and one decoder that attends to all encodings of a question together.

T5's and BART's decoders know no positions of what they attend to; so encodings may stand side by side without the padding that
the public code leaves between them, and the sum over them is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drtk.models.seq2seq import Decoding, Writer
from drtk.text.batching import Tokens, batches_by_length

_SPARSE = 0.75  # finished questions are taken out once so few of those in the batch are still being answered


class Answer(NamedTuple):
    """Tokens of an answer without the one that ends it, and the log-probability of all of them, the end included."""

    tokens: list[int]
    score: float


@torch.inference_mode()
def encoded(writer: Writer, tokens: Tokens, groups: Sequence[np.ndarray], *, budget: int) -> tuple[Tensor, Tensor]:
    """The encodings of each question's passages, one after the other.

    groups: for each question the rows of its passages in `tokens`, at least one; budget: tokens encoded at once
    returns: (questions, positions, hidden), 0 where a question has fewer; the mask (questions, positions), 1 where it has not
    """
    model: Any = writer.model
    lengths = [int(tokens.lengths[group].sum()) for group in groups]
    width = max(lengths)
    rows = np.concatenate(groups)
    begins = np.concatenate(
        [at * width + np.cumsum(tokens.lengths[group]) - tokens.lengths[group] for at, group in enumerate(groups)]
    )
    hidden: Tensor | None = None
    for chosen in batches_by_length(tokens.lengths[rows], budget=budget):
        batch = tokens.padded(rows[chosen], pad=writer.pad)
        ids, mask = (torch.from_numpy(batch[name]).to(model.device) for name in ("input_ids", "attention_mask"))
        found = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state  # (passages, tokens, hidden)
        if hidden is None:
            hidden = found.new_zeros((len(groups) * width, found.shape[-1]))
        places = [np.arange(begins[row], begins[row] + tokens.lengths[rows[row]]) for row in chosen]
        hidden[torch.from_numpy(np.concatenate(places)).to(model.device)] = found[mask.bool()]
    if hidden is None:
        raise ValueError("a question without a passage")
    seen = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return hidden.view(len(groups), width, -1), seen.long().to(model.device)


@torch.inference_mode()
def answered(writer: Writer, hidden: Tensor, mask: Tensor, *, longest: int) -> list[Answer]:
    """The greedy answer to each question, at most `longest` tokens of it.

    hidden, mask: as `encoded` gives them
    """
    decoding = Decoding(writer, None, mask, hidden=hidden)
    answers = [Answer([], 0.0) for _ in hidden]
    rows = list(range(len(answers)))  # the question that each row of the batch belongs to
    ends = set(writer.ends)
    for step in range(longest):
        chances, tokens = decoding.logits.float().log_softmax(dim=-1).max(dim=-1)  # (rows,)
        open_ = []
        for place, (token, chance) in enumerate(zip(tokens.tolist(), chances.tolist(), strict=True)):
            row = rows[place]
            if row < 0:
                continue
            ended = token in ends
            known, score = answers[row]
            answers[row] = Answer(known if ended else [*known, token], score + chance)
            if ended:
                rows[place] = -1
            else:
                open_.append(place)
        if not open_ or step + 1 == longest:
            break
        if len(open_) < _SPARSE * len(rows):
            kept = torch.tensor(open_, device=tokens.device)
            decoding.keep(kept)
            rows, tokens = [rows[place] for place in open_], tokens[kept]
        decoding.step(tokens)
    return answers
