"""The drtk command: the list of commands, and the only place where faults become exit codes."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, NoReturn

import typer

from drtk import __version__
from drtk.errors import DrtkError, OutputClosed

# In the order of a pipeline; each is a function of its own name in drtk/cli/.
COMMANDS = (
    "sample",
    "chunk",
    "init-model",
    "encode",
    "index",
    "search",
    "fuse",
    "mine-negatives",
    "train-retriever",
    "eval",
    "report",
    "convert",
    "validate",
    "show",
    "presets",
    "doctor",
)

app = typer.Typer(
    name="drtk",
    help="Composable Unix-style tools for dense retrieval: each command reads and writes JSONL, runs or index folders.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"drtk {__version__}")
        raise typer.Exit


@app.callback()
def drtk(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Composable Unix-style tools for dense retrieval: each command reads and writes JSONL, runs or index folders."""


for _name in COMMANDS:
    if find_spec(f"drtk.cli.{_name.replace('-', '_')}") is None:
        continue
    _module = import_module(f"drtk.cli.{_name.replace('-', '_')}")
    _attribute = _name.replace("-", "_")
    app.command(_name)(getattr(_module, _attribute, None) or getattr(_module, _attribute + "_"))


def run() -> NoReturn:
    """Entry point: exit status 0 done, 1 data or resource fault, 2 usage, 130 interrupted, 141 reader gone."""
    verbose = "-v" in sys.argv or "--verbose" in sys.argv
    try:
        app()
    except SystemExit as done:
        status = done.code if isinstance(done.code, int) else 1
        if status == 130:
            print("drtk: interrupted", file=sys.stderr)
        _leave(status)
    except OutputClosed as closed:
        _leave(closed.status)
    except BrokenPipeError:  # a plain print, in a command that writes no records
        _leave(OutputClosed.status)
    except DrtkError as error:
        if verbose:
            raise
        _complain(str(error))
        _leave(error.status)
    except OSError as error:
        if verbose or error.errno is None:
            raise
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
        _leave(1)
    except KeyboardInterrupt:
        print("drtk: interrupted", file=sys.stderr)
        _leave(130)
    _leave(0)


def _complain(message: str) -> None:
    print(f"drtk: {message}", file=sys.stderr)


def _leave(status: int) -> NoReturn:
    """Exit with `status`; what is left in a closed stdout must not turn it into another one."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or OutputClosed.status
    sys.exit(status)
