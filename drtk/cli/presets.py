"""drtk presets: list the shipped recipes, print one, or check one of your own."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from drtk.cli.decorators import plain_command
from drtk.config import Preset, load_preset, merge, preset_names
from drtk.errors import UsageError

_CALLED = {"documents": "neighbours"}  # what documents are read for, and what the pages call it


@plain_command
def presets(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Preset to print: a name, or a .toml file.", show_default=False),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Say whether it can be used, and what it needs; without a name, of all.")
    ] = False,
) -> None:
    """List the recipes that --preset knows, print one, or check one.

    A preset is a TOML file of settings for one command. Print one, edit it, and pass the file instead of the name.
    """
    if check:
        for each in preset_names() if name is None else [name]:
            sys.stdout.write(_check(load_preset(each)) + "\n")
        return
    if name is not None:
        sys.stdout.write(load_preset(name).text)
        return
    found = [load_preset(each) for each in preset_names()]
    width = max((len(preset.name) for preset in found), default=0)
    reach = max((len(preset.command) for preset in found), default=0)
    for preset in found:
        sys.stdout.write(f"{preset.name:<{width}}  {preset.command:<{reach}}  {preset.summary}\n")


def _check(preset: Preset) -> str:
    """Return one line about a valid preset. Raises UsageError for one that cannot be used."""
    made: Any = merge(_settings_of(preset), preset.settings, {}, preset_name=f"preset {preset.name}")
    if preset.command != "pretrain":
        preset.check_flat()
        if check := getattr(made, "check", None):
            try:
                check()
            except UsageError as error:
                raise UsageError(f"preset {preset.name}: {error}") from None
        return f"{preset.name}: good, for drtk {preset.command}"
    from drtk.pretraining.assembly import check_composition
    from drtk.pretraining.parse import parse_composition

    plan = parse_composition(preset.content | {"name": preset.name}, preset.name)
    needs = sorted(_CALLED.get(each, each) for each in check_composition(plan, place=preset.name))
    said = f"{preset.name}: good, {_count(plan.slots, 'slot')}, {_count(plan.objectives, 'term')}"
    if plan.generator is not None and plan.generator.mode == "frozen":
        said += ", a generator"
    return said + (f"; passages need {', '.join(needs)}" if needs else "; any passages do")


def _settings_of(preset: Preset) -> type:
    """Return the settings class of a preset's command. Raises UsageError if the command takes no preset or does not exist."""
    from drtk.cli.main import load_functions

    found = getattr(load_functions().get(preset.command), "preset_settings", None)
    if found is None:
        raise UsageError(f"{preset.name}: drtk {preset.command} takes no preset")
    kind: type = found
    return kind


def _count(things: Any, name: str) -> str:
    return f"{len(things)} {name}{'s' if len(things) != 1 else ''}"
