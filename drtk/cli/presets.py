"""drtk presets: list the shipped recipes, or print one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from drtk.cli.jobs import plain_command
from drtk.settings.core import load_preset, preset_names


@plain_command
def presets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Preset to print.", show_default=False)] = None,
) -> None:
    """List the recipes that --preset knows, or print one.

    A preset is a TOML file of settings for one command. Print one, edit it, and pass the file instead of the name.
    """
    if name is not None:
        sys.stdout.write(load_preset(name).text)
        return
    found = [load_preset(each) for each in preset_names()]
    width = max((len(preset.name) for preset in found), default=0)
    reach = max((len(preset.command) for preset in found), default=0)
    for preset in found:
        sys.stdout.write(f"{preset.name:<{width}}  {preset.command:<{reach}}  {preset.summary}\n")
