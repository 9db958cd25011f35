"""drtk presets: list the shipped presets, print one, or check your own preset."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from drtk.cli.decorators import plain_command
from drtk.cli.main import COMMANDS, load_functions
from drtk.cli.options import format_default, make_argument, make_option
from drtk.config import Preset, get_flag, list_preset_names, load_preset, merge_settings, strip_optional
from drtk.data.findings import format_count
from drtk.errors import UsageError

_FIELD_NAMES = {"documents": "neighbors"}  # corpus fields that the documentation calls by another name


@plain_command
def presets(
    name: Annotated[str | None, make_argument("NAME", "Name or .toml file of a preset to print or check.")] = None,
    check: Annotated[
        bool, make_option("--check", "Check NAME or all presets; for pretrain, also print the required passage fields.")
    ] = False,
    command: Annotated[
        str | None, make_option("--fields COMMAND", "List all settings of a command, for --set and presets.")
    ] = None,
) -> None:
    """List, print or check presets, and list the settings of a command.

    A preset is a TOML file of settings for one command. Print one, edit it, and pass the file instead of the name.

    Examples:
    drtk presets simlm-r1 > mine.toml
    drtk presets --fields train-retriever
    """
    if command is not None:
        sys.stdout.writelines(f"{line}\n" for line in _describe_fields(command))
        return
    if check:
        for preset_name in list_preset_names() if name is None else [name]:
            sys.stdout.write(_check_preset(load_preset(preset_name)) + "\n")
        return
    if name is not None:
        if name in COMMANDS:
            raise UsageError(f"'{name}' is a command; use drtk presets --fields {name} to list its settings")
        sys.stdout.write(load_preset(name).text)
        return
    shipped = [load_preset(preset_name) for preset_name in list_preset_names()]
    width = max((len(preset.name) for preset in shipped), default=0)
    reach = max((len(preset.command) for preset in shipped), default=0)
    for preset in shipped:
        sys.stdout.write(f"{preset.name:<{width}}  {preset.command:<{reach}}  {preset.summary}\n")


def _check_preset(preset: Preset) -> str:
    """Return a line that describes a valid preset. Raises UsageError for an invalid one."""
    made: Any = merge_settings(_get_settings_class(preset), preset.settings, {}, preset_name=f"preset {preset.name}")
    if preset.command != "pretrain":
        preset.check_keys()
        if check := getattr(made, "check", None):
            try:
                check()
            except UsageError as error:
                raise UsageError(f"preset {preset.name}: {error}") from None
        return f"{preset.name}: valid for drtk {preset.command}"
    from drtk.pretraining.assembly import check_composition
    from drtk.pretraining.parse import parse_composition

    plan = parse_composition(preset.content | {"name": preset.name}, preset.name)
    needs = sorted(_FIELD_NAMES.get(field, field) for field in check_composition(plan, place=preset.name))
    slots, objectives = format_count(len(plan.slots), "slot"), format_count(len(plan.objectives), "objective")
    line = f"{preset.name}: valid, {slots}, {objectives}"
    if plan.generator is not None and plan.generator.mode == "frozen":
        line += ", a generator"
    line += f"; required passage fields: {', '.join(needs)}" if needs else "; no passage fields required"
    return line


def _describe_fields(command: str) -> Iterator[str]:
    """Yield a header, and a line per setting of a command: name, type, default, option or --set, and help."""
    functions = load_functions()
    if command not in functions:
        raise UsageError(f"--fields: no command '{command}'; choose from {', '.join(functions)}")
    rows = [("setting", "type", "default", "set by", "help")]
    for settings in getattr(functions[command], "settings_classes", ()):
        hints = get_type_hints(settings)
        for item in fields(settings):
            kind = strip_optional(hints[item.name])
            shown = format_default(item.default, kind) or "-"
            if kind is bool and item.default is not None:
                shown = str(item.default).lower()
            rows.append((item.name, _format_type(kind), shown, get_flag(item).partition(" ")[0], item.metadata["help"]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])


def _format_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return f"list of {get_args(kind)[0].__name__}" if get_origin(kind) is tuple else str(kind.__name__)


def _get_settings_class(preset: Preset) -> Any:
    """Return the settings class of a preset's command. Raises UsageError for a command that does not exist or has no presets."""
    settings = getattr(load_functions().get(preset.command), "preset_settings", None)
    if settings is None:
        raise UsageError(
            f"{preset.name}: '{preset.command}' has no presets; change the key 'command' to a command that drtk presets lists"
        )
    return settings
