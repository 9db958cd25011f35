"""drtk convert --masked-lm: write an encoder and its head as a masked language model of transformers."""

import pytest

from drtk.errors import UsageError
from drtk.runtime.integrity import read_json
from tests.run_commands import run_command
from tests.tiny_models import load_weights


def test_an_encoder_and_its_head_become_a_model_folder(files, tmp_path, capfd):
    run_command(capfd, "convert", "--masked-lm", files.model, "-o", tmp_path / "lm")
    assert load_weights(tmp_path / "lm").keys() >= {"cls.predictions.bias"}
    manifest = read_json(tmp_path / "lm" / "meta.json")
    assert (manifest["kind"], manifest["settings"]["masked_lm"]) == ("model", str(files.model))
    assert manifest["inputs"][0]["path"] == str(files.model)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("corpus.jsonl -o out", "cannot be combined with input files or options for records"),
        ("--as passages -o out", "cannot be combined with input files or options for records"),
        ("--with side.jsonl -o out", "--masked-lm writes a model; omit --bare and --with"),
        ("", "--output must name a folder"),
    ],
)
def test_invalid_options_for_masked_lm_are_rejected(more, message, folder, capfd):
    with pytest.raises(UsageError, match=message):
        run_command(capfd, "convert", "--masked-lm", "model", *more.split())
