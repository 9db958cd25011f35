"""Pre-training on a CUDA device: 16 bits, compiled layers, fused AdamW, liger-kernel's loss, attention without padding, memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from drtk.cli.main import app
from drtk.losses import language
from drtk.losses.language import linear_cross_entropy
from drtk.models.device import AttentionBackend
from tests.backbone_families import create_masked_lm, create_padded_batch
from tests.pretraining_setup import PretrainingFiles, write_corpus_with_gaps

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
GPU = torch.device("cuda")
SCHEDULE = [
    "--max-steps",
    "6",
    "--batch-size",
    "8",
    "--max-length",
    "24",
    "--learning-rate",
    "1e-3",
    "--set",
    "warmup=0",
    "--set",
    "log_steps=1",
]
SCHEDULE += ["--set", "held_out=8", "--eval-steps", "6", "--device", "cuda", "-q"]
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # so that ways of computing can be compared


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    made = PretrainingFiles.made(tmp_path_factory.mktemp("world"))
    for folder in (made.model, made.generator):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | STILL))
    write_corpus_with_gaps(made.corpus, made.model, documents=30)
    return made


def pretrain(world: PretrainingFiles, output: Path, preset: str, *more: str) -> list[dict]:
    """The log of a run."""
    named = ["--preset", preset, "--model", str(world.model), "-o", str(output), *SCHEDULE, *more]
    app(["pretrain", str(world.corpus), *named], standalone_mode=False)
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def losses(log: list[dict]) -> list[float]:
    return [row["loss"] for row in log if "loss" in row]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def apart(one: Path, other: Path) -> float:
    """The largest difference between the encoders of two folders."""
    mine, theirs = weights(one), weights(other)
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


EVERY = ["mlm", "cocondenser", "cotmae", "master", "retromae", "simcse", "simlm", "simlm-rtd", "diffcse-sts-bert"]


@pytest.mark.parametrize("preset", [*EVERY, "qac-cotmae-released"])
def test_a_gpu_in_32_bits_trains_what_a_cpu_does(preset: str, world: PretrainingFiles, tmp_path: Path) -> None:
    generator = ["--generator", str(world.generator)] if preset in ("simlm", "simlm-rtd", "diffcse-sts-bert") else []
    exact = ["--precision", "float32", "--set", "trainer=tf32=false", *generator]
    on_gpu = losses(pretrain(world, tmp_path / "gpu", preset, *exact))
    on_cpu = losses(pretrain(world, tmp_path / "cpu", preset, *exact, "--device", "cpu"))
    assert on_gpu == pytest.approx(on_cpu, rel=2e-3)


@pytest.mark.parametrize("preset", [*EVERY, "qac-cotmae-released"])
def test_bfloat16_is_the_default_and_keeps_losses_and_weights_in_32_bits(
    preset: str, world: PretrainingFiles, tmp_path: Path
) -> None:
    if not torch.cuda.is_bf16_supported():
        pytest.skip("no bfloat16 on this device")
    generator = ["--generator", str(world.generator)] if preset in ("simlm", "simlm-rtd", "diffcse-sts-bert") else []
    short = losses(pretrain(world, tmp_path / "auto", preset, *generator))
    exact = losses(pretrain(world, tmp_path / "exact", preset, *generator, "--precision", "float32"))
    assert short != exact  # 16 bits somewhere
    assert short == pytest.approx(exact, rel=0.03)
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / "auto").values())


@pytest.mark.parametrize("preset", ["mlm", "cotmae", "condenser", "cocondenser"])
def test_compiled_layers_compute_what_others_do(preset: str, world: PretrainingFiles, tmp_path: Path) -> None:
    exact = ["--precision", "float32", "--set", "trainer=tf32=false"]
    compiled = losses(
        pretrain(world, tmp_path / "compiled", preset, *exact, "--set", "compile=true", "--micro-batch-size", "4")
    )
    eager = losses(pretrain(world, tmp_path / "eager", preset, *exact, "--micro-batch-size", "4"))
    assert compiled == pytest.approx(eager, rel=1e-3)
    pretrain(world, tmp_path / "both", preset, "--set", "compile=true")  # with 16 bits too
    from transformers import AutoModel

    AutoModel.from_pretrained(tmp_path / "both")  # names are those of layers that were not compiled


def test_fused_adamw_takes_the_steps_of_plain_adamw(world: PretrainingFiles, tmp_path: Path) -> None:
    exact = ["--precision", "float32", "--set", "trainer=tf32=false"]
    pretrain(world, tmp_path / "fused", "simlm-mlm", *exact)
    pretrain(world, tmp_path / "plain", "simlm-mlm", *exact, "--set", "fused=false")
    assert apart(tmp_path / "fused", tmp_path / "plain") < 1e-4  # of steps of up to 1e-3 each


def test_activations_that_are_computed_again_change_nothing(world: PretrainingFiles, tmp_path: Path) -> None:
    exact = ["--precision", "float32", "--set", "trainer=tf32=false"]
    one = losses(pretrain(world, tmp_path / "again", "cotmae", *exact, "--set", "gradient_checkpointing=true"))
    assert one == pytest.approx(losses(pretrain(world, tmp_path / "kept", "cotmae", *exact)), rel=1e-4)


def test_liger_kernels_loss_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("liger_kernel")
    draw = torch.Generator().manual_seed(1)
    made = [torch.randn(*shape, generator=draw) for shape in ((500, 64), (3000, 64), (3000,))]
    labels = torch.randint(3000, (500,), generator=draw)
    labels[::7] = -100
    found = {}
    for name in ("liger", "ours", "plain"):
        leaves = [each.to(GPU).requires_grad_() for each in made]
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
        found[name] = [loss.detach(), *torch.autograd.grad(loss / 400, leaves)]
    for name in ("liger", "ours"):
        for value, expected in zip(found[name], found["plain"], strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)


def test_liger_kernels_loss_trains_an_encoder_as_ours_does(
    world: PretrainingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("liger_kernel")
    fused = losses(pretrain(world, tmp_path / "liger", "simlm-mlm"))
    monkeypatch.setattr(language, "_load_liger_loss", lambda: None)
    assert fused == pytest.approx(losses(pretrain(world, tmp_path / "ours", "simlm-mlm")), rel=0.02)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "modernbert"])
def test_flash_attention_gives_the_states_of_sdpa_and_never_looks_at_padding(family: str) -> None:
    pytest.importorskip("flash_attn")
    model = create_masked_lm(family).base_model.to(GPU, torch.bfloat16)
    ids, attention = (each.to(GPU) for each in create_padded_batch(model))
    found = {}
    for name in ("sdpa", "flash_attention_2"):
        assert AttentionBackend(name, GPU, half=True).apply(model) == name
        with torch.no_grad():
            states = model(input_ids=ids, attention_mask=attention).last_hidden_state
            longer = model(input_ids=F.pad(ids, (0, 7)), attention_mask=F.pad(attention, (0, 7))).last_hidden_state
        there = attention.bool()
        torch.testing.assert_close(longer[:, : ids.shape[1]][there], states[there], rtol=2e-2, atol=2e-2)
        found[name] = states[there].float()
    assert float(F.cosine_similarity(found["sdpa"], found["flash_attention_2"], dim=-1).min()) > 0.999


@pytest.mark.parametrize("preset", EVERY)
def test_flash_attention_trains_as_sdpa_does(preset: str, world: PretrainingFiles, tmp_path: Path) -> None:
    pytest.importorskip("flash_attn")
    generator = ["--generator", str(world.generator)] if preset in ("simlm", "simlm-rtd", "diffcse-sts-bert") else []
    flash = losses(pretrain(world, tmp_path / "flash", preset, *generator, "--set", "attention=flash_attention_2"))
    usual = losses(pretrain(world, tmp_path / "sdpa", preset, *generator, "--set", "attention=sdpa"))
    auto = losses(pretrain(world, tmp_path / "auto", preset, *generator))
    assert flash == pytest.approx(usual, rel=0.03)
    assert auto == pytest.approx(flash, rel=1e-3)  # what is installed is what auto takes


def test_scores_of_all_tokens_are_never_held(tmp_path: Path) -> None:
    """64 texts of 128 tokens over 30,522 pieces would be 64 * 128 * 30522 * 4 bytes = 954 MiB, twice with their gradients."""
    features = torch.randn(64 * 128, 32, device=GPU, requires_grad=True)
    table = torch.randn(30522, 32, device=GPU, requires_grad=True)
    labels = torch.randint(30522, (64 * 128,), device=GPU)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    linear_cross_entropy(features, table, None, labels).backward()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 450 * 2**20
