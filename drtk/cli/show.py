"""drtk show: what a file or folder is, and what made it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from drtk.cli.jobs import plain_command

TOP = 5  # words named under a passage


@plain_command
def show(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A file or folder that drtk made, or a file it can read.")
    ],
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=0, help="Records of a file to show.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON, and nothing else.")] = False,
    weights: Annotated[
        bool, typer.Option("--weights", help="Show passages with their words shaded by weight (drtk termweight).")
    ] = False,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=0, help="weights: heaviest words named under a passage.")
    ] = TOP,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="NAME",
            help="weights: whose word pieces they are, where that is no longer found by the name that the passages hold.",
        ),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write weighted passages as a page; with --count, so many."),
    ] = None,
    with_files: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="FILE", help="Join a file of added fields by id, line by line; repeatable."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", metavar="NAME", help="Show what pre-training by this recipe hides and labels."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="--preset: the model whose tokenizer is taken.")
    ] = None,
    generator: Annotated[
        str | None,
        typer.Option("--generator", metavar="MODEL", help="--preset: masked language model that proposes tokens."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="--preset: change it: slots.encoder.rate=0.4; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="--preset: seed of what is drawn.")] = 42,
) -> None:
    """Show what a file or folder is, what made it, from what, and its first records.

    The manifest (meta.json of a folder, NAME.meta.json beside a file) says what made it.
    """
    from drtk.cli.describing import describe, manifest_json
    from drtk.errors import UsageError

    if html is not None and not html.endswith((".html", ".htm")):
        raise UsageError(f"--html {html}: name a file that ends in .html")
    if preset is not None:
        if weights or html is not None or json:
            raise UsageError("--preset goes with neither --weights, --html nor --json")
        if model is None:
            raise UsageError("--preset needs --model: whose word pieces the passages are read in")
        _slots(path, preset, model, count, changes or [], generator, with_files or [], seed)
        return
    if model is not None or generator is not None or changes:
        raise UsageError("--model, --generator and --set go with --preset")
    if weights or html is not None:
        if json:
            raise UsageError("--json prints the manifest, not weights")
        _weights(path, count, top, tokenizer or "", html, with_files or [])
    elif top != TOP or tokenizer is not None:
        raise UsageError(f"{'--tokenizer' if top == TOP else '--top'}: only with --weights or --html")
    elif with_files:
        raise UsageError("--with: what it joins is shown by --weights and --preset alone")
    else:
        sys.stdout.write(manifest_json(path) if json else describe(path, count=count))


def _weights(path: str, count: int, top: int, tokenizer: str, html: str | None, with_files: list[str]) -> None:
    from itertools import islice

    from drtk.enrichment.termweights.pages import as_page, in_terminal
    from drtk.enrichment.termweights.shown import weighted
    from drtk.io.jsonl import read_passages
    from drtk.io.progress import log
    from drtk.io.streams import Output, name_of

    passages = weighted(islice(read_passages(path, side_files=with_files), count), top=top, tokenizer=tokenizer)
    if html is None:
        for line in in_terminal(passages, colour=_in_colour()):
            sys.stdout.write(line + "\n")
        return
    with Output(html) as page:
        for line in as_page(passages, title=f"Term weights: {name_of(path)}"):
            page.write(line.encode() + b"\n")
    log(f"wrote {html}")


def _slots(
    path: str,
    preset: str,
    model: str,
    count: int,
    changes: list[str],
    generator: str | None,
    with_files: list[str],
    seed: int,
) -> None:
    from drtk.cli.slot_lines import slots_shown
    from drtk.errors import UsageError
    from drtk.settings.core import load_preset

    found = load_preset(preset)
    if found.command != "pretrain":
        raise UsageError(f"preset '{preset}' is for drtk {found.command}; those of pretrain have slots to show")
    lines = slots_shown(
        path,
        found.content | {"name": preset},
        model=model,
        count=count,
        changes=changes,
        generator=generator,
        side_files=with_files,
        seed=seed,
        colour=_in_colour(),
    )
    for line in lines:
        sys.stdout.write(line + "\n")


def _in_colour() -> bool:
    return "FORCE_COLOR" in os.environ or (sys.stdout.isatty() and "NO_COLOR" not in os.environ)
