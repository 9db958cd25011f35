"""Build the network of a composition: encoder, heads, decoders, projectors and generator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from drtk.errors import MismatchError, UsageError
from drtk.models.backbone import BackboneAdapter
from drtk.models.checkpoint import get_max_positions, load_masked_lm
from drtk.models.device import AttentionBackend
from drtk.models.lm_head import get_head_path
from drtk.models.model_folder import resolve_model_folder
from drtk.pretraining import TARGETS
from drtk.pretraining.composition import Composition, ContrastiveObjective, DecoderSpec, TokenObjective
from drtk.pretraining.config import check_options, prefix_errors
from drtk.pretraining.decoders import DECODERS
from drtk.pretraining.example_builder import list_corpus_fields
from drtk.pretraining.network import PretrainingNetwork, Projector
from drtk.pretraining.objectives import SharedModules
from drtk.pretraining.token_generator import TokenGenerator
from drtk.registry import load_attribute
from drtk.runtime.progress import warn
from drtk.text.words import load_stop_words

MODULES_FILE = "decoders"  # in heads/ of a model folder: the weights of decoders, projectors and joint generator
# Names of the dropout rates in the configurations of transformers
_DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
)


def check_composition(composition: Composition, *, place: str) -> set[str]:
    """Check a composition without loading a model; return the names of the corpus fields that it needs.

    place: prefix of error messages, such as the name of the preset
    Raises UsageError for an unknown view, masking, decoder, target or option, a target that the decoder cannot predict,
    and a missing or unused `source`.
    """
    with prefix_errors(place):
        for objective in composition.token_objectives:
            with prefix_errors(f"objective '{objective.name}'"):
                _check_decoder(objective, composition.decoders[objective.decoder])
        return list_corpus_fields(composition)


def _check_decoder(objective: TokenObjective, decoder: DecoderSpec) -> None:
    what, kind = f"decoder '{decoder.use}'", DECODERS.load(decoder.use)
    TARGETS.check_name(objective.target)
    if getattr(kind, "predicts_next", False) and objective.target != "all":
        raise UsageError(f'{what} predicts every next token; set target = "all" in the objective')
    check_options(what, kind.__init__, decoder.options)
    needs_source = getattr(kind, "needs_source", False)
    if needs_source and not objective.source:
        raise UsageError(f"{what} requires 'source'; set it to the slot whose vector the decoder gets")
    if objective.source and not needs_source:
        raise UsageError(f"{what} does not use a text vector; remove 'source'")


def build_network(
    composition: Composition,
    model: Path,
    *,
    seed: int,
    place: str = "preset",
    attention: AttentionBackend | None = None,
) -> tuple[PretrainingNetwork, Any]:
    """Build the network in float32 on the CPU, and return (network, tokenizer). New weights are initialized with `seed`.

    model: folder of the encoder to start from
    place: prefix of error messages
    attention: attention implementation of the encoder, the decoders and the generator; None: the default
    Raises MismatchError if the encoder's type is not supported, its tokenizer has no mask token, or a decoder or the
    generator does not fit the encoder; UsageError for a generator without model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for a new head, if the folder has none
        backbone, head, tokenizer = load_masked_lm(model)
    if attention is not None and any(each.reduction == "mean_all" for each in composition.token_objectives):
        attention = replace(attention, packed=False)  # these losses include padding
    if attention is not None:  # before layers are copied, since copies have their own configuration
        attention.apply(backbone)
    adapter = BackboneAdapter(backbone)
    if tokenizer.mask_token_id is None:
        raise MismatchError(f"{model}: the tokenizer has no mask token; use a masked language model such as BERT")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        used = {objective.decoder for objective in composition.token_objectives}
        decoders = {}
        for name, decoder in composition.decoders.items():
            if name in used:
                with prefix_errors(place):
                    decoders[name] = DECODERS.load(decoder.use)(adapter, **decoder.options)
        shared = SharedModules(adapter, head, decoders)
        token_losses: dict[str, Any] = {
            objective.name: load_attribute(objective.implementation)(objective, shared)
            for objective in composition.objectives
            if not objective.compares_vectors
        }
        projectors = {
            name: Projector(adapter.hidden_size, kind=spec.kind)
            for name, spec in composition.projectors.items()
            if any(name == objective.projector for objective in composition.objectives)
        }
        generator = _build_generator(composition, tokenizer)
    if attention is not None and generator is not None:
        attention.apply(generator.backbone)
    if head.is_untrained:
        warn(f"{model}: has no masked-LM head; training starts with a randomly initialized one with tied embeddings")
    if not any(part is head for token_loss in token_losses.values() for part in token_loss.modules()):
        head.requires_grad_(False)  # not used; DDP would wait for its gradient
    network = PretrainingNetwork(
        composition,
        backbone=backbone,
        adapter=adapter,
        head=head,
        token_losses=token_losses,
        projectors=projectors,
        generator=generator,
        stop_words=_build_stop_word_mask(tokenizer),
    )
    return network, tokenizer


def load_training_modules(network: PretrainingNetwork, model: Path) -> int:
    """Load the decoders, projectors and joint generator that an earlier pre-training saved; return the number of loaded tensors.

    Tensors with another name or shape are ignored. model: model folder of the earlier pre-training
    """
    path = get_head_path(model, MODULES_FILE)
    if not path.exists():
        return 0
    state = network.state_dict()
    matching = {
        name: tensor for name, tensor in load_file(path).items() if name in state and state[name].shape == tensor.shape
    }
    network.load_state_dict(matching, strict=False)
    return len(matching)


def check_lengths(network: PretrainingNetwork, max_length: int) -> None:
    """Raise UsageError if a slot (model input) may exceed the maximum input length of the encoder or the generator.

    max_length: maximum length, in tokens, of slots that set no `max_length`
    """
    models = [network.adapter.backbone] if network.adapter.has_positions else []
    models += [] if network.generator is None else [network.generator.backbone]
    limit = min([get_max_positions(model.config) or 10**9 for model in models], default=10**9)
    for name, slot in network.composition.slots.items():
        length = slot.max_length or max_length
        if length > limit:
            fix = f"`set` slots.{name}.max_length={limit}" if slot.max_length else f"`max_length` {limit}"
            raise UsageError(
                f"slot '{name}' has up to {length} tokens, but the models accept at most {limit}; use {fix}"
            )


def warn_of_equal_vectors(network: PretrainingNetwork) -> None:
    """Warn if a contrastive objective compares the same text twice and the encoder has no dropout."""
    plan, config = network.composition, network.adapter.config.to_dict()
    if any(config.get(name) for name in _DROPOUTS):
        return
    for objective in plan.objectives:
        if isinstance(objective, ContrastiveObjective):
            slot = plan.slots[objective.a]
            if slot == plan.slots[objective.b] and slot.corruption == "none":
                warn(
                    f"objective '{objective.name}': slots '{objective.a}' and '{objective.b}' have the same text and the encoder "
                    "has no dropout, so their vectors are equal; set dropout in the encoder's config.json"
                )


def _build_generator(composition: Composition, tokenizer: Any) -> TokenGenerator | None:
    settings = composition.generator
    if settings is None:
        return None
    if not settings.model:
        raise UsageError("[generator] has no model; set `generator` to a model folder")
    return TokenGenerator.from_folder(
        resolve_model_folder(settings.model),
        tokenizer,
        frozen=settings.mode == "frozen",
        reinitialize=settings.init == "random",
    )


def _build_stop_word_mask(tokenizer: Any) -> Tensor:
    """Return (vocabulary,) bool, True at the ids of stop words and of tokens without a letter or digit."""
    words = load_stop_words()
    mask = torch.zeros(len(tokenizer), dtype=torch.bool)
    for token, id in tokenizer.get_vocab().items():
        plain = token.removeprefix("##").lstrip("Ġ▁").lower()
        if id < len(mask):
            mask[id] = (plain in words and not token.startswith("##")) or not any(map(str.isalnum, plain))
    return mask
