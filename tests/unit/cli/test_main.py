"""Exit codes and one-line error messages of drtk/cli/main.py."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import typer

from drtk import errors
from drtk.cli import main
from drtk.cli.decorators import plain_command
from tests.contract.run_drtk import make_environment, run_in_process
from tests.run_commands import make_torchrun_variables

TRIP = """
from drtk.cli import main
from drtk.cli.decorators import plain_command

@plain_command
def trip() -> None:
    {body}

main.load_command = lambda name: trip
main.run()
"""


def run_doctor(body: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run a process in which `drtk doctor` executes `body`."""
    program = TRIP.replace("{body}", textwrap.indent(textwrap.dedent(body), "    ").strip())
    command = [sys.executable, "-c", program, "doctor"]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, env=make_environment(), **given)


@pytest.fixture
def trip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs `drtk doctor` in this process with another function in place of the command."""

    def run(act: Callable[[], Any]) -> Any:
        @plain_command
        def trip() -> None:
            act()

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


def test_help_as_a_command(capfd):
    for words in ([], ["eval"], ["rerank-queries", "label"]):
        assert run_in_process("help", *words).out == run_in_process(*words, "--help").out != ""
    assert "no such command 'evl'" in run_in_process("help", "evl").err


@pytest.mark.parametrize("error", [ZeroDivisionError(), EOFError(), OSError("no number")])
def test_a_bug_is_raised(trip, error):
    with pytest.raises((ZeroDivisionError, RuntimeError, OSError)):
        trip(fail(error))


def test_printing_to_a_closed_pipe_exits_with_141():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        for text in ("'x' * 1_000_000", "'x'"):  # the second fails when flushed at the end
            actual = run_doctor(f"import sys; sys.stdout.write({text})", stdout=closed)
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
        (
            "--no-such-option",
            "",
            "no such option --no-such-option before the command; options of a command follow its name; see",
        ),
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
    ("setting", "told"),
    [("max_steps = 'many'", "--max-steps: expected int, got 'many'"), ("stepz = 3", "unknown setting 'stepz'")],
)
@pytest.mark.parametrize("call", ["presets PRESET --check", "train-reranker none --preset PRESET -o none"])
def test_an_error_in_a_preset_begins_with_its_path(tmp_path, call, setting, told):
    preset = tmp_path / "mine.toml"
    preset.write_text(f'command = "train-reranker"\n[settings]\n{setting}\n', encoding="utf-8")
    actual = run_in_process(*call.replace("PRESET", str(preset)).split())
    assert actual.status == 2
    assert actual.err.startswith(f"drtk: preset {preset}: {told}")
    assert "--help" not in actual.err


@pytest.mark.parametrize("value", ["1,000", "1 000", "1e3", "1__000", ""])
def test_counts_with_other_separators_are_rejected(value):
    actual = run_in_process("chunk", "--max-words", value)
    told = f"invalid value for '--max-words': '{value}' is not a whole number (a thousand is 1000 or 1_000)"
    assert actual.status == 2
    assert told in actual.err
    assert actual.err.count("\n") == 1


def test_commands_other_than_trainings_are_not_distributed(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"_id": "d1", "text": "one"}\n')
    words = [sys.executable, "-m", "drtk", "index", "c.jsonl", "--type", "bm25s", "-o", "out"]
    distributed = {**make_environment(), **make_torchrun_variables(rank=1, processes=2)}
    done = subprocess.run(words, cwd=tmp_path, env=distributed, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "meta.json").exists()


@pytest.mark.parametrize(
    ("words", "distributed"),
    [
        (["pretrain", "c.jsonl"], True),
        (["--max-line-bytes", "9", "rerank-queries", "train"], True),
        (["--max-line-bytes=9", "--trust-remote-code", "rerank-queries", "train"], True),
        (["rerank-queries", "apply"], False),
        (["termweight", "--train", "e.jsonl"], True),
        (["termweight", "c.jsonl"], False),
        (["encode", "c.jsonl"], False),
    ],
)
def test_trainings_stay_distributed(monkeypatch, words, distributed):
    monkeypatch.setattr(sys, "argv", ["drtk", *words])
    assert main._is_training_command() == distributed


def test_a_command_may_open_as_many_files_as_the_system_allows():
    program = (
        "import resource; _, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard));"
        "from drtk.cli import main; main.app = lambda **_: print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard); main.run()"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout == "True\n"
