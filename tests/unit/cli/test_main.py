"""Exit codes and one-line error messages of drtk/cli/main.py."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer

from drtk import errors
from drtk.cli import main
from drtk.cli.decorators import plain_command
from drtk.runtime import sharding
from tests.contract.run_drtk import make_environment, run_in_process
from tests.run_commands import make_torchrun_variables


@pytest.fixture
def trip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs `drtk doctor` in this process with another function in place of the command."""

    def run(act: Callable[[], Any]) -> Any:
        @plain_command
        def trip() -> None:
            act()

        monkeypatch.setattr(main, "INTERRUPT_HINTS", [])  # of trainings in this process
        monkeypatch.setattr(main, "load_command", lambda name: trip)
        monkeypatch.setattr(main, "_build_parser", main._build_parser.__wrapped__)
        return run_in_process("doctor")

    return run


def fail(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "status", "message"),
    [
        (lambda: None, 0, ""),
        (fail(errors.DrtkError("no")), 1, "drtk: no\n"),
        (fail(errors.RecordError("a.tsv:17", "expected 3 columns")), 1, "drtk: a.tsv:17: expected 3 columns\n"),
        (fail(errors.UsageError("no")), 2, "drtk: doctor: no; see drtk doctor --help\n"),
        (fail(errors.OutputClosed("no")), 141, ""),
        (fail(BrokenPipeError(32, "Broken pipe")), 141, ""),
        (fail(KeyboardInterrupt()), 130, "drtk: interrupted\n"),
        (lambda: os.stat("/no/such/file"), 1, "drtk: /no/such/file: No such file or directory\n"),
        (fail(OSError(28, "No space left on device")), 1, "drtk: No space left on device\n"),
        (fail(typer.Exit(3)), 3, ""),
    ],
)
def test_each_error_has_an_exit_status_and_a_one_line_message(trip, act, status, message):
    actual = trip(act)
    assert (actual.status, actual.err) == (status, message)


def test_help_as_a_command():
    for words in ([], ["eval"], ["rerank-queries", "label"]):
        assert run_in_process("help", *words).out == run_in_process(*words, "--help").out != ""
    assert "no such command 'evl'" in run_in_process("help", "evl").err


@pytest.mark.parametrize("error", [ZeroDivisionError(), EOFError(), OSError("no number")])
def test_a_bug_is_raised(trip, error):
    with pytest.raises((ZeroDivisionError, RuntimeError, OSError)):
        trip(fail(error))


def test_output_that_cannot_be_flushed_at_the_end_to_a_closed_pipe_exits_with_141():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        call = [sys.executable, "-m", "drtk", "presets", "mlm"]  # its output is smaller than the buffer
        actual = subprocess.run(call, stdout=closed, stderr=subprocess.PIPE, text=True, env=make_environment())
    assert (actual.returncode, actual.stderr) == (141, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_closed_standard_stream_is_an_error_if_needed(closed):
    line = f'echo \'{{"_id": "a", "text": "b"}}\' | "{sys.executable}" -m drtk chunk --policy words --no-sentences {closed}'
    actual = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (actual.returncode, actual.stdout) == (1, "")
    assert f"drtk: standard {'input' if '<' in closed else 'output'} is closed; " in actual.stderr


def test_characters_that_stdout_cannot_encode_are_escaped(tmp_path):
    (tmp_path / "in").write_text('{"_id": "a", "text": "caf\u00e9"}\n', encoding="utf-8")
    call = [sys.executable, "-m", "drtk", "show", str(tmp_path / "in")]
    actual = subprocess.run(
        call, capture_output=True, check=False, env=make_environment() | {"PYTHONIOENCODING": "ascii"}
    )
    assert (actual.returncode, actual.stderr) == (0, b"")
    assert b"text        caf\\xe9\n" in actual.stdout


NO_FORMAT = "is not one of 'passages', 'queries', 'qrels', 'run', 'examples', 'embeddings'"


@pytest.mark.parametrize(
    ("arguments", "command", "message"),
    [
        ("evl", "", "no such command 'evl'; did you mean 'eval'? See"),
        ("no-such-command", "", "no such command 'no-such-command'; see"),
        ("--no-such", "", "no such option --no-such before the command; options of a command follow its name; see"),
        ("rerank-queries lable", "rerank-queries", "no such command 'lable'; did you mean 'label'? See"),
        ("rerank-queries label", "rerank-queries label", "missing option '--queries'; see"),
        ("encode x --trust-remote-code", "encode", "--trust-remote-code comes before the command; see"),
        ("eval --answer x", "eval", "no such option --answer; did you mean --answers? See"),
        ("eval a.run --qrels", "eval", "option '--qrels' requires an argument; see"),
        ("chunk a b", "chunk", "unexpected argument 'b'; expected [INPUT]; see"),
        ("search", "search", "missing argument 'INDEX… [QUERIES]'; see"),
        ("search bm25 --queries q.jsonl", "search", "no such option --queries; expected INDEX… [QUERIES]; see"),
        (
            "chunk --skip-bad -1",
            "chunk",
            "invalid value for '--skip-bad': '-1' should be greater than or equal to 0; see",
        ),
        ("convert --as corpus", "convert", f"invalid value for '--as': 'corpus' {NO_FORMAT}; see"),
        ("chunk --max-words -1", "chunk", "--max-words: must be at least 1, is -1; see"),
        ("eval a.run", "eval", "--qrels or --answers is required; see"),
    ],
)
def test_a_usage_error_is_one_line_with_status_2(arguments, command, message):
    actual = run_in_process(*arguments.split())
    line = f"drtk: {command}: {message} drtk {command} --help\n" if command else f"drtk: {message} drtk --help\n"
    assert (actual.status, actual.out, actual.err) == (2, b"", line)


@pytest.mark.parametrize(
    ("call", "setting", "told"),
    [
        ("presets PRESET --check", "max_steps = 'many'", "--max-steps: expected int, got 'many'"),
        ("train-reranker none --preset PRESET -o none", "stepz = 3", "unknown setting 'stepz'"),
    ],
)
def test_an_error_in_a_preset_begins_with_its_path(tmp_path, call, setting, told):
    preset = tmp_path / "mine.toml"
    preset.write_text(f'command = "train-reranker"\n[settings]\n{setting}\n', encoding="utf-8")
    actual = run_in_process(*call.replace("PRESET", str(preset)).split())
    assert actual.status == 2
    assert actual.err.startswith(f"drtk: preset {preset}: {told}")
    assert "--help" not in actual.err


@pytest.mark.parametrize("value", ["1,000", "1e3", "1__000", ""])
def test_counts_with_other_separators_are_rejected(value):
    actual = run_in_process("chunk", "--max-words", value)
    told = f"invalid value for '--max-words': '{value}' is not a whole number (a thousand is 1000 or 1_000)"
    assert actual.status == 2
    assert told in actual.err
    assert actual.err.count("\n") == 1


@pytest.mark.parametrize(
    ("call", "is_distributed"),
    [
        ("pretrain c.jsonl", True),
        ("--max-line-bytes 9 rerank-queries train", True),
        ("--max-line-bytes=9 --trust-remote-code rerank-queries train", True),
        ("rerank-queries apply", False),
        ("termweight --train e.jsonl", True),
        ("termweight c.jsonl", False),
        ("encode c.jsonl", False),
    ],
)
def test_only_trainings_read_the_variables_of_torchrun(monkeypatch, call, is_distributed):
    for variable, value in make_torchrun_variables(rank=1, processes=2).items():
        monkeypatch.setenv(variable, value)
    seen = []
    monkeypatch.setattr(main, "app", lambda **_: seen.append(sharding.is_distributed()))
    assert run_in_process(*call.split()).status == 0
    assert seen == [is_distributed]


def test_a_command_may_open_as_many_files_as_the_system_allows(trip):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        trip(lambda: limits.append(resource.getrlimit(resource.RLIMIT_NOFILE)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert limits == [(before[1], before[1])]
