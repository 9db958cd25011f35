"""--help: panels, examples, stages; `drtk presets --fields`; completion in a real bash."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from drtk.cli.help import get_examples
from drtk.cli.main import COMMANDS, STAGES, _build_parser, load_functions
from drtk.config import PANELS
from tests.contract.run_drtk import run_in_process

ROOT = Path(__file__).resolve().parents[3]
STEPS = list(load_functions())


def parser_of(step: str) -> Any:
    command, _, name = step.partition(" ")
    parser = _build_parser(command)
    return parser.get_command(typer.Context(parser), name) if name else parser


@pytest.mark.parametrize("step", STEPS)
def test_help_has_panels_few_options_two_valid_examples_and_the_page(step):
    text = run_in_process(*step.split(), "--help").out.decode()
    titles = [line[:-1] for line in text.splitlines() if line.endswith(":") and line[:1].isupper()]
    panels = [title for title in titles if title != "Examples"]
    assert panels == [panel for panel in PANELS if panel in panels]
    assert titles[-1] == "Examples"
    assert (ROOT / text.rstrip().rpartition("Documentation: ")[2]).exists()
    assert "<" not in text.partition("Examples:")[0]  # metavars such as <int>
    command = parser_of(step)
    options = [item for item in command.params if item.param_type_name == "option"]
    assert len(options) <= 28
    assert all(len((item.help or "").partition("[default")[0]) <= 100 for item in options)
    examples = get_examples(command)
    assert len(examples) == 2
    for example in examples:
        words = shlex.split(example.partition(" > ")[0])
        assert words[: 1 + len(step.split())] == ["drtk", *step.split()], example
        context = typer.Context(command)
        _, rest, _ = command.make_parser(context).parse_args(words[1 + len(step.split()) :])
        assert not rest, example


def test_commands_are_listed_by_stage_with_whole_summaries():
    text = run_in_process("--help").out.decode()
    assert [line[:-1] for line in text.splitlines() if line[:-1] in STAGES] == list(STAGES)
    for name in COMMANDS:
        assert f"\n  {name} " in text
    assert "..." not in text.partition("Options:")[2]
    assert text.endswith("Start with: drtk import, chunk, index, search (docs/tutorial.md).\n")


def test_all_settings_of_a_command_are_listed():
    lines = run_in_process("presets", "--fields", "train-retriever").out.decode().splitlines()
    rows = {line.split()[0]: line.split()[1:4] for line in lines}
    assert rows["batch_size"] == ["int", "64", "--batch-size"]
    assert rows["temperature_warmup"] == ["bool", "false", "--set"]
    assert rows["matryoshka"] == ["list", "of", "int"]
    outcome = run_in_process("presets", "--fields", "train")
    assert outcome.status == 2
    assert "no command 'train'; choose from sample, import" in outcome.err


COMPLETIONS = {
    "drtk train-": "train-retriever train-reranker train-generator",
    "drtk train-retriever --lo": "--loss",
    "drtk train-retriever --preset quick": "quickstart",
    "drtk rerank-queries a": "apply",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_values(tmp_path):
    program = tmp_path / "drtk"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m drtk "$@"\n')
    program.chmod(0o755)
    script = "source <(drtk --show-completion)\n"
    for words in COMPLETIONS:
        script += f'COMP_WORDS=({words}) COMP_CWORD={len(words.split()) - 1}\n_drtk_completion drtk\necho "${{COMPREPLY[@]}}"\n'
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    call = ["bash", "--norc", "-c", script]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == ([*COMPLETIONS.values()], "")
