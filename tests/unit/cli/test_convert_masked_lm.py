"""drtk convert --masked-lm: write an encoder and its head as a masked language model of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from drtk.errors import DrtkError, MismatchError, UsageError
from tests.run_commands import run_command
from tests.tiny_models import save_tiny_encoder, write_collection


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an encoder trained by drtk pretrain."""
    from drtk.cli.main import app

    folder = tmp_path_factory.mktemp("encoder")
    corpus, _, _ = write_collection(folder, 16)
    call = ["pretrain", corpus, "--preset", "mlm", "--model", str(save_tiny_encoder(folder / "model")), "-q"]
    call += ["--batch-size", "8", "--max-steps", "2", "--max-length", "32", "-o", str(folder / "encoder")]
    app(call, standalone_mode=False)
    return folder / "encoder"


def test_logits_in_transformers_equal_those_of_encoder_and_head(encoder, tmp_path, capfd):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    from drtk.models.checkpoint import load_masked_lm

    run_command(capfd, "convert", "--masked-lm", encoder, "-o", tmp_path / "lm")
    model, loading = AutoModelForMaskedLM.from_pretrained(tmp_path / "lm", output_loading_info=True)
    assert not loading["missing_keys"]
    inputs = AutoTokenizer.from_pretrained(tmp_path / "lm")("rivers rivering", return_tensors="pt")
    backbone, head, _ = load_masked_lm(encoder)
    with torch.no_grad():
        expected = head.compute_logits(backbone(**inputs).last_hidden_state)
        torch.testing.assert_close(model.eval()(**inputs).logits, expected, atol=1e-5, rtol=0)
    manifest = json.loads((tmp_path / "lm" / "meta.json").read_text())
    assert (manifest["kind"], manifest["settings"]["masked_lm"]) == ("model", str(encoder))
    assert manifest["inputs"][0]["path"] == str(encoder)
    with pytest.raises(DrtkError, match="exists already; `force` replaces it"):
        run_command(capfd, "convert", "--masked-lm", encoder, "-o", tmp_path / "lm")
    run_command(capfd, "convert", "--masked-lm", encoder, "-o", tmp_path / "lm", "--force")


def test_an_encoder_without_a_trained_head_is_rejected_and_nothing_is_left(tmp_path, capfd):
    with pytest.raises(MismatchError, match="has no trained masked-LM head; train one with `drtk pretrain`"):
        run_command(capfd, "convert", "--masked-lm", save_tiny_encoder(tmp_path / "model"), "-o", tmp_path / "lm")
    assert not (tmp_path / "lm").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["corpus.jsonl", "-o", "out"], "cannot be combined with input files or options for records"),
        (["--as", "passages", "-o", "out"], "cannot be combined with input files or options for records"),
        (["--with", "side.jsonl", "-o", "out"], "--masked-lm writes a model; omit --bare and --with"),
        ([], "--output must name a folder"),
    ],
)
def test_invalid_options_for_masked_lm_are_rejected(more, told, encoder, folder, capfd):
    with pytest.raises(UsageError, match=told):
        run_command(capfd, "convert", "--masked-lm", encoder, *more)
