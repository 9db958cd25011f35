"""How much a step of pre-training takes: tokens, arithmetic and memory, counted before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from drtk.errors import DrtkError
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.dataset import Material
from drtk.pretraining.network import Network, recovering
from drtk.runtime.atomic import write_bytes
from drtk.runtime.progress import log, warn
from drtk.runtime.sharding import local_world_size
from drtk.training.distributed import least, rank

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


USABLE = {"cuda": 0.8, "cpu": 0.5}  # of what is free: an estimate is no measurement, and a CPU's memory has other users
WORKSPACE = 1 << 29  # bytes of scores, kernels and what lies between two tensors, whatever the batch
SLACK = 1.5  # activations that the formula leaves out: norms in 32 bits, weights cast to 16, copies of the moment
SCORE_BYTES = 5  # kept of an attention score in 16 bits (Korthikanti 2022, section 4.1), where a kernel writes them out


def largest_part(share: int, *, each: float, room: float) -> int:
    """Examples of each part, of as few parts of like size as there can be of `share` examples; at least one.

    each: bytes of an example's activations; room: bytes for those of a part
    """
    fit = max(1, min(share, int(room // each) if each > 0 else share))
    return math.ceil(share / math.ceil(share / fit))


def bytes_of_example(
    material: Material, network: Network, found: Estimate, device: torch.device, *, half: bool
) -> float:
    """Bytes that the activations of an example take, one as long as the longest of those looked at; `found`: of one at once."""
    kept = found.memory["activations"]
    if device.type == "cpu":  # attention with dropout has no kernel there that would spare the scores
        depth = 1.0 if material.settings.gradient_checkpointing else float(network.anatomy.depth)
        layers = dict.fromkeys(encoded_slots(network), depth)
        for objective in recovering(network.composition):
            for name in objective.slot:
                layers[name] = layers.get(name, 0.0) + 2.0  # a decoder's, or a head's
        scores = sum(count * found.loads[name].tokens ** 2 for name, count in layers.items())
        kept += SCORE_BYTES * int(network.anatomy.config.num_attention_heads) * scores
    return kept * (1 if half else 2) * SLACK * max(1.0, longest_of(material) / max(found.tokens, 1.0))


def fitted(
    material: Material,
    network: Network,
    device: torch.device,
    *,
    share: int,
    half: bool,
    whole: bool = False,
    memory: Path | None = None,
) -> int:
    """Examples in memory at once, of the `share` of a device; what is chosen is said.

    half: activations in 16 bits; whole: the share cannot be cut, and it is said where it seems too large
    memory: a file that keeps the choice, so that a resumed run cuts its batches, and draws its dropout, as before
    """
    free = free_memory(device)
    if free is None:
        return share
    found = estimated(material, network, at_once=1)
    each = bytes_of_example(material, network, found, device, half=half)
    fixed = sum(size for name, size in found.memory.items() if name != "activations")
    room = USABLE.get(device.type, USABLE["cpu"]) * free - fixed - WORKSPACE
    chosen = largest_part(share, each=each, room=room)
    sizes = (
        f"about {_gibibytes(each * share + fixed + WORKSPACE)} for all of it where they are long, and "
        f"{_gibibytes(free)} are free"
    )
    if whole:
        if chosen < share:
            warn(
                f"pretrain: a projector needs all {share:,} examples of its batch in memory at once: {sizes}; "
                "a smaller --batch or --max-length may be needed"
            )
        return share
    chosen = least(chosen, device)
    if memory is not None and memory.exists():
        chosen = min(chosen, share, int(_read(memory)))
    if memory is not None and rank() == 0:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(memory, b"%d\n" % chosen)
    if chosen < share:
        log(
            f"pretrain: {chosen:,} of {share:,} examples of a step in memory at once: {sizes}; --micro-batch says otherwise"
        )
    else:
        log(f"pretrain: all {share:,} examples of a step in memory at once: {sizes}")
    return chosen


def free_memory(device: torch.device) -> int | None:
    """Bytes that this process may take: of a GPU, or its share of what the machine, or a container, has left; None where unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    left = [found for found in (_of_machine(), _of_container()) if found is not None]
    return min(left) // local_world_size() if left else None


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_container(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the limit of a control group leaves, files that are only cached not counted as taken; None without a limit."""
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None


def _read(memory: Path) -> str:
    text = memory.read_text(encoding="utf-8").strip()
    if not text.isdecimal():
        raise DrtkError(f"{memory}: holds no number")
    return text


def _gibibytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
