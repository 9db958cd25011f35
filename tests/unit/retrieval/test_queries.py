"""Queries are encoded with the encoder of the index; other encoders are rejected."""

import json
import shutil

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import MismatchError
from drtk.indexing.config import SearchSettings
from drtk.retrieval.search import IndexGroup, QueryEncoder
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import find_changes
from tests.run_commands import run_command
from tests.tiny_models import save_tiny_encoder, write_collection


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asking")
    save_tiny_encoder(folder / "model")
    save_tiny_encoder(folder / "other", seed=2)
    write_collection(folder, 40)
    encode = f"encode {folder}/corpus.jsonl --model {folder}/model -o {folder}/vectors"
    for call in (encode, f"index {folder}/vectors --type exact -o {folder}/dense"):
        app(call.split(), standalone_mode=False)
    return folder


def encode(index, model, **settings):
    group = IndexGroup([str(index)], SearchSettings())
    return QueryEncoder(group, SearchSettings(**settings), model and str(model))(["rivers"])


def test_a_copy_of_the_model_may_encode_and_another_model_may_not(data, tmp_path):
    copy = shutil.copytree(data / "model", tmp_path / "copy")
    np.testing.assert_array_equal(encode(data / "dense", copy), encode(data / "dense", None))
    with pytest.raises(MismatchError, match=r"other: differs from the encoder of .*dense"):
        encode(data / "dense", data / "other")
    change_json(copy, "config_sentence_transformers.json", prompts={"query": "find: ", "document": ""})
    encode(data / "dense", copy, prompt="find: ")  # an explicit prompt may differ from that of the model


def change_json(folder, file, **entries):
    """Change entries in a JSON file of a model folder."""
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | entries))
    return folder


CONFIGURATION_CHANGES = {
    "tokenizer": ("tokenizer.json", {"normalizer": None}),
    "config": ("config.json", {"hidden_act": "relu"}),
    "query prompt": ("config_sentence_transformers.json", {"prompts": {"query": "find: ", "document": ""}}),
    "passage prompt": ("config_sentence_transformers.json", {"prompts": {"query": "", "document": "text: "}}),
    "passage length, query length": ("sentence_bert_config.json", {"max_seq_length": 16}),
    "lowercase": ("sentence_bert_config.json", {"do_lower_case": True}),
    "weights or pooling": (
        "1_Pooling/config.json",
        {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True},
    ),
}


@pytest.mark.parametrize("named", CONFIGURATION_CHANGES)
def test_a_model_whose_configuration_changed_after_indexing_is_rejected(data, tmp_path, named):
    file, entries = CONFIGURATION_CHANGES[named]
    copy = change_json(shutil.copytree(data / "model", tmp_path / "copy"), file, **entries)
    with pytest.raises(MismatchError, match=f"copy: differs from the encoder of .* in {named}; restore the encoder"):
        encode(data / "dense", copy)


def test_a_run_is_out_of_date_after_its_encoder_was_replaced(data, tmp_path, capfd):
    model = shutil.copytree(data / "model", tmp_path / "model")
    run_command(capfd, "encode", data / "corpus.jsonl", "--model", model, "-o", tmp_path / "v")
    run_command(capfd, "index", tmp_path / "v", "--type", "exact", "-o", tmp_path / "i")
    run_command(capfd, "search", tmp_path / "i", data / "queries.jsonl", "-o", tmp_path / "run")
    settings = read_json(tmp_path / "run.meta.json")["settings"]
    assert find_changes(str(tmp_path / "run"), settings) == []
    shutil.copy(data / "other" / "model.safetensors", model)
    assert find_changes(str(tmp_path / "run"), settings) == [str(model)]
