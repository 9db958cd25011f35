"""The drtk command: the list of commands, usage errors and exit codes."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import resource
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from drtk import __version__
from drtk.cli.help import Command, Group, explain_unknown_option
from drtk.cli.options import INTERRUPT_HINTS, NOT_AN_INTEGER
from drtk.errors import DrtkError, OutputClosed, UsageError
from drtk.runtime.progress import escape_control_characters, name_options
from drtk.runtime.remote_code import TRUST_VARIABLE
from drtk.runtime.sharding import ignore_torchrun
from drtk.runtime.streams import MAX_LINE_BYTES, set_max_line_bytes

# Messages for pydantic's errors; pydantic parses the values of options for Typer.
_NUMBER_ERRORS = {"int_parsing": NOT_AN_INTEGER, "int_from_float": NOT_AN_INTEGER, "float_parsing": "is not a number"}


def format_usage_error(problem: str, command: str) -> str:
    """Return the message for a usage error. Unless it begins with a file name, it ends with "see drtk COMMAND --help".

    command: "search", "rerank-queries label", or "" for drtk itself
    """
    place = problem.partition(": ")[0]
    if place != problem and os.path.exists(place.removeprefix("preset ")):
        return problem
    help_call = " ".join(["drtk", command, "--help"]) if command else "drtk --help"
    prefix = "" if not command or problem.startswith(f"{command}: ") else f"{command}: "
    return f"{prefix}{problem}{' See' if problem.endswith('?') else '; see'} {help_call}"


def describe_parsing_error(error: Exception) -> str | None:
    """Return the message for an error of Typer's parser; None for any other error.

    Errors are recognized by attributes, because their classes differ between versions of Typer.
    """
    format_message = getattr(error, "format_message", None)
    if format_message is None or not hasattr(error, "exit_code"):
        return None
    message = " ".join(str(format_message()).split()).rstrip(".").replace(". Did you mean", "; did you mean")
    option: Any = getattr(error, "option_name", None)
    context: Any = getattr(error, "ctx", None)
    is_unknown = type(error).__name__ == "NoSuchOption" and context is not None
    if is_unknown and option in (MAX_LINE_FLAG, TRUST_FLAG):
        return f"{option} comes before the command"
    if is_unknown:  # the parser's own suggestions are by spelling alone
        explained = explain_unknown_option(option, context, context.command_path.partition(" ")[2])
        if context.parent is None:
            return explained or f"no such option {option} before the command; options of a command follow its name"
        arguments = _format_arguments(context)
        return explained or f"no such option {option}" + f"; expected {arguments}" * bool(arguments)
    if "unexpected extra argument" in message and context is not None:
        expected = _format_arguments(context)
        message = (
            f"unexpected argument '{message.rpartition('(')[2].rstrip(')')}'; expected {expected or 'no argument'}"
        )
    what, value = message.partition(": ")[0], _describe_rejected_value(error)
    if value is not None and what != message:
        message = f"{what}: {value}"
    return message[:1].lower() + message[1:]


def _format_arguments(context: Any) -> str:
    return " ".join(context.command.collect_usage_pieces(context)[1:])


def _describe_rejected_value(error: Exception) -> str | None:
    """Return the rejected value and the reason if the error comes from pydantic; None otherwise."""
    get_errors: Any = getattr(error.__cause__, "errors", None)
    if not callable(get_errors):
        return None
    first = get_errors()[0]
    reason = _NUMBER_ERRORS.get(first.get("type", "")) or str(first.get("msg", ""))
    for prefix in ("Value error, ", "Input "):
        reason = reason.removeprefix(prefix)
    value = f"'{first.get('input')}' "
    return value + reason.removeprefix(value).rstrip(".")


# Commands by stage. Each is a function of that name in drtk/cli/, or a group of subcommands.
STAGES = {
    "Data": ("sample", "import", "convert", "validate", "show", "chunk"),
    "Index and search": ("encode", "index", "search", "rerank", "fuse"),
    "Expand passages": ("doc2query", "keep-queries", "continue-text", "termweight"),
    "Pre-train": ("init-model", "pretrain"),
    "Train": ("mine-negatives", "score", "train-retriever", "train-reranker", "train-generator", "export"),
    "Expand queries": ("expand-queries", "rerank-queries", "read"),
    "Evaluate": ("eval", "eval-sentences", "compare", "plot", "report", "serve"),
    "Inspect": ("presets", "doctor"),
}
COMMANDS = tuple(name for names in STAGES.values() for name in names)

DISTRIBUTED = ("train-generator", "rerank-queries train", "pretrain", "train-retriever", "train-reranker")
MAX_LINE_FLAG, TRUST_FLAG = "--max-line-bytes", "--trust-remote-code"


@functools.cache
def load_command(name: str) -> Callable[..., Any] | typer.Typer:
    """Import a command; return its function, or the Typer app of a command group."""
    attribute = name.replace("-", "_")
    module = import_module(f"drtk.cli.{attribute}")
    return getattr(module, attribute, None) or getattr(module, attribute + "_")  # type: ignore[no-any-return]


def load_functions() -> dict[str, Callable[..., Any]]:
    """Import all commands and return {name: function}. Subcommands of a group are named "GROUP NAME"."""
    functions: dict[str, Callable[..., Any]] = {}
    for name in COMMANDS:
        command = load_command(name)
        if isinstance(command, typer.Typer):
            functions |= {f"{name} {step.name}": step.callback for step in command.registered_commands if step.callback}
        else:
            functions[name] = command
    return functions


_LAYOUT: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}


@functools.cache
def _build_parser(name: str) -> Any:
    """Return the parser of one command. Only this command is imported; Typer itself would import all commands."""
    command = load_command(name)
    if not isinstance(command, typer.Typer):
        single = typer.Typer(**_LAYOUT)
        single.command(name, cls=Command)(command)
        command = single
    parser = typer.main.get_command(command)
    parser.name = name
    return parser


class _Commands(Group):
    """Command group that imports a command when it is called or listed."""

    stages = STAGES

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return the parser of a command; None if there is no such command."""
        return _build_parser(cmd_name) if cmd_name in COMMANDS else None


app = typer.Typer(
    name="drtk",
    cls=_Commands,
    epilog="Start with: drtk import, chunk, index, search (docs/tutorial.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    **_LAYOUT | {"add_completion": True},
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
    max_line_bytes: Annotated[
        int,
        typer.Option(
            MAX_LINE_FLAG,
            metavar="N",
            min=1,
            max=(1 << 32) - 1,  # CorpusStore stores lengths as uint32
            show_default=False,
            help="Maximum length of an input line in bytes, after decompression (default: 256 MiB).",
        ),
    ] = MAX_LINE_BYTES,
    trust_remote_code: Annotated[
        bool, typer.Option(TRUST_FLAG, help="Run the Python code in model folders, such as modeling_x.py.")
    ] = False,
) -> None:
    """Composable Unix-style tools for dense retrieval: each command reads and writes JSONL, runs or index folders."""
    set_max_line_bytes(max_line_bytes)
    if trust_remote_code:
        os.environ[TRUST_VARIABLE] = "1"


def run() -> None:
    """Run a command. Exit status: 0 success, 1 error, 2 usage error, 130 interrupted, 141 output closed."""
    verbose = "-v" in sys.argv or "--verbose" in sys.argv
    if sys.stderr is None:  # closed by 2>&-; print and Typer would write to stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    _increase_file_limit()
    try:
        _check_arguments()
        if sys.argv[1:2] == ["help"]:
            sys.argv[1:] = [*sys.argv[2:], "--help"]
        if not _is_training_command():
            ignore_torchrun()
        result = app(prog_name="drtk", standalone_mode=False)
        status = result if isinstance(result, int) else 0  # of typer.Exit, and of --help
        if status == 130:
            _print_interrupted()
        _exit(status)
    except SystemExit as done:
        if isinstance(done.__context__, BrokenPipeError):  # Typer exits with 1 on a broken pipe
            _exit(OutputClosed.status)
        _exit(done.code if isinstance(done.code, int) else 1)
    except (OutputClosed, BrokenPipeError):
        _exit(OutputClosed.status)
    except Exception as error:
        reported = _report_error(error, verbose=verbose)
        if reported is None:
            raise
        _exit(reported)
    except KeyboardInterrupt:
        _print_interrupted()
        _exit(130)


def _report_error(error: Exception, *, verbose: bool) -> int | None:
    """Print a one-line message for an error and return its exit status; return None for a bug."""
    if isinstance(error, DrtkError):
        status, message = error.status, str(error)
        if isinstance(error, UsageError):
            message = format_usage_error(message, _get_command_name())
    elif isinstance(error, OSError) and error.errno is not None:
        status, message = 1, f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    elif (problem := describe_parsing_error(error)) is not None:
        if problem.startswith("usage: "):  # drtk or a group without arguments: print its help
            with contextlib.suppress(OSError):
                print(error, file=sys.stderr)
            return 2
        status, message, verbose = 2, format_usage_error(problem, _get_command_name()), False
    else:
        return None
    if verbose:
        traceback.print_exception(error)
    _print_error(message)
    return status


def _increase_file_limit() -> None:
    """Allow as many open files as the system does: data workers and large indexes need more than the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS rejects "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_arguments() -> None:
    """Raise UsageError for an argument that is not UTF-8, because JSON and runs cannot contain it."""
    for word in sys.argv[1:]:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{word.encode(errors='backslashreplace').decode()}: not UTF-8; choose another name"
            ) from None


def _get_command_name() -> str:
    """Return the command in sys.argv, with its subcommand if it is a group; "" for an unknown command."""
    words = sys.argv[1:]
    while words[:1] and words[0].startswith("-"):
        words = words[2 if words[0] == MAX_LINE_FLAG else 1 :]
    if not words or words[0] not in COMMANDS:
        return ""
    command = load_command(words[0])
    is_step = (
        isinstance(command, typer.Typer) and words[1:2] and words[1] in {s.name for s in command.registered_commands}
    )
    return " ".join(words[:2]) if is_step else words[0]


def _is_training_command() -> bool:
    """Return whether the command trains a model and can therefore be started by torchrun in several processes."""
    command = _get_command_name()
    return command in DISTRIBUTED or (
        command == "termweight" and any(word.split("=")[0] == "--train" for word in sys.argv)
    )


def _print_error(message: str) -> None:
    with contextlib.suppress(OSError):  # stderr on a full disk
        print(f"drtk: {escape_control_characters(name_options(message))}", file=sys.stderr)


def _print_interrupted() -> None:
    _print_error("; ".join(["interrupted", *INTERRUPT_HINTS]))


def _exit(status: int) -> NoReturn:
    """Flush stdout and exit with `status`. If it is 0 and flushing fails, exit with 141 for a closed pipe, else with 1."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's own flush succeeds
        if error.errno == errno.EPIPE:
            status = status or OutputClosed.status
        else:
            _print_error(f"standard output: {error.strerror}")
            status = status or 1
    sys.exit(status)
