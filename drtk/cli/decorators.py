"""Options and decorators that commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

from drtk.cli.collections import resolve_collections
from drtk.cli.options import (
    INTERRUPT_HINTS,
    WithFiles,
    flatten_arguments,
    get_command_name,
    get_parameters,
    make_option,
    set_signature,
)
from drtk.config import CONTROL, HARDWARE, INPUT, check_integer
from drtk.errors import DrtkError, OutputClosed, UsageError
from drtk.models.config import check_device_name
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import check_outputs, find_changes
from drtk.runtime.progress import log, set_verbosity
from drtk.runtime.sharding import WHOLE_INPUT, parse_shard, start_torchrun
from drtk.runtime.streams import STANDARD


def _declare_common(
    *,
    resume: Annotated[bool, make_option("--resume", "Continue an interrupted run.", panel=CONTROL)] = False,
    force: Annotated[bool, make_option("--force", "Replace an existing output.", panel=CONTROL)] = False,
    skip_done: Annotated[
        bool, make_option("--skip-done", "Do nothing if the output is up to date.", panel=CONTROL)
    ] = False,
    skip_bad: Annotated[int, make_option("--skip-bad N", "Skip up to N invalid records.", panel=CONTROL, min=0)] = 0,
    with_files: WithFiles = None,
    data: Annotated[
        str | None,
        make_option(
            "--data DIR", "BEIR folder, irds:ID or hf:NAME; provides the files that are not given.", panel=INPUT
        ),
    ] = None,
    bare: Annotated[
        bool, make_option("--bare", "Write only ids and the fields this command adds.", panel=INPUT)
    ] = False,
    shard: Annotated[str, make_option("--shard I/N", "Process only shard I of N, such as 1/4.", panel=CONTROL)] = "1/1",
    gpus: Annotated[
        int, make_option("--gpus N", "GPUs to train on, with a torchrun process each.", panel=HARDWARE, min=1)
    ] = 1,
    quiet: Annotated[bool, make_option("--quiet -q", "Print warnings and errors only.", panel=CONTROL)] = False,
    verbose: Annotated[
        bool, make_option("--verbose -v", "Print details, and tracebacks of errors.", panel=CONTROL)
    ] = False,
) -> None:
    """Declare the common options as parameters; the function is never called."""


_COMMON_OPTIONS = get_parameters(_declare_common)
TRAINING_MAY_DIFFER = ("learning_rate", "precision", "packed", "gradient_checkpointing", "log_steps", "save_steps")
_NOT_RECORDED = {  # these do not change the output: a run may be resumed on a cluster
    *("resume", "force", "skip_done", "dry_run", "quiet", "verbose"),
    *("num_workers", "runner", "runner_workers", "ray_address", "gpus"),
}


def plain_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a command whose only common options are --quiet and --verbose."""
    return _add_common_options(function, ("quiet", "verbose"), None, shape="plain")


def filter_command(
    kind: str,
    *,
    passages: bool = False,
    bare: bool = False,
    data: bool = False,
    sharded: bool = False,
    model_parameter: str | None = None,
    writes_embeddings: Callable[[dict[str, Any], str], bool] = lambda settings, output: False,
    writes: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Declare a command that reads and writes records; it receives a FilterJob as `job`.

    kind: kind of the output, recorded in the manifest
    passages: add --with, as the command reads a corpus
    bare: add --bare, as the command adds fields
    data: add --data, as the command reads corpus, queries and judgments
    sharded: add --shard, as the command processes records independently
    model_parameter: parameter that makes the command write a model folder if it is given; `job` is then a FolderJob
    writes_embeddings: returns whether the command writes an embeddings folder; `job` is then a FolderJob
    writes: the parameters that name additional output files
    """
    flags = ["resume", "force", "skip_done", "skip_bad"]
    flags += ["with_files"] * passages + ["bare"] * bare + ["data"] * data + ["shard"] * sharded + ["quiet", "verbose"]

    def make_job(name: str, output: str, settings: dict[str, Any], given: dict[str, Any]) -> FilterJob | FolderJob:
        shard = parse_shard(given.get("shard", "1/1"))
        if model_parameter is not None and settings.get(model_parameter) is not None:
            flag = model_parameter.replace("_", "-")
            if given.get("bare") or given.get("with_files"):
                raise UsageError(f"--{flag} writes a model; omit --bare and --with")
            if shard != WHOLE_INPUT:
                raise UsageError(f"--{flag} writes a model; omit --shard")
            return _make_folder_job(name, "model", output, settings, given, TRAINING_MAY_DIFFER)
        if writes_embeddings(settings, output):
            return _make_folder_job(name, "embeddings", output, settings, given)
        return FilterJob(
            name,
            kind,
            output,
            settings,
            resume=given["resume"],
            force=given["force"],
            bare=given.get("bare", False),
            side_files=tuple(given.get("with_files") or ()),
            writes=writes,
            shard=shard,
            tracker=InputTracker(skip_bad=given["skip_bad"]),
        )

    return lambda function: _add_common_options(function, tuple(flags), make_job, shape="filter", writes=writes)


def folder_command(
    kind: str,
    *,
    resume: bool = False,
    passages: bool = False,
    data: bool = False,
    may_differ: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Declare a command that makes a folder; it receives a FolderJob as `job`.

    kind, passages: as in `filter_command`
    resume: add --resume, and --gpus if `kind` is "model"; the command itself checks that the records of its `source` are
        unchanged
    data: add --data, as the command reads corpus and queries
    may_differ: settings that may change when a run is resumed, such as those of memory and speed
    A command with a parameter `dry_run` writes nothing if it is set, and needs no output.
    """
    flags = (
        ["resume"] * resume
        + ["force", "skip_done", "skip_bad"]
        + ["with_files"] * passages
        + ["data"] * data
        + ["quiet", "verbose"]
    )
    if resume and kind == "model":  # a training
        flags.append("gpus")

    def make_job(name: str, output: str, settings: dict[str, Any], given: dict[str, Any]) -> FolderJob:
        return _make_folder_job(name, kind, output, settings, given, may_differ)

    return lambda function: _add_common_options(function, tuple(flags), make_job, shape="folder")


def _make_folder_job(
    name: str, kind: str, output: str, settings: dict[str, Any], given: dict[str, Any], may_differ: tuple[str, ...] = ()
) -> FolderJob:
    if output == STANDARD:
        raise UsageError("--output must name a folder, not stdout")
    return FolderJob(
        name,
        kind,
        output,
        settings,
        resumable="resume" in given,
        resume=given.get("resume", False),
        force=given["force"],
        tracker=InputTracker(skip_bad=given["skip_bad"]),
        side_files=tuple(given.get("with_files") or ()),
        may_differ=may_differ,
    )


def _add_common_options(
    function: Callable[..., Any],
    flags: tuple[str, ...],
    make_job: Callable[..., Any] | None,
    *,
    shape: str,
    writes: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Add the common options `flags` to a command, and pass it the job that `make_job` returns, if `make_job` is given.

    The command gets the attributes `shape`, `common_flags` (that is, `flags`) and `writes`.
    """
    name = get_command_name(function)
    parameters = get_parameters(function)
    parameters.pop("job", None)

    @functools.wraps(function)
    def wrapper(*args: Any, **given: Any) -> Any:
        set_verbosity(quiet=given["quiet"], verbose=given["verbose"])
        for option, value in given.items():
            check_integer("--" + option.replace("_", "-"), value)
        check_device_name(given.get("device", "auto"))
        common = {flag: given.pop(flag) for flag in flags}
        given = resolve_collections(name, given, common.pop("data", None))
        if common.get("gpus", 1) > 1 and not given.get("dry_run"):
            start_torchrun(common["gpus"])
        if make_job is None:
            return _run_command(function, *args, **given)
        settings = {key: value for key, value in flatten_arguments(given | common).items() if key not in _NOT_RECORDED}
        output = settings.pop("output")
        dry_run = given.get("dry_run", False)
        if not output and not dry_run:
            raise UsageError("--output is required")
        outputs = {"`output`": output} | {f"`{key}`": settings.get(key) for key in writes}
        check_outputs(outputs, {key: value for key, value in settings.items() if key not in writes})
        if common["skip_done"] and not dry_run and output == STANDARD:
            raise UsageError("--skip-done requires --output with a file or folder")
        job = make_job(name, output, settings, common)
        if not dry_run:
            recovered = job.recover()
            if common["skip_done"] or (recovered and job.resume):
                changed = find_changes(output, job.settings, program=name)
                if changed == []:
                    log(f"{name}: {output} is up to date")
                    return None
                if changed:
                    more = f" and {len(changed) - 4:,} more" if len(changed) > 4 else ""
                    log(f"{name}: {output} is out of date; changed: {', '.join(changed[:4])}{more}")
        try:
            if not dry_run:
                job.check()
            return _run_command(function, *args, **given, job=job)
        except BaseException as error:
            if isinstance(job, FolderJob):
                job.discard()
                if isinstance(error, KeyboardInterrupt) and job.resumable and job.path.exists():
                    checkpoints = job.path / "checkpoints"
                    is_empty = checkpoints.is_dir() and not any(checkpoints.iterdir())
                    hint = "restarts it: no checkpoint was saved (`save_steps`)" if is_empty else "continues it"
                    INTERRUPT_HINTS.append(f"{output} is unfinished; `resume` {hint}")
            if not isinstance(error, OSError) or error.filename:
                raise
            # The error of a full disk has no file name; numpy's has no errno either.
            raise DrtkError(f"{output}: {error.strerror or error}") from error
        finally:
            if isinstance(job, FolderJob):
                job.release()

    wrapper.shape, wrapper.common_flags, wrapper.writes = shape, flags, writes  # type: ignore[attr-defined]
    return set_signature(wrapper, [*parameters.values(), *(_COMMON_OPTIONS[flag] for flag in flags)])


def _run_command(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Call a command; convert BrokenPipeError and EOFError, which Typer would handle itself."""
    try:
        return function(*args, **given)
    except BrokenPipeError as error:  # Typer would exit with status 1
        raise OutputClosed("the reader of the output closed the pipe") from error
    except EOFError as error:  # Typer would print "Aborted!"
        raise RuntimeError("unexpected end of input") from error
