"""drtk pretrain: outputs, resuming after a failure, and rejected input."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.models.model_folder import read_layout
from drtk.pretraining.network import PretrainingNetwork
from drtk.pretraining.trainer import Pretrainer
from drtk.runtime.integrity import read_json
from drtk.runtime.progress import name_options
from drtk.training.best_checkpoint import list_complete_checkpoints
from tests.backbone_families import save_random_masked_lm
from tests.expansion_collection import read_rows, write_rows
from tests.pretraining_setup import PretrainingFiles
from tests.run_commands import act_before_step, read_log, run_command
from tests.tiny_models import compute_max_difference, load_weights, save_tiny_encoder

JOINT = "--set generator.mode=joint --set generator.slot=encoder"
QUICK = "--batch-size 6 --max-length 24 --set warmup=0 --set log_steps=1".split()
SCHEDULE = "--max-steps 8 --set save_steps=2 --learning-rate 1e-3".split()


def arguments(
    files: PretrainingFiles, output: Path, preset: str, *more: str | Path, corpus: Path | None = None
) -> list[str]:
    named = ["--preset", preset, "--model", str(files.model), "-o", str(output), *QUICK, *map(str, more)]
    return ["pretrain", str(corpus or files.corpus), *named]


def pretrain(files: PretrainingFiles, output: Path, preset: str, *more: str | Path, corpus: Path | None = None) -> None:
    app([*arguments(files, output, preset, *more, corpus=corpus), "-q"], standalone_mode=False)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors in the files of a folder, by file and name."""
    return {
        f"{path.relative_to(folder)}:{name}": value
        for path in sorted(folder.rglob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def assert_equal_models(one: Path, other: Path) -> None:
    mine, theirs = weights_of(one), weights_of(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert read_log(one) == read_log(other)


def full(_: Pretrainer) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def cut_off(_: Pretrainer) -> None:
    raise DrtkError("cut off")


def ruin(trainer: Pretrainer) -> None:
    """Set weights to finite values with which the next loss is not finite."""
    with torch.no_grad():
        trainer.model.backbone.encoder.layer[-1].output.LayerNorm.bias.fill_(3e38)


def fail(
    files: PretrainingFiles, output: Path, at: int, spoil: Callable[[Pretrainer], Any], *more: str, preset: str = "mlm"
) -> str:
    """Run pre-training with a hook before a step; return the error message."""
    with act_before_step(Pretrainer, at, spoil), pytest.raises(DrtkError) as caught:
        pretrain(files, output, preset, *SCHEDULE, *more)
    assert caught.value.status == 1
    assert not (output / "meta.json").exists()
    message = name_options(str(caught.value))
    assert "\n" not in message
    return message


def checkpoints(folder: Path) -> list[str]:
    return [path.name for path in list_complete_checkpoints(Path(f"{folder}.part") / "checkpoints")]


@pytest.mark.parametrize(
    ("preset", "more"),
    [
        ("mixture-example", "--set held_out=6 --eval-steps 4 --export-steps 6 --micro-batch-size 4"),
        ("simlm", f"--generator {{}} {JOINT} --set trainer=lr_scheduler_type=cosine"),
    ],
    ids=["mixture", "joint-generator"],
)
def test_a_resumed_run_ends_in_the_weights_of_an_uninterrupted_one(preset, more, files, tmp_path):
    more, output = more.format(files.generator).split(), tmp_path / "failed"
    fail(files, output, 6, cut_off, *more, preset=preset)
    other = "--resume --set weight_decay=0.5 --learning-rate 2e-3".split()
    with pytest.raises(MismatchError, match=r"other settings .*\(weight_decay\)"):
        pretrain(files, output, preset, *SCHEDULE, *more, *other)
    with open(Path(f"{output}.part") / "log.jsonl", "a") as log:
        log.write('{"step": 36')  # as a crash while writing leaves it
    pretrain(files, output, preset, *SCHEDULE, *more, "--resume")
    pretrain(files, tmp_path / "whole", preset, *SCHEDULE, *more)
    assert_equal_models(output, tmp_path / "whole")
    assert any("decoders" in name for name in weights_of(output))
    assert [entry["step"] for entry in read_log(output) if "loss" in entry] == list(range(1, 9))
    if preset == "mixture-example":
        assert [entry["step"] for entry in read_log(output) if "held_out_mlm" in entry] == [0, 4, 8]
        assert any(name.startswith("step-6/") for name in weights_of(output))
    assert not (output / "checkpoints").exists()


def test_out_of_memory_names_the_option_to_lower_and_resume_accepts_it(files, tmp_path, capsys):
    assert fail(files, tmp_path / "m", 6, full) == (
        "cpu: out of memory at step 6; --set gradient_checkpointing or a smaller --max-length may help; "
        "--resume continues after step 5"
    )
    assert checkpoints(tmp_path / "m") == ["checkpoint-5", "checkpoint-4"]
    for more in (["--batch-size", "3"], ["--set", "warmup=2"], ["--max-length", "20"], ["--seed", "3"]):
        name = more[1].partition("=")[0] if more[0] == "--set" else more[0][2:].replace("-", "_")
        with pytest.raises(MismatchError, match=rf"other settings or files \({name}\)"):
            pretrain(files, tmp_path / "m", "mlm", *SCHEDULE, "--resume", "--micro-batch-size", "2", *more)
    more = "--resume --micro-batch-size 2 --set gradient_checkpointing=true --precision bfloat16 --learning-rate 1e-4".split()
    app(arguments(files, tmp_path / "m", "mlm", *SCHEDULE, *more), standalone_mode=False)
    assert "micro_batch_size 2 (was not given)" in capsys.readouterr().err
    (change,) = read_json(tmp_path / "m" / "meta.json")["changes"]
    assert change["settings"] == {
        "precision": ["auto", "bfloat16"],
        "gradient_checkpointing": [False, True],
        "micro_batch_size": [None, 2],
        "learning_rate": [1e-3, 1e-4],
    }
    # after step s of 8 the rate of the next is (8 - s) / 8 of the highest, and the new one holds from step 6 on
    rates = [entry["learning_rate"] for entry in read_log(tmp_path / "m")]
    assert rates == pytest.approx([(1e-3 if step < 5 else 1e-4) * (8 - step) / 8 for step in range(8)])


def test_a_run_out_of_memory_continues_and_resumes_with_half_the_micro_batch(files, tmp_path, monkeypatch):
    pretrain(files, tmp_path / "whole", "qac-cocondenser", *SCHEDULE, "--micro-batch-size", "3")
    forward, limit = PretrainingNetwork.forward, 3

    def fail_above_limit(self: PretrainingNetwork, batch: Any, *given: Any, **named: Any) -> Any:
        if len(next(iter(batch.values())).input_ids) > limit:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")
        return forward(self, batch, *given, **named)

    monkeypatch.setattr(PretrainingNetwork, "forward", fail_above_limit)
    fail(files, tmp_path / "m", 6, cut_off, preset="qac-cocondenser")
    limit = 6  # there is more memory now, but dropout is sampled part by part
    pretrain(files, tmp_path / "m", "qac-cocondenser", *SCHEDULE, "--resume")
    assert_equal_models(tmp_path / "m", tmp_path / "whole")
    assert read_json(tmp_path / "m" / "meta.json")["micro_batch"] == 3


def test_a_checkpoint_whose_next_step_fails_is_removed(files, tmp_path):
    message = fail(files, tmp_path / "m", 7, ruin)
    assert re.match(r"the loss \(mlm\) is nan at step 7, on passages d\S+, d\S+, d\S+ …; a lower --learn", message)
    assert message.endswith("--resume continues after step 4")
    assert checkpoints(tmp_path / "m") == ["checkpoint-4"]
    pretrain(files, tmp_path / "m", "mlm", *SCHEDULE, "--resume", "--learning-rate", "1e-4")
    assert [entry["step"] for entry in read_log(tmp_path / "m")] == list(range(1, 9))


def test_weights_that_are_not_finite_or_exploded_are_not_kept(files, tmp_path, capsys):
    def burst(trainer: Pretrainer) -> None:
        """Make the update infinite, but not the loss."""
        weight = trainer.model.backbone.encoder.layer[0].output.LayerNorm.bias
        handle = weight.register_hook(lambda slope: (handle.remove(), slope * float("inf"))[1])

    def explode(trainer: Pretrainer) -> None:
        """Increase the loss from about 6 (ln 400) to several hundred."""
        with torch.no_grad():
            trainer.model.head.norm.weight.mul_(1e5)

    assert "is nan at step 7" in fail(files, tmp_path / "m", 6, burst)
    assert "step 6: a weight is NaN or infinite; no checkpoint is written" in capsys.readouterr().err
    assert checkpoints(tmp_path / "m") == ["checkpoint-4", "checkpoint-2"]
    message = "a weight is NaN or infinite after step 8; try a lower --learning-rate"
    assert fail(files, tmp_path / "n", 8, burst).startswith(message)
    assert not (tmp_path / "n" / "model.safetensors").exists()

    with act_before_step(Pretrainer, 5, explode):
        fail(files, tmp_path / "o", 8, cut_off)
    assert "; no checkpoint is written; try a lower" in capsys.readouterr().err
    assert checkpoints(tmp_path / "o") == ["checkpoint-4", "checkpoint-2"]


def test_epochs_on_the_command_line_replace_the_steps_of_a_preset(files, capfd):
    rows = len(files.corpus.read_text().splitlines())
    lines = dry_run(files, capfd, "retromae", "--epochs", "0.5")  # the preset has 80,000 steps
    assert f"Training: {round(0.5 * (rows // 6))} steps of 6 passages" in lines
    with pytest.raises(UsageError, match="--max-steps and --epochs cannot be combined"):
        dry_run(files, capfd, "retromae", "--epochs", "0.5", "--max-steps", "3")


def test_a_preset_holds_out_a_tenth_at_most_and_an_option_half(files, capfd):
    rows = len(files.corpus.read_text().splitlines())
    for more, share in (([], 0.1), (["--set", "held_out=4000"], 0.5)):
        out = int(share * rows)
        lines = dry_run(files, capfd, "simlm-mlm", "--max-steps", "1", *more)
        assert f"{rows - out} passages to train on, {out} held out" in lines


def test_encoders_of_several_steps_are_kept(files, tmp_path):
    pretrain(files, tmp_path / "m", "simlm-mlm", "--max-steps", "2", "--export-steps", "1")
    folders = [tmp_path / "m" / "step-1", tmp_path / "m"]
    assert not (tmp_path / "m" / "step-2").exists()  # the last one is the folder itself
    assert compute_max_difference(*map(load_weights, folders)) > 0
    for folder in folders:
        assert (folder / "heads").is_dir()
        encoding = read_layout(folder).encoding
        assert (encoding.pooling, encoding.title) == (("cls",), "segment")  # as the preset reads titles
    manifest = read_json(tmp_path / "m" / "meta.json")
    assert (manifest["kind"], manifest["counts"]["steps"]) == ("model", 2)
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".md", ".safetensors"}


def test_cocondenser_starts_from_a_condenser_with_its_head(files, tmp_path):
    pretrain(files, tmp_path / "one", "condenser", "--max-steps", "1")
    start = ["--model", tmp_path / "one", "--max-steps", "1", "--learning-rate", "0"]
    pretrain(files, tmp_path / "two", "cocondenser", *start)
    before, after = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    head = [name for name in before if "decoders.safetensors" in name]
    assert len(head) == 2 * 16  # two layers of 16 tensors
    assert all(torch.equal(before[name], after[name]) for name in head)
    assert read_json(tmp_path / "two" / "meta.json")["counts"]["tensors loaded"] == len(head)


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modernbert")
    save_random_masked_lm("modernbert", folder)
    return folder


def test_encoders_of_other_families_are_trained(modernbert, files, tmp_path):
    more = "--max-steps 1 --learning-rate 1e-2".split()
    pretrain(files, tmp_path / "m", "simlm-mlm", "--model", modernbert, *more)
    assert read_log(tmp_path / "m")[-1]["held_out_encoder"] < 10
    before = {name.partition(".")[2]: value for name, value in load_weights(modernbert).items()}
    after = load_weights(tmp_path / "m")
    assert sum(name in before and not torch.equal(after[name], before[name]) for name in after) > 20


def test_a_joint_generator_starts_from_its_model_and_is_saved(files, tmp_path):
    joint = f"--generator {files.generator} {JOINT} --max-steps 1 --learning-rate 1e-3"
    pretrain(files, tmp_path / "m", "simlm", *joint.split())
    saved = load_file(tmp_path / "m" / "heads" / "decoders.safetensors")
    before = load_file(files.generator / "model.safetensors")
    actual = {name.partition("backbone.")[2]: each for name, each in saved.items() if "generator.back" in name}
    assert sum("encoder.layer" in name for name in actual) == 16  # one layer; the encoder has four
    moved = {name: float((value - before[name]).abs().max()) for name, value in actual.items()}
    assert max(moved.values()) < 1.1e-3  # Adam's first step is the learning rate
    assert moved["encoder.layer.0.output.dense.weight"] > 0
    assert next(entry["generator"] for entry in read_log(tmp_path / "m") if "loss" in entry) > 1


def test_contrasts_of_equal_texts_without_dropout_are_reported(modernbert, files, tmp_path, caplog):
    other_view = ["--set", "slots.two.view=crop"]
    for preset, more, count in (
        ("simcse", [], 1),
        ("crop", [], 0),
        ("simcse", ["--model", files.model], 0),
        ("simcse", other_view, 0),
    ):
        caplog.clear()
        pretrain(files, tmp_path / "m", preset, "--model", modernbert, "--dry-run", *more)
        messages = [message for message in caplog.messages if "dropout" in message]
        assert len(messages) == count
        start = "objective 'contrast': slots 'one' and 'two' have the same text and the encoder has no"
        assert all(message.startswith(start) for message in messages)


def get_rejection(
    files: PretrainingFiles, folder: Path, preset: str, *more: str | Path, corpus: Path | None = None
) -> str:
    """Return the message of a run that is rejected before anything is written."""
    with pytest.raises(DrtkError) as caught:
        pretrain(files, folder / "m", preset, "--max-steps", "1", *more, corpus=corpus)
    assert not (folder / "m").exists()
    message = name_options(str(caught.value))
    assert "\n" not in message
    return message


def change_corpus(files: PretrainingFiles, path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    rows = read_rows(files.corpus)
    for row in rows:
        change(row)
    return write_rows(path, rows)


@pytest.mark.parametrize(
    ("preset", "field"), [("qac-cotmae", "queries"), ("master", "continuations"), ("rom", "weights")]
)
def test_a_corpus_that_lacks_what_a_preset_needs_is_rejected(preset, field, files, tmp_path):
    # Other faults of a corpus are in tests/unit/text/test_token_dataset.py.
    corpus = change_corpus(files, tmp_path / "c.jsonl", lambda row: row.pop(field))
    message = get_rejection(files, tmp_path, preset, corpus=corpus)
    assert f"passage 'd0#0' has no '{field}'; add them with `drtk" in message


def test_short_passages_are_excluded_and_long_ones_cropped(files, tmp_path, capsys):
    def change(row: dict[str, Any]) -> None:
        row["text"] = "river" if row["_id"].endswith("#0") else f"{row['text']} " * 40

    corpus = change_corpus(files, tmp_path / "c.jsonl", change)
    more = ["--max-steps", "1", "--batch-size", "2"]
    app(arguments(files, tmp_path / "m", "mlm", *more, corpus=corpus), standalone_mode=False)
    short = corpus.read_text().count('"river"')
    assert f"{corpus}: {short} passages of fewer than 3 word pieces are excluded" in capsys.readouterr().err
    counts = read_json(tmp_path / "m" / "meta.json")["counts"]
    assert (counts["passages"], counts["short"]) == (len(corpus.read_text().splitlines()) - short, short)


def test_a_generator_with_another_vocabulary_or_without_a_head_is_rejected(files, tmp_path, capsys):
    other = save_tiny_encoder(tmp_path / "other", vocab_size=120)
    message = get_rejection(files, tmp_path, "simlm", "--generator", other, "--model", other)
    assert "no trained masked-LM head; as generator, use a masked language model" in message
    assert "untrained" not in capsys.readouterr().err
    pretrain(files, tmp_path / "warm", "mlm", "--max-steps", "1", "--model", other)
    assert capsys.readouterr().err.count("training starts with a randomly initialized one") == 1
    message = get_rejection(files, tmp_path, "simlm", "--generator", tmp_path / "warm")
    assert re.search(r"warm: the generator's vocabulary \(.* differs from the encoder's \(", message)


REJECTED = [
    ("qac-cotmae", "--set slots.context.masking=rom", ": masking 'rom' requires token weights"),
    ("simlm", f"{JOINT} --set generator.model=", "has no model; set --generator to a model folder"),
    ("simcse", "--micro-batch-size 2 --set projectors.head.kind=bn", "a projector with batch norm requires"),
    ("simcse", "--batch-size 1", "--batch-size 1 leaves no negatives for the contrastive objective"),
    ("mlm", "--batch-size 2048", " passages do not fill one batch of 2,048; use --batch-size "),
    ("mlm", "--max-length 100", "the models accept at most 64; use --max-length 64"),
    ("simlm-mlm", "--set objective.2.decoder.layers=9", "encoder with 4 layers"),
    ("retromae", "--model {}", "decoder 'two-stream' requires position embeddings, which modernbert lacks"),
]


@pytest.mark.parametrize(("preset", "more", "message"), REJECTED, ids=[each[2] for each in REJECTED])
def test_invalid_models_and_settings_are_rejected(preset, more, message, modernbert, files, tmp_path):
    assert message in get_rejection(files, tmp_path, preset, *more.format(modernbert).split())


def dry_run(files: PretrainingFiles, capfd: pytest.CaptureFixture[str], preset: str, *more: str) -> str:
    paths = [str(files.corpus), "--preset", preset, "--model", str(files.model)]
    return run_command(capfd, "pretrain", *paths, "--dry-run", "--batch-size", "6", "--max-length", "32", *more)


def test_a_dry_run_prints_terms_slots_parameters_and_tokens(files, capfd):
    rows = len(files.corpus.read_text().splitlines())
    lines = [
        re.sub(r" +", " ", line.strip())
        for line in dry_run(files, capfd, "simlm-mlm", "--max-steps", "40", "--set", "held_out=4").splitlines()
    ]
    encoder, decoder = files.prepare("simlm-mlm").network.parameters(), "decoder (layers 2, init copy) predicts"
    count = sum(each.numel() for each in encoder)
    assert lines[:3] == [
        "Terms of the loss",
        "encoder 1 x the encoder predicts the masked tokens of 'encoder'",
        f"decoder 1 x {decoder} the masked tokens of 'decoder', given the vector of 'encoder'",
    ]
    assert re.fullmatch(r"encoder [\d.]+ tokens, [\d.]+ masked passage: 30% whole-word, .*", lines[4])
    assert re.fullmatch(r"decoder [\d.]+ tokens, [\d.]+ masked passage: 50% extension of 'encoder', .*", lines[5])
    assert lines[6] == f"Parameters: {count:,} ({count - 16 * 17:,} trained)"  # all but BERT's pooler
    assert f"{rows - 4} passages to train on, 4 held out" in lines[7]
    assert re.fullmatch(r"Tokens per step: \d+", lines[8])


@pytest.mark.parametrize(
    ("preset", "more", "words"),
    [
        ("cocondenser", [], "queries 'a', positives 'b', in both directions, negatives all texts (dot / 1)"),
        ("qac-cotmae-released", [], "causal (layers 1, window 3) predicts each next token of 'context'"),
        ("qac-cotmae-mixed", [], "query or pair.b (limit 5, spans random), sampled once per step"),
        ("master", ["--drop", "cpr", "--set", "objective.npr.weight=0.5"], "0.5 x  [rpr]"),
    ],
)
def test_a_dry_run_describes_every_kind_of_term(preset, more, words, files, capfd):
    assert words in dry_run(files, capfd, preset, *more)


def test_a_dry_run_needs_no_output_and_touches_none(files, tmp_path, capfd):
    there = tmp_path / "there"
    there.mkdir()
    for output in ([], ["-o", str(there)], ["-o", str(tmp_path / "absent")], ["-o", str(there), "--skip-done"]):
        assert "Terms of the loss" in dry_run(files, capfd, "mlm", *output)
    assert [item.name for item in tmp_path.iterdir()] == ["there"]
    assert not [*there.iterdir()]
    with pytest.raises(UsageError, match="--output is required"):
        run_command(capfd, "pretrain", files.corpus, "--preset", "mlm", "--model", files.model)
