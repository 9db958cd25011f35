"""drtk pretrain as users run it: a kill and a resumption, what it writes, encoders of every family, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.models.biencoder import load_towers, save_towers
from drtk.models.model_folder import read_layout
from drtk.runtime.integrity import read_json
from tests.families import FAMILIES, saved_masked_lm
from tests.pretraining import World
from tests.running import killed_at
from tests.tiny import tiny_model

JOINT = ["--set", "generator.mode=joint", "--set", "generator.slot=encoder"]
QUICK = ["--batch", "6", "--max-length", "24", "--warmup", "0", "--log-every", "1"]


def arguments(world: World, output: Path, preset: str, *more: str, corpus: Path | None = None) -> list[str]:
    named = ["--preset", preset, "--model", str(world.model), "-o", str(output), *QUICK, *more]
    return ["pretrain", str(corpus or world.corpus), *named]


def pretrain(world: World, output: Path, preset: str, *more: str, corpus: Path | None = None) -> None:
    app([*arguments(world, output, preset, *more, corpus=corpus), "-q"], standalone_mode=False)


def entries(folder: Path) -> list[dict]:
    """The log, less what the clock says."""
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert all(0 <= entry.pop("waiting") <= 1 for entry in found if "loss" in entry)
    return found


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor below a folder, by file and name."""
    return {
        f"{path.relative_to(folder)}:{name}": value
        for path in sorted(folder.rglob("*.safetensors"))
        for name, value in load_file(path).items()
    }


SCHEDULE = ["--steps", "60", "--log-every", "5", "--checkpoint-every", "10", "--held-out", "6", "--eval-every", "20"]
SCHEDULE += ["--save-every", "40", "--micro-batch", "4", "--warmup", "10", "--trainer", "lr_scheduler_type=cosine"]


def killed(checkpoint: int, world: World, output: Path, preset: str, *more: str) -> None:
    """Pre-train in a process of its own, and kill that once a checkpoint is whole."""
    complete = Path(f"{output}.part") / "checkpoints" / f"checkpoint-{checkpoint}" / "complete"
    killed_at(complete, *arguments(world, output, preset, *more))
    assert not (output / "meta.json").exists()


def test_a_killed_simlm_resumes_to_the_same_weights_those_of_its_generator_too(world: World, tmp_path: Path):
    schedule = ["--steps", "20", "--checkpoint-every", "4", "--generator", str(world.generator), *JOINT, "--lr", "1e-3"]
    killed(8, world, tmp_path / "killed", "simlm", *schedule)
    pretrain(world, tmp_path / "killed", "simlm", *schedule, "--resume")
    pretrain(world, tmp_path / "whole", "simlm", *schedule)
    mine, theirs = weights_of(tmp_path / "killed"), weights_of(tmp_path / "whole")
    assert mine.keys() == theirs.keys()
    assert any(":generator." in name for name in mine)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert entries(tmp_path / "killed") == entries(tmp_path / "whole")


def test_a_killed_pre_training_resumes_to_the_weights_of_an_uninterrupted_one(world: World, tmp_path: Path):
    output = tmp_path / "killed"
    killed(30, world, output, "mixture-example", *SCHEDULE)
    with pytest.raises(MismatchError, match=r"other settings .*\(weight_decay\)"):
        pretrain(world, output, "mixture-example", *SCHEDULE, "--resume", "--weight-decay", "0.5", "--lr", "2e-3")
    with open(Path(f"{output}.part") / "log.jsonl", "a") as log:
        log.write('{"step": 36')  # as a crash in the midst of writing would leave it
    pretrain(world, output, "mixture-example", *SCHEDULE, "--resume")
    pretrain(world, tmp_path / "whole", "mixture-example", *SCHEDULE)
    mine, theirs = weights_of(output), weights_of(tmp_path / "whole")
    assert mine.keys() == theirs.keys()
    assert any(name.startswith("step-40/") for name in mine)
    assert any("readers" in name for name in mine)
    assert all(bool((mine[name] == theirs[name]).all()) for name in mine)
    assert entries(output) == entries(tmp_path / "whole")
    found = entries(output)
    assert [entry["step"] for entry in found if "loss" in entry] == list(range(5, 61, 5))
    assert [entry["step"] for entry in found if "held_out_mlm" in entry] == [0, 20, 40, 60]
    assert not (output / "checkpoints").exists()


def test_epochs_on_the_command_line_replace_the_steps_of_a_preset(world: World, tmp_path: Path):
    rows = len(world.corpus.read_text().splitlines())
    pretrain(world, tmp_path / "m", "retromae", "--epochs", "0.5")  # the preset has 80,000 steps
    assert read_json(tmp_path / "m" / "meta.json")["counts"]["steps"] == round(0.5 * (rows // 6))
    with pytest.raises(UsageError, match="--steps and --epochs: choose one"):
        pretrain(world, tmp_path / "n", "retromae", "--epochs", "0.5", "--steps", "3")


@pytest.mark.parametrize(("more", "held", "asked"), [([], 0.1, 4096), (["--held-out", "4000"], 0.5, 4000)])
def test_a_preset_holds_out_a_tenth_at_most_and_an_option_half(
    more: list[str], held: float, asked: int, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = len(world.corpus.read_text().splitlines())
    out = int(held * rows)
    assert out > 1
    app(arguments(world, tmp_path / "m", "simlm-mlm", "--steps", "1", *more), standalone_mode=False)
    said = f"{out} of {rows} passages are held out ({asked:,} were asked for), {rows - out} remain to train on"
    assert said in capsys.readouterr().err
    assert "gain_decoder" in entries(tmp_path / "m")[0]


def test_an_encoder_pre_trained_with_titles_keeps_how_it_read_them_and_one_without_names_none(
    world: World, tmp_path: Path
):
    for title, wanted in (("segment", "segment"), ("none", "join")):
        model = tmp_path / title
        pretrain(world, model, "mlm", "--steps", "1", "--set", f"title={title}")
        (start,) = load_towers(str(model), wishes={}, untied=False).values()
        (changed,) = load_towers(str(model), wishes={"title": "sep"}, untied=False).values()
        assert (start.recipe.title, changed.recipe.title) == (wanted, "sep")
        save_towers({"passage": start}, tmp_path / f"{title}-trained")
        assert read_layout(tmp_path / f"{title}-trained").recipe.title == wanted
        vectors = tmp_path / f"{title}-vectors"
        app(["encode", str(world.corpus), "--model", str(model), "-o", str(vectors), "-q"], standalone_mode=False)
        assert read_json(vectors / "meta.json")["encoder"]["recipe"]["title"] == wanted


def test_encoders_of_every_step_load_in_transformers_and_sentence_transformers(world: World, tmp_path: Path):
    pretrain(world, tmp_path / "m", "simlm-mlm", "--steps", "3", "--save-every", "1")
    from transformers import AutoModel, AutoTokenizer

    folders = [tmp_path / "m" / "step-1", tmp_path / "m" / "step-2", tmp_path / "m"]
    text = "rivers rivering rivered"
    states = []
    for folder in folders:
        inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        states.append(AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[:, 0].detach())
        assert (folder / "heads").is_dir()
    assert not torch.equal(states[0], states[1])
    assert not torch.equal(states[1], states[2])
    assert not (tmp_path / "m" / "step-3").exists()  # the last one is the folder itself
    manifest = read_json(tmp_path / "m" / "meta.json")
    assert (manifest["kind"], manifest["counts"]["steps"]) == ("model", 3)
    assert 0 < manifest["counts"]["waiting_for_data"] < 1
    assert read_layout(tmp_path / "m").recipe.pooling == ("cls",)  # whatever the encoder it started from did
    assert {read_layout(folder).recipe.title for folder in folders} == {"segment"}  # as the preset reads titles
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".safetensors"}
    sentence_transformers = pytest.importorskip("sentence_transformers")
    for folder, expected in zip(folders, states, strict=True):
        model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        torch.testing.assert_close(torch.tensor(model.encode([text])), expected, rtol=1e-4, atol=1e-5)


def test_what_is_measured_does_not_depend_on_the_micro_batch(world: World, tmp_path: Path):
    more = ["--steps", "1", "--held-out", "9"]
    found = []
    for micro in ("6", "2"):
        pretrain(world, tmp_path / micro, "qac-cocondenser", *more, "--micro-batch", micro)
        found.append(entries(tmp_path / micro)[0])
    assert found[0]["held_out_contrast"] > 0.1
    assert found[0] == found[1]


def test_the_masked_language_model_comes_out_whole(world: World, tmp_path: Path):
    pretrain(world, tmp_path / "m", "mlm", "--steps", "2")
    from transformers import AutoModelForMaskedLM

    from drtk.models.lm_head import export_masked_lm, load_masked_lm

    export_masked_lm(tmp_path / "m", tmp_path / "lm")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "lm").eval()
    backbone, head, _ = load_masked_lm(tmp_path / "m")
    ids = torch.tensor([[2, 20, 30, 3]])
    with torch.no_grad():
        expected = head.logits(backbone(input_ids=ids).last_hidden_state)
        torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)


def test_cocondenser_goes_on_from_a_condenser_head_included(world: World, tmp_path: Path):
    pretrain(world, tmp_path / "one", "condenser", "--steps", "2")
    start = ["--model", str(tmp_path / "one"), "--steps", "1", "--lr", "0"]
    pretrain(world, tmp_path / "two", "cocondenser", *start)
    before, after = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    head = [name for name in before if "readers.safetensors" in name]
    assert len(head) == 2 * 16  # two layers of 16 tensors
    assert all(torch.equal(before[name], after[name]) for name in head)
    assert read_json(tmp_path / "two" / "meta.json")["counts"]["tensors taken up"] == len(head)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        saved_masked_lm(family, folder / family)
    return folder


@pytest.mark.parametrize("preset", ["mlm", "simlm-mlm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_encoders_of_every_family_are_trained(family: str, preset: str, families: Path, world: World, tmp_path: Path):
    more = ["--model", str(families / family), "--steps", "2", "--lr", "1e-2", "--save-every", "1"]
    pretrain(world, tmp_path / "m", preset, *more)
    lines = entries(tmp_path / "m")
    assert [line["step"] for line in lines if "loss" in line] == [1, 2]
    assert lines[-1]["held_out_encoder" if preset == "simlm-mlm" else "loss"] < 10
    from transformers import AutoModel

    before = load_file(families / family / "model.safetensors")
    model = AutoModel.from_pretrained(tmp_path / "m")
    assert model.config.model_type == family
    state = model.state_dict()
    moved = [
        name
        for name in state
        if any(name == each.partition(".")[2] and not torch.equal(state[name], before[each]) for each in before)
    ]
    assert len(moved) > 20
    assert (tmp_path / "m" / "step-1" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("family", "preset", "more", "told"),
    [
        ("modernbert", "simcse", [], True),
        ("modernbert", "crop", [], False),  # two texts
        ("modernbert", "simcse", ["--set", "slots.two.view=crop"], False),
        ("bert", "simcse", [], False),  # dropout of .1
    ],
)
def test_a_text_that_is_to_find_itself_without_dropout_is_told(
    family: str, preset: str, more: list[str], told: bool, families: Path, world: World, tmp_path: Path, caplog
):
    model = ["--model", str(families / family), "--dry-run", *more]
    pretrain(world, tmp_path / "m", preset, *model)
    found = [record.message for record in caplog.records if "dropout" in record.message]
    assert len(found) == told
    if told:
        assert found[0].startswith("objective 'contrast': 'one' and 'two' are the same text, and dropout alone would")
        assert "\n" not in found[0]


@pytest.mark.parametrize(
    ("preset", "told"),
    [
        ("retromae", "the reader 'two-stream' needs position vectors; an encoder of type modernbert has none"),
        ("qac-cotmae-released", "the reader 'causal' needs position vectors; an encoder of type modernbert has none"),
    ],
)
def test_an_objective_that_cannot_serve_an_encoder_says_so(
    preset: str, told: str, families: Path, world: World, tmp_path: Path
):
    with pytest.raises(MismatchError) as caught:
        pretrain(world, tmp_path / "m", preset, "--model", str(families / "modernbert"), "--steps", "1")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m").exists()


def without(world: World, folder: Path, *fields: str) -> Path:
    """The corpus, less some fields of its passages."""
    path = folder / "less.jsonl"
    rows = [json.loads(line) for line in world.corpus.read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if name not in fields} for row in rows]
    for number, row in enumerate(kept):
        row["_id"] = f"p{number}"  # which names no document
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return path


@pytest.mark.parametrize(
    ("preset", "lacking", "told"),
    [
        ("cocondenser", "metadata", "drtk chunk"),
        ("cotmae", "metadata", "drtk chunk"),
        ("master", "continuations", "drtk continue-text"),
        ("qac-cotmae", "queries", "drtk doc2query"),
        ("rom", "weights", "drtk termweight"),
    ],
)
def test_what_passages_lack_is_said_with_the_command_that_adds_it(
    preset: str, lacking: str, told: str, world: World, tmp_path: Path
):
    with pytest.raises(DrtkError) as caught:
        pretrain(world, tmp_path / "m", preset, "--steps", "1", corpus=without(world, tmp_path, lacking))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_joint_generator_is_the_model_that_is_named_and_goes_on_from_it(world: World, tmp_path: Path):
    """At a rate of 0 it comes out as it went in; SimLM's Table 13 trains the pre-trained one, and one of its shape."""
    joint = ["--generator", str(world.generator), *JOINT, "--steps", "1"]
    pretrain(world, tmp_path / "still", "simlm", *joint, "--lr", "0")
    before = load_file(world.generator / "model.safetensors")
    found = load_file(tmp_path / "still" / "heads" / "readers.safetensors")
    mine = {name.partition("backbone.")[2]: value for name, value in found.items() if name.startswith("generator.back")}
    assert sum("encoder.layer" in name for name in mine) == 16  # one layer; the encoder has four
    assert all(torch.equal(value, before[name]) for name, value in mine.items())
    pretrain(world, tmp_path / "trained", "simlm", *joint, "--lr", "1e-2")
    moved = load_file(tmp_path / "trained" / "heads" / "readers.safetensors")
    layer = "generator.backbone.encoder.layer.0.output.dense.weight"
    assert not torch.equal(moved[layer], found[layer])
    assert next(entry["generator"] for entry in entries(tmp_path / "trained") if "loss" in entry) > 1
    pretrain(world, tmp_path / "drawn", "simlm", *joint, "--set", "generator.init=random", "--lr", "0")
    drawn = load_file(tmp_path / "drawn" / "heads" / "readers.safetensors")
    assert drawn[layer].shape == found[layer].shape
    assert not torch.equal(drawn[layer], found[layer])


def test_queries_that_are_empty_everywhere_are_refused(world: World, tmp_path: Path):
    rows = [json.loads(line) | {"queries": []} for line in world.corpus.read_text().splitlines()]
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(MismatchError, match="'queries' is empty in every passage; drtk doc2query adds them"):
        pretrain(world, tmp_path / "m", "qac-cotmae", "--steps", "1", corpus=path)
    assert not (tmp_path / "m").exists()


def test_a_generator_without_a_head_is_refused_and_not_announced_first(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    headless = tiny_model(tmp_path / "headless", hidden=16, heads=2)
    more = ["--steps", "1", "--generator", str(headless)]
    with pytest.raises(MismatchError, match="has no language-model head, so it proposes no tokens"):
        pretrain(world, tmp_path / "m", "simlm", *more, "--model", str(headless))
    assert "untrained" not in capsys.readouterr().err
    pretrain(world, tmp_path / "m", "mlm", "--steps", "1", "--model", str(headless))
    assert capsys.readouterr().err.count("an untrained one begins in its place") == 1


def test_a_probe_that_has_test_queries_alone_is_refused(world: World, tmp_path: Path):
    (tmp_path / "probe" / "qrels").mkdir(parents=True)
    (tmp_path / "probe" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tab\t1\n")
    with pytest.raises(
        DrtkError, match=r"has no qrels/dev\.tsv or qrels/train\.tsv to choose an encoder by, only test$"
    ):
        pretrain(world, tmp_path / "m", "mlm", "--steps", "1", "--probe", str(tmp_path / "probe"))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("preset", "more", "told"),
    [
        ("mlm", ["--set", "slots.passage.rat=0.4"], "unknown key 'rat'"),
        ("mlm", ["--set", "slots.passage.rate=1.4"], "rate 1.4 is not between 0 and 1"),
        ("mlm", ["--set", "objective.1.slot=text"], "there is no slot 'text'"),
        ("mlm", ["--set", "objective.2.weight=1"], "there is no '2'"),
        ("mlm", ["--set", "objective.1.reader=reader"], "unknown reader 'reader'"),
        ("mlm", ["--set", "slots.passage.masking=every"], "unknown masking strategy 'every'"),
        (
            "mlm",
            ["--set", "slots.passage.masking={use='rom', scal='max'}"],
            "masking 'rom' has no option 'scal'; choose from scale, weight_scale, whole_word",
        ),
        ("rom", ["--set", "slots.passage.masking.scale=min"], "scale = 'min' is not one of max, minmax, sum"),
        ("mlm", ["--set", "slots.passage.view=text"], "unknown view 'text'"),
        ("simlm-mlm", ["--set", "slots.encoder.of=decoder"], "encoder -> decoder -> encoder"),
        (
            "simlm-mlm",
            ["--set", "slots.decoder.rate=0.1"],
            "rate 0.1 is less than the 0.3 of 'encoder', which it extends",
        ),
        ("simlm-mlm", ["--set", "slots.decoder.of=''"], "is masked by 'extension' of another slot"),
        ("simlm-mlm", ["--set", "slots.decoder.max_length=12"], "refers to 'encoder', which reads another view"),
        ("qac-cotmae", ["--set", "slots.context.masking=rom"], ": masking by 'rom' needs weights"),
        ("simlm-mlm", ["--set", "objective.2.reader.layer=3"], "layer"),
        ("mlm", ["--drop", "cpr"], "--drop cpr: no objective or group is called that"),
        ("mlm", ["--generator", "x"], "preset 'mlm' has no generator"),
        (
            "simlm",
            ["--generator", "x", *JOINT, "--set", "generator.init=copy"],
            "begins with a copy of the encoder; leave",
        ),
        ("diffcse-sts-bert", ["--generator", "x", "--drop", "difference"], "as it is changed here, asks a generator"),
        (
            "simlm",
            [*JOINT, "--set", "generator.model="],
            '--generator DIR names one; init = "copy" or "random" begins one',
        ),
        ("simcse", ["--set", 'projectors.head.slots=["one"]'], "projector 'head' leaves out slot 'two'"),
        ("simcse", ["--micro-batch", "2", "--set", "projectors.head.kind=bn"], "a projector with batch norm needs"),
        ("mlm", ["--batch", "500"], " passages do not fill one batch of 500; --batch "),
        (
            "mlm",
            ["--batch", "2048"],
            " passages do not fill one batch of 2,048, which is that of preset 'mlm'; --batch ",
        ),
        ("mlm", ["--max-length", "100"], "the models read 64"),
        ("condenser", ["--set", "objective.2.reader.skip=9"], "has 4 layers"),
        ("simlm-mlm", ["--set", "objective.2.reader.layers=9"], "has 4 layers"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    preset: str, more: Sequence[str], told: str, world: World, tmp_path: Path
):
    with pytest.raises((UsageError, DrtkError)) as caught:
        pretrain(world, tmp_path / "m", preset, "--steps", "1", *more)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m").exists()
