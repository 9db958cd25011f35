"""A masked language model that proposes the tokens other models have to judge or to mend."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import types_for
from drtk.models.lm_head import LMHead, load_masked_lm

_CHUNK_VALUES = 1 << 24  # scores held at a time: 64 MiB in float32


class Generator(nn.Module):
    """Fills hidden tokens in. Its proposals carry no gradient, and are made without dropout whatever the mode.

    frozen: its parameters are not trained, and it stays in evaluation mode. A trained one is trained elsewhere, by the
    loss of a masked language model on `features`.
    """

    def __init__(self, backbone: nn.Module, head: LMHead, *, frozen: bool) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.head = head
        self.frozen = frozen
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not frozen and "pooler" not in name.split("."))
        self.train(not frozen)

    @classmethod
    def of_folder(cls, folder: Path, tokenizer: Any, *, frozen: bool = True, redrawn: bool = False) -> Generator:
        """The generator of a model folder (SimLM, DiffCSE), frozen or to be trained.

        redrawn: its shape alone, with weights drawn from torch's generator, to be trained
        tokenizer: that of the encoder. Raises MismatchError where the folder's numbers its word pieces otherwise, or has no
        trained head and needs one.
        """
        backbone, head, own = load_masked_lm(folder, announce=False)
        if head.fresh and not redrawn:
            raise MismatchError(
                f"{folder}: has no language-model head, so it proposes no tokens; name a masked language model (`drtk pretrain --preset mlm` makes one)"
            )
        check_vocabulary(folder, own.get_vocab(), tokenizer.get_vocab())
        return cls.beside(backbone, head, init="random") if redrawn else cls(backbone, head, frozen=frozen)

    @classmethod
    def beside(cls, backbone: nn.Module, head: LMHead, *, init: Literal["copy", "random"]) -> Generator:
        """A generator of an encoder's size that is trained with it (SimLM, Table 13): a copy, or drawn from torch's generator."""
        own: Any
        own, own_head = deepcopy(
            (backbone, head)
        )  # in one go: the copied head takes its embeddings from the copied encoder
        if init == "random":  # of the copies, since transformers draws no weight anew that it has loaded itself
            with torch.no_grad():
                own.apply(own._init_weights)
                own_head.apply(own._init_weights)
                if own_head.bias is not None:
                    own_head.bias.zero_()
                if own_head.own_weight is not None:
                    own_head.own_weight.normal_(0.0, float(own.config.initializer_range))
        return cls(own, own_head, frozen=False)

    def train(self, mode: bool = True) -> Generator:
        """Training mode, which a frozen generator does not take."""
        super().train(mode and not self.frozen)
        return self

    @property
    def longest(self) -> int | None:
        """The longest input it has positions for, in tokens; None where nothing limits it."""
        config = self.backbone.config
        positions = getattr(config, "max_position_embeddings", None)
        if not positions:
            return None
        before = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta") else 0
        return int(positions) - before

    def states(self, ids: Tensor, attention: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the last hidden states, with gradients. ids, attention, types: (B, L); returns: (B, L, H)"""
        given = {"input_ids": ids, "attention_mask": attention} | types_for(self.backbone, types)
        found: Tensor = self.backbone(**given).last_hidden_state
        return found

    def features(self, ids: Tensor, attention: Tensor, where: Tensor, types: Tensor | None = None) -> Tensor:
        """What the head multiplies by its embeddings, at some places, with gradient: what a generator that is trained learns from.

        ids, attention, types: (B, L)    where: (B, L) bool    returns: (m, E), in the order of the places
        """
        return self.head.features(self.states(ids, attention, types)[where])

    @torch.no_grad()
    def fill(
        self,
        masked_ids: Tensor,
        attention: Tensor,
        hidden: Tensor,
        *,
        decode: Literal["sample", "argmax"],
        scope: Literal["masked", "all"],
        noise: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """The ids with proposals in place of hidden tokens, (B, L); "all": of every token but the first.

        decode: "sample" draws from the softmax at temperature 1, "argmax" takes the likeliest
        masked_ids, attention: (B, L)    hidden: (B, L) bool
        noise: (B, L), uniform in [0, 1): the draw of each place, so that neither its row nor its batch matters
        types: (B, L), token types; None if all are 0
        Raises ValueError where "sample" is given no noise.
        """
        if decode == "sample" and noise is None:
            raise ValueError("sampling needs noise: a uniform number for every place")
        wanted = attention.bool() if scope == "all" else hidden & attention.bool()
        if scope == "all":
            wanted = wanted.clone()
            wanted[:, 0] = False
        was = self.training
        self.eval()
        try:
            features = self.features(masked_ids, attention, wanted, types)  # (m, E)
            draws = noise[wanted].to(features.device) if noise is not None and decode == "sample" else None
            proposed = self._propose(features, draws)
        finally:
            self.train(was)
        filled = masked_ids.clone()
        filled[wanted] = proposed.to(filled.dtype)
        return filled

    def _propose(self, features: Tensor, draws: Tensor | None) -> Tensor:
        """features: (m, E)    draws: (m,), None for the likeliest    returns: (m,) ids"""
        weight, bias = self.head.weight, self.head.bias
        found = []
        step = max(1, _CHUNK_VALUES // len(weight))
        for begin in range(0, len(features), step):
            scores = nn.functional.linear(features[begin : begin + step], weight, bias)
            found.append(scores.argmax(dim=1) if draws is None else drawn(scores.float(), draws[begin : begin + step]))
        return torch.cat(found) if found else torch.empty(0, dtype=torch.long, device=features.device)


def drawn(scores: Tensor, draws: Tensor) -> Tensor:
    """A draw from the softmax of each row: the first id whose cumulative probability lies above the row's number.

    scores: (m, V)    draws: (m,) in [0, 1)    returns: (m,)
    """
    steps = scores.softmax(dim=1).cumsum(dim=1)
    points = draws.to(steps.dtype).unsqueeze(1) * steps[:, -1:]  # rounding leaves the last step near 1, not at it
    last = scores.shape[1] - 1
    return torch.searchsorted(steps, points, right=True).squeeze(1).clamp(max=last)


def check_vocabulary(folder: Path, found: dict[str, int], wanted: dict[str, int]) -> None:
    """Raise MismatchError where two vocabularies differ: ids would mean other word pieces."""
    if found == wanted:
        return
    other = sum(wanted.get(piece) != number for piece, number in found.items())
    raise MismatchError(
        f"{folder}: the generator's vocabulary ({len(found):,} word pieces, {other:,} of them others or with other"
        f" numbers) is not the encoder's ({len(wanted):,})"
    )
