"""The generator: a masked language model that proposes replacement tokens."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import build_token_type_inputs
from drtk.models.checkpoint import load_masked_lm
from drtk.models.generation import sample_from_softmax
from drtk.models.lm_head import LMHead
from drtk.pretraining.composition import GENERATED, Composition
from drtk.pretraining.dataset import SlotBatch

_CHUNK_LOGITS = 1 << 24  # logits in memory at once: 64 MiB in float32


class TokenGenerator(nn.Module):
    """A masked language model that proposes replacement tokens, without gradients and dropout.

    A joint generator is trained by PretrainingNetwork with a masked-LM loss on the output of `compute_features`.

    frozen: do not train the generator, and keep it in evaluation mode
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
    def from_folder(
        cls, folder: Path, tokenizer: Any, *, frozen: bool = True, reinitialize: bool = False
    ) -> TokenGenerator:
        """Load the generator from a model folder (SimLM, DiffCSE).

        tokenizer: tokenizer of the encoder    reinitialize: replace the weights by random weights (SimLM, Table 13)
        Raises MismatchError if generator and encoder have different vocabularies, or if the folder has no trained
        masked-LM head and `reinitialize` is False.
        """
        backbone, head, own_tokenizer = load_masked_lm(folder)
        if head.is_untrained and not reinitialize:
            raise MismatchError(
                f"{folder}: no trained masked-LM head; as generator, use a masked language model, such as one from "
                "`drtk pretrain` with the preset mlm"
            )
        vocabulary, expected = own_tokenizer.get_vocab(), tokenizer.get_vocab()
        if vocabulary != expected:
            num_different = sum(expected.get(piece) != id for piece, id in vocabulary.items())
            raise MismatchError(
                f"{folder}: the generator's vocabulary ({len(vocabulary):,} tokens, {num_different:,} different) differs from the "
                f"encoder's ({len(expected):,} tokens); use a generator with the tokenizer of the encoder"
            )
        if reinitialize:
            # Of copies, because transformers does not reinitialize loaded weights; together, because the head refers to
            # its encoder.
            backbone, head = deepcopy((backbone, head))
            with torch.no_grad():
                backbone.apply(backbone._init_weights)
                head.apply(backbone._init_weights)
                if head.bias is not None:
                    head.bias.zero_()
                if head.own_weight is not None:
                    head.own_weight.normal_(0.0, float(backbone.config.initializer_range))
        return cls(backbone, head, frozen=frozen)

    def train(self, mode: bool = True) -> TokenGenerator:
        """Set training or evaluation mode. A frozen generator stays in evaluation mode."""
        super().train(mode and not self.frozen)
        return self

    def compute_features(self, ids: Tensor, attention: Tensor, where: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the inputs of the masked-LM head's output layer at m positions, (m, E), with gradients.

        ids, attention, types: (B, L), inputs of the model    where: (B, L) bool, True at the m positions
        """
        inputs = {"input_ids": ids, "attention_mask": attention} | build_token_type_inputs(self.backbone, types)
        return self.head.compute_features(self.backbone(**inputs).last_hidden_state[where])

    @torch.no_grad()
    def replace_tokens(
        self, ids: Tensor, attention: Tensor, where: Tensor, *, noise: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Return the token ids, (B, L), with the generator's tokens at the positions where `where` is True.

        ids: (B, L), token ids    attention: (B, L), 0 at padding    where: (B, L) bool    types: (B, L); None: all 0
        noise: (B, L), random numbers in [0, 1) to sample from the softmax; None: choose the most likely token
        """
        was_training = self.training
        self.eval()
        try:
            features = self.compute_features(ids, attention, where, types)  # (m, E)
        finally:
            self.train(was_training)
        numbers = None if noise is None else noise[where].to(features.device)  # (m,)
        proposed = torch.empty(len(features), dtype=ids.dtype, device=ids.device)
        step = max(1, _CHUNK_LOGITS // len(self.head.weight))
        for begin in range(0, len(features), step):
            part = slice(begin, begin + step)
            logits = nn.functional.linear(features[part], self.head.weight, self.head.bias)
            proposed[part] = logits.argmax(dim=1) if numbers is None else sample_from_softmax(logits, numbers[part])
        return ids.masked_scatter(where, proposed)


def fill_masks(slot: SlotBatch, name: str, composition: Composition, model: TokenGenerator | None) -> Tensor:
    """Return the input ids of the slot `name`, (batch, tokens), with the generator's tokens if its corruption needs them.

    A generator with scope "all" replaces all tokens but the first, including [SEP], as in DiffCSE's released code
    (docs/methods/diffcse.md). In rows with insertions or deletions, only inserted tokens are replaced.
    """
    corruption, settings = composition.slots[name].corruption, composition.generator
    if corruption not in GENERATED or model is None or settings is None or slot.noise is None:
        return slot.input_ids
    where = slot.masked
    if settings.scope == "all" and corruption != "inserted":
        where = slot.attention.bool().clone()
        where[:, 0] = False
        if corruption == "any" and slot.edited is not None:  # rows with insertions or deletions
            where = torch.where(slot.edited < 0, where, slot.masked)
    noise = slot.noise if settings.decode == "sample" else None
    return model.replace_tokens(slot.input_ids, slot.attention, where, noise=noise, types=slot.types)
