"""How much a step of pre-training takes: tokens, arithmetic and memory, counted before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from drtk.objectives.network import Network, recovering
from drtk.settings.pretraining import PretrainSettings
from drtk.training.material import Material

DRAWN = 64  # examples that means are taken over
STATE_BYTES = 16  # of a trained parameter: weight, gradient, and the two moments of Adam, in float32
FROZEN_BYTES = 4
LAYER_BYTES = (
    34  # kept of a layer for each token and unit of width, in 16 bits (Korthikanti 2022, section 4.1, attention apart)
)


class Load(NamedTuple):
    """What a slot brings to an example, on average: its tokens, special ones too, and those that are hidden.

    present: the share of examples that have such a text; the other figures count an example without it as nothing
    """

    tokens: float
    content: float
    hidden: float
    present: float


class Estimate(NamedTuple):
    """A step in numbers.

    loads: by slot    work: floating-point operations of the whole batch by part    memory: bytes on one device by part
    at_once: examples whose activations are kept at a time
    """

    loads: Mapping[str, Load]
    work: Mapping[str, float]
    memory: Mapping[str, float]
    at_once: int

    @property
    def tokens(self) -> float:
        """Tokens of an example, all slots together."""
        return sum(load.tokens for load in self.loads.values())


def loads_of(material: Material, *, count: int = DRAWN) -> dict[str, Load]:
    """Means over the first `count` examples that training will see."""
    seen = _seen(material, count)
    found = {}
    for name in seen[0]:
        slots = [each[name] for each in seen]
        there = [slot for slot in slots if slot.present]
        found[name] = Load(
            sum(len(slot.given) for slot in there) / len(slots),
            sum(int(slot.content.sum()) for slot in there) / len(slots),
            sum(int(slot.hidden.sum()) for slot in there) / len(slots),
            len(there) / len(slots),
        )
    return found


def longest_of(material: Material, *, count: int = DRAWN) -> int:
    """Tokens of the longest of the first `count` examples, all slots together."""
    return max(sum(len(slot.given) for slot in slots.values()) for slots in _seen(material, count))


def _seen(material: Material, count: int) -> list[Any]:
    rows = material.dataset()
    return [rows[number].slots for number in range(min(count, len(rows)))]


def estimated(material: Material, network: Network, *, at_once: int | None = None) -> Estimate:
    """The tokens, work and memory of a step; `at_once`, of the batch, are in memory together, all where the settings do not say."""
    settings = material.settings
    loads = loads_of(material)
    at_once = at_once or min(settings.micro_batch or settings.batch, settings.batch)
    return Estimate(
        loads,
        _work(network, loads, settings, at_once=at_once),
        _memory(network, loads, settings, at_once=at_once),
        at_once,
    )


def encoded_slots(network: Network) -> list[str]:
    """Slots that go through the encoder: those whose vector or whose states somebody asks for."""
    plan = network.composition
    found: list[str] = []
    for objective in plan.objectives:
        found += objective.vectors_of
        reader = getattr(network.recoveries[objective.name], "reader", None) if not objective.compares else None
        if not getattr(reader, "needs_source", False):
            found += objective.tokens_of
    return [name for name in plan.slots if name in found]


def parameters(modules: Iterable[nn.Module], *, tables: bool = True) -> int:
    """Parameters of modules, each once; without `tables` those of embeddings, whose look-up is no arithmetic, are left out."""
    left_out = set()
    if not tables:
        left_out = {
            id(parameter)
            for module in modules
            for part in module.modules()
            if isinstance(part, nn.Embedding)
            for parameter in part.parameters()
        }
    found = {id(parameter): parameter for module in modules for parameter in module.parameters()}
    return sum(parameter.numel() for key, parameter in found.items() if key not in left_out)


def trained(network: Network) -> int:
    """Parameters that have a gradient."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def _work(network: Network, loads: Mapping[str, Load], settings: PretrainSettings, *, at_once: int) -> dict[str, float]:
    """6 operations a parameter and token where there is a gradient, 2 where there is none; attention's own products apart."""
    plan, batch = network.composition, settings.batch
    encoder = parameters([network.backbone], tables=False)
    encoded = encoded_slots(network)
    again = 2 if settings.gradient_checkpointing else 0
    found = {"the encoder": (6.0 + again) * encoder * batch * sum(loads[name].tokens for name in encoded)}
    if network.contrasted and at_once < batch:  # gradient caching: another pass without a graph
        found["the encoder"] += 2.0 * encoder * batch * sum(loads[name].tokens for name in network.contrasted)
    scores = network.head.weight.numel()
    for objective in recovering(plan):
        recovery: Any = network.recoveries[objective.name]
        reader = parameters([recovery.reader], tables=False)
        tokens = sum(loads[name].tokens for name in objective.slot)
        labelled = sum(
            loads[name].hidden if objective.target == "masked" else loads[name].content for name in objective.slot
        )
        head = parameters([recovery.target]) + (0 if objective.target == "edited" else scores)
        found[f"term {objective.name}"] = 6.0 * batch * (reader * tokens + head * labelled)
    for name, projector in network.projectors.items():
        found[f"projector {name}"] = 6.0 * batch * parameters([projector]) * len(plan.projectors[name].slots)
    if network.generator is not None and plan.generator is not None:
        wanted = plan.generator
        inside = parameters([network.generator.backbone], tables=False)
        asked = [name for name, slot in plan.slots.items() if slot.corruption in ("replaced", "inserted", "any")]
        size = network.generator.head.weight.numel() + parameters([network.generator.head])
        proposed = sum(loads[name].tokens if wanted.scope == "all" else loads[name].hidden for name in asked)
        found["the generator"] = 2.0 * batch * (inside * sum(loads[name].tokens for name in asked) + size * proposed)
        if wanted.mode == "joint":
            own = loads[wanted.slot]
            found["the generator"] += 6.0 * batch * (inside * own.tokens + size * own.hidden)
    return {name: value for name, value in found.items() if value}


def _memory(
    network: Network, loads: Mapping[str, Load], settings: PretrainSettings, *, at_once: int
) -> dict[str, float]:
    """Bytes on one device: what a trained parameter takes, what a frozen one does, and what layers keep for the way back."""
    plan, width = network.composition, network.anatomy.hidden_size
    frozen = parameters([network]) - trained(network)
    if network.generator is not None and plan.generator is not None and plan.generator.mode == "frozen":
        frozen += parameters([network.generator])
    depth = float(network.anatomy.depth)
    encoded = sum(loads[name].tokens for name in encoded_slots(network))
    if settings.gradient_checkpointing:
        kept = (2.0 * depth + LAYER_BYTES) * encoded
    else:
        kept = LAYER_BYTES * depth * encoded
    one_layer = parameters([network.anatomy.layers[-1]])
    for objective in recovering(plan):
        recovery: Any = network.recoveries[objective.name]
        layers = parameters([recovery.reader], tables=False) / one_layer
        kept += LAYER_BYTES * layers * sum(loads[name].tokens for name in objective.slot)
    found = {
        "weights, gradients, Adam": float(STATE_BYTES * trained(network)),
        "frozen weights": float(FROZEN_BYTES * frozen),
        "activations": kept * width * at_once,
    }
    return {name: value for name, value in found.items() if value}
