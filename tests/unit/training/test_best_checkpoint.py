"""Selection of the best weights, checkpoints and logs, also after a crash."""

from pathlib import Path

import pytest
import torch

from drtk.errors import DrtkError
from drtk.training.best_checkpoint import (
    Metrics,
    ModelSelection,
    delete_incomplete_checkpoints,
    find_last_checkpoint,
    load_weights,
    save_weights,
    truncate_log,
)
from drtk.training.config import TrainingConfig


class ScriptedSelection:
    """A selection with given values, over a model whose single weight is the step."""

    def __init__(self, folder: Path, values: list[float], *, metric: str = "rougeL", patience: int | None = None):
        figures, config = iter(values), TrainingConfig(patience=patience)
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.selection = ModelSelection(
            self.model, lambda: {metric: next(figures)}, folder, metric=metric, config=config
        )

    def at(self, step: int) -> bool:
        torch.nn.init.constant_(self.model.weight, float(step))
        self.selection.evaluate(step)
        return self.selection.should_stop

    def best(self) -> tuple[int, float]:
        facts = self.selection.save_best(self.model, lambda: None)
        assert facts["step"] == self.model.weight.item()
        return facts["step"], facts[self.selection.metrics[""]]


@pytest.mark.parametrize(("metric", "best"), [("rougeL", (20, 0.6)), ("dev_loss", (30, 0.1))])
def test_the_best_weights_are_kept_the_first_of_equals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, best: tuple
):
    messages: list[str] = []
    monkeypatch.setattr("drtk.training.best_checkpoint.log_message", messages.append)
    script = ScriptedSelection(tmp_path, [0.2, 0.6, 0.1, 0.6], metric=metric)
    for number in (10, 20, 30, 40):
        script.at(number)
    assert script.best() == best
    if metric == "rougeL":
        assert messages[3:] == ["step 40: rougeL 0.6000; the best is 0.6000 at step 20"]


def test_patience_counts_evaluations_without_improvement(tmp_path: Path):
    script = ScriptedSelection(tmp_path, [0.2, 0.1, 0.3, 0.3, 0.2], patience=2)
    assert [script.at(step) for step in (10, 20, 30, 40, 50)] == [False, False, False, False, True]


def test_a_resumed_selection_knows_what_its_checkpoint_knew_and_nothing_later(tmp_path: Path):
    first = ScriptedSelection(tmp_path, [0.5, 0.4, 0.9], patience=2)
    checkpoint = tmp_path / "checkpoint-20"
    checkpoint.mkdir()
    first.at(10)
    first.at(20)
    first.selection.save(checkpoint)
    first.selection.save(checkpoint)  # the Trainer may save a step twice
    first.at(30)  # the best of all, but lost: training continues after step 20
    second = ScriptedSelection(tmp_path, [0.45], patience=2)
    second.selection.restore(checkpoint)
    assert second.at(30)  # .4 and .45 are two without improvement over .5
    assert second.best() == (10, 0.5)
    third = ScriptedSelection(tmp_path, [0.1])
    third.selection.restore(None)
    third.at(10)
    assert third.best() == (10, 0.1)
    for content in ("[]", "{}", '{"step": "1", "value": 2.0, "since": 0}', '{"step": 1, "value": null}'):
        (checkpoint / "best.json").write_text(content)
        with pytest.raises(DrtkError, match=r"best\.json: expected "):
            third.selection.restore(checkpoint)


def test_the_interval_of_the_best_evaluation_is_kept_through_a_checkpoint(tmp_path: Path):
    model = torch.nn.Linear(1, 1)
    results = iter([Metrics({"f": 0.4}, {"f": (0.3, 0.5)}), Metrics({"f": 0.2}, {"f": (0.1, 0.3)})])
    selection = ModelSelection(model, lambda: next(results), tmp_path, metric="f", config=TrainingConfig())
    selection.evaluate(1)
    selection.evaluate(2)
    selection.save(tmp_path / "checkpoint-2")
    selection.restore(tmp_path / "checkpoint-2")
    assert selection.save_best(model, lambda: None) == {"step": 1, "f": 0.4, "interval": [0.3, 0.5]}


RANKS = {"a": [5.0, 3.0, 4.0, 2.0], "b": [1.0, 2.0, 6.0, 6.0]}  # lower is better


def test_several_selections_keep_their_own_weights_through_a_crash(tmp_path: Path):
    model, folder = torch.nn.Linear(1, 1, bias=False), tmp_path / "checkpoints"

    def selections(patience: int | None = None) -> ModelSelection:
        def evaluate() -> dict[str, float]:
            return {name: ranks[round(model.weight.item()) // 10 - 1] for name, ranks in RANKS.items()}

        config = TrainingConfig(patience=patience)
        return ModelSelection(model, evaluate, folder, metric={"a": "a", "b": "b"}, config=config, lower_is_better=True)

    def at(step: int, each: ModelSelection) -> dict[str, float]:
        torch.nn.init.constant_(model.weight, float(step))
        return each.evaluate(step)

    def best(each: ModelSelection) -> dict[str, float]:
        saved: dict[str, float] = {}
        facts = each.save_best(model, lambda name: saved.update({name: model.weight.item()}))
        assert {name: float(fact["step"]) for name, fact in facts.items()} == saved
        return saved

    first = selections()
    assert at(10, first) == {"a": 5.0, "b": 1.0}
    checkpoint = folder / "checkpoint-10"
    checkpoint.mkdir()
    first.save(checkpoint)
    at(20, first)  # better for a, and lost with the crash
    assert best(first) == {"a": 20.0, "b": 10.0}
    second = selections(patience=1)
    second.restore(checkpoint)
    assert best(second) == {"a": 10.0, "b": 10.0}
    enough = []
    for step in (20, 30, 40):
        at(step, second)
        enough.append(second.should_stop)
    assert enough == [False, True, False]  # at 20 only b has no improvement; at 40 a improves again
    assert best(second) == {"a": 40.0, "b": 10.0}
    second.restore(None)
    assert not [*folder.glob("best-*/*")]


def test_tied_weights_are_written_once_and_loaded_again(tmp_path: Path):
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.nn.Linear(50, 50), torch.nn.Linear(50, 50)
            self.other.weight = self.one.weight

    model, other, path = Tied(), Tied(), tmp_path / "w.safetensors"
    save_weights(model.state_dict(), path)
    size = sum(value.numel() * value.element_size() for value in model.parameters())  # parameters() has each once
    assert size < path.stat().st_size < size + 1000  # the header
    load_weights(other, path)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    for weights in (model, torch.nn.Linear(3, 2)):
        save_weights(weights.state_dict(), path)
        with pytest.raises(DrtkError, match="contains the weights of another model"):
            load_weights(torch.nn.Linear(2, 2), path)
    with pytest.raises(DrtkError, match=r"another model \(weight\)"):
        load_weights(torch.nn.Linear(2, 2), path)


def test_the_last_complete_checkpoint_is_found_and_incomplete_ones_are_deleted(tmp_path: Path):
    for number in (5, 10, 100):
        (tmp_path / f"checkpoint-{number}").mkdir()
    (tmp_path / "checkpoint-5" / "complete").touch()
    (tmp_path / "checkpoint-10" / "complete").touch()
    assert find_last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    delete_incomplete_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-5"]
    assert find_last_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("step", "kept"), [(5, '{"step": 0, "dev": 1}\n{"step": 5, "loss": 2}\n'), (-1, "")])
def test_a_log_is_cut_where_training_continues(tmp_path: Path, step: int, kept: str):
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 0, "dev": 1}\n{"step": 5, "loss": 2}\n{"step": 10, "loss": 1}\n[5]\n{"step": "5"}\n{"st')
    truncate_log(log, step=step)
    assert log.read_text() == kept
