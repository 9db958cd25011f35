"""Turn settings classes into command-line options; option types that several commands use."""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from drtk.config import (
    CONTROL,
    EVALUATION,
    HARDWARE,
    INPUT,
    METHOD,
    get_flag,
    list_preset_names,
    load_preset,
    merge_settings,
    strip_optional,
    to_dict,
)
from drtk.errors import UsageError
from drtk.option_names import explain_unknown_name
from drtk.runtime.progress import OPTION_NAMES

INTERRUPT_HINTS: list[str] = []  # what can be resumed, printed after the command was interrupted
NOT_AN_INTEGER = "is not a whole number (a thousand is 1000 or 1_000)"


def parse_integer(text: str) -> int:
    """Parse an integer. Typer itself would parse 1.000 as 1."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(NOT_AN_INTEGER) from None


def make_option(declaration: str, help: str, *, panel: str | None = None, **attributes: Any) -> Any:
    """Return a Typer option, declared by its names and the placeholder of its value, such as "--output -o FILE"."""
    words = declaration.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if len(words) > len(names) else None
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **attributes)


def make_argument(metavar: str, help: str) -> Any:
    """Return a Typer argument; the help shows no default."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


Output = Annotated[str, make_option("--output -o FILE", "File to write; - is stdout.")]
Folder = Annotated[str, make_option("--output -o DIR", "Output folder.")]
Seed = Annotated[int, make_option("--seed N", "Random seed.", panel=CONTROL, parser=parse_integer)]
SkipCorpusCheck = Annotated[
    bool, make_option("--skip-corpus-check", "Accept inputs made from another corpus with the same ids.", panel=CONTROL)
]
Corpus = Annotated[str, make_option("--corpus FILE", "Corpus, in any supported format.")]
Queries = Annotated[str, make_option("--queries FILE", "Queries, in any supported format.")]
Qrels = Annotated[str, make_option("--qrels FILE", "Relevance judgments, such as BEIR TSV or TREC qrels.")]
Answers = Annotated[
    str, make_option("--answers FILE", "Questions with answers; a passage that contains an answer counts as relevant.")
]
Device = Annotated[
    str,
    make_option(
        "--device NAME", "Device: auto, cpu, cuda, mps; also cuda:N in commands that do not train.", panel=HARDWARE
    ),
]
DevFolder = Annotated[
    str,
    make_option(
        "--dev DIR", "BEIR folder, irds:ID or hf:NAME to select the best checkpoint by nDCG@10.", panel=EVALUATION
    ),
]
WithFiles = Annotated[
    list[str] | None,
    make_option(
        "--with FILE",
        "JSON lines of additional fields, one per passage in the same order; repeatable.",
        panel=INPUT,
    ),
]
_PRESET = make_option(
    "--preset NAME", "Preset name (see drtk presets) or .toml file.", panel=METHOD, autocompletion=list_preset_names
)


def get_command_name(function: Callable[..., Any]) -> str:
    """Return the name of a command: mine_negatives -> mine-negatives, rerank_queries__label -> rerank-queries label.

    A trailing underscore, which avoids a Python keyword or built-in, is dropped.
    """
    return function.__name__.strip("_").replace("__", " ").replace("_", "-")


def get_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name, with resolved annotations."""
    hints = get_type_hints(function, include_extras=True)
    shown = inspect.signature(function).parameters
    return {
        name: item.replace(annotation=_move_optional_inward(hints.get(name, item.annotation)))
        for name, item in shown.items()
    }


def _move_optional_inward(hint: Any) -> Any:
    """Return Annotated[KIND, option] | None as Annotated[KIND | None, option], which is the form that Typer reads."""
    annotated = next((part for part in get_args(hint) if get_origin(part) is Annotated), None)
    if annotated is None:
        return hint
    kind, declaration = get_args(annotated)
    return Annotated[kind | None, declaration]


def set_signature(wrapper: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Set the parameters of `wrapper` as its signature, from which Typer builds the options."""
    ordered = sorted(parameters, key=lambda item: item.kind)
    wrapper.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {item.name: item.annotation for item in ordered}
    return wrapper


def with_settings(
    settings: type, *, preset: bool = False, name: str = "settings", recipe: str | None = None, panel: str = METHOD
) -> Callable[..., Any]:
    """Add an option for each field of `settings`; the command receives the merged object as `name`.

    The object's `check()` is called first, if it has one.

    preset: add --preset, whose settings the options override; the class is stored as attribute `preset_settings`
    recipe: the parameter that receives the content of the preset's file; --preset is then required
    panel: panel of the options in --help, unless a field names another panel
    Advanced fields are set by the preset or by --set NAME=VALUE. A field that is already a parameter gets no second option.
    Options default to None, to distinguish options that were not given; the help shows the field's default.
    """
    declared = {item.name: item for item in fields(settings)}
    options = [item for item in declared.values() if not item.metadata["advanced"]]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        inner, own_parameters = get_parameters(function), inspect.signature(inspect.unwrap(function)).parameters
        shared = {item.name for item in options if item.name in inner}
        classes = (settings, *getattr(function, "settings_classes", ()))

        @functools.wraps(function)
        def wrapper(*args: Any, **given: Any) -> Any:
            OPTION_NAMES.update({item.name: get_flag(item) for item in declared.values()})
            chosen = {item.name: given[item.name] for item in options}
            given = {key: value for key, value in given.items() if key not in chosen or key in shared}
            chosen = {key: value for key, value in chosen.items() if value is not None and value != []}
            changes, others = _split_changes(settings, given.pop("changes", None) or [])
            for key in changes.keys() & chosen.keys():
                raise UsageError(f"--set {key} and {get_flag(declared[key])} cannot be combined; give one")
            if "changes" in inner:
                given["changes"] = others or None
            if "changes" not in own_parameters:
                _check_changes(others, get_command_name(function), classes)
            base: dict[str, Any] = {}
            recipe_name = given.pop("preset", None) if preset else None
            if recipe_name is not None:
                loaded = load_preset(recipe_name)
                if loaded.command != get_command_name(function):
                    raise UsageError(
                        f"preset '{recipe_name}' sets options of drtk {loaded.command}, not of this command; choose another (drtk presets)"
                    )
                base = loaded.settings
                if recipe is None:
                    loaded.check_keys()
                else:
                    given[recipe] = loaded.content | {"name": recipe_name}
            elif recipe is not None:
                raise UsageError("--preset is required; give a preset (see drtk presets) or a .toml file")
            merged: Any = merge_settings(
                settings, base, chosen | changes, preset_name=f"preset {recipe_name}", other_options=given
            )
            if hasattr(merged, "check"):
                merged.check()
            given[name] = merged
            return function(*args, **given)

        wrapper.settings_classes = classes  # type: ignore[attr-defined]
        parameters = {key: item for key, item in inner.items() if key not in (name, recipe)}
        hints = get_type_hints(settings)
        added = [_make_parameter(item, hints[item.name], panel) for item in options if item.name not in shared]
        if preset:
            added.insert(0, _make_keyword("preset", Annotated[str | None, _PRESET]))
            wrapper.preset_settings = settings  # type: ignore[attr-defined]
        if len(options) < len(declared) and "changes" not in inner:
            command = get_command_name(function)
            shown = f"'{command}'" if " " in command else command
            help = f"Change an advanced setting; drtk presets --fields {shown} lists them; repeatable."
            change = make_option("--set NAME=VALUE", help, panel=METHOD)
            added.append(_make_keyword("changes", Annotated[list[str] | None, change]))
        last = [parameters.pop(flag) for flag in getattr(function, "common_flags", ())]  # that all commands share
        return set_signature(wrapper, [*parameters.values(), *added, *last])

    return decorate


def _split_changes(settings: type, changes: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split arguments of --set into {field of `settings`: value} and the arguments for other names.

    Values are parsed as TOML; a value that is not TOML is text. Several values for a list field are concatenated.
    """
    hints = get_type_hints(settings)
    names = {item.name for item in fields(settings)}
    values: dict[str, Any] = {}
    others = []
    for change in changes:
        path, separator, text = change.partition("=")
        name = path.strip().removeprefix("settings.").replace("-", "_")
        if not separator or name not in names:
            others.append(change)
            continue
        kind = strip_optional(hints[name])
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        is_text = str in (kind, *get_args(kind)) or get_origin(kind) is Literal
        if is_text and not isinstance(value, (str, list)):
            value = text
        if get_origin(kind) is tuple:
            value = [*values.get(name, []), *(value if isinstance(value, list) else [value])]
        values[name] = value
    return values, others


def _check_changes(changes: Sequence[str], command: str, classes: Sequence[type]) -> None:
    """Raise UsageError for an argument of --set that names no setting of the command."""
    known = {item.name: f"--set {item.name}" for kind in classes for item in fields(kind)}
    for change in changes:
        path, separator, _ = change.partition("=")
        name = path.removeprefix("settings.").replace("-", "_")
        if not separator:
            raise UsageError(f"--set {change}: expected NAME=VALUE")
        if name not in known:
            problem = explain_unknown_name(f"--set {path}", name, known, command) or f"no such option --set {path}"
            raise UsageError(f"{problem} (drtk presets --fields '{command}' lists the settings)")


def _make_parameter(item: Any, kind: Any, panel: str) -> inspect.Parameter:
    flags = ["-k", "--depth"] if item.name == "depth" else [get_flag(item)]
    plain = strip_optional(kind)
    if plain is bool:
        flags[-1] = f"{flags[-1]}/--no-{flags[-1].removeprefix('--')}"
    shown = format_default(item.default, plain)
    help = item.metadata["help"]
    if shown and "[default:" not in help:
        help += f" [default: {shown}]"
    if get_origin(plain) is tuple:
        plain = list[get_args(plain)[0]]  # type: ignore[misc]
    option = typer.Option(
        *flags,
        help=help,
        show_default=False,
        parser=parse_integer if plain is int else None,
        metavar=item.metadata["metavar"] or _get_metavar(plain),
        rich_help_panel=item.metadata["panel"] or panel,
    )
    return _make_keyword(item.name, Annotated[plain | None, option])


def _get_metavar(kind: Any) -> str | None:
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return {int: "N", float: "FLOAT", str: "TEXT"}.get(kind)


def format_default(default: Any, kind: Any) -> str:
    """Return a default as --help shows it, "" for None and empty values."""
    if default is None or default == () or default == "":
        return ""
    if kind is bool:
        return "on" if default else "off"
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _make_keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def flatten_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command as recorded in the manifest, with each settings object replaced by its fields."""
    plain: dict[str, Any] = {}
    for key, value in given.items():
        if hasattr(value, "__dataclass_fields__"):
            plain |= to_dict(value)
        else:
            plain[key] = list(value) if isinstance(value, tuple) else value
    return plain
