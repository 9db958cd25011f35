"""All training commands: resuming, best weights, NaN losses, memory, precision, and invalid examples."""

import io
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError
from drtk.runtime.integrity import read_json
from drtk.training.fit import DrtkTrainer
from drtk.training.grad_cache import RetrieverTrainer
from tests.expansion_collection import read_rows, write_rows
from tests.record_dtypes import record_linear_dtypes
from tests.run_commands import act_before_step, cut_off_before_step, read_log
from tests.tiny_models import compute_max_difference

TEXTS = "--corpus {0}/corpus.jsonl --queries {0}/queries.jsonl"
RUN = "--dev {0}/dev --dev-run {0}/run"
CALLS = {
    "retriever": "train-retriever {0}/examples.jsonl --model {0}/encoder --negatives 2 --set temperature=0.1 " + TEXTS,
    "reranker": "train-reranker {0}/examples.jsonl --model {0}/crossencoder --negatives 3 --max-length 32 " + TEXTS,
    "lists": "train-reranker {0}/run --set kind=hlatr --vectors {0}/vectors --qrels {0}/qrels.tsv --set depth=10 --set layers=1",
    "generator": "train-generator {0}/examples.jsonl --model {0}/t5 --max-length 24 --target-length 8 " + TEXTS,
}
WEIGHER = "termweight --train {0}/examples.jsonl --method deepimpact --model {0}/encoder --set batch_size=8 --set learning_rate=1e-3 "
WEIGHER += TEXTS  # has no evaluation
DEV = {
    "retriever": "--dev {0}/dev --set dev_queries=20 --set dev_pool=50",
    "reranker": RUN + " --set dev_queries=20",
    "lists": RUN,
    "generator": "--dev-share 0.3",
}
MEASURE = {"retriever": "dev_nDCG@10", "reranker": "RR@10", "lists": "RR@10", "generator": "rougeL"}
STEPS = "--batch-size 8 --max-steps 6 --set log_steps=1 --set save_steps=2 --learning-rate 1e-3 --device cpu -q"


@pytest.fixture(scope="session")
def vector_data(data: Path) -> Path:
    """Add vectors of the run's pairs to the training files."""
    files = f"--model {data}/crossencoder --depth 10 --save-vectors {data}/vectors -o {data}/reranked -q {TEXTS.format(data)}"
    app(["rerank", f"{data}/run", *files.split()], standalone_mode=False)
    return data


def arguments(data: Path, name: str, output: Path, *more: str) -> list[str]:
    """Return the call of a training; an option in `more` replaces one of the call, except --set."""
    steps = STEPS if name in CALLS else STEPS.replace("--batch-size 8 ", "").replace("--learning-rate 1e-3 ", "")
    call = [*f"{CALLS.get(name, WEIGHER)} {steps}".format(data).split(), "-o", str(output)]
    given = " ".join(more).format(data).split()
    replaced = {each for each in given if each[:2] == "--" and each != "--set"}
    kept = [item for at, item in enumerate(call) if not {item, call[at - 1]} & replaced]
    return kept + given


def train(data: Path, name: str, output: Path, *more: str) -> dict[str, torch.Tensor]:
    app(arguments(data, name, output, *more), standalone_mode=False)
    return {
        f"{path.stem}.{key}": value
        for path in sorted(output.rglob("*.safetensors"))
        for key, value in load_file(path).items()
    }


@contextmanager
def fail_at_step(step: int, error: Exception, *, only: str = "") -> Iterator[None]:
    """Make training raise `error` at a step; only: only if the micro-batch is larger than this."""

    def fail(trainer: Any) -> None:
        if not only or (trainer.micro_batch or 100) > int(only):
            raise error

    with act_before_step(RetrieverTrainer, step, fail), act_before_step(DrtkTrainer, step, fail):
        yield


@contextmanager
def interrupt_at_step(step: int, number: signal.Signals) -> Iterator[None]:
    with act_before_step(DrtkTrainer, step, lambda _: signal.raise_signal(number)):
        before = signal.getsignal(signal.SIGINT)
        if number == signal.SIGTERM:  # as in a background job of a script
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        yield
        signal.signal(signal.SIGINT, before)


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a total capacity")
RESUMED = {
    "retriever": "--set grad_cache=5 --set temperature_warmup=true --set mask_false_negatives=true",
    "reranker": "--set r_drop=true --set backward=3 --micro-batch-size 4",
    "lists": "",
    "generator": "--set schedule=cosine",
}


INTERRUPTED = {"lists": signal.SIGINT, "generator": signal.SIGTERM}  # the others fail without saving


@pytest.mark.parametrize("name", [*CALLS, "weigher"])
def test_an_interrupted_training_resumes_to_the_weights_of_an_uninterrupted_one(vector_data, tmp_path, name):
    more = ("--max-steps 4", *((DEV[name], "--set eval_steps=2", RESUMED[name]) if name in CALLS else ()))
    whole = train(vector_data, name, tmp_path / "whole", *more)
    if name in INTERRUPTED:  # a checkpoint is saved after the step
        more = (*more, "--set save_steps=500")
        with interrupt_at_step(3, INTERRUPTED[name]):
            assert app(arguments(vector_data, name, tmp_path / "m", *more), standalone_mode=False) == 130
        assert (tmp_path / "m.part" / "checkpoints" / "checkpoint-3" / "complete").exists()
    else:
        with fail_at_step(4, RuntimeError("power failure")), pytest.raises(RuntimeError, match="power failure"):
            train(vector_data, name, tmp_path / "m", *more)
    assert compute_max_difference(train(vector_data, name, tmp_path / "m", *more, "--resume"), whole) == 0
    assert read_log(tmp_path / "m") == read_log(tmp_path / "whole")
    assert not (tmp_path / "m" / "checkpoints").exists()
    if name not in CALLS:
        facts = [read_json(tmp_path / folder / "meta.json")["term_weights"] for folder in ("m", "whole")]
        assert facts[0] == facts[1]
        return
    figures = {entry["step"]: entry[MEASURE[name]] for entry in read_log(tmp_path / "m") if MEASURE[name] in entry}
    assert list(figures) == ([2, 4] if name == "generator" else [0, 2, 4])
    best = read_json(tmp_path / "m" / "meta.json")["best"]
    assert best["step"] == max(figures, key=lambda step: (figures[step], -step))
    assert best[MEASURE[name]] == pytest.approx(figures[best["step"]], rel=1e-5)


def test_examples_from_a_pipe_must_be_the_same_when_resuming(data, tmp_path, monkeypatch):
    lines = (data / "examples.jsonl").read_bytes().splitlines(keepends=True)

    def train_on(content: list[bytes], *more: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"".join(content))))
        call = arguments(data, "retriever", tmp_path / "m", *more)
        app([call[0], "-", *call[2:]], standalone_mode=False)

    with cut_off_before_step(RetrieverTrainer, 4):
        train_on(lines)
    with pytest.raises(MismatchError, match=r"m\.part: started with different records from <stdin>"):
        train_on(lines[1:], "--resume")
    train_on(lines, "--resume")


@pytest.mark.parametrize(("share", "file"), [(0.5, "weights"), (1.5, "optimizer")])
def test_a_full_disk_at_a_checkpoint_is_one_line_and_the_previous_checkpoint_is_resumed(data, tmp_path, share, file):
    # A limit on the size of files fails as a full disk does: safetensors and torch raise errors of their own.
    size = (data / "encoder" / "model.safetensors").stat().st_size
    save = DrtkTrainer._save_checkpoint

    def fail_above_limit(self: DrtkTrainer, *given: Any, **named: Any) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if self.state.global_step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * size), before[1]))
        try:
            save(self, *given, **named)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DrtkTrainer, "_save_checkpoint", fail_above_limit)
        with pytest.raises(DrtkError, match=r"m\.part/checkpoints.*: .*(too large|may be full)") as fault:
            train(data, "retriever", tmp_path / "m")
    assert "\n" not in str(fault.value)
    assert [path.name for path in (tmp_path / "m.part" / "checkpoints").glob("*/complete")] == ["complete"]
    train(data, "retriever", tmp_path / "m", "--resume")


def test_a_nan_loss_ends_training_and_another_preset_does_not_resume_it(data, tmp_path):
    diverging = "--learning-rate 1e38 --set warmup=0 --set trainer=max_grad_norm=0"
    with pytest.raises(DrtkError, match=r"the loss is nan at step \d+; try a lower `learning_rate`"):
        train(data, "reranker", tmp_path / "m", diverging)
    assert not (tmp_path / "m").exists()
    with pytest.raises(MismatchError, match=r"started with other settings or files \("):
        train(data, "reranker", tmp_path / "m", "--resume --set r_drop=true")


@pytest.mark.parametrize(
    ("name", "fits", "field"), [("retriever", "20", "`grad_cache` 16"), ("reranker", "3", "`micro_batch_size` 2")]
)
def test_a_step_that_does_not_fit_into_memory_is_repeated_in_smaller_parts(data, tmp_path, caplog, name, fits, field):
    # 8 queries with 3 passages each are 32 texts: 16 fit. 8 lists: 2 fit, 4 do not.
    with fail_at_step(3, FULL, only=fits):
        train(data, name, tmp_path / "m", "--set trainer=optim=sgd")
    assert f"cpu: out of memory at step 3; continuing with {field}" in caplog.text.replace(" (", "; (")
    assert [entry["step"] for entry in read_log(tmp_path / "m")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("name", "more"), [("generator", ""), ("reranker", "--micro-batch-size 1")])
def test_repeated_out_of_memory_is_one_line_and_the_run_resumes(data, tmp_path, name, more):
    advice = "`gradient_checkpointing` or a smaller `batch_size` may help"
    with fail_at_step(3, FULL), pytest.raises(DrtkError, match=f"cpu: out of memory at step 3; {advice}; .* step 2$"):
        train(data, name, tmp_path / "m", more)
    train(data, name, tmp_path / "m", more, "--resume --set gradient_checkpointing=true")
    changes = read_json(tmp_path / "m" / "meta.json")["changes"][0]["settings"]
    assert changes == {"gradient_checkpointing": [False, True]}


@pytest.mark.parametrize("method", ["evaluate", "create_optimizer"])
def test_out_of_memory_outside_of_a_step_does_not_halve_the_micro_batch(vector_data, tmp_path, monkeypatch, method):
    def fail(*given: Any, **named: Any) -> Any:
        raise FULL

    monkeypatch.setattr(DrtkTrainer, method, fail)
    with pytest.raises(DrtkError, match="cpu: out of memory at step"):
        train(vector_data, "reranker", tmp_path / "m", "--micro-batch-size 4 --set eval_steps=2", DEV["reranker"])
    assert not list(tmp_path.glob("m.part/checkpoints/micro_batch"))


def test_training_stops_early_without_improvement(data, tmp_path):
    more = "--max-steps 40 --learning-rate 0 --set eval_steps=1 --set patience=2"
    train(data, "retriever", tmp_path / "m", more, DEV["retriever"])
    manifest = read_json(tmp_path / "m" / "meta.json")
    assert (manifest["counts"]["steps"], manifest["best"]["step"]) == (2, 0)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("retriever", "--set grad_cache=3 --set untied=true"),
        ("reranker", "--set backward=2 --set r_drop=true"),
        ("generator", "--set label_smoothing=0.1"),
    ],
)
def test_the_precision_is_that_of_every_forward_pass(data, tmp_path, name, more):
    with record_linear_dtypes() as precisions:
        train(data, name, tmp_path / "m", "--max-steps 1 --set precision=bfloat16", more)
    assert precisions == {torch.bfloat16}


def test_gradient_checkpointing_changes_no_weight(data, tmp_path):
    more = "--max-steps 2 --set trainer=optim=sgd"
    plain = train(data, "generator", tmp_path / "a", more)
    saving = train(data, "generator", tmp_path / "b", more, "--set gradient_checkpointing=true")
    assert compute_max_difference(plain, saving) < 1e-5
    assert read_json(tmp_path / "b" / "config.json").get("use_cache", True)


@pytest.mark.parametrize("name", ["retriever", "reranker", "generator"])
def test_invalid_examples_are_reported_and_skipped_if_allowed(data, tmp_path, name):
    # More faults are in tests/unit/training/test_examples.py.
    good = (data / "examples.jsonl").read_text().splitlines()[:8]
    bad = [
        '{"query_id": "q99", "positives": ["d1"], "negatives": ["d2"]}',
        '{"query_id": "q3", "positives": ["d99"], "negatives": ["d2"]}',
    ]
    file = tmp_path / "bad.jsonl"

    def call(rows: list[str], *more: str) -> list[str]:
        file.write_text("\n".join(rows) + "\n" * bool(rows))
        words = arguments(data, name, tmp_path / "m", *more)
        return [words[0], str(file), *words[2:]]

    unit = "pairs" if name == "generator" else "examples"
    for rows, more, message in (
        ([*good, bad[0]], "", "9: the queries have no 'q99'"),
        ([*good, bad[1]], "", "9: the corpus has no 'd99'"),
        ([*good, '{"query_id": "q1", "positives": [], "negatives": []}'], "", "9: 'positives' is empty"),
        (good, "--batch-size 12", f"8 {unit} do not fill one batch of 12"),
        ([], "", f"there are no {unit} to train on"),
    ):
        with pytest.raises(DrtkError, match=message):
            app(call(rows, more), standalone_mode=False)
        assert not (tmp_path / "m").exists()
    if name != "generator":
        rows = [*good[:4], *bad, *good[4:]]
        with pytest.raises(DrtkError, match="6: the corpus has no 'd99'"):
            app(call(rows, "--skip-bad 1"), standalone_mode=False)
        app(call(rows, "--max-steps 1 --skip-bad 2"), standalone_mode=False)
        assert read_json(tmp_path / "m" / "meta.json")["counts"]["examples"] == 8


@pytest.mark.parametrize("name", ["retriever", "reranker", "lists", "generator"])
def test_evaluation_on_training_data_causes_a_warning(vector_data, tmp_path, caplog, name):
    dev, rows = tmp_path / "dev", read_rows(vector_data / "queries.jsonl")
    rows = [row | {"text": f"{row['text']} {number}"} for number, row in enumerate(rows)]  # some are equal otherwise
    write_rows(tmp_path / "queries.jsonl", rows)
    shutil.copytree(vector_data / "dev", dev)
    others = [row | {"text": f"another {row['text']}"} for row in rows[:50]]  # the same ids, but other questions
    write_rows(dev / "queries.jsonl", [*others, *rows[50:]])
    options = {
        "retriever": "--set dev_queries=60",
        "reranker": "--set dev_queries=60 --dev-run {0}/run",
        "lists": "--set dev_queries=60 --dev-run {0}/run",
        "generator": "--set dev_measure=loss",
    }
    call = arguments(vector_data, name, tmp_path / "m", "--max-steps 1 --set eval_steps=1", options[name])
    if name != "lists":
        call[call.index("--queries") + 1] = str(tmp_path / "queries.jsonl")
    if name == "generator":
        examples, dev = read_rows(vector_data / "examples.jsonl"), tmp_path / "dev.jsonl"
        call[1] = str(write_rows(tmp_path / "first.jsonl", examples[:50]))
        write_rows(dev, examples[40:])
    app([*call, "--dev", str(dev)], standalone_mode=False)
    both = {"lists": "60 of its 60", "generator": "10 of its 20"}.get(name, "10 of its 60")
    assert f"{dev}: {both} " in caplog.text
    assert f" are also in {call[1]} and favor overfitting; remove them" in caplog.text
