"""Former names of options and settings: answered, and loaded with a warning."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import load_functions
from drtk.config import load_preset
from drtk.renamed_options import RENAMED
from tests.contract.run_drtk import run_in_process
from tests.run_commands import write_text


def names_of(command: str) -> set[str]:
    """Return the names of the settings and options of a command."""
    function: Any = load_functions()[command]
    names = {item.name for kind in getattr(function, "settings_classes", ()) for item in fields(kind)}
    for parameter in function.__signature__.parameters.values():
        names.add(parameter.name)
        (option,) = parameter.annotation.__metadata__
        declared = [name for name in (option.default, *(option.param_decls or ())) if isinstance(name, str)]
        names |= {name.split("/")[0].lstrip("-").replace("-", "_") for name in declared}
    return names


def test_every_new_name_exists_and_no_former_name_is_in_use() -> None:
    everywhere = RENAMED[""]
    for command in load_functions():
        table = everywhere | RENAMED.get(command, {})
        names = names_of(command)
        assert set(RENAMED.get(command, {}).values()) <= names, command
        assert not {old for old, new in table.items() if new in names and old in names} - {"weights", "k"}, command
    assert set(RENAMED) - {""} <= set(load_functions())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("train-retriever --lr 1", "--lr was renamed to --learning-rate"),
        ("train-retriever --batch 1", "--batch was renamed to --batch-size"),
        ("pretrain --save-every 1", "--save-every was renamed to --export-steps"),
        ("pretrain --checkpoint-every 1", "--checkpoint-every is a setting: --set save_steps=VALUE"),
        ("train-retriever --grad-cache 1", "--grad-cache is a setting: --set grad_cache=VALUE"),
        ("train-retriever --temperature-warmup", "--temperature-warmup is a setting: --set temperature_warmup=true"),
        ("train-reranker --kind hlatr", "--kind is a setting: --set kind=VALUE"),
        ("rerank-queries train --no-skip-ties", "--no-skip-ties is a setting: --set skip_ties=false"),
        ("encode --dtype float16", "--dtype was renamed to --precision"),
        ("index --dtype float16", "--dtype was renamed to --vector-dtype"),
        ("show --weights", "--weights was renamed to --term-weights"),
        ("train-retriever --learning_rate 1", "no such option --learning_rate; did you mean --learning-rate?"),
        ("train-retriever --bs 1", "no such option --bs; did you mean --batch-size?"),
        ("train-retriever --max-seq-length 1", "did you mean --query-length or --passage-length?"),
        ("train-reranker --max-seq-length 1", "no such option --max-seq-length; did you mean --max-length?"),
        ("train-retriever --n-epochs 1", "no such option --n-epochs; did you mean --epochs?"),
        ("train-retriever --tau 1", "no such option --tau; did you mean --set temperature=VALUE?"),
        ("train-retriever --temprature 1", "no such option --temprature; did you mean --set temperature=VALUE?"),
        ("search --hits 1", "no such option --hits; did you mean --depth?"),
        (
            "encode --sparse",
            "no such option --sparse; sparse encoders are recognized by their model folder; for a plain masked language model",
        ),
        ("train-retriever --sparse", "no such option --sparse; did you mean --head sparse?"),
        ("eval --metrics x", "no such option --metrics; did you mean --measures?"),
        ("chunk --set banana=1", "no such option --set banana (drtk presets --fields 'chunk' lists the settings)"),
        ("chunk --set reserve_specials=true", "did you mean --set reserve_special?"),
        (
            "pretrain x --preset simlm --model m --set objective.decoder.reader.layers=1 -o o",
            "--set objective.decoder.reader.layers was renamed to --set objective.decoder.decoder.layers",
        ),
        (
            "pretrain x --preset cocondenser --model m --set readers.condenser.layers=1 -o o",
            "--set readers.condenser.layers was renamed to --set decoders.condenser.layers",
        ),
        ("mine-negatives x --set positives=source", "--set positives was renamed to --set by"),
        ("chunk --set overlap=2 --overlap 3", "--set overlap and --overlap cannot be combined; give one"),
        ("chunk --set punkt_mb=0", "--set punkt_mb: must be at least 0.001, is 0.0"),
        ("chunk --set punkt_mb=much", "--set punkt_mb: expected float, got 'much'"),
    ],
)
def test_an_unknown_option_is_answered_with_its_name_or_meaning(call: str, message: str) -> None:
    outcome = run_in_process(*call.split())
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_keys_of_an_old_preset_load_with_a_warning(tmp_path: Path) -> None:
    file = write_text(tmp_path / "old.toml", 'command = "train-retriever"\n[settings]\nlr = 1e-5\nalpha = 0.2\n')
    preset = load_preset(str(file))
    assert preset.settings == {"learning_rate": 1e-5, "contrastive_weight": 0.2}
    files = f"{tmp_path}/e.jsonl --corpus {tmp_path}/c.jsonl --queries {tmp_path}/q.jsonl --model {tmp_path}/m"
    outcome = run_in_process("train-retriever", *files.split(), "--preset", str(file), "-o", str(tmp_path / "out"))
    assert f"drtk: preset {file}: lr was renamed to learning_rate\n" in outcome.err
    assert f"drtk: preset {file}: alpha was renamed to contrastive_weight\n" in outcome.err


def test_former_keys_of_a_composition_load_with_a_warning(tmp_path: Path) -> None:
    shipped = load_preset("cocondenser")
    text = shipped.text.replace("[decoders]", "[readers]").replace("decoder = ", "reader = ")
    file = write_text(tmp_path / "old.toml", text)
    assert load_preset(str(file)).content == shipped.content
    outcome = run_in_process("pretrain", str(tmp_path), "--preset", str(file), "--model", "m", "--dry-run")
    assert f"drtk: preset {file}: readers was renamed to decoders\n" in outcome.err
    assert f"drtk: preset {file}: reader was renamed to decoder\n" in outcome.err
    checked = run_in_process("presets", str(file), "--check")
    assert checked.out.endswith(b"; readers was renamed to decoders; reader was renamed to decoder\n")
