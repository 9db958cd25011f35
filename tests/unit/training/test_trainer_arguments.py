"""What --trainer passes through and refuses, checkpoints that a crash tore, and logs that are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from drtk.errors import DrtkError, UsageError
from drtk.training.arguments import Plan, passed_through, training_arguments
from drtk.training.best_checkpoint import cut_log, last_checkpoint
from drtk.training.config import RetrieverSettings
from drtk.training.retriever import plan
from tests.running import torchrun

GIVEN = {
    "steps": 50, "batch": 4, "lr": 1e-4, "warmup": 0.1, "weight_decay": 0.0, "seed": 1, "device": "cpu",
    "precision": "float32", "log_every": 10, "save_every": 25, "others": (),
}  # fmt: skip


def test_values_are_read_as_what_they_look_like():
    given = ("max_grad_norm=2.5", "lr_scheduler_type=cosine", "tf32=False", "dataloader_num_workers=3")
    expected = {"max_grad_norm": 2.5, "lr_scheduler_type": "cosine", "tf32": False, "dataloader_num_workers": 3}
    assert passed_through(given) == expected


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ("max_grad_norm", "'max_grad_norm' is not KEY=VALUE"),
        ("max_grad_nrom=1", "have no 'max_grad_nrom'"),
        ("learning_rate=1", "learning_rate: use --lr"),
        ("gradient_accumulation_steps=2", "cannot be chosen: the loss needs the whole batch"),
    ],
)
def test_what_cannot_be_passed_is_told(item: str, told: str):
    with pytest.raises(UsageError, match=told):
        passed_through([item])


def test_values_that_transformers_refuses_are_usage_errors(tmp_path: Path):
    with pytest.raises(UsageError, match="--trainer: "):
        training_arguments(tmp_path, **GIVEN | {"others": ("lr_scheduler_type=zigzag",)})


def test_shares_of_steps_and_whole_log_entries_between_checkpoints(tmp_path: Path):
    arguments = training_arguments(tmp_path, **GIVEN)
    assert (arguments.warmup_steps, arguments.save_steps, arguments.max_steps) == (5, 30, 50)  # .1 * 50; 25 -> 30
    assert training_arguments(tmp_path, **GIVEN | {"warmup": 7.0}).warmup_steps == 7
    with pytest.raises(UsageError, match="--device cuda:1: training takes"):
        training_arguments(tmp_path, **GIVEN | {"device": "cuda:1"})


def test_the_last_whole_checkpoint_is_found_and_torn_ones_go(tmp_path: Path):
    for number in (5, 10, 100):
        (tmp_path / f"checkpoint-{number}").mkdir()
    (tmp_path / "checkpoint-5" / "complete").touch()
    (tmp_path / "checkpoint-10" / "complete").touch()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-5"]
    assert last_checkpoint(tmp_path / "nowhere") is None


def test_a_log_is_cut_where_training_goes_on(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 5, "loss": 2}\n{"step": 10, "loss": 1}\n[5]\n{"step": "5"}\n{"step": 15, "lo')
    cut_log(log, step=5)
    assert log.read_text() == '{"step": 5, "loss": 2}\n'


def test_plans():
    settings = RetrieverSettings(batch=16, epochs=2.5)
    assert plan(70, settings) == Plan(batch=16, steps=10, steps_per_epoch=4)  # 70 // 16 = 4, 2.5 * 4
    assert plan(70, RetrieverSettings(batch=16, steps=7)).steps == 7
    with pytest.raises(DrtkError, match="15 examples do not fill one batch of 16; --batch 15"):
        plan(15, settings)
    with pytest.raises(DrtkError, match="nothing to tell the positive from"):
        plan(15, RetrieverSettings(batch=1, negatives=0))


def test_a_batch_must_divide_among_processes(monkeypatch: pytest.MonkeyPatch):
    for name, value in torchrun(rank=0, processes=4).items():
        monkeypatch.setenv(name, value)
    assert plan(70, RetrieverSettings(batch=16)).batch == 4
    with pytest.raises(DrtkError, match="--batch 18 cannot be shared by 4"):
        plan(70, RetrieverSettings(batch=18))


def test_a_warm_up_that_outlasts_training_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []
    monkeypatch.setattr("drtk.training.arguments.warn", told.append)
    training_arguments(tmp_path, **GIVEN | {"warmup": 0.1})
    assert told == []
    training_arguments(tmp_path, **GIVEN | {"warmup": 200.0})
    assert told == ["the learning rate would rise for 200 steps; after 50 it is at 2.5e-05: --warmup 0.1"]


def test_a_run_that_begins_again_leaves_no_measurement_of_the_start_in_its_log(tmp_path: Path):
    (tmp_path / "log.jsonl").write_text('{"step": 0, "held_out_mlm": 3.5}\n{"step": 1, "loss": 3.4}\n')
    cut_log(tmp_path / "log.jsonl", step=-1)
    assert (tmp_path / "log.jsonl").read_text() == ""
