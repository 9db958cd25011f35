"""What a person wants to know of a model folder at a glance: how large it is, what its vectors are, how training went."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import orjson

from drtk.cli.saying import said_slot, said_term
from drtk.errors import DrtkError
from drtk.io.json_files import read_object

CONFIG, WEIGHTS, LOG = "config.json", "model.safetensors", "log.jsonl"
_LAYERS, _WIDTHS = ("num_hidden_layers", "num_layers", "n_layer"), ("hidden_size", "d_model", "n_embd", "dim")


def model_lines(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, what is said of it): the network of the folder, or of each tower in it, and its loss where a log tells it."""
    for place in (folder, folder / "query", folder / "passage"):
        if (place / CONFIG).exists():
            yield ("network" if place == folder else f"{place.name}s by"), _network(place)
    if (folder / LOG).exists():
        from drtk.evaluation.curves import read_loss

        try:
            yield "training", read_loss(str(folder / LOG)).text().removeprefix("The training ")
        except DrtkError:
            return  # a log without a loss, or a damaged one: `drtk plot` says what is wrong with it


def _network(folder: Path) -> str:
    config = read_object(folder / CONFIG, vocab_size=int | None)
    parts = [str(config.get("model_type", "of an unknown kind"))]
    layers, width = (next((config[name] for name in names if name in config), None) for names in (_LAYERS, _WIDTHS))
    if layers and width:
        parts.append(f"{layers} layers of width {width}")
    if config.get("vocab_size"):
        parts.append(f"{config['vocab_size']:,} word pieces")
    if (folder / WEIGHTS).exists():
        parts.append(f"{_parameters(folder / WEIGHTS):,} parameters")
    return ", ".join(parts)


def _parameters(path: Path) -> int:
    """How many numbers a safetensors file holds, by its header alone: its length in 8 bytes, then JSON with shapes."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = orjson.loads(file.read(length))
        return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, struct.error, ValueError, KeyError, TypeError, MemoryError, OverflowError) as error:
        raise DrtkError(f"{path}: is no whole safetensors file") from error


def recipe_lines(recipe: Mapping[str, Any], changes: Sequence[str], dropped: Sequence[str]) -> Iterator[str]:
    """What pre-training was by: the preset, and its slots and terms in words, as they were changed.

    The preset's name alone where this version of drtk cannot read it any more.
    """
    from drtk.settings.composing import composition, with_changes

    summary = f": {recipe['summary']}" if recipe.get("summary") else ""
    yield f"{recipe.get('name', 'of no name')}{summary}"
    try:
        plan = composition(with_changes(recipe, changes), "recipe").without(dropped)
    except DrtkError:
        return
    for name, slot in plan.slots.items():
        yield f"slot {name}: {said_slot(slot)}"
    for term in plan.objectives:
        yield f"term {term.name}, {term.weight:g} x: {said_term(plan, term)}"
