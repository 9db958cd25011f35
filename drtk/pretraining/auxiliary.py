"""DiffCSE's replaced token detection as an auxiliary task of retriever training (docs/methods/diffcse-dpr.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import BackboneAdapter
from drtk.models.biencoder import BiEncoder
from drtk.models.checkpoint import TextEncoder
from drtk.models.model_folder import locate
from drtk.pretraining.batch import SlotBatch
from drtk.pretraining.composition import Composition
from drtk.pretraining.corruption import corrupt_tokens
from drtk.pretraining.decoders.transformer import Discriminator
from drtk.pretraining.example_builder import SpecialTokens
from drtk.pretraining.network import EncodedBatch, Network
from drtk.pretraining.objectives import LossParts, TokenLoss
from drtk.pretraining.parse import parse_composition
from drtk.pretraining.token_generator import TokenGenerator
from drtk.text.rng import create_generator
from drtk.training.config import RetrieverConfig
from drtk.training.distributed import all_reduce_sum, get_world_size

ROLES = ("query", "passage")
PREFIX = "aux_"


def build_diffcse_composition(settings: RetrieverConfig) -> Composition:
    """Return the composition: replaced token detection for queries and for passages, given their vectors."""
    changed = {"masking": "bernoulli", "rate": settings.aux_rate, "corruption": "replaced"}
    term = {"use": "recover", "reader": "discriminator", "target": "edited", "classes": 2}
    term |= {"reduction": settings.aux_reduction, "weight": settings.aux_weight}
    content = {
        "slots": {role: {"view": role} for role in ROLES}
        | {f"{role}_changed": {"view": role, **changed} for role in ROLES},
        "readers": {"discriminator": {"use": "discriminator"}},
        "generator": {
            "model": settings.aux_generator,
            "reads": "bert",
            "decode": settings.aux_decode,
            "scope": settings.aux_scope,
        },
        "objective": [{"slot": f"{role}_changed", "source": role, "name": f"diffcse_{role}", **term} for role in ROLES],
    }
    return parse_composition(content, "`aux` diffcse")


def build_diffcse_network(towers: Mapping[str, TextEncoder], settings: RetrieverConfig, *, seed: int) -> Network:
    """Build the network of discriminator, head and frozen generator. The encoders are not part of it.

    Raises MismatchError for encoders or a generator that DiffCSE cannot use.
    """
    plan = build_diffcse_composition(settings)
    tower = towers["passage"]
    for role, text_encoder in towers.items():
        if text_encoder.encoder.dimension != text_encoder.encoder.hidden_size:
            raise MismatchError(
                f"`aux` diffcse needs vectors as wide as token states: the {role} encoder's are {text_encoder.encoder.dimension} "
                f"wide, its tokens {text_encoder.encoder.hidden_size}"
            )
        if text_encoder.tokenizer.mask_token_id is None or text_encoder.tokenizer.padding_side == "left":
            raise MismatchError("`aux` diffcse: the encoder's tokenizer has no mask token, or pads on the left")
    if len(towers) > 1 and towers["query"].tokenizer.get_vocab() != tower.tokenizer.get_vocab():
        raise MismatchError("`aux` diffcse: the two encoders have different vocabularies")
    proposing = TokenGenerator.from_folder(locate(settings.aux_generator), tower.tokenizer)
    adapter = BackboneAdapter(tower.encoder.backbone)
    nothing = nn.Identity()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts = LossParts(adapter, nothing, {"discriminator": Discriminator(adapter)})
        recoveries = {objective.name: TokenLoss(objective, parts) for objective in plan.recovers}
        for recovery in recoveries.values():  # one head for queries and passages
            recovery.target = next(iter(recoveries.values())).target
    return Network(
        plan, backbone=nothing, adapter=None, head=nothing, recoveries=recoveries, projectors={}, generator=proposing
    )


class TokenCorruptor:
    """Corrupt the tokens of queries or passages. Sampling depends on the key of a text only."""

    def __init__(self, plan: Composition, tokenizer: Any) -> None:
        self._plan, self._vocabulary = plan, SpecialTokens.from_tokenizer(tokenizer).vocabulary

    def __call__(
        self, role: str, padded: Mapping[str, np.ndarray], keys: Sequence[tuple[Any, ...]]
    ) -> dict[str, np.ndarray]:
        """Return the arrays `given`, `content`, `hidden` and `noise` of SlotBatch, (texts, tokens) each.

        role: "query" or "passage"    padded: the model inputs    keys: one per text
        """
        assert self._plan.generator is not None
        slot, vocabulary = self._plan.slots[f"{role}_changed"], self._vocabulary
        ids = padded["input_ids"]
        content = padded["attention_mask"].astype(bool) & ~np.isin(ids, sorted(vocabulary.special))
        given, hidden = ids.copy(), np.zeros(ids.shape, dtype=bool)
        noise = np.zeros(ids.shape, dtype=np.float32)
        for row, key in enumerate(keys):
            rng = create_generator(*key, "aux", role)
            size = int(padded["attention_mask"][row].sum())  # without padding, so that sampling does not depend on it
            hidden[row, :size] = (rng.random(size) < slot.rate) & content[row, :size]
            given[row, :size] = corrupt_tokens(
                ids[row, :size], hidden[row, :size], self._plan.generator.reads, rng, vocabulary
            )
            noise[row, :size] = rng.random(size, dtype=np.float32)
        return {"given": given, "content": content, "hidden": hidden, "noise": noise}


class DiffCSE:
    """DiffCSE as an AuxiliaryTask of drtk.training.retriever."""

    def __init__(self, towers: Mapping[str, TextEncoder], config: RetrieverConfig, *, seed: int) -> None:
        """Raises what `build_diffcse_network` raises."""
        self.network = build_diffcse_network(towers, config, seed=seed)
        self.weights = self.network.weights
        self.corrupt = TokenCorruptor(self.network.composition, towers["passage"].tokenizer)

    def wrap(self, pair: BiEncoder, device: torch.device) -> BiEncoderWithDiffCSE:
        """Return the model to train, and move the generator to the device."""
        assert self.network.generator is not None
        self.network.generator.to(device)
        return BiEncoderWithDiffCSE(pair, self.network)


class BiEncoderWithDiffCSE(nn.Module):
    """A BiEncoder with the network of the auxiliary loss, which uses the vectors of the BiEncoder."""

    def __init__(self, pair: BiEncoder, network: Network) -> None:
        super().__init__()
        self.pair, self.network = pair, network

    def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return (query vectors, passage vectors, auxiliary loss terms).

        Each term is this process's share of the loss, times the number of processes.
        """
        auxiliary = {name for name in inputs if name.startswith(PREFIX)}
        queries, passages = self.pair(**{name: value for name, value in inputs.items() if name not in auxiliary})
        terms: dict[str, Tensor] = {}
        for role, vectors in zip(ROLES, (queries, passages), strict=True):
            slot = self.slot(inputs, role)
            terms |= self.term(role, slot, vectors, self.count(role, slot))
        return queries, passages, terms

    def slot(self, inputs: Mapping[str, Tensor], role: str, rows: Any = slice(None)) -> SlotBatch:
        """Return the discriminator's SlotBatch of a role. rows: indices of some of the texts"""
        ids = inputs[f"{role}_input_ids"][rows]
        tensors = {name: inputs[f"{PREFIX}{role}_{name}"][rows] for name in ("given", "content", "hidden", "noise")}
        if (types := inputs.get(f"{role}_token_type_ids")) is not None:
            tensors["types"] = types[rows]
        present = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        return SlotBatch(clean=ids, attention=inputs[f"{role}_attention_mask"][rows], present=present, **tensors)

    def count(self, role: str, slot: SlotBatch) -> Tensor:
        """Return the number of labeled positions of a role over all processes, ()."""
        recovery: Any = self.network.recoveries[f"diffcse_{role}"]
        return all_reduce_sum(recovery.count({f"{role}_changed": slot}))

    def term(self, role: str, slot: SlotBatch, vectors: Tensor, count: Tensor) -> dict[str, Tensor]:
        """Return the loss term of some texts of a role, divided by the `count` of all texts."""
        name = f"diffcse_{role}"
        recovery: Any = self.network.recoveries[name]
        encoded = EncodedBatch(self.network, {role: slot, f"{role}_changed": slot}, {role: vectors})
        return {name: recovery.reduce(recovery(encoded), count) * get_world_size()}
