"""Schedules, and what is passed to transformers' TrainingArguments."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from drtk.errors import DrtkError, MissingDependency, UsageError
from drtk.training import arguments
from drtk.training.arguments import Schedule, build_training_arguments, parse_trainer_items, plan_schedule
from drtk.training.config import RerankerConfig, RetrieverConfig, TrainingConfig
from tests.run_commands import make_torchrun_variables

SCHEDULE = Schedule(batch=4, steps=50, steps_per_epoch=10)


def make_arguments(folder: Path, *, device: str = "cpu", **changes: Any) -> TrainingArguments:
    config = TrainingConfig(learning_rate=1e-4, precision="float32", save_steps=25, **changes)
    return build_training_arguments(config, SCHEDULE, folder, seed=1, device=device)


def test_values_are_parsed_as_json_and_invalid_arguments_rejected(tmp_path: Path):
    items = ("max_grad_norm=2.5", "lr_scheduler_type=cosine", "tf32=False", "max_grad_norm=1")
    assert parse_trainer_items(items) == {"max_grad_norm": 1, "lr_scheduler_type": "cosine", "tf32": False}
    for item, message in (
        ("max_grad_norm", "expected KEY=VALUE, got 'max_grad_norm'"),
        ("max_grad_nrom=1", "max_grad_nrom: not an argument of transformers' TrainingArguments"),
        ("learning_rate=1", "learning_rate: is set by drtk; use `learning_rate`"),
        ("gradient_accumulation_steps=2", r"cannot be set \(the loss needs the whole batch"),
        ("lr_scheduler_type=zigzag", "`trainer`: "),
    ):
        with pytest.raises(UsageError, match=message):
            make_arguments(tmp_path, trainer=(item,))
    with pytest.raises(UsageError, match="`device` cuda:1: use auto, cpu, cuda or mps"):
        make_arguments(tmp_path, device="cuda:1")


def test_a_logger_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arguments, "get_available_reporting_integrations", list)
    for name in ("wandb", "mlflow"):
        with pytest.raises(MissingDependency, match=f"{name} needs {name}, which is not installed"):
            arguments.check_reporting([name])
    arguments.check_reporting(["none"])
    with pytest.raises(UsageError, match=r"`report_to`: unknown 'tensorbord'; choose from .*tensorboard"):
        arguments.check_reporting(["tensorbord"])


def test_unused_gpus_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda _: 4))
    assert make_arguments(tmp_path)._n_gpu == 1
    assert "training uses cuda:0, and leaves cuda:1, cuda:2, cuda:3 idle; use `gpus` 4" in caplog.text


def test_warm_up_and_checkpoints_between_entries_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    made = make_arguments(tmp_path)
    assert (made.warmup_steps, made.save_steps, made.max_steps) == (5, 30, 50)  # .1 * 50; 25 -> 30
    for steps in (7, 1):
        assert make_arguments(tmp_path, warmup=float(steps)).warmup_steps == steps
    assert not caplog.text
    make_arguments(tmp_path, warmup=200.0)
    warning = "the warm-up of 200 steps is not shorter than the training of 50, which ends at learning rate 2.5e-05"
    assert warning in caplog.text


def test_plan_schedule(monkeypatch: pytest.MonkeyPatch):
    config = RetrieverConfig(batch_size=16, epochs=2.5)
    assert plan_schedule(70, config) == Schedule(batch=16, steps=10, steps_per_epoch=4)  # 70 // 16 = 4, 2.5 * 4
    assert plan_schedule(1600, replace(config, epochs=0.29)).steps == 29  # 0.29 * 100 is less in floating point
    assert plan_schedule(70, TrainingConfig(batch_size=16, max_steps=7)).steps == 7
    uneven = RerankerConfig(batch_size=4, micro_batch_size=3)
    for count, other, message in (
        (15, config, "15 examples do not fill one batch of 16; use `batch_size` 15 or less"),
        (0, config, "training data: there are no examples to train on"),
        (9, uneven, "`micro_batch_size` 3: must divide the batch size of each device, 4"),
    ):
        with pytest.raises(DrtkError, match=message):
            plan_schedule(count, other, micro_batch=getattr(other, "micro_batch_size", None))
    for name, value in make_torchrun_variables(rank=0, processes=4).items():
        monkeypatch.setenv(name, value)
    assert plan_schedule(70, config).batch == 4
    with pytest.raises(DrtkError, match="`batch_size` 18: must be a multiple of the number of processes, 4"):
        plan_schedule(70, RetrieverConfig(batch_size=18))
