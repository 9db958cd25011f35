"""drtk show: describe a file or folder."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from pathlib import Path
from typing import Annotated, Any

import orjson

from drtk.cli.decorators import plain_command
from drtk.cli.options import Seed, WithFiles, make_argument, make_option
from drtk.data.rows import parse_row
from drtk.errors import DrtkError, UsageError
from drtk.pretraining.preview import describe_objective, describe_slot
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import MANIFEST_DIGEST, read_json, read_object
from drtk.runtime.manifest import UNFINISHED, Manifest, get_manifest_path, has_unfinished_part, read_manifest
from drtk.runtime.progress import escape_control_characters, log
from drtk.runtime.streams import STANDARD, Output, get_source_name

CONFIG, WEIGHTS, LOG = "config.json", "model.safetensors", "log.jsonl"
_LAYERS, _WIDTHS = ("num_hidden_layers", "num_layers", "n_layer"), ("hidden_size", "d_model", "n_embd", "dim")


def describe_model(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, description) of a model's network, or of each tower, and of its training loss if there is a log."""
    places = {"network": folder, "queries by": folder / "query", "passages by": folder / "passage"}
    for name, place in places.items():
        if (place / CONFIG).exists():
            yield name, _describe_architecture(place)
    if (folder / LOG).exists():
        from drtk.evaluation.curves import describe_loss, read_curves

        try:
            loss = read_curves(str(folder / LOG), field="loss")["loss"]
            yield "training", describe_loss(loss).removeprefix("The training ")
        except DrtkError:
            return  # no loss, or a damaged log, which `drtk plot` reports


def _describe_architecture(folder: Path) -> str:
    config = read_object(folder / CONFIG, vocab_size=int | None)
    parts = [str(config.get("model_type", "of an unknown kind"))]
    layers, width = (next((config[name] for name in names if name in config), None) for names in (_LAYERS, _WIDTHS))
    if layers and width:
        parts.append(f"{layers} layers of width {width}")
    if config.get("vocab_size"):
        parts.append(f"{config['vocab_size']:,} word pieces")
    if (folder / WEIGHTS).exists():
        parts.append(f"{_count_parameters(folder / WEIGHTS):,} parameters")
    return ", ".join(parts)


def _count_parameters(path: Path) -> int:
    """Return the number of parameters in a safetensors file, according to its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise DrtkError(f"{path}: is not a complete safetensors file; copy or train the model again") from error


def describe_preset(recipe: Mapping[str, Any], changes: Sequence[str], dropped: Sequence[str]) -> Iterator[str]:
    """Yield lines that describe a pre-training preset: its name, model inputs and losses; only the name if it is invalid."""
    from drtk.pretraining.parse import apply_changes, parse_composition

    summary = f": {recipe['summary']}" if recipe.get("summary") else ""
    yield f"{recipe.get('name', 'of no name')}{summary}"
    try:
        plan = parse_composition(apply_changes(recipe, changes), "recipe").drop_objectives(dropped)
    except DrtkError:
        return
    for name, slot in plan.slots.items():
        yield f"slot {name}: {describe_slot(slot)}"
    for term in plan.objectives:
        yield f"objective {term.name}, {term.weight:g} x: {describe_objective(plan, term)}"


_SHOWN_SEPARATELY = {
    MANIFEST_DIGEST,
    "kind",
    "command",
    "started",
    "seconds",
    "settings",
    "inputs",
    "counts",
    "versions",
}


def find_manifest(path: str) -> Manifest | None:
    """Return the manifest of a finished folder or of a file; None for stdin and for a file without one.

    Raises DrtkError for a missing path, MismatchError for a folder that is unfinished or was not made by drtk.
    """
    if path == STANDARD:
        return None
    if not Path(path).exists() and not has_unfinished_part(Path(path)):
        reason = f"is {UNFINISHED}" if Path(f"{path}.part").exists() else "No such file or directory"
        raise DrtkError(f"{path}: {reason}")
    if Path(path).is_dir() or not Path(path).exists():
        return read_manifest(path)
    beside = get_manifest_path(path)
    return read_json(beside) if beside.exists() else None


def describe_path(path: str, *, count: int) -> str:
    """Return the manifest of a file or folder, and the first `count` records of a file, as text."""
    manifest = find_manifest(path)
    lines: list[str] = []
    if manifest is not None:
        about = list(describe_model(Path(path))) if manifest.get("kind") == "model" and Path(path).is_dir() else []
        lines += _iter_manifest_lines(manifest, about)
    if not Path(path).is_dir():
        first = list(islice(_iter_record_texts(path), count))
        lines += [""] * bool(lines and first) + first
    return "".join(f"{escape_control_characters(line)}\n" for line in lines)


def _iter_manifest_lines(manifest: Manifest, about: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield _format_entry("kind", manifest.get("kind"))
    for name, description in about:
        yield from _wrap_text(name, description)
    for name, value in manifest.items():
        if name == "encoding" and isinstance(value, dict) and not value.get("lowercase"):  # the tokenizer may lowercase
            value = {key: item for key, item in value.items() if key != "lowercase"}
        if name not in _SHOWN_SEPARATELY:
            yield from _iter_value_lines(name, [*value] if name == "files" else value)
    yield from _iter_value_lines("counts", manifest.get("counts", {}))
    yield _format_entry("made", f"{manifest.get('started')}, in {manifest.get('seconds')} s")
    yield _format_entry("command", manifest.get("command"))
    for item in manifest.get("inputs", []):
        size = f", {item['bytes']:,} bytes" if "bytes" in item else ""
        digest = f", digest {item['digest']}" if item.get("digest") else ""
        yield _format_entry("input", f"{item['path']}{size}{digest}")
    settings = dict(manifest.get("settings", {}))
    recipe = settings.pop("recipe", None)
    if isinstance(recipe, dict):
        lines = describe_preset(recipe, settings.get("changes") or [], settings.get("drop") or [])
        for number, line in enumerate(lines):
            yield from _wrap_text("" if number else "recipe", line)
    yield from _iter_value_lines("settings", settings)
    yield from _iter_value_lines("versions", manifest.get("versions", {}))


def _format_entry(name: str, value: Any) -> str:
    return f"{name:<11} {value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{name:<11} {value}"


_EMPTY: tuple[Any, ...] = (None, "", [], {})


def _iter_value_lines(name: str, value: Any) -> Iterator[str]:
    """Yield the lines for an entry of a manifest; no line for an empty entry."""
    if value in _EMPTY:
        return
    if isinstance(value, dict):
        items = (f"{key}={_format_setting(item)}" for key, item in value.items() if item not in _EMPTY)
        yield from _wrap_text(name, "  ".join(items))
    elif isinstance(value, list):
        yield from _wrap_text(name, "  ".join(map(str, value)) if not _is_nested(value) else f"{len(value):,}")
    else:
        yield _format_entry(name, _format_setting(value) if isinstance(value, bool) else value)


def _is_nested(values: list[Any]) -> bool:
    """Return whether a list contains lists or objects, such as the shards of embeddings."""
    return any(isinstance(value, (list, dict)) for value in values)


def _format_setting(value: Any) -> str:
    """Format a setting: yes or no, a text, the items of a list separated by commas, or JSON."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and not _is_nested(value):
        return ",".join(map(str, value))
    return _format_value(value)


def _wrap_text(name: str, text: str) -> Iterator[str]:
    """Yield the lines of a name and its text, wrapped to the width of the terminal."""
    width = max(40, shutil.get_terminal_size().columns)
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=f"{name:<11} ",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _iter_record_texts(path: str) -> Iterator[str]:
    """Yield records as text, JSON objects with a line per field; long lines are truncated."""
    limit = 3 * max(40, shutil.get_terminal_size().columns)
    for _, line in InputTracker().iter_lines(path):
        if not line.strip():
            continue
        if b"\0" in line:
            yield "binary data, not shown"
            return
        try:
            row = parse_row(line)
        except ValueError:  # TSV, a run, or damaged
            yield _truncate(line.decode(errors="replace"), limit)
            continue
        fields = (_truncate(f"{field:<11} {_format_value(value)}", limit) for field, value in row.items())
        yield "\n".join(fields) + "\n"


def _truncate(text: str, limit: int) -> str:
    """Return a text on one line, cut to `limit` characters."""
    text = text.replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 2] + " …"


NUM_TOP_WORDS = 5  # heaviest words listed below a passage


@plain_command
def show(
    path: Annotated[str, make_argument("PATH", "File or folder to show: any input or output of drtk.")],
    count: Annotated[int, make_option("--count -n N", "Records to show.", min=0)] = 3,
    weights: Annotated[
        bool, make_option("--term-weights", "Show the words of passages shaded by term weight.")
    ] = False,
    top_words: Annotated[
        int,
        make_option("--top-words N", "Top-weighted words to list per passage (with --term-weights or --html).", min=0),
    ] = NUM_TOP_WORDS,
    tokenizer: Annotated[
        str | None,
        make_option("--tokenizer NAME", "Tokenizer of the term weights. [default: as recorded with the passages]"),
    ] = None,
    html: Annotated[
        str | None,
        make_option("--html FILE", "HTML file for the passages, shaded by term weight; implies --term-weights."),
    ] = None,
    with_files: WithFiles = None,
    preset: Annotated[
        str | None,
        make_option("--preset NAME", "Show the model inputs and labels that this pre-training preset makes."),
    ] = None,
    model: Annotated[
        str | None, make_option("--model MODEL", "Model with the tokenizer to use (required with --preset).")
    ] = None,
    generator: Annotated[
        str | None,
        make_option("--generator MODEL", "Masked language model that proposes replacement tokens (with --preset)."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        make_option("--set PATH=VALUE", "Change a value of --preset, such as slots.encoder.rate=0.4; repeatable."),
    ] = None,
    seed: Seed = 42,
) -> None:
    """Show what a file or folder contains and how it was made.

    The manifest (meta.json of a folder, NAME.meta.json beside a file) records how it was made.

    Examples:
    drtk show model
    drtk show corpus.jsonl --preset simlm --model bert-base-uncased --count 2
    """
    if html is not None and not html.endswith((".html", ".htm")):
        raise UsageError(f"--html {html}: the file name must end in .html")
    if preset is not None:
        if weights or html is not None:
            raise UsageError("--preset cannot be combined with --term-weights or --html; omit them")
        if model is None:
            raise UsageError("--preset requires --model, whose tokenizer splits the passages")
        _show_model_inputs(
            path, preset, model=model, generator=generator, side_files=with_files or [], changes=changes or [],
            count=count, seed=seed,
        )  # fmt: skip
        return
    if model is not None or generator is not None or changes:
        raise UsageError("--model, --generator and --set require --preset")
    if weights or html is not None:
        _show_term_weights(path, count, top_words, tokenizer or "", html, with_files or [])
    elif top_words != NUM_TOP_WORDS or tokenizer is not None:
        raise UsageError(
            f"{'--tokenizer' if top_words == NUM_TOP_WORDS else '--top-words'} requires --term-weights or --html"
        )
    elif with_files:
        raise UsageError("--with requires --term-weights or --preset")
    else:
        sys.stdout.write(describe_path(path, count=count))


def _show_term_weights(
    path: str, count: int, top: int, tokenizer: str, html: str | None, with_files: list[str]
) -> None:
    from drtk.data.readers import read_passages
    from drtk.expansion.term_weights.show import build_page, format_for_terminal, iter_weighted_passages

    passages = iter_weighted_passages(
        islice(read_passages(path, side_files=with_files), count), top=top, tokenizer=tokenizer
    )
    if html is None:
        use_color = "FORCE_COLOR" in os.environ or (sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        for line in format_for_terminal(passages, color=use_color):
            sys.stdout.write(line + "\n")
        return
    with Output(html) as page:
        for line in build_page(passages, title=f"Term weights: {get_source_name(path)}"):
            page.write(line.encode() + b"\n")
    log(f"wrote {html}")


def _show_model_inputs(path: str, preset: str, **options: Any) -> None:
    """Print the model inputs and labels that a pre-training preset makes. `options` are passed to `preview_slots`."""
    from drtk.config import load_preset
    from drtk.pretraining.preview import preview_slots

    loaded = load_preset(preset)
    if loaded.command != "pretrain":
        raise UsageError(f"preset '{preset}' sets options of drtk {loaded.command}; choose a preset of pretrain")
    for line in preview_slots(path, loaded.content | {"name": preset}, **options):
        sys.stdout.write(line + "\n")
