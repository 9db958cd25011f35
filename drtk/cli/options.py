"""Turn settings classes into command-line options; option types that several commands use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from drtk.config import get_default, load_preset, merge, plain_type, to_dict
from drtk.errors import UsageError

NO_WHOLE = "is not a whole number (a thousand is 1000 or 1_000)"


def whole_number(text: str) -> int:
    """Parse an integer. Typer alone would parse 1.000 as 1."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(NO_WHOLE) from None


Source = Annotated[str, typer.Argument(metavar="INPUT", help="File to read; - is stdin.", show_default=False)]
Output = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="File to write; - is stdout.")]
Folder = Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Folder to make.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", parser=whole_number, help="Seed of every random draw.")]
AnotherCorpus = Annotated[
    bool,
    typer.Option("--another-corpus", help="Take what was made from another corpus than --corpus; ids agree."),
]
Corpus = Annotated[str, typer.Option("--corpus", metavar="FILE", help="Passages, in any format drtk reads.")]
Queries = Annotated[str, typer.Option("--queries", metavar="FILE", help="Queries, in any format drtk reads.")]
Judged = Annotated[str | None, typer.Option("--qrels", metavar="FILE", help="Judgements: BEIR TSV or TREC qrels.")]
Answers = Annotated[
    str | None,
    typer.Option(
        "--answers", metavar="FILE", help="Questions with answers: a passage is right where it contains one of them."
    ),
]
Qrels = Annotated[str, typer.Option("--qrels", metavar="FILE", help="Judgements: BEIR TSV or TREC qrels.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1 …")]

PRESET = typer.Option("--preset", metavar="NAME", help="A recipe by name (drtk presets lists them) or a .toml file.")


def command_name(function: Callable[..., Any]) -> str:
    """Return the name of a command: mine_negatives -> mine-negatives, rerank_queries__label -> rerank-queries label.

    A trailing underscore, which avoids a Python keyword or built-in, is dropped.
    """
    return function.__name__.strip("_").replace("__", " ").replace("_", "-")


def signature_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name, with resolved annotations."""
    hints = get_type_hints(function, include_extras=True)
    shown = inspect.signature(function).parameters
    return {name: item.replace(annotation=hints.get(name, item.annotation)) for name, item in shown.items()}


def set_signature(wrapper: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Set the signature of `wrapper` that Typer reads."""
    ordered = sorted(parameters, key=lambda item: item.kind)
    wrapper.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {item.name: item.annotation for item in ordered}
    return wrapper


def with_settings(
    settings: type, *, preset: bool = False, name: str = "settings", recipe: str | None = None
) -> Callable[..., Any]:
    """Add an option for each field of `settings`; the command receives the merged object as `name`.

    preset: add --preset, whose settings the options override; the class is stored as attribute `preset_settings`
    recipe: the parameter that receives the content of the preset's file; --preset is then required
    Options default to None, to distinguish options that were not given; the help shows the field's default.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        declared = {item.name: item for item in fields(settings)}

        @functools.wraps(function)
        def wrapper(*args: Any, **given: Any) -> Any:
            chosen = {key: given.pop(key) for key in declared}
            base: dict[str, Any] = {}
            recipe_name = given.pop("preset", None) if preset else None
            if recipe_name is not None:
                found = load_preset(recipe_name)
                if found.command != command_name(function):
                    raise UsageError(f"preset '{recipe_name}' is for drtk {found.command}")
                base = found.settings
                if recipe is None:
                    found.check_flat()
                else:
                    given[recipe] = found.content | {"name": recipe_name}
            elif recipe is not None:
                raise UsageError("--preset: name a recipe (drtk presets lists them) or a .toml file")
            chosen = {key: None if value == [] else value for key, value in chosen.items()}
            given[name] = merge(settings, base, chosen, preset_name=f"preset {recipe_name}", others=given)
            return function(*args, **given)

        mine = signature_of(function)
        mine.pop(name)
        mine.pop(recipe or name, None)
        hints = get_type_hints(settings)
        options = [_option(item, hints[item.name]) for item in declared.values()]
        if preset:
            options.insert(0, _keyword("preset", Annotated[str | None, PRESET], None))
        if preset:
            wrapper.preset_settings = settings  # type: ignore[attr-defined]
        last = [mine.pop(flag) for flag in getattr(function, "common_flags", ())]  # the options that all commands share
        return set_signature(wrapper, [*mine.values(), *options, *last])

    return decorate


def _option(item: Any, kind: Any) -> inspect.Parameter:
    flag = item.metadata.get("flag") or "--" + item.name.replace("_", "-")
    default = get_default(item)
    plain = plain_type(kind)
    if plain is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    shown = _shown(default, plain)
    help = item.metadata["help"] + (f" [default: {shown}]" if shown else "")
    if get_origin(plain) is tuple:
        plain = list[get_args(plain)[0]]  # type: ignore[misc]
    parser = whole_number if plain is int else None
    option = typer.Option(flag, help=help, show_default=False, parser=parser)
    return _keyword(item.name, Annotated[plain | None, option], None)


def _shown(default: Any, plain: Any) -> str:
    if default is None or default == () or default == "" or (plain is bool and default is False):
        return ""
    if plain is bool:
        return "on"
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def record_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command as a manifest records them: the fields of settings objects, and other values."""
    plain: dict[str, Any] = {}
    for key, value in given.items():
        if hasattr(value, "__dataclass_fields__"):
            plain |= to_dict(value)
        else:
            plain[key] = list(value) if isinstance(value, tuple) else value
    return plain
