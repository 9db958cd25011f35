"""Models without padding: outputs, gradients and trainings equal those with padding."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForSequenceClassification

from drtk.cli.main import app
from drtk.models import packing
from drtk.models.backbone import BackboneAdapter
from drtk.models.device import AttentionBackend
from drtk.models.packing import MODEL_TYPES, Packing, enable_packing, is_packed
from tests.backbone_families import FAMILIES, create_masked_lm, create_padded_batch
from tests.packed_attention import allow_packing_on_a_cpu
from tests.pretraining_setup import PretrainingFiles
from tests.tiny_models import save_tiny_cross_encoder, save_tiny_encoder, write_collection

CPU = torch.device("cpu")
LENGTHS = (9, 14, 5, 5, 1)
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "seq_classif_dropout", "classifier_dropout")
Count = Callable[[], int]


@pytest.fixture
def count_calls(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Allow packing on the CPU, and return a function that returns the number of packed attention calls so far."""
    calls = allow_packing_on_a_cpu(monkeypatch)
    return lambda: len(calls)


def create_model(model_type: str, auto_class: Any = AutoModel, **changes: Any) -> Any:
    """Return a model with 3 layers and wide random weights, without dropout, in training mode."""
    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 60}
    size |= {"intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 1, "num_labels": 1}
    if model_type == "distilbert":
        size = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": 60, "pad_token_id": 1}
        size |= {"dropout": 0.0, "attention_dropout": 0.0, "num_labels": 1}
    if model_type == "modernbert":  # layers of both kinds; two tokens on each side are visible in a window
        size |= {"local_attention": 4, "global_attn_every_n_layers": 2}
        size |= {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    if model_type in ("llama", "mistral", "qwen2", "qwen3"):
        size |= {"num_key_value_heads": 2}
    if model_type == "mistral":
        size |= {"sliding_window": 4}
    config = CONFIG_MAPPING[model_type](**size | dict.fromkeys(DROPOUTS, 0.0) | changes)
    torch.manual_seed(0)
    model = auto_class.from_config(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    return model


def create_inputs(model: Any, *, left: bool = False) -> dict[str, Tensor]:
    ids, mask = create_padded_batch(model, lengths=LENGTHS)
    if left:
        ids, mask = ids.flip(1), mask.flip(1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (torch.arange(ids.shape[1]) > 3).long() * mask
    return inputs


def compute_gradients(model: nn.Module, output: Tensor) -> Tensor:
    model.zero_grad()
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


def assert_equal_gradients(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * float(one.abs().max()))


CASES = [(model_type, {}) for model_type in MODEL_TYPES] + [("llama", {"is_causal": False})]


@pytest.mark.parametrize(("model_type", "changes"), CASES)
@pytest.mark.parametrize("left", [False, True])
def test_states_and_gradients_equal_padded_ones(model_type: str, changes: dict, left: bool, count_calls: Count) -> None:
    padded = create_model(model_type, **changes)
    packed, inputs = deepcopy(padded), create_inputs(padded, left=left)
    assert enable_packing(packed, CPU)
    assert enable_packing(deepcopy(packed), CPU)  # once only
    tokens = inputs["attention_mask"].unsqueeze(-1)
    expected, actual = (model(**inputs).last_hidden_state for model in (padded, packed))
    assert count_calls() == 3  # one call a layer
    torch.testing.assert_close(actual, expected * tokens)
    assert_equal_gradients(compute_gradients(packed, actual), compute_gradients(padded, expected * tokens))


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "llama"])  # three kinds of heads
def test_logits_equal_those_with_padding(model_type: str, count_calls: Count) -> None:
    padded = create_model(model_type, AutoModelForSequenceClassification)
    packed, inputs = deepcopy(padded), create_inputs(padded)
    enable_packing(packed.base_model, CPU)
    expected, actual = (model(**inputs).logits for model in (padded, packed))
    assert count_calls() == 3
    torch.testing.assert_close(actual, expected)
    assert_equal_gradients(compute_gradients(packed, actual), compute_gradients(padded, expected))


def test_gradient_checkpointing_keeps_the_packing(count_calls: Count) -> None:
    padded = create_model("bert")
    packed, inputs = deepcopy(padded), create_inputs(padded)
    enable_packing(packed, CPU)
    packed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tokens = inputs["attention_mask"].unsqueeze(-1)
    expected, actual = (model(**inputs).last_hidden_state * tokens for model in (padded, packed))
    assert_equal_gradients(compute_gradients(packed, actual), compute_gradients(padded, expected))
    assert count_calls() == 6  # forward, and again for the backward pass


@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapter_runs_layers_without_padding(family: str, count_calls: Count) -> None:
    model = create_masked_lm(family)
    padded = getattr(model, model.base_model_prefix)
    packed, (ids, mask) = deepcopy(padded), create_padded_batch(padded, lengths=LENGTHS)
    assert AttentionBackend("auto", CPU, half=False, packed=True).apply(packed) == packing.PACKED
    expected, actual = (BackboneAdapter(each).encode(ids, mask) for each in (padded, packed))
    assert count_calls() == len(actual) - 1
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine * mask.unsqueeze(-1), theirs * mask.unsqueeze(-1))
    tokens = mask.unsqueeze(-1)
    one, other = compute_gradients(packed, actual[-1] * tokens), compute_gradients(padded, expected[-1] * tokens)
    assert_equal_gradients(one, other)


def test_what_cannot_be_packed_is_padded(count_calls: Count, tmp_path: Path) -> None:
    assert not enable_packing(AutoModel.from_config(CONFIG_MAPPING["mpnet"](num_hidden_layers=1)), CPU)
    assert not enable_packing(AutoModel.from_config(create_model("bert").config, attn_implementation="eager"), CPU)
    model = create_model("bert")
    inputs = create_inputs(model)
    expected = model(**inputs, output_hidden_states=True).hidden_states
    assert enable_packing(model, CPU)
    assert is_packed(model)
    for mine, theirs in zip(model(**inputs, output_hidden_states=True).hidden_states, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    model(input_ids=inputs["input_ids"])
    with torch.autocast("cpu", dtype=torch.bfloat16):  # not among the dtypes of the device
        assert not is_packed(model)
        model(**inputs)
    assert count_calls() == 0
    model.save_pretrained(tmp_path)
    assert packing.PACKED not in (tmp_path / "config.json").read_text()


def test_a_gpu_needs_a_flash_attention_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    capability, gpu = (8, 0), torch.device("cuda")
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert enable_packing(create_model("bert"), gpu)
    assert not enable_packing(create_model("bert", num_attention_heads=8), gpu)  # head size 4
    assert not enable_packing(create_model("bert"), CPU)  # a CPU pads by default
    capability = (7, 5)
    assert not enable_packing(create_model("bert"), gpu)


def test_the_kernel_of_torch_accepts_the_call_and_has_a_gradient() -> None:
    module = nn.Module()
    module.is_causal, module.config = False, object()
    query, key, value = (torch.empty(1, 4, 20, 8, dtype=torch.bfloat16, device="meta") for _ in range(3))
    inputs = [each.requires_grad_() for each in (query, key, value)]
    places = Packing(torch.arange(20), torch.tensor([0, 9, 20], dtype=torch.int32, device="meta"), 2, 11)
    context, _ = packing.run_packed_attention(module, *inputs, None, packing=places, dropout=0.1, sliding_window=3)
    assert (context.shape, context.dtype) == ((1, 20, 4, 8), torch.bfloat16)
    assert [each.shape for each in torch.autograd.grad(context.sum(), inputs)] == [query.shape] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_half_precision_on_a_gpu_equals_float32_with_padding(model_type: str) -> None:
    gpu = torch.device("cuda")
    exact = create_model(model_type).to(gpu)
    packed, inputs = deepcopy(exact), {name: value.to(gpu) for name, value in create_inputs(exact).items()}
    if not enable_packing(packed, gpu):
        pytest.skip("no flash attention")
    tokens = inputs["attention_mask"].unsqueeze(-1)
    expected = exact(**inputs).last_hidden_state * tokens
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert is_packed(packed)
        actual = packed(**inputs).last_hidden_state
    assert torch.cosine_similarity(actual.float().flatten(), expected.flatten(), dim=0) > 0.99
    one, other = compute_gradients(packed, actual.float()), compute_gradients(exact, expected)
    assert torch.cosine_similarity(one, other, dim=0) > 0.98
    with torch.inference_mode():
        half = packed.eval().half()(**inputs).last_hidden_state
    assert torch.cosine_similarity(half.float().flatten(), expected.flatten(), dim=0) > 0.99


@pytest.mark.gpu
def test_dropout_on_a_gpu_depends_on_the_seed() -> None:
    gpu = torch.device("cuda")
    model = create_model("bert", attention_probs_dropout_prob=0.5).to(gpu)
    if not enable_packing(model, gpu):
        pytest.skip("no flash attention")
    inputs, states = {name: value.to(gpu) for name, value in create_inputs(model).items()}, []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            states.append(model(**inputs).last_hidden_state.float())
    torch.testing.assert_close(states[0], states[1])
    assert (states[0] - states[2]).abs().max() > 1e-3
    assert compute_gradients(model, states[0]).isfinite().all()


def run_command(*words: str | Path) -> None:
    app([*map(str, words), "-q", "--device", "cpu"], standalone_mode=False)


def remove_dropout(folder: Path) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | dict.fromkeys(DROPOUTS[:2], 0.0)))
    return folder


def read_losses(folder: Path) -> list[float]:
    return [row["loss"] for row in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if "loss" in row]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    files = PretrainingFiles.create(tmp_path_factory.mktemp("files"))
    remove_dropout(files.model)
    remove_dropout(files.generator)
    return files


def check_training(folder: Path, count_calls: Count, *words: str | Path, is_packed: bool = True) -> None:
    """Run a training of two steps with and without packing; check the losses, and in which run attention is packed."""
    losses = []
    schedule = ["--max-steps", "2", "--batch-size", "4", "--learning-rate", "1e-3", "--set", "log_steps=1"]
    for packed in ("true", "false"):
        before, output = count_calls(), folder / packed
        run_command(*words, *schedule, "-o", output, "--set", f"packed={packed}")
        assert (count_calls() > before) == (packed == "true" and is_packed)
        losses.append(read_losses(output))
    assert len(losses[0]) == 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("preset", ["cocondenser", "retromae", "diffcse-sts-bert"])
def test_pretraining_without_padding(preset: str, files: PretrainingFiles, count_calls: Count, tmp_path: Path) -> None:
    call = ["pretrain", files.corpus, "--preset", preset, "--model", files.model, "--max-length", "24"]
    call += ["--set", "held_out=0"]
    if preset == "diffcse-sts-bert":  # batch norm needs the whole batch, and the released loss includes padding
        more = ["--generator", files.generator, "--micro-batch-size", "4"]
        check_training(tmp_path, count_calls, *call, *more, is_packed=False)
    else:
        check_training(tmp_path, count_calls, *call, "--micro-batch-size", "2")


@pytest.mark.parametrize(
    ("command", "more"),
    [("train-retriever", "grad_cache=5"), ("train-retriever", "lora=2"), ("train-reranker", "warmup=0.1")],
)
def test_fine_tuning_without_padding(command: str, more: str, count_calls: Count, tmp_path: Path) -> None:
    if more == "lora=2":
        pytest.importorskip("peft")
    corpus, queries, examples = write_collection(tmp_path, 12)
    save = save_tiny_encoder if command == "train-retriever" else save_tiny_cross_encoder
    model = remove_dropout(save(tmp_path / "model"))
    call = [command, examples, "--corpus", corpus, "--queries", queries, "--model", model, "--negatives", "3"]
    check_training(tmp_path, count_calls, *call, "--set", more)


def test_encoding_and_scoring_without_padding(count_calls: Count, tmp_path: Path) -> None:
    corpus, queries, _ = write_collection(tmp_path, 20)
    encoder, scorer = save_tiny_encoder(tmp_path / "encoder"), save_tiny_cross_encoder(tmp_path / "scorer")
    run = tmp_path / "run.trec"
    run.write_text("".join(f"q{at // 9} Q0 d{at % 9} {at % 9 + 1} {-at} x\n" for at in range(81)))
    vectors, scores = [], []
    for packed in ("true", "false"):
        before, output = count_calls(), tmp_path / packed
        run_command("encode", corpus, "--model", encoder, "-o", output, "--set", f"packed={packed}")
        vectors.append(np.concatenate([np.load(file) for file in sorted(output.glob("*.npy"))]))
        assert (count_calls() > before) == (packed == "true")
        before, output = count_calls(), tmp_path / f"{packed}.trec"
        inputs = [run, "--corpus", corpus, "--queries", queries, "--model", scorer, "-o", output]
        run_command("rerank", *inputs, "--set", f"packed={packed}")
        scores.append({tuple(line.split()[:3:2]): float(line.split()[4]) for line in output.read_text().splitlines()})
        assert (count_calls() > before) == (packed == "true")
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    assert len(scores[0]) == 81
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
