"""How many examples of a batch are in memory at once, where nobody says: as many as an estimate fits into what is free."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from drtk.errors import DrtkError
from drtk.io.atomic import write_bytes
from drtk.io.processes import local_world_size
from drtk.io.progress import log, warn
from drtk.objectives.network import Network, recovering
from drtk.training.distributed import least, rank
from drtk.training.estimating import Estimate, encoded_slots, estimated, longest_of
from drtk.training.material import Material

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
