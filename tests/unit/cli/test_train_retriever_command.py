"""drtk train-retriever as users run it: a kill and a resumption, and what is refused."""

from __future__ import annotations

import io
import json
import re
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.models.config import EncodeSettings
from drtk.records import Passage
from drtk.retrieval.encode import Embedder
from drtk.runtime.integrity import read_json
from tests.precision import linear_layers
from tests.running import killed_at
from tests.tiny import tiny_model, write_collection

QUICK = ["--batch", "8", "--negatives", "2", "--lr", "1e-3", "--temperature", "0.1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    write_collection(folder, 60)
    tiny_model(folder / "model")
    return folder


def arguments(place: Path, output: Path, *more: str, examples: str = "examples.jsonl") -> list[str]:
    named = ["--corpus", str(place / "corpus.jsonl"), "--queries", str(place / "queries.jsonl")]
    named += ["--model", str(place / "model"), "-o", str(output), *QUICK, *more]
    return ["train-retriever", examples if examples == "-" else str(place / examples), *named]


def train(place: Path, output: Path, *more: str, examples: str = "examples.jsonl") -> None:
    app([*arguments(place, output, *more, examples=examples), "-q"], standalone_mode=False)


def entries(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(place: Path, tmp_path: Path):
    schedule = ["--steps", "120", "--log-every", "5", "--save-every", "20"]
    output = tmp_path / "killed"
    killed_at(
        Path(f"{output}.part") / "checkpoints" / "checkpoint-40" / "complete", *arguments(place, output, *schedule)
    )
    assert not (output / "meta.json").exists()
    with pytest.raises(MismatchError, match=r"other settings .*\(temperature\)"):
        train(place, output, *schedule, "--resume", "--temperature", "0.2", "--lr", "2e-3")
    with open(Path(f"{output}.part") / "log.jsonl", "a") as log:
        log.write('{"step": 11')  # as a crash in the midst of writing would leave it
    train(place, output, *schedule, "--resume")
    train(place, tmp_path / "whole", *schedule)
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (output, tmp_path / "whole"))
    assert mine.keys() == theirs.keys()
    assert all(bool((mine[name] == theirs[name]).all()) for name in mine)
    assert entries(output) == entries(tmp_path / "whole")
    assert [entry["step"] for entry in entries(output)] == list(range(5, 121, 5))
    assert entries(output)[-1]["epoch"] == pytest.approx(120 / 7, abs=1e-3)  # 60 // 8 = 7 steps an epoch
    assert not (output / "checkpoints").exists()


def test_the_folder_says_how_to_encode_and_holds_no_pickle(place: Path, tmp_path: Path):
    more = ("--steps", "3", "--query-length", "12", "--passage-length", "30", "--title", "none", "--similarity", "dot")
    train(place, tmp_path / "m", *more, "--passage-prompt", "castled ")
    manifest = read_json(tmp_path / "m" / "meta.json")
    encoding = manifest["encoding"]
    assert (manifest["kind"], manifest["counts"]["steps"]) == ("model", 3)
    assert (encoding["query_length"], encoding["passage_length"], encoding["title"]) == (12, 30, "none")
    assert (encoding["similarity"], encoding["passage_prompt"], encoding["pooling"]) == ("dot", "castled ", ["mean"])
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".safetensors"}
    assert [entry["step"] for entry in entries(tmp_path / "m")] == [3]  # the last entry may be of fewer steps


def test_examples_and_queries_may_be_data_sets_of_the_hub(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def load_dataset(name: str, config: str | None, **_: object) -> list[dict]:
        assert config == "of"
        return [json.loads(line) for line in (place / f"{name}.jsonl").read_text().splitlines()]

    monkeypatch.setattr("drtk.data.tables.require_datasets", lambda _: SimpleNamespace(load_dataset=load_dataset))
    named = ["--corpus", str(place / "corpus.jsonl"), "--model", str(place / "model"), "-o", str(tmp_path / "m"), "-q"]
    call = ["train-retriever", "hf:examples:of:train", "--queries", "hf:queries:of:train", *named, *QUICK]
    app([*call, "--steps", "2"], standalone_mode=False)
    train(place, tmp_path / "n", "--steps", "2")
    mine, theirs = (load_file(tmp_path / name / "model.safetensors") for name in "mn")
    assert all(bool((mine[name] == theirs[name]).all()) for name in theirs)
    with pytest.raises(
        UsageError, match=r"^hf:corpus:of:train: is read again and again, so it must be a file; drtk conv"
    ):
        train(place, tmp_path / "o", "--corpus", "hf:corpus:of:train")


def test_untied_encoders_part(place: Path, tmp_path: Path):
    train(place, tmp_path / "m", "--steps", "4", "--untied")
    query, passage = (load_file(tmp_path / "m" / role / "model.safetensors") for role in ("query", "passage"))
    assert any(bool((query[name] != passage[name]).any()) for name in query)
    assert read_json(tmp_path / "m" / "meta.json")["towers"] == ["passage", "query"]


def test_two_encoders_load_in_sentence_transformers_alone_and_together(place: Path, tmp_path: Path):
    st = pytest.importorskip("sentence_transformers")
    folder = tmp_path / "m"
    train(place, folder, "--steps", "4", "--untied", "--query-prompt", "castled ", "--passage-prompt", "marketed ")
    texts = ["rivers engineer", "violins gardens", "copper sailor"]
    together = st.SentenceTransformer(str(folder), device="cpu")
    found = {"query": together.encode_query(texts), "passage": together.encode_document(texts)}
    for role, prompt in (("query", "query"), ("passage", "document")):
        ours = Embedder(str(folder), role=role)(texts)
        alone = st.SentenceTransformer(str(folder / role), device="cpu")
        np.testing.assert_allclose(alone.encode(texts, prompt_name=prompt), ours, atol=1e-5)
        np.testing.assert_allclose(found[role], ours, atol=1e-5)
    other = st.SentenceTransformer(str(folder / "query"), device="cpu").encode(texts, prompt_name="document")
    assert np.abs(found["passage"] - other).max() > 1e-4  # it is the other encoder
    assert together.similarity_fn_name == read_json(folder / "meta.json")["encoding"]["similarity"]
    train(place, tmp_path / "n", "--steps", "1", "--negatives", "1", "--model", str(folder))  # a pair goes on as one
    assert read_json(tmp_path / "n" / "meta.json")["towers"] == ["passage", "query"]


def test_a_separator_between_title_and_text_is_read_back_by_encode(place: Path, tmp_path: Path):
    train(place, tmp_path / "m", "--steps", "1", "--title", "sep")
    assert read_json(tmp_path / "m" / "meta.json")["encoding"]["title"] == "sep"
    ours = Embedder(str(tmp_path / "m"), role="passage")
    titled, joined = Passage("a", "rivers engineer", "violins"), Passage("b", "violins [SEP] rivers engineer")
    np.testing.assert_allclose(*ours([titled, joined]), atol=1e-5)
    with pytest.raises(MismatchError, match="was made for title 'sep'; 'join' contradicts it"):
        Embedder(str(tmp_path / "m"), role="passage", settings=EncodeSettings(title="join"))


@pytest.mark.parametrize("more", [["--gradient-checkpointing"], ["--precision", "bfloat16"], ["--negatives", "0"]])
def test_variants_train(place: Path, tmp_path: Path, more: list[str]):
    train(place, tmp_path / "m", "--steps", "12", "--log-every", "2", "--mask-duplicate-positives", *more)
    losses = [entry["loss"] for entry in entries(tmp_path / "m")]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("more", [[], ["--cache-chunk", "3"], ["--cache-chunk", "3", "--untied"]])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_the_precision_is_that_of_every_forward_pass(place: Path, tmp_path: Path, precision: str, more: list[str]):
    with linear_layers() as found:
        train(place, tmp_path / "m", "--steps", "2", "--precision", precision, *more)
    assert found == {getattr(torch, precision)}


def test_gradient_checkpointing_changes_no_weight(place: Path, tmp_path: Path):
    train(place, tmp_path / "a", "--steps", "3")
    train(place, tmp_path / "b", "--steps", "3", "--gradient-checkpointing")
    mine, theirs = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 1e-5


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"query_id": "q99", "positives": ["d1"], "negatives": ["d2"]}, "the queries have no 'q99'"),
        ({"query_id": "q1", "positives": ["d99"], "negatives": ["d2"]}, "the corpus has no 'd99'"),
        ({"query_id": "q1", "positives": ["d1"], "negatives": []}, "has no negatives; --negatives 0"),
        ({"query_id": "q1", "positives": [], "negatives": ["d2"]}, "bad.jsonl:9: 'positives' is empty"),
    ],
)
def test_examples_that_lead_nowhere_are_named(place: Path, tmp_path: Path, row: dict, told: str):
    good = (place / "examples.jsonl").read_text().splitlines()[:8]
    (place / "bad.jsonl").write_text("\n".join([*good, json.dumps(row)]) + "\n")
    with pytest.raises(DrtkError, match=told) as fault:
        train(place, tmp_path / "m", examples="bad.jsonl")
    assert "bad.jsonl" in str(fault.value)
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--loss", "hinge"], "unknown retriever loss 'hinge'; choose from infonce"),
        (["--loss", "kl", "--contrastive", "hinge"], "unknown retriever loss 'hinge'; choose from infonce"),
        (["--loss", "kl", "--contrastive", "kl"], "--contrastive kl: learns from a teacher"),
        (["--alpha", "0.5"], "--alpha weighs the contrastive loss beside kl"),
        (["--patience", "2"], "--patience needs something to measure with: --dev"),
        (["--contrastive", "simlm-full"], "--contrastive goes with --loss kl or margin-mse"),
        (["--teacher-temperature", "1"], "--teacher-temperature goes with --loss kl or margin-mse"),
        (["--preset", "simlm-r1", "--teacher-temperature", "2"], "--teacher-temperature goes with --loss kl"),
        (["--loss", "margin-mse", "--mask-false-negatives"], "--mask-false-negatives is for the contrastive loss"),
        (["--loss", "margin-mse", "--mask-duplicate-positives"], "which --loss margin-mse has beside it where --alpha"),
        (["--loss", "kl", "--alpha", "0", "--mask-false-negatives"], "contrastive loss, which --alpha 0 leaves out"),
        (
            ["--temperature-warmup", "--temperature", "1"],
            "--temperature-warmup begins at temperature 1; the last one, 1,",
        ),
        (["--lora-alpha", "4"], "--lora-alpha goes with --lora"),
        (["--lora-dropout", "0.1"], "--lora-dropout goes with --lora"),
        (["--lora-target", "query"], "--lora-target goes with --lora"),
        (["--aux-weight", "0.1"], "--aux-weight goes with --aux diffcse"),
        (["--preset", "dpr-nq-roberta-shared", "--aux-rate", "0.2"], "--aux-rate goes with --aux diffcse"),
        (["--matryoshka", "8", "--matryoshka", "8"], "--matryoshka 8: is given twice"),
        (["--temperature-warmup", "--warmup", "0"], "--temperature-warmup lasts as long as the learning rate rises"),
        (["--eval-every", "10"], "--eval-every goes with --dev, by which"),
        (["--dev-queries", "10"], "--dev-queries goes with --dev, by which"),
        (["--preset", "simlm-r1", "--dev-pool", "10"], "--dev-pool goes with --dev, by which"),
        (
            ["--negatives", "0", "--draw", "shuffle"],
            "--draw is about hard negatives, of which --negatives 0 takes none",
        ),
        (["--steps", "3", "--epochs", "2"], "--steps and --epochs: choose one"),
        (["--aux", "diffcse"], "--aux diffcse needs --aux-generator"),
        (["--preset", "simlm"], "preset 'simlm' is for drtk pretrain"),
        (["--trainer", "max_steps=3"], "max_steps: use --steps"),
        (["--preset", "nothing"], "unknown preset 'nothing'"),
        (["--temperature", "0"], "--temperature: must be at least"),
    ],
)
def test_what_cannot_be_meant_is_refused(place: Path, tmp_path: Path, more: list[str], told: str):
    with pytest.raises(UsageError, match=told):
        train(place, tmp_path / "m", *more)


def test_a_loss_that_is_no_number_ends_training(place: Path, tmp_path: Path):
    with pytest.raises(DrtkError, match=r"the loss is nan at step \d+; a lower --lr"):
        train(place, tmp_path / "m", "--steps", "20", "--lr", "1e38", "--warmup", "0", "--trainer", "max_grad_norm=0")
    assert not (tmp_path / "m" / "meta.json").exists()


def test_a_training_that_ran_out_of_memory_goes_on_with_what_the_message_names(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from drtk.training.fit import DrtkTrainer

    schedule = ["--steps", "6", "--log-every", "1", "--save-every", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(DrtkTrainer, "training_step", short_of_memory_at(5, DrtkTrainer.training_step))
        told = r"cpu: out of memory at step 5; --cache-chunk, --gradient-checkpointing or, begun anew, .* may help; --resume goes on from .* step 4"
        with pytest.raises(DrtkError, match=told):
            train(place, tmp_path / "m", *schedule)
    app([*arguments(place, tmp_path / "m", *schedule, "--resume"), "--gradient-checkpointing"], standalone_mode=False)
    assert "resuming with changed settings: gradient_checkpointing on, which was off" in capsys.readouterr().err
    assert [entry["step"] for entry in entries(tmp_path / "m")] == [1, 2, 3, 4, 5, 6]
    assert read_json(tmp_path / "m" / "meta.json")["changes"][0]["settings"] == {
        "gradient_checkpointing": [False, True]
    }


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--gradient-checkpointing"], "--cache-chunk or, begun anew, a smaller --batch or more devices may help"),
        (["--cache-chunk", "8", "--gradient-checkpointing"], r"a smaller --cache-chunk \(it is 8\) or, begun anew, a"),
        (["--cache-chunk", "1", "--gradient-checkpointing"], "beginning anew with a smaller --batch or more devices"),
    ],
)
def test_what_may_help_is_not_what_is_there_already(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], told: str
):
    from drtk.training.grad_cache import RetrieverTrainer

    monkeypatch.setattr(RetrieverTrainer, "training_step", short_of_memory_at(1, RetrieverTrainer.training_step))
    with pytest.raises(DrtkError, match=f"cpu: out of memory at step 1; {told}") as fault:
        train(place, tmp_path / "m", "--steps", "2", *more)
    assert "\n" not in str(fault.value)


def short_of_memory_at(step: int, method):
    """A training step that fails at one step as a GPU that is full does."""

    def failing(self, *given, **named):
        if self.state.global_step + 1 == step:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return method(self, *given, **named)

    return failing


def scored(place: Path, name: str) -> str:
    """The examples with a teacher's scores that prefer every passage to the one after it."""
    rows = [json.loads(line) for line in (place / "examples.jsonl").read_text().splitlines()]
    for row in rows:
        row["scores"] = {"positives": [4.0], "negatives": [2.0 - number for number in range(len(row["negatives"]))]}
    (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def test_a_student_learns_what_its_teacher_says(place: Path, tmp_path: Path):
    more = ("--preset", "simlm-distill", "--steps", "20", "--warmup", "0", "--log-every", "5")
    train(
        place,
        tmp_path / "m",
        *more,
        "--query-length",
        "16",
        "--passage-length",
        "40",
        examples=scored(place, "s.jsonl"),
    )
    log = entries(tmp_path / "m")
    assert all(set(entry) >= {"loss", "distillation", "contrastive"} for entry in log)
    assert log[0]["loss"] == pytest.approx(log[0]["distillation"] + 0.2 * log[0]["contrastive"], rel=1e-3)
    assert log[-1]["distillation"] < 0.8 * log[0]["distillation"]


@pytest.mark.parametrize("loss", ["kl", "margin-mse"])
def test_examples_without_scores_name_the_command_that_adds_them(place: Path, tmp_path: Path, loss: str):
    told = r"examples.jsonl:1: 'q0' has no score for 'd0'; drtk score EXAMPLES adds a teacher's$"
    with pytest.raises(DrtkError, match=told):
        train(place, tmp_path / "m", "--loss", loss)
    assert not (tmp_path / "m").exists()


def test_a_score_that_is_no_number_is_told_with_its_line(place: Path, tmp_path: Path):
    (place / "nan.jsonl").write_text(
        '{"query_id": "q1", "positives": ["d1"], "negatives": ["d2"], "scores": {"positives": [NaN], "negatives": [1]}}\n'
    )
    with pytest.raises(DrtkError, match=r"nan.jsonl:1: .*NaN"):
        train(place, tmp_path / "m", "--loss", "kl", examples="nan.jsonl")


def test_one_negative_is_used_again_and_that_is_said(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [json.loads(line) for line in (place / "examples.jsonl").read_text().splitlines()]
    for row in rows[:7]:
        del row["negatives"][1:]
    (place / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(place, tmp_path / "m", "--steps", "2", examples="one.jsonl")
    assert "7 examples have fewer than 2 negatives; theirs repeat" in capsys.readouterr().err
    train(place, tmp_path / "n", "--steps", "2", "--draw", "replacement", examples="one.jsonl")
    assert "fewer than" not in capsys.readouterr().err


def test_examples_from_a_pipe_must_be_the_same_to_go_on_with(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from drtk.training.fit import DrtkTrainer

    lines = (place / "examples.jsonl").read_bytes().splitlines(keepends=True)
    more = ["--steps", "4", "--save-every", "2", "--log-every", "1"]

    def trained(output: str, content: list[bytes], *extra: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"".join(content))))
        train(place, tmp_path / output, *more, *extra, examples="-")

    with monkeypatch.context() as patch:
        patch.setattr(DrtkTrainer, "training_step", short_of_memory_at(4, DrtkTrainer.training_step))
        with pytest.raises(DrtkError, match="out of memory at step 4"):
            trained("m", lines)
    with pytest.raises(
        MismatchError, match=r"m\.part: was begun with other records from <stdin>; `force` begins again$"
    ):
        trained("m", lines[1:], "--resume")
    trained("m", lines, "--resume")
    trained("whole", lines)
    mine, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("m", "whole"))
    assert all(bool((mine[name] == theirs[name]).all()) for name in theirs)


@pytest.mark.parametrize(("share", "file"), [(0.5, "weights"), (1.5, "optimizer")])
def test_a_full_disk_at_a_checkpoint_is_one_line_and_the_previous_checkpoint_is_resumed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, file: str
):
    # A limit of the size of files fails as a full disk does: safetensors and torch raise errors of their own.
    from drtk.training.fit import DrtkTrainer

    more = ["--steps", "4", "--save-every", "2", "--log-every", "1"]
    train(place, tmp_path / "whole", *more)
    weights = (tmp_path / "whole" / "model.safetensors").stat().st_size
    save = DrtkTrainer._save_checkpoint

    def limited(self: DrtkTrainer, *given: Any, **named: Any) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if self.state.global_step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * weights), before[1]))
        try:
            save(self, *given, **named)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with monkeypatch.context() as patch:
        patch.setattr(DrtkTrainer, "_save_checkpoint", limited)
        with pytest.raises(DrtkError, match=r"m\.part/checkpoints.*: .*(too large|may be full)") as told:
            train(place, tmp_path / "m", *more)
    assert "\n" not in str(told.value)
    assert (tmp_path / "m.part" / "checkpoints" / "checkpoint-2" / "complete").exists()
    train(place, tmp_path / "m", *more, "--resume")
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_a_checkpoint_of_another_preset_is_not_gone_on_from(place: Path, tmp_path: Path):
    size = ("--query-length", "16", "--passage-length", "40", "--steps", "4", "--save-every", "2", "--log-every", "1")
    with pytest.raises(DrtkError, match="the loss is nan at step"):
        train(place, tmp_path / "m", "--preset", "simlm-r1", *size, "--lr", "1e38", "--trainer", "max_grad_norm=0")
    assert (tmp_path / "m.part" / "meta.json.part").exists()
    with pytest.raises(MismatchError, match=r"was begun with other settings or files \(.*loss") as told:
        train(place, tmp_path / "m", "--preset", "qac-r1", *size, "--resume")
    assert "\n" not in str(told.value)


def test_passages_without_a_text_are_told_and_refused_where_there_is_nothing_else(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    rows = [json.loads(line) for line in (place / "corpus.jsonl").read_text().splitlines()]
    blank = tmp_path / "blank.jsonl"

    def trained(output: str, *more: str) -> str:
        blank.write_text("".join(json.dumps(row) + "\n" for row in rows))
        train(place, tmp_path / output, "--steps", "1", "--corpus", str(blank), *more)
        return capfd.readouterr().err

    rows[3]["text"], rows[4]["text"] = "", " "
    assert f"drtk: {blank}: 2 of the 60 passages looked up there have no text\n" in trained("some")
    for row in rows:
        row["text"] = ""
    said = f"{blank}: none of the 60 passages looked up there has a text: is it the right file?"
    assert f"drtk: {said}\n" in trained("titles")  # which are read
    with pytest.raises(DrtkError, match=f"^{re.escape(said)}$"):
        trained("no-titles", "--title", "none")
    for row in rows:
        row["title"] = ""
    with pytest.raises(DrtkError, match=f"^{re.escape(said)}$"):
        trained("nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_fraction_of_the_queries_is_trained_on(place: Path, tmp_path: Path):
    train(place, tmp_path / "m", "--steps", "2", "--train-fraction", "0.2")
    assert read_json(tmp_path / "m" / "meta.json")["counts"]["examples"] == 12
    with pytest.raises(DrtkError, match="3 examples do not fill one batch"):
        train(place, tmp_path / "n", "--train-fraction", "0.05")


def beir(place: Path) -> Path:
    """A BEIR folder of the same collection, in which each query's passage is judged."""
    folder = place / "beir"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name in ("corpus", "queries"):
        (folder / f"{name}.jsonl").write_text((place / f"{name}.jsonl").read_text())
    rows = "".join(f"q{number}\td{number}\t1\n" for number in range(60))
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


def test_the_best_weights_on_dev_are_kept(place: Path, tmp_path: Path):
    dev = ["--dev", str(beir(place)), "--dev-queries", "20", "--dev-pool", "50", "--eval-every", "10"]
    train(place, tmp_path / "m", "--steps", "40", "--log-every", "10", "--lr", "5e-3", *dev)
    log = entries(tmp_path / "m")
    seen = {entry["step"]: entry["dev_nDCG@10"] for entry in log if "dev_nDCG@10" in entry}
    assert sorted(seen) == [0, 10, 20, 30, 40]
    assert all(0 <= entry["dev_accuracy"] <= 1 for entry in log if "dev_accuracy" in entry)
    told = read_json(tmp_path / "m" / "meta.json")["best"]
    best = max(seen.values())
    assert told == {
        "step": min(step for step, value in seen.items() if value == best),
        "dev_nDCG@10": pytest.approx(best),
    }
    assert best > seen[0] + 0.05
    assert not list((tmp_path / "m").rglob("best*"))


def test_a_dev_folder_that_has_test_queries_alone_is_refused(place: Path, tmp_path: Path):
    folder = beir(place)
    (folder / "qrels" / "dev.tsv").rename(folder / "qrels" / "test.tsv")
    with pytest.raises(
        DrtkError, match=r"has no qrels/dev\.tsv or qrels/train\.tsv to choose an encoder by, only test$"
    ):
        train(place, tmp_path / "m", "--steps", "1", "--dev", str(folder))
    assert not (tmp_path / "m").exists()


def test_measuring_with_queries_that_are_trained_on_is_told(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    texts = [f"question {number}" for number in range(60)]
    (tmp_path / "queries.jsonl").write_text(queries_file(texts))
    shutil.copytree(beir(place), tmp_path / "beir")
    qrels = tmp_path / "beir" / "qrels"
    (qrels / "dev.tsv").rename(qrels / "train.tsv")
    # Five ask something else under the same ids, and two ask what is trained on under another's: 60 - 5 = 55.
    others = [f"other {number}" for number in range(5)] + [texts[6], texts[5], *texts[7:]]
    (tmp_path / "beir" / "queries.jsonl").write_text(queries_file(others))
    more = ["--queries", str(tmp_path / "queries.jsonl"), "--steps", "1", "--eval-every", "1"]
    capfd.readouterr()
    train(place, tmp_path / "m", *more, "--dev", str(tmp_path / "beir"))
    told = "drtk: {}: 55 of its 60 measured queries (qrels/train.tsv) are in {} too: the weights that are kept are then"
    assert told.format(tmp_path / "beir", place / "examples.jsonl") in capfd.readouterr().err
    (tmp_path / "beir" / "queries.jsonl").write_text(queries_file([f"other {number}" for number in range(60)]))
    train(place, tmp_path / "n", *more, "--dev", str(tmp_path / "beir"))
    assert " too" not in capfd.readouterr().err


def queries_file(texts: list[str]) -> str:
    return "".join(f'{{"_id": "q{number}", "text": "{text}"}}\n' for number, text in enumerate(texts))


def test_training_ends_when_nothing_gets_better(place: Path, tmp_path: Path):
    dev = ["--dev", str(beir(place)), "--eval-every", "2", "--patience", "2", "--dev-queries", "10"]
    train(place, tmp_path / "m", "--steps", "40", "--lr", "0", *dev)
    manifest = read_json(tmp_path / "m" / "meta.json")
    assert (manifest["counts"]["steps"], manifest["best"]["step"]) == (4, 0)
    start, ended = (load_file(folder / "model.safetensors") for folder in (place / "model", tmp_path / "m"))
    assert all(bool((start[name] == ended[name]).all()) for name in start)


def test_cached_training_that_was_stopped_resumes_to_the_same_weights(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from drtk.training.grad_cache import RetrieverTrainer

    more = ["--steps", "8", "--save-every", "2", "--log-every", "2", "--cache-chunk", "5", "--temperature-warmup"]
    more += ["--dev", str(beir(place)), "--eval-every", "4", "--dev-queries", "10", "--mask-false-negatives"]
    train(place, tmp_path / "whole", *more)
    usual = RetrieverTrainer.training_step

    def stopped(self: RetrieverTrainer, *given: object) -> object:
        if self.state.global_step == 5:
            raise RuntimeError("as if the machine went down")
        return usual(self, *given)

    output = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(RetrieverTrainer, "training_step", stopped)
        with pytest.raises(RuntimeError, match="went down"):
            train(place, output, *more)
    train(place, output, *more, "--resume")
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (output, tmp_path / "whole"))
    assert all(bool((mine[name] == theirs[name]).all()) for name in theirs)
    assert entries(output) == entries(tmp_path / "whole")


def test_adapters_are_merged_into_a_folder_like_any_other(place: Path, tmp_path: Path):
    pytest.importorskip("peft")
    train(place, tmp_path / "m", "--steps", "3", "--lora", "2", "--lora-target", "query", "--warmup", "0")
    mine, start = (load_file(folder / "model.safetensors") for folder in (tmp_path / "m", place / "model"))
    assert mine.keys() == start.keys()
    changed = {name for name in mine if bool((mine[name] != start[name]).any())}
    assert changed == {name for name in start if name.endswith("attention.self.query.weight")}


def test_diffcse_is_trained_beside_and_leaves_no_trace_in_the_folder(place: Path, tmp_path: Path):
    from drtk.models.lm_head import load_masked_lm, save_lm_head

    generator = tiny_model(tmp_path / "g", seed=4, layers=1)
    save_lm_head(load_masked_lm(generator)[1], generator)
    size = ("--query-length", "16", "--passage-length", "40", "--steps", "3", "--log-every", "1")
    more = ("--preset", "dpr-nq-roberta-shared", "--aux", "diffcse", "--aux-generator", str(generator))
    train(place, tmp_path / "m", *more, *size)
    log = entries(tmp_path / "m")
    for entry in log:
        parts = entry["diffcse_query"] + entry["diffcse_passage"]
        assert entry["loss"] == pytest.approx(entry["contrastive"] + 0.005 * parts, rel=1e-4)
    names = set(load_file(tmp_path / "m" / "model.safetensors"))
    assert names == set(load_file(place / "model" / "model.safetensors"))


def test_too_few_examples_for_a_batch(place: Path, tmp_path: Path):
    with pytest.raises(DrtkError, match="60 examples do not fill one batch of 64; --batch 60"):
        train(place, tmp_path / "m", "--batch", "64")


def test_examples_of_no_use_are_forgiven_as_often_as_is_allowed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    good = (place / "examples.jsonl").read_text().splitlines()[:8]
    bad = [
        {"query_id": "q99", "positives": ["d1"], "negatives": ["d2"]},
        {"query_id": "q1", "positives": ["d1"], "negatives": []},
        {"query_id": "q2", "positives": ["d2"], "negatives": ["d98"]},
        {"query_id": "q3", "positives": ["d99"], "negatives": ["d2"]},
    ]
    (place / "some.jsonl").write_text("".join(f"{row}\n" for row in [*good[:4], *map(json.dumps, bad), *good[4:]]))
    told = r"some\.jsonl:8: the corpus has no 'd99'; 2 of the \d+ that the examples name are not there$"
    with pytest.raises(MismatchError, match=told):
        train(place, tmp_path / "m", "--steps", "1", "--skip-bad", "3", examples="some.jsonl")
    app(
        [*arguments(place, tmp_path / "m", "--steps", "1", "--skip-bad", "4", examples="some.jsonl")],
        standalone_mode=False,
    )
    assert "some.jsonl:5: the queries have no 'q99'" in capsys.readouterr().err
    assert read_json(tmp_path / "m" / "meta.json")["counts"]["examples"] == 8
    with pytest.raises(DrtkError, match="8 examples do not fill one batch of 12; --batch 8 or less would do"):
        train(place, tmp_path / "n", "--batch", "12", "--skip-bad", "4", examples="some.jsonl")
    assert not (tmp_path / "n").exists()
    (place / "none.jsonl").write_text("")
    with pytest.raises(DrtkError, match=r"none\.jsonl: no examples to learn from$"):
        train(place, tmp_path / "n", examples="none.jsonl")


def test_a_positive_among_its_own_negatives_is_told_and_left_out(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [json.loads(line) for line in (place / "examples.jsonl").read_text().splitlines()[:8]]
    rows[2]["negatives"].insert(0, rows[2]["positives"][0])
    (place / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(place, tmp_path / "m", "--steps", "1", examples="own.jsonl")
    assert "own.jsonl: 1 times a positive is among its own negatives; it is left out of them" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--loss", "kl"], ["--loss", "margin-mse"], ["--preset", "simlm-distill"]])
def test_a_teacher_without_negatives_has_nothing_to_say(place: Path, tmp_path: Path, more: list[str]):
    told = r"--loss (kl|margin-mse) with --negatives 0 learns nothing: a teacher compares a query's own passages alone$"
    with pytest.raises(DrtkError, match=told):
        train(place, tmp_path / "m", *more, "--negatives", "0", examples=scored(place, "s.jsonl"))
    assert not (tmp_path / "m").exists()
