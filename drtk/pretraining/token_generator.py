"""The generator: a masked language model that proposes replacement tokens."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import build_token_type_inputs
from drtk.models.lm_head import LMHead, load_masked_lm
from drtk.pretraining.batch import SlotBatch
from drtk.pretraining.composition import GENERATED, Composition

_CHUNK_VALUES = 1 << 24  # scores held at a time: 64 MiB in float32


class TokenGenerator(nn.Module):
    """Fill hidden tokens, without gradient and without dropout.

    frozen: its parameters are not trained, and it stays in evaluation mode
    A joint generator is trained by the network, with a masked-LM loss on `features`.
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
    def from_folder(cls, folder: Path, tokenizer: Any, *, frozen: bool = True, redrawn: bool = False) -> TokenGenerator:
        """Load the generator of a model folder (SimLM, DiffCSE).

        tokenizer: the encoder's    redrawn: take the shape only, with random weights, to be trained
        Raises MismatchError if the folder has another vocabulary, or no trained head and needs one.
        """
        backbone, head, own = load_masked_lm(folder, warn_untrained=False)
        if head.is_untrained and not redrawn:
            raise MismatchError(
                f"{folder}: has no trained masked-LM head, so it proposes no tokens; "
                "use a masked language model, such as one of `drtk pretrain` with the preset mlm"
            )
        found, wanted = own.get_vocab(), tokenizer.get_vocab()
        if found != wanted:
            other = sum(wanted.get(piece) != number for piece, number in found.items())
            raise MismatchError(
                f"{folder}: the generator's vocabulary ({len(found):,} word pieces, {other:,} different) is not the "
                f"encoder's ({len(wanted):,})"
            )
        return cls.from_encoder(backbone, head, init="random") if redrawn else cls(backbone, head, frozen=frozen)

    @classmethod
    def from_encoder(cls, backbone: nn.Module, head: LMHead, *, init: Literal["copy", "random"]) -> TokenGenerator:
        """Make a trainable generator of the encoder's size (SimLM, Table 13): a copy, or random weights."""
        own: Any
        own, own_head = deepcopy((backbone, head))  # together: a copied head refers to its encoder
        if init == "random":  # transformers initializes copies, but not weights that it has loaded itself
            with torch.no_grad():
                own.apply(own._init_weights)
                own_head.apply(own._init_weights)
                if own_head.bias is not None:
                    own_head.bias.zero_()
                if own_head.own_weight is not None:
                    own_head.own_weight.normal_(0.0, float(own.config.initializer_range))
        return cls(own, own_head, frozen=False)

    def train(self, mode: bool = True) -> TokenGenerator:
        """Set the mode; a frozen generator stays in evaluation mode."""
        super().train(mode and not self.frozen)
        return self

    def features(self, ids: Tensor, attention: Tensor, where: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the head's features at the m positions of `where`, (m, E), with gradients.

        ids, attention, types: (B, L)    where: (B, L) bool
        """
        given = {"input_ids": ids, "attention_mask": attention} | build_token_type_inputs(self.backbone, types)
        return self.head.features(self.backbone(**given).last_hidden_state[where])

    @torch.no_grad()
    def fill(
        self, ids: Tensor, attention: Tensor, where: Tensor, *, noise: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Return the ids, (B, L), with proposals at the positions of `where`, without dropout.

        ids, attention: (B, L)    where: (B, L) bool    types: (B, L), token types; None if all are 0
        noise: (B, L) in [0, 1), to sample from the softmax at temperature 1; one number for each position, so that the
        batch does not matter. Without noise, the most likely tokens.
        """
        was = self.training
        self.eval()
        try:
            features = self.features(ids, attention, where, types)  # (m, E)
            proposed = self._propose(features, None if noise is None else noise[where].to(features.device))
        finally:
            self.train(was)
        filled = ids.clone()
        filled[where] = proposed.to(filled.dtype)
        return filled

    def _propose(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """features: (m, E); noise: (m,), or None for argmax; return (m,) ids."""
        weight, bias = self.head.weight, self.head.bias
        ids = []
        step = max(1, _CHUNK_VALUES // len(weight))
        for begin in range(0, len(features), step):
            scores = nn.functional.linear(features[begin : begin + step], weight, bias)
            ids.append(
                scores.argmax(dim=1)
                if noise is None
                else sample_from_softmax(scores.float(), noise[begin : begin + step])
            )
        return torch.cat(ids) if ids else torch.empty(0, dtype=torch.long, device=features.device)


def sample_from_softmax(scores: Tensor, noise: Tensor) -> Tensor:
    """Sample from the softmax of each row: the first id whose cumulative probability exceeds the row's noise.

    scores: (m, V)    noise: (m,) in [0, 1)    returns: (m,)
    """
    steps = scores.softmax(dim=1).cumsum(dim=1)
    points = noise.to(steps.dtype).unsqueeze(1) * steps[:, -1:]  # the last step may be rounded below 1
    last = scores.shape[1] - 1
    return torch.searchsorted(steps, points, right=True).squeeze(1).clamp(max=last)


def fill_masks(slot: SlotBatch, name: str, composition: Composition, model: TokenGenerator | None) -> Tensor:
    """Return the input ids of slot `name`, (batch, tokens), with the generator's tokens if its corruption wants them.

    A generator with scope "all" replaces every token but the first, [SEP] too, as released DiffCSE does
    (docs/methods/diffcse.md); of insertions only the inserted tokens are filled.
    """
    corruption, settings = composition.slots[name].corruption, composition.generator
    if corruption not in GENERATED or model is None or settings is None or slot.noise is None:
        return slot.given
    where = slot.hidden
    if settings.scope == "all" and corruption != "inserted":
        where = slot.attention.bool().clone()
        where[:, 0] = False
        if corruption == "any" and slot.edited is not None:  # rows with insertions or deletions
            where = torch.where(slot.edited < 0, where, slot.hidden)
    noise = slot.noise if settings.decode == "sample" else None
    return model.fill(slot.given, slot.attention, where, noise=noise, types=slot.types)
