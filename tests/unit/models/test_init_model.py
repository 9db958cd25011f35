"""Randomly initialized models: deterministic, with the requested size and special tokens."""

from pathlib import Path

import pytest
import torch

from drtk.errors import DrtkError, UsageError
from drtk.models.checkpoint import digest_weights, load_encoder
from drtk.models.config import InitModelSettings
from drtk.models.init_model import init_encoder, train_tokenizer
from tests.run_commands import Capture, run_command, write_text
from tests.tiny_models import save_tiny_encoder

SMALL = {"layers": 1, "hidden": 16, "heads": 2, "max_length": 32, "min_frequency": 1}


def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(tmp_path: Path, capfd: Capture):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = save_tiny_encoder(tmp_path / "a", seed=3)
    assert torch.rand(1) == expected
    second, third = save_tiny_encoder(tmp_path / "b", seed=3), save_tiny_encoder(tmp_path / "c", seed=4)
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    assert digest_weights(first) == digest_weights(second) != digest_weights(third)
    corpus = write_text(tmp_path / "corpus.jsonl", '{"_id": "d1", "text": "low lower lowest"}\n')
    size = "--layers 1 --hidden 16 --heads 2 --vocab-size 60 --set min_frequency=1".split()
    for arch in ("bert", "t5"):
        folders = [tmp_path / f"{arch}{seed}" for seed in "34"]
        for folder in folders:
            run_command(capfd, "init-model", corpus, "--arch", arch, *size, "--seed", folder.name[-1], "-o", folder)
        assert digest_weights(folders[0]) != digest_weights(folders[1])


def test_words_become_pieces_between_special_tokens():
    tokenizer = train_tokenizer(["low lower lowest"] * 5, InitModelSettings(**SMALL, vocab_size=60))
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("LOW Löwer")["input_ids"])
    assert (pieces[0], pieces[1], pieces[-1]) == ("[CLS]", "low", "[SEP]")
    assert tokenizer.decode(tokenizer("low lowest")["input_ids"], skip_special_tokens=True) == "low lowest"
    pair = tokenizer("low", "lower")
    assert pair["token_type_ids"] == [0, 0, 0] + [1] * (len(pair["input_ids"]) - 3)
    cased = train_tokenizer(["Low low Löw"] * 5, InitModelSettings(**SMALL, vocab_size=60, lowercase=False))
    assert {"Low", "low", "Löw"} <= set(cased.get_vocab())


def test_the_model_has_the_requested_size(tmp_path: Path):
    config = load_encoder(save_tiny_encoder(tmp_path / "m", intermediate=50)).encoder.backbone.config
    size = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
    assert (*size, config.max_position_embeddings) == (2, 32, 4, 50, 64)
    settings = InitModelSettings(**SMALL | {"heads": 3}, vocab_size=60)
    tokenizer = train_tokenizer(["some words"], settings)
    with pytest.raises(UsageError, match="`hidden` 16: must be a multiple of `heads` 3"):
        init_encoder(tokenizer, settings, seed=0)
    with pytest.raises(DrtkError, match="no words"):
        train_tokenizer(["", " "], settings)
