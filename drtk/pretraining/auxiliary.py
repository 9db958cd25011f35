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
from drtk.models.model_folder import resolve_model_folder
from drtk.pretraining.composition import Composition
from drtk.pretraining.dataset import SlotBatch
from drtk.pretraining.decoders import Discriminator
from drtk.pretraining.example_builder import SpecialTokens
from drtk.pretraining.masking import corrupt_tokens
from drtk.pretraining.network import EncodedBatch, PretrainingNetwork
from drtk.pretraining.objectives import SharedModules, TokenLoss
from drtk.pretraining.parse import parse_composition
from drtk.pretraining.token_generator import TokenGenerator
from drtk.text.rng import create_generator
from drtk.training.config import RetrieverConfig
from drtk.training.distributed import all_reduce_sum, get_world_size

ROLES = ("query", "passage")
PREFIX = "aux_"


def build_diffcse_composition(settings: RetrieverConfig) -> Composition:
    """Return the composition: replaced token detection on queries and passages, conditioned on the retriever's vectors."""
    changed = {"masking": "bernoulli", "rate": settings.aux_rate, "corruption": "replaced"}
    term = {"use": "recover", "decoder": "discriminator", "target": "edited", "classes": 2}
    term |= {"reduction": settings.aux_reduction, "weight": settings.aux_weight}
    content = {
        "slots": {role: {"view": role} for role in ROLES}
        | {f"{role}_changed": {"view": role, **changed} for role in ROLES},
        "decoders": {"discriminator": {"use": "discriminator"}},
        "generator": {
            "model": settings.aux_generator,
            "reads": "bert",
            "decode": settings.aux_decode,
            "scope": settings.aux_scope,
        },
        "objective": [{"slot": f"{role}_changed", "source": role, "name": f"diffcse_{role}", **term} for role in ROLES],
    }
    return parse_composition(content, "`aux` diffcse")


def build_diffcse_network(
    towers: Mapping[str, TextEncoder], settings: RetrieverConfig, *, seed: int
) -> PretrainingNetwork:
    """Build the network of DiffCSE's discriminator, its head and the frozen generator. It does not contain the encoders.

    towers: encoders by role, as `load_start_towers` returns them
    Raises MismatchError for encoders or a generator that DiffCSE cannot use.
    """
    composition = build_diffcse_composition(settings)
    tower = towers["passage"]
    for role, text_encoder in towers.items():
        if text_encoder.encoder.dimension != text_encoder.encoder.hidden_size:
            raise MismatchError(
                f"`aux` diffcse requires vectors of the hidden size: the {role} encoder has vectors of {text_encoder.encoder.dimension} "
                f"dimensions, but a hidden size of {text_encoder.encoder.hidden_size}; use an encoder without a dense layer"
            )
        if text_encoder.tokenizer.mask_token_id is None or text_encoder.tokenizer.padding_side == "left":
            raise MismatchError(
                "`aux` diffcse requires a tokenizer that has a mask token and pads on the right, such as BERT's"
            )
    if len(towers) > 1 and towers["query"].tokenizer.get_vocab() != tower.tokenizer.get_vocab():
        raise MismatchError("`aux` diffcse: the two encoders have different vocabularies; use one tokenizer")
    generator = TokenGenerator.from_folder(resolve_model_folder(settings.aux_generator), tower.tokenizer)
    adapter = BackboneAdapter(tower.encoder.backbone)
    nothing = nn.Identity()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shared = SharedModules(adapter, nothing, {"discriminator": Discriminator(adapter)})
        losses = {objective.name: TokenLoss(objective, shared) for objective in composition.token_objectives}
        for token_loss in losses.values():  # one head for queries and passages
            token_loss.target = next(iter(losses.values())).target
    return PretrainingNetwork(
        composition,
        backbone=nothing,
        adapter=None,
        head=nothing,
        token_losses=losses,
        projectors={},
        generator=generator,
    )


class TokenCorruptor:
    """Function that masks tokens of queries and passages for DiffCSE. Sampling depends on the keys of the texts only.

    composition: result of `build_diffcse_composition`
    """

    def __init__(self, composition: Composition, tokenizer: Any) -> None:
        self._composition, self._vocabulary = composition, SpecialTokens.from_tokenizer(tokenizer).vocabulary

    def __call__(
        self, role: str, padded: Mapping[str, np.ndarray], keys: Sequence[tuple[Any, ...]]
    ) -> dict[str, np.ndarray]:
        """Return the arrays `input_ids`, `content`, `masked` and `noise` of SlotBatch, each (texts, tokens).

        role: "query" or "passage"    padded: padded model inputs by name, (texts, tokens) each
        keys: seed of random numbers for each text
        """
        assert self._composition.generator is not None
        slot, vocabulary = self._composition.slots[f"{role}_changed"], self._vocabulary
        ids = padded["input_ids"]
        content = padded["attention_mask"].astype(bool) & ~np.isin(ids, sorted(vocabulary.special))
        input_ids, masked = ids.copy(), np.zeros(ids.shape, dtype=bool)
        noise = np.zeros(ids.shape, dtype=np.float32)
        for row, key in enumerate(keys):
            rng = create_generator(*key, "aux", role)
            size = int(padded["attention_mask"][row].sum())  # without padding, so that sampling does not depend on it
            masked[row, :size] = (rng.random(size) < slot.rate) & content[row, :size]
            input_ids[row, :size] = corrupt_tokens(
                ids[row, :size], masked[row, :size], self._composition.generator.reads, rng, vocabulary
            )
            noise[row, :size] = rng.random(size, dtype=np.float32)
        return {"input_ids": input_ids, "content": content, "masked": masked, "noise": noise}


class DiffCSE:
    """The DiffCSE task for retriever training; implements AuxiliaryTask of drtk.training.retriever."""

    def __init__(self, towers: Mapping[str, TextEncoder], config: RetrieverConfig, *, seed: int) -> None:
        self.network = build_diffcse_network(towers, config, seed=seed)
        self.weights = self.network.loss_weights
        self.corrupt = TokenCorruptor(self.network.composition, towers["passage"].tokenizer)

    def wrap(self, pair: BiEncoder, device: torch.device) -> BiEncoderWithDiffCSE:
        """Return the model to train: the encoders of `pair` with the DiffCSE task. Moves the generator to `device`."""
        assert self.network.generator is not None
        self.network.generator.to(device)
        return BiEncoderWithDiffCSE(pair, self.network)


class BiEncoderWithDiffCSE(nn.Module):
    """A BiEncoder and the DiffCSE network. The discriminator is conditioned on the vectors of the BiEncoder."""

    def __init__(self, pair: BiEncoder, network: PretrainingNetwork) -> None:
        super().__init__()
        self.pair, self.network = pair, network

    def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return (query vectors, passage vectors, {objective name: DiffCSE loss}); vectors: (texts, dimension).

        inputs: the inputs of BiEncoder, and results of TokenCorruptor with the prefix "aux_query_" or "aux_passage_"
        The losses are multiplied by the number of processes, because DDP averages gradients.
        """
        auxiliary = {name for name in inputs if name.startswith(PREFIX)}
        queries, passages = self.pair(**{name: value for name, value in inputs.items() if name not in auxiliary})
        terms: dict[str, Tensor] = {}
        for role, vectors in zip(ROLES, (queries, passages), strict=True):
            slot = self.build_slot(inputs, role)
            terms |= self.compute_loss(role, slot, vectors, self.count_labels(role, slot))
        return queries, passages, terms

    def build_slot(self, inputs: Mapping[str, Tensor], role: str, rows: Any = slice(None)) -> SlotBatch:
        """Return the discriminator's input for the queries or passages (`role`) of a step.

        inputs: the inputs of `forward`    rows: indices of the texts to use
        """
        ids = inputs[f"{role}_input_ids"][rows]
        tensors = {name: inputs[f"{PREFIX}{role}_{name}"][rows] for name in ("input_ids", "content", "masked", "noise")}
        if (types := inputs.get(f"{role}_token_type_ids")) is not None:
            tensors["types"] = types[rows]
        present = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        return SlotBatch(original_ids=ids, attention=inputs[f"{role}_attention_mask"][rows], present=present, **tensors)

    def count_labels(self, role: str, slot: SlotBatch) -> Tensor:
        """Return the number of labeled tokens of the queries or passages (`role`) over all processes, a scalar."""
        token_loss: Any = self.network.recoveries[f"diffcse_{role}"]
        return all_reduce_sum(token_loss.count_labels({f"{role}_changed": slot}))

    def compute_loss(self, role: str, slot: SlotBatch, vectors: Tensor, count: Tensor) -> dict[str, Tensor]:
        """Return {objective name: loss times the number of processes} of a chunk of queries or passages (`role`).

        vectors: (texts, dimension), vectors of these texts
        count: number of labels in all chunks and processes, by which a loss that is a mean is divided
        """
        name = f"diffcse_{role}"
        token_loss: Any = self.network.recoveries[name]
        encoded = EncodedBatch(self.network, {role: slot, f"{role}_changed": slot}, {role: vectors})
        return {name: token_loss.reduce(token_loss(encoded), count) * get_world_size()}
