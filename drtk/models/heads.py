"""What training used beside the encoder and a retriever does without: kept in a folder of its own, `heads`."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import writing_weights

HEADS = "heads"


def head_file(folder: Path, name: str) -> Path:
    """Where the part called `name` lies in the model folder."""
    return folder / HEADS / f"{name}.safetensors"


def save_head(module: nn.Module, folder: Path, name: str) -> None:
    """Write the weights of a part beside the encoder of `folder`, as safetensors, in the precision they have."""
    from safetensors.torch import save_file

    path = head_file(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_weights(path):
        save_file({key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}, path)


def load_head(module: nn.Module, folder: Path, name: str) -> None:
    """Put the weights that `save_head` wrote into a part of the same shape.

    Raises MismatchError where they are not there or are those of another shape, DrtkError where the file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = head_file(folder, name)
    if not path.exists():
        raise MismatchError(f"{folder}: holds no {HEADS}/{name}.safetensors")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DrtkError(f"{path}: cannot be read: {error}") from error
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise MismatchError(f"{path}: does not fit: {lines[min(1, len(lines) - 1)]}") from error
