"""Options of settings classes; given options are distinguished from defaults."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import typer

from drtk.cli.decorators import filter_command, folder_command, plain_command
from drtk.cli.options import Folder, Output, make_argument, with_settings
from drtk.config import option
from drtk.errors import UsageError
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob

Source = Annotated[str, make_argument("INPUT", "File to read.")]


@dataclass(frozen=True)
class ExampleSettings:
    mode: Literal["slow", "fast"] = option("slow", "How it goes.")
    depth: int = option(3, "How deep.", at_least=1, at_most=9)
    rate: float = option(0.5, "How often.")
    loud: bool = option(False, "Whether it is heard.")
    calm: bool = option(True, "Whether it is calm.")
    sizes: tuple[int, ...] = option((1, 2), "Which sizes.")
    note: str | None = option(None, "A remark.", flag="--memo")


def app_of(function: Any) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(function)
    return app


def call(function: Any, *arguments: str) -> Any:
    """Call a command with these arguments; return its result."""
    return app_of(function)(list(arguments), standalone_mode=False)


@with_settings(ExampleSettings, preset=True)
@plain_command
def walk(source: Source = "-", *, settings: ExampleSettings) -> Any:
    """Walk."""
    return source, settings


def test_options_of_every_type_reach_the_settings():
    arguments = "in.jsonl --mode fast --depth 9 --rate 2 --loud --no-calm --sizes 4 --sizes 5 --memo x".split()
    expected = ExampleSettings(mode="fast", depth=9, rate=2.0, loud=True, calm=False, sizes=(4, 5), note="x")
    assert call(walk, *arguments) == ("in.jsonl", expected)


def test_help_shows_the_defaults_and_the_common_options_last(capsys):
    app_of(walk)(["--help"], standalone_mode=False)
    shown = " ".join(capsys.readouterr().out.split())
    for expected in ("How deep. [default: 3]", "[default: slow]", "[default: on]", "[default: 1 2]", "--memo"):
        assert expected in shown
    assert "Whether it is heard. [default: off]" in shown
    assert shown.index("--depth") < shown.index("--quiet")


@with_settings(ExampleSettings)
@filter_command("corpus", passages=True, bare=True)
def copy(source: Source = "-", output: Output = "-", *, settings: ExampleSettings, job: FilterJob) -> FilterJob:
    """Copy."""
    job.run([{"_id": "a"}], lambda batch: [b"a\n"] * len(batch))
    return job


@folder_command("index", resume=True)
def gather(output: Folder, source: Source = "-", *, job: FolderJob) -> FolderJob:
    """Gather."""
    job.begin()
    job.finish()
    return job


def test_a_filter_gets_a_job_with_the_common_options(tmp_path):
    output = tmp_path / "out"
    job = call(copy, "-o", str(output), "--skip-bad", "3", "--with", "a", "--with", "b", "--bare", "-q")
    assert (job.command, job.kind, job.output) == ("copy", "corpus", str(output))
    assert (job.tracker.skip_bad, job.side_files, job.bare) == (3, ("a", "b"), True)
    assert job.settings["skip_bad"] == 3
    assert job.settings["with_files"] == ["a", "b"]
    assert not {"output", "resume", "force", "skip_done", "quiet", "verbose"} & set(job.settings)


def test_options_that_require_a_named_output_are_rejected_without_it():
    for flag in ("--skip-done", "--resume"):
        with pytest.raises(UsageError, match=r"requires .*(--|`)output"):
            call(copy, flag)
    with pytest.raises(UsageError, match="--output must name a folder"):
        call(gather, "-o", "-")


def test_a_folder_is_unlocked_at_the_end_of_its_command(tmp_path):
    for arguments in ([], ["--force"]):
        call(gather, "-o", str(tmp_path / "out"), "-q", *arguments)
    assert (tmp_path / "out" / "meta.json").exists()
