"""Build the network of a composition from a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError, UsageError
from drtk.models.backbone import Anatomy
from drtk.models.device import Attention
from drtk.models.lm_head import announce_fresh, load_masked_lm
from drtk.models.model_folder import locate
from drtk.pretraining import TARGETS
from drtk.pretraining.composition import Composition, Contrast
from drtk.pretraining.decoders import READERS
from drtk.pretraining.example_builder import fields_of
from drtk.pretraining.network import Network, Projector, recovering
from drtk.pretraining.objectives import Parts
from drtk.pretraining.token_generator import Generator
from drtk.pretraining.views.base import check_options
from drtk.registry import load_attribute
from drtk.runtime.progress import warn
from drtk.text.words import stop_words


def checked(composition: Composition, *, place: str) -> set[str]:
    """What a corpus must hold beside texts and titles, for a composition of which everything exists.

    Nothing is loaded but code. Raises UsageError, beginning with `place`, for a view, masking, reader or target that does not exist,
    an option it lacks, a reader without the source it starts from, and a source nobody looks at.
    """
    try:
        _check_readers(composition)
        return fields_of(composition)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _check_readers(composition: Composition) -> None:
    for objective in recovering(composition):
        reader = composition.readers[objective.reader]
        what = f"objective '{objective.name}': reader '{reader.use}'"
        try:
            kind = READERS.load(reader.use)
            TARGETS.check(objective.target)
        except UsageError as error:
            raise UsageError(f"objective '{objective.name}': {error}") from error
        if getattr(kind, "says_next", False) and objective.target != "all":
            raise UsageError(f'{what} writes the next token: target = "all"')
        check_options(what, kind.__init__, reader.options, given=("self", "anatomy"))
        needs_source = getattr(kind, "needs_source", False)
        if needs_source and not objective.source:
            raise UsageError(f"{what} needs 'source': the slot whose vector it starts from")
        if objective.source and not needs_source:
            raise UsageError(f"{what} looks at no other slot's vector: there can be no 'source'")


# What families call the dropout that is at work in the encoder itself.
_DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
)


def assembled(
    composition: Composition, model: Path, *, seed: int, place: str = "preset", attention: Attention | None = None
) -> tuple[Network, Any]:
    """The network, on the CPU in float32, and the tokenizer; new weights are drawn from `seed`.

    attention: how encoder, readers of its kind and generator attend; None: as they were loaded

    Raises MismatchError for an encoder that a reader or the generator cannot serve, UsageError for options a reader lacks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # a head that the folder lacks is drawn
        backbone, head, tokenizer = load_masked_lm(model, announce=False)
    if attention is not None:  # before layers are copied, for a copy has a configuration of its own
        attention.given_to(backbone)
    for name, parameter in backbone.named_parameters():
        if "pooler" in name.split("."):  # nothing reads it, so it would wait for a gradient for ever
            parameter.requires_grad_(False)
    anatomy = Anatomy(backbone)
    if tokenizer.mask_token_id is None:
        raise MismatchError(f"{model}: its tokenizer has no mask token")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        used = {getattr(objective, "reader", "") for objective in composition.objectives}
        readers = {
            name: _reader(reader.use, anatomy, reader.options, f"{place}: reader '{reader.use}'")
            for name, reader in composition.readers.items()
            if name in used
        }
        parts = Parts(anatomy, head, readers)
        recoveries: dict[str, Any] = {
            objective.name: load_attribute(objective.computed_by)(objective, parts)
            for objective in composition.objectives
            if not objective.compares
        }
        projectors = {
            name: Projector(anatomy.hidden_size, kind=each.kind)
            for name, each in composition.projectors.items()
            if any(name == objective.projector for objective in composition.objectives)
        }
        generator = _generator(composition, backbone, head, tokenizer)
    if attention is not None and generator is not None:
        attention.given_to(generator.backbone)
    if head.fresh:  # said now, so that what is refused is not announced first
        announce_fresh(model)
    if not any(part is head for each in recoveries.values() for part in each.modules()):
        head.requires_grad_(False)  # as the pooler: several processes would wait for its gradient
    network = Network(
        composition,
        backbone=backbone,
        anatomy=anatomy,
        head=head,
        recoveries=recoveries,
        projectors=projectors,
        generator=generator,
        dull=_dull(tokenizer),
    )
    return network, tokenizer


def longest(network: Network) -> int:
    """Tokens that encoder and generator can both read."""
    config = network.anatomy.config
    found = [10**9]
    if network.anatomy.has_positions:
        before = config.pad_token_id + 1 if network.anatomy.family in ("roberta", "xlm-roberta") else 0
        found.append(int(config.max_position_embeddings) - before)
    if network.generator is not None and network.generator.longest is not None:
        found.append(network.generator.longest)
    return min(found)


def check_lengths(network: Network, max_length: int) -> None:
    """Raise UsageError where a slot is longer than what the encoder, or the generator, reads."""
    room = longest(network)
    for name, slot in network.composition.slots.items():
        wanted = slot.max_length or max_length
        if wanted > room:
            how = f"--set slots.{name}.max_length={room}" if slot.max_length else f"--max-length {room}"
            raise UsageError(f"slot '{name}' is up to {wanted} tokens long, but the models read {room}: {how}")


def warn_of_twins(network: Network) -> None:
    """Say so where two slots of a contrast are one text as it stands, and no dropout of the encoder tells their vectors apart."""
    plan = network.composition
    said = network.anatomy.config.to_dict()
    if any(said.get(name) for name in _DROPOUTS):
        return
    for objective in plan.objectives:
        if not isinstance(objective, Contrast):
            continue
        one, two = plan.slots[objective.a], plan.slots[objective.b]
        if one == two and one.corruption == "none":
            warn(
                f"objective '{objective.name}': '{objective.a}' and '{objective.b}' are the same text, and dropout alone would "
                "tell them apart, of which the encoder's configuration has none: nothing is learnt from finding oneself"
            )


def _reader(use: str, anatomy: Anatomy, options: dict[str, Any], place: str) -> nn.Module:
    try:
        made: nn.Module = READERS.load(use)(anatomy, **options)
    except (TypeError, KeyError) as error:
        raise UsageError(f"{place}: {str(error).rpartition(') ')[2] or error}") from error
    except MismatchError as error:  # an encoder it cannot be built for
        raise MismatchError(f"{place}: {error}") from error
    return made


def _generator(composition: Composition, backbone: nn.Module, head: Any, tokenizer: Any) -> Generator | None:
    wanted = composition.generator
    if wanted is None:
        return None
    if wanted.init == "copy" or (wanted.init == "random" and not wanted.model):
        return Generator.beside(backbone, head, init=wanted.init)
    if not wanted.model:
        others = '; init = "copy" or "random" begins one without' if wanted.mode == "joint" else ""
        raise UsageError(f"[generator] names no model; --generator DIR names one{others}")
    frozen = wanted.mode == "frozen"
    return Generator.of_folder(locate(wanted.model), tokenizer, frozen=frozen, redrawn=wanted.init == "random")


def _dull(tokenizer: Any) -> Tensor:
    """(vocabulary,), True at pieces that are a stop word or hold no letter and no digit."""
    words = stop_words()
    dull = torch.zeros(len(tokenizer), dtype=torch.bool)
    for piece, number in tokenizer.get_vocab().items():
        plain = piece.removeprefix("##").lstrip("Ġ▁").lower()
        if number < len(dull):
            dull[number] = (plain in words and not piece.startswith("##")) or not any(map(str.isalnum, plain))
    return dull
