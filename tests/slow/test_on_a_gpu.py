"""Pre-training on a GPU: bfloat16, compiled layers, fused AdamW, liger-kernel's loss, attention without padding, memory."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from drtk.cli.main import app
from drtk.losses import language
from drtk.losses.language import linear_cross_entropy
from drtk.models.device import AttentionBackend
from tests.backbone_families import create_masked_lm, create_padded_batch
from tests.pretraining_setup import PretrainingFiles, create_files_without_dropout
from tests.run_commands import read_log
from tests.tiny_models import load_weights

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
GPU = torch.device("cuda")
SCHEDULE = "--max-steps 6 --batch-size 8 --max-length 24 --learning-rate 1e-3 --set warmup=0 --set log_steps=1".split()
SCHEDULE += ["--set", "held_out=8", "--eval-steps", "6", "--device", "cuda", "-q"]
EXACT = ["--precision", "float32", "--set", "trainer=tf32=false"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    return create_files_without_dropout(tmp_path_factory.mktemp("world"))


def pretrain(files: PretrainingFiles, output: Path, preset: str, *more: str) -> list[dict]:
    """Run drtk pretrain and return its log."""
    named = ["--preset", preset, "--model", str(files.model), "-o", str(output), *SCHEDULE, *more]
    app(["pretrain", str(files.corpus), *named], standalone_mode=False)
    return read_log(output)


def list_generator(files: PretrainingFiles, preset: str) -> list[str]:
    return ["--generator", str(files.generator)] if preset in ("simlm", "simlm-rtd", "diffcse-sts-bert") else []


def get_losses(log: list[dict]) -> list[float]:
    return [row["loss"] for row in log if "loss" in row]


PRESETS = ["mlm", "cocondenser", "cotmae", "master", "retromae", "simcse", "simlm", "simlm-rtd", "diffcse-sts-bert"]


@pytest.mark.parametrize("preset", [*PRESETS, "qac-cotmae-released"])
def test_float32_losses_on_a_gpu_equal_those_on_a_cpu(preset, files, tmp_path):
    exact = [*EXACT, *list_generator(files, preset)]
    on_gpu = get_losses(pretrain(files, tmp_path / "gpu", preset, *exact))
    on_cpu = get_losses(pretrain(files, tmp_path / "cpu", preset, *exact, "--device", "cpu"))
    assert on_gpu == pytest.approx(on_cpu, rel=2e-3)


@pytest.mark.parametrize("preset", [*PRESETS, "qac-cotmae-released"])
def test_bfloat16_is_the_default_with_float32_losses_and_weights(preset, files, tmp_path):
    if not torch.cuda.is_bf16_supported():
        pytest.skip("no bfloat16 on this device")
    generator = list_generator(files, preset)
    half_precision = get_losses(pretrain(files, tmp_path / "auto", preset, *generator))
    exact = get_losses(pretrain(files, tmp_path / "exact", preset, *generator, "--precision", "float32"))
    assert half_precision != exact  # some operations use 16 bits
    if preset.startswith("diffcse"):  # its few discriminator labels make later steps differ by up to .06
        half_precision, exact = half_precision[:1], exact[:1]
    # Without dropout, views are equal and losses near 0, so the tolerance is also absolute.
    assert half_precision == pytest.approx(exact, rel=0.03, abs=0.03)
    assert all(value.dtype == torch.float32 for value in load_weights(tmp_path / "auto").values())


@pytest.mark.parametrize("preset", ["mlm", "cotmae", "condenser", "cocondenser"])
def test_compiled_layers_give_the_same_losses(preset, files, tmp_path):
    compiled = get_losses(
        pretrain(files, tmp_path / "compiled", preset, *EXACT, "--set", "compile=true", "--micro-batch-size", "4")
    )
    eager = get_losses(pretrain(files, tmp_path / "eager", preset, *EXACT, "--micro-batch-size", "4"))
    assert compiled == pytest.approx(eager, rel=1e-3)
    pretrain(files, tmp_path / "both", preset, "--set", "compile=true")  # with bfloat16 too
    from transformers import AutoModel

    AutoModel.from_pretrained(tmp_path / "both")  # parameter names are those of uncompiled layers


def test_gradient_checkpointing_gives_the_same_losses(files, tmp_path):
    one = get_losses(pretrain(files, tmp_path / "again", "cotmae", *EXACT, "--set", "gradient_checkpointing=true"))
    assert one == pytest.approx(get_losses(pretrain(files, tmp_path / "kept", "cotmae", *EXACT)), rel=1e-4)


def test_liger_kernels_loss_equals_drtks(monkeypatch):
    pytest.importorskip("liger_kernel")
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.randn(*shape, generator=draw) for shape in ((500, 64), (3000, 64), (3000,))]
    labels = torch.randint(3000, (500,), generator=draw)
    labels[::7] = -100
    results = {}
    for name in ("liger", "ours", "plain"):
        leaves = [tensor.to(GPU).requires_grad_() for tensor in tensors]
        on_gpu = labels.to(GPU)
        if name == "plain":
            loss = F.cross_entropy(F.linear(leaves[0], leaves[1], leaves[2]), on_gpu, reduction="sum")
        else:
            with monkeypatch.context() as patch:
                if name == "ours":
                    patch.setattr(language, "_load_liger_loss", lambda: None)
                else:
                    assert language._load_liger_loss() is not None
                loss = linear_cross_entropy(*leaves, on_gpu)
        results[name] = [loss.detach(), *torch.autograd.grad(loss / 400, leaves)]
    for name in ("liger", "ours"):
        for value, expected in zip(results[name], results["plain"], strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)


def test_training_with_liger_kernels_loss_gives_the_same_losses(files, tmp_path, monkeypatch):
    pytest.importorskip("liger_kernel")
    fused = get_losses(pretrain(files, tmp_path / "liger", "simlm-mlm"))
    monkeypatch.setattr(language, "_load_liger_loss", lambda: None)
    assert fused == pytest.approx(get_losses(pretrain(files, tmp_path / "ours", "simlm-mlm")), rel=0.02)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "modernbert"])
def test_flash_attention_gives_the_states_of_sdpa_and_ignores_padding(family):
    pytest.importorskip("flash_attn")
    model = create_masked_lm(family).base_model.to(GPU, torch.bfloat16)
    ids, attention = (tensor.to(GPU) for tensor in create_padded_batch(model))
    results = {}
    for name in ("sdpa", "flash_attention_2"):
        assert AttentionBackend(name, GPU, half=True).apply(model) == name
        with torch.no_grad():
            states = model(input_ids=ids, attention_mask=attention).last_hidden_state
            longer = model(input_ids=F.pad(ids, (0, 7)), attention_mask=F.pad(attention, (0, 7))).last_hidden_state
        there = attention.bool()
        torch.testing.assert_close(longer[:, : ids.shape[1]][there], states[there], rtol=2e-2, atol=2e-2)
        results[name] = states[there].float()
    assert float(F.cosine_similarity(results["sdpa"], results["flash_attention_2"], dim=-1).min()) > 0.999


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("attention", ["auto", "flash_attention_2"])  # auto computes no padding where torch can
def test_attention_without_padding_gives_the_losses_of_sdpa(attention, preset, files, tmp_path):
    if attention != "auto":
        pytest.importorskip("flash_attn")
    generator = list_generator(files, preset)
    usual, other = (
        get_losses(pretrain(files, tmp_path / name, preset, *generator, "--set", f"attention={name}"))
        for name in ("sdpa", attention)
    )
    assert other == pytest.approx(usual, rel=0.03, abs=0.03)


def test_logits_of_all_tokens_are_never_in_memory_at_once(tmp_path):
    """Logits of 64 texts of 128 tokens over 30,522 pieces would take 64 * 128 * 30522 * 4 bytes = 954 MiB, twice with gradients.

    A chunk has 2,198 tokens, so its logits take 256 MiB, and their logarithms or the logits of the next chunk as many.
    """
    features = torch.randn(64 * 128, 32, device=GPU, requires_grad=True)
    table = torch.randn(30522, 32, device=GPU, requires_grad=True)
    labels = torch.randint(30522, (64 * 128,), device=GPU)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    linear_cross_entropy(features, table, None, labels).backward()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 600 * 2**20  # gradients and workspaces included
