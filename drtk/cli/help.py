"""Layout of --help: panels of options, examples and the address of the page; hints for unknown options."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import groupby
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from drtk.config import CONTROL, INPUT, PANELS
from drtk.option_names import explain_unknown_name

_EXAMPLES = "Examples:\n"


class Command(TyperCommand):
    """Command whose help shows the options in panels, then the examples of its docstring."""

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the words of the usage line after the name of the command."""
        arguments = [item for item in self.params if item.param_type_name == "argument"]
        names = [(str(item.metavar), item.required) for item in arguments]
        return ["[OPTIONS]", *(name if required or name[0] == "[" else f"[{name}]" for name, required in names)]

    def format_help_text(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the description."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text((self.help or "").partition(_EXAMPLES)[0].strip())

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments and options, one panel after the other."""
        rows = []
        for item in self.get_params(ctx):  # type: ignore[arg-type]
            if item.param_type_name == "argument":
                required = "  [required]" if item.required else ""
                rows.append((INPUT, (str(item.metavar), f"{getattr(item, 'help', '')}{required}")))
            elif (row := item.get_help_record(ctx)) is not None:  # type: ignore[arg-type]
                row = row[0], re.sub(r"; x>=[01](?=\])|  \[x>=1\]$", "", row[1])
                default = CONTROL if "--help" in item.opts else INPUT
                rows.append((getattr(item, "rich_help_panel", None) or default, row))
        rows.sort(key=lambda row: (PANELS.index(row[0]), row[1][0].startswith("-")))
        for panel, members in groupby(rows, key=lambda row: row[0]):
            with formatter.section(panel):
                formatter.write_dl([row for _, row in members])

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the examples and the address of the page."""
        if examples := get_examples(self):
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in examples))
        path = ctx.command_path.split()
        formatter.write_paragraph()
        formatter.write(f"Documentation: docs/commands/{path[1] if len(path) > 1 else path[0]}.md\n")


def get_examples(command: Any) -> list[str]:
    """Return the lines of the examples in a command's docstring."""
    return [line.strip() for line in (command.help or "").partition(_EXAMPLES)[2].strip().splitlines()]


class Group(TyperGroup):
    """Command group whose help shows the full summaries of its commands, grouped by `stages` if there are any."""

    stages: ClassVar[dict[str, tuple[str, ...]]] = {}

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write all commands and their summaries by stage."""
        width = max(map(len, self.commands))
        for stage, names in (self.stages or {"Commands": tuple(self.commands)}).items():
            with formatter.section(stage):
                rows = [(name, self.get_command(ctx, name).help or "") for name in names]  # type: ignore[arg-type, union-attr]
                formatter.write_dl([(f"{name:<{width}}", text.partition("\n")[0]) for name, text in rows])


def explain_unknown_option(option: str, context: Any, command: str) -> str:
    """Return the error message for an unknown option, with the options to use instead; "" if there are none.

    context: the context in which the option was parsed
    command: the name of the command
    """
    name = option.lstrip("-").replace("-", "_").lower()
    flags = {item.name: item.opts[-1] for item in context.command.params if item.param_type_name == "option"}
    flags |= {flag.lstrip("-").replace("-", "_"): flag for flag in list(flags.values())}
    classes = getattr(context.command.callback, "settings_classes", ())
    settings = {item.name: item for kind in classes for item in fields(kind)}
    for candidate in (name, name.removeprefix("no_")):
        setting = settings.get(candidate)
        if setting is not None and setting.metadata["advanced"]:
            is_flag = str(setting.type) in ("bool", "bool | None")
            value = ("false" if candidate != name else "true") if is_flag else "VALUE"
            return f"{option} is a setting: --set {setting.name}={value}"
    return explain_unknown_name(option, name, {known: f"--set {known}=VALUE" for known in settings} | flags, command)
