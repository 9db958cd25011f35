"""drtk pretrain --dry-run: what would be trained, in words and figures, and nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from drtk.config import load_preset, merge
from drtk.errors import UsageError
from drtk.models.model_folder import locate
from drtk.pretraining.assembly import build_network
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.cost_model import LAYER_BYTES, encoded_slots, estimated, parameters, trained
from drtk.pretraining.dataset import PretrainingData
from drtk.pretraining.parse import apply_changes, parse_composition
from drtk.text.token_dataset import TokenCorpus
from tests.enriched import enriched_corpus
from tests.running import command
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    enriched_corpus(folder / "corpus.jsonl", tiny_model(folder / "model"))
    return folder


def call(world: Path, preset: str, *more: str) -> list[str]:
    paths = [str(world / "corpus.jsonl"), "--preset", preset, "--model", str(world / "model")]
    return ["pretrain", *paths, "--dry-run", "--batch", "8", "--max-length", "32", *more]


def test_terms_slots_and_steps_are_told(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = command(capfd, *call(world, "simlm-mlm", "--steps", "40", "--held-out", "4"))
    lines = [re.sub(r" +", " ", line.strip()) for line in said.splitlines()]
    assert "encoder 1 x the encoder predicts the hidden tokens of 'encoder'" in lines
    assert (
        "decoder 1 x decoder (layers 2, init copy) predicts the hidden tokens of 'decoder', given the vector of 'encoder'"
        in lines
    )
    assert any(re.fullmatch(r"encoder [\d.]+ tokens [\d.]+ hidden passage: 30% whole-word, .*", line) for line in lines)
    assert any("50% extension of 'encoder'" in line for line in lines)
    # 36 passages less 4 held out are 32, 4 batches of 8: 40 steps are 10 epochs.
    assert "32 passages to train on, 4 held out" in lines
    assert "40 steps of 8 passages: 10.00 epochs of 4 steps" in lines
    assert lines[-1] == "Nothing was trained or written."


def test_nothing_is_written_or_refused_for_an_output_that_is_there(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "precious.txt").write_text("mine")
    absent = tmp_path / "absent"
    for output in ([], ["-o", str(there)], ["-o", str(absent)], ["-o", str(there), "--skip-done"]):
        assert "Terms of the loss" in command(capfd, *call(world, "mlm", *output))
    assert [item.name for item in there.iterdir()] == ["precious.txt"]
    assert not absent.exists()


def test_an_output_is_needed_for_everything_else(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wanted = [word for word in call(world, "mlm") if word != "--dry-run"]
    with pytest.raises(UsageError, match="--output: name what to make"):
        command(capfd, *wanted)
    with pytest.raises(UsageError, match="--output: name what to make"):
        command(capfd, *wanted, "--skip-done")


@pytest.mark.parametrize(
    ("preset", "lines"),
    [
        ("cocondenser", ["'a' and 'b' find each other among all texts of the batch (dot / 1)", "Slots of a document"]),
        ("qac-cotmae-released", ["causal (layers 1, window 3) predicts each next token of 'context'", "query (limit 5)"]),
        ("qac-cotmae-mixed", ["query or pair.b (limit 5, spans random), drawn by the step"]),
        ("simcse", ["'one' finds 'two' among those of the batch (cosine / 0.05), through projector 'head'"]),
        ("master", ["[cpr]", "complement of 'half'", "% of examples have one"]),
        ("retromae", ["two-stream (visible 0.5) predicts every token of 'decoder'"]),
    ],
)  # fmt: skip
def test_every_kind_of_term_has_its_words(
    preset: str, lines: list[str], world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = command(capfd, *call(world, preset))
    for line in lines:
        assert line in said


def test_rows_of_parameters_are_named_apart_and_add_up(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = command(capfd, *call(world, "condenser"))
    block = said.split("Parameters\n")[1].split("\n\n")[0]
    rows = {
        name: int(count.replace(",", ""))
        for name, count in re.findall(r"^  (\S.*?) {2,}([\d,]+)$", block, re.MULTILINE)
    }
    assert list(rows) == ["the encoder", "its language-model head", "term head", "together", "trained"]
    assert sum(list(rows.values())[:3]) == rows["together"]
    assert rows["together"] - rows["trained"] == 32 * 32 + 32  # BERT's pooler, which no term asks


def test_changes_and_drops_are_told_as_they_will_be_trained(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = command(capfd, *call(world, "master", "--drop", "cpr", "--drop", "dor", "--set", "objective.npr.weight=0.5"))
    assert "mkp" not in said
    assert "dor" not in said
    assert re.search(r"npr +0.5 x", said)


def parts(world: Path, preset: str, *changes: str, **settings: object):
    plan = parse_composition(apply_changes(load_preset(preset).content, changes), preset)
    network, tokenizer = build_network(plan, locate(str(world / "model")), seed=1)
    from drtk.pretraining.example_builder import fields_of

    corpus = TokenCorpus.open(str(world / "corpus.jsonl"), str(world / "model"), wants=fields_of(plan))
    wanted = merge(PretrainSettings, {"batch": 8, "max_length": 32} | settings, {})
    return PretrainingData(corpus, plan, wanted, tokenizer, 1), network


def test_the_work_of_a_step_is_six_times_parameters_times_tokens(world: Path) -> None:
    material, network = parts(world, "mlm")
    found = estimated(material, network)
    load = found.loads["passage"]
    lengths = [len(material.dataset()[number].slots["passage"].given) for number in range(64)]
    assert load.tokens == pytest.approx(sum(lengths) / 64)
    layers = sum(each.numel() for layer in network.anatomy.layers for each in layer.parameters())
    norm_and_pooler = 2 * 32 + (32 * 32 + 32)
    assert parameters([network.backbone], tables=False) == layers + norm_and_pooler
    # The encoder reads all tokens; the head, 32 x vocabulary and its own dense layer, the hidden ones alone.
    assert found.work["the encoder"] == pytest.approx(6 * 8 * load.tokens * (layers + norm_and_pooler))
    head = network.head.weight.numel() + parameters([network.head])
    assert found.work["term mlm"] == pytest.approx(6 * 8 * load.hidden * head)


def test_slots_that_only_a_decoder_reads_do_not_go_through_the_encoder(world: Path) -> None:
    assert encoded_slots(parts(world, "cotmae")[1]) == ["passage"]
    assert encoded_slots(parts(world, "qac-cocondenser")[1]) == ["a", "b"]
    assert encoded_slots(parts(world, "master")[1]) == ["passage", "half", "before"]


def test_gradient_caching_costs_another_pass_without_a_gradient(world: Path) -> None:
    whole = estimated(*parts(world, "qac-cocondenser"))
    cached = estimated(*parts(world, "qac-cocondenser", micro_batch=4))
    # 6 parameters a token with the gradient, and 2 more without: a third of the former.
    assert cached.work["the encoder"] == pytest.approx(whole.work["the encoder"] * 8 / 6)
    assert cached.memory["activations"] == pytest.approx(whole.memory["activations"] / 2)


def test_a_trained_parameter_takes_sixteen_bytes(world: Path) -> None:
    material, network = parts(world, "mlm")
    count = sum(each.numel() for each in network.parameters() if each.requires_grad)
    assert trained(network) == count
    assert estimated(material, network).memory["weights, gradients, Adam"] == 16 * count


def test_what_a_layer_keeps_is_about_what_was_assumed() -> None:
    # Twice 34 bytes a token and unit of width in float32, attention's own matrices apart: those are 4 heads x 16 places / 128.
    from transformers import BertConfig, BertModel

    from drtk.models.backbone import Anatomy

    def kept(layers: int) -> int:
        size = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 50}
        model = BertModel(BertConfig(num_hidden_layers=layers, **size)).train()
        own = {each.untyped_storage().data_ptr() for each in model.parameters()}
        seen: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            states = Anatomy(model).encode(torch.ones(2, 16, dtype=torch.long), torch.ones(2, 16, dtype=torch.long))
        assert len(states) == layers + 1
        return sum(seen.values())

    bytes_each = (kept(3) - kept(1)) / (2 * 2 * 16 * 128)
    assert 0.8 < bytes_each / (2 * LAYER_BYTES) < 1.4
