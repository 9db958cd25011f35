"""What resumed training stands on: whole checkpoints, their weights, and a log that ends where they do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from drtk.errors import DrtkError
from drtk.io.atomic import write_bytes
from drtk.models.checkpoint import writing_weights
from drtk.training.distributed import rank, wait_for_all

WEIGHTS, COMPLETE = "model.safetensors", "complete"
KEPT = 2  # checkpoints: the newest may be half written by a crash, or ruined, which only the step after it shows


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a model's state as safetensors: a tensor that has several names (tied embeddings) once, under the first."""
    distinct: dict[tuple[int, torch.Size, torch.device], str] = {}
    for name, value in weights.items():
        distinct.setdefault((value.data_ptr() if value.numel() else id(value), value.shape, value.device), name)
    with writing_weights(path.parent):
        save_file({name: weights[name].contiguous() for name in distinct.values()}, path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the state that `save_weights` wrote back into the model. Raises DrtkError where it is another model's."""
    found, state = load_file(path), model.state_dict()
    places = {state[name].data_ptr() for name in found if name in state}
    strange = [name for name in found if name not in state]
    strange += [name for name, value in state.items() if name not in found and value.data_ptr() not in places]
    if strange:
        raise DrtkError(f"{path}: holds the weights of another model: '{strange[0]}' is in one of them alone")
    model.load_state_dict(found, strict=False)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end, None where there is none. Half written ones are taken away."""
    wait_for_all()  # rank zero may have emptied the folder
    whole = whole_checkpoints(folder)
    wait_for_all()
    if rank() == 0:
        for path in folder.glob("checkpoint-*"):
            if path not in whole:
                shutil.rmtree(path)
    return whole[0] if whole else None


def whole_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints that were written to their end, the newest first."""
    found = sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True)
    return [path for path in found if (path / COMPLETE).exists()]


def step_of(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was made; 0 for none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def cut_log(log: Path, *, step: int) -> None:
    """Take the entries after `step` out of a log, and a line torn by a crash: resumed training writes them again."""
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and entry["step"] <= step:
            kept.append(line + "\n")
    write_bytes(log, "".join(kept).encode())
