"""Incomplete checkpoints, tokenizers and configurations are rejected; models of other programs load."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drtk.errors import DrtkError, MismatchError
from drtk.expansion.term_weights.bprop import FirstTokenAttention
from drtk.models.checkpoint import embed_texts, load_encoder, load_masked_lm, save_encoder
from drtk.models.cross_encoder import identify_scorer, init_cross_encoder, load_cross_encoder
from drtk.models.seq2seq import load_generation_model
from drtk.models.term_weighter import init_term_weight_model
from drtk.runtime.remote_code import TRUST_VARIABLE
from drtk.text.tokenizers import load_tokenizer
from tests.backbone_families import FAMILIES, save_random_masked_lm
from tests.run_commands import Capture, run_command
from tests.tiny_models import (
    add_remote_code,
    save_tiny_cross_encoder,
    save_tiny_encoder,
    save_tiny_generator,
    write_collection,
)

Folders, Weights = dict[str, Path], dict[str, Tensor]


def start(folder: Path) -> Any:
    return init_cross_encoder(str(folder), max_length=None, seed=1, default_length=32)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "encoder": load_encoder,
    "new cross-encoder": start,
    "cross-encoder": load_cross_encoder,
    "masked LM": load_masked_lm,
    "weigher": lambda folder: init_term_weight_model(folder, "deepct", seed=1),
    "attention": lambda folder: FirstTokenAttention(
        folder, device="cpu", dtype="auto", max_length=None, batch_tokens=None
    ),
    "t5": load_generation_model,
    "gpt2": load_generation_model,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Folders:
    """Write a model folder for each entry of LOADERS."""
    path = tmp_path_factory.mktemp("models")
    save_random_masked_lm("bert", path / "bert")
    scorer = save_tiny_cross_encoder(path / "scorer")
    writers = {arch: models / arch for arch in ("t5", "gpt2")}
    return dict.fromkeys(LOADERS, path / "bert") | {"cross-encoder": scorer} | writers


def rename_weights(change: Callable[[str], str | None]) -> Callable[[Weights], Weights]:
    """Return a function that renames weights, and drops those whose new name is None."""
    return lambda weights: {new: weight for name, weight in weights.items() if (new := change(name)) is not None}


def drop_weights(is_dropped: Callable[[str], bool]) -> Callable[[Weights], Weights]:
    return rename_weights(lambda name: None if is_dropped(name) else name)


def copy_with_weights(folder: Path, to: Path, change: Callable[[Weights], Weights]) -> Path:
    """Copy a model folder with changed weights."""
    shutil.copytree(folder, to)
    weights = {name: value.clone() for name, value in change(load_file(to / "model.safetensors")).items()}
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def copy_with_config(folder: Path, to: Path, **entries: Any) -> Path:
    """Copy a model folder with changed entries in config.json."""
    shutil.copytree(folder, to)
    content = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(content | entries))
    return to


def is_in_layer_0(name: str) -> bool:
    return "layer.0." in name or "block.0." in name or "h.0." in name


@pytest.mark.parametrize("kind", LOADERS)
def test_missing_weights_and_unexpected_layers_are_reported(folders: Folders, tmp_path: Path, kind: str) -> None:
    def add_layer(given: Weights) -> Weights:
        return given | {n.replace(".0.", ".7.", 1): w for n, w in given.items() if is_in_layer_0(n)}

    for change, problem in ((drop_weights(is_in_layer_0), r"missing: .*\.0\."), (add_layer, r"unexpected: .*\.7\.")):
        changed = copy_with_weights(folders[kind], tmp_path / problem[:7], change)
        with pytest.raises(MismatchError, match=rf": its weights do not match its config\.json \(\d+ {problem}"):
            LOADERS[kind](changed)


def test_weights_of_another_shape_or_with_a_prefix_are_reported(folders: Folders, tmp_path: Path) -> None:
    name = "bert.embeddings.word_embeddings.weight"
    cut = copy_with_weights(folders["encoder"], tmp_path / "m", lambda given: given | {name: given[name][:, :16]})
    message = r"1 of another shape: embeddings\.word_embeddings\.weight: \[\d+, 16\], not"
    with pytest.raises(MismatchError, match=message):
        load_encoder(cut)
    wrapped = copy_with_weights(folders["encoder"], tmp_path / "x", rename_weights("module.".__add__))
    with pytest.raises(MismatchError, match=r"missing: .*unexpected: module\.bert\.embeddings"):
        load_encoder(wrapped)


@pytest.mark.parametrize("family", FAMILIES)
def test_encoders_load_from_masked_language_models_of_every_family(tmp_path: Path, family: str) -> None:
    model = save_random_masked_lm(family, tmp_path / "m")
    mine, theirs = load_encoder(tmp_path / "m").encoder.backbone.state_dict(), model.base_model.state_dict()
    for name, weights in theirs.items():
        torch.testing.assert_close(mine[name], weights, rtol=0, atol=0)
    start(tmp_path / "m")


def test_poolers_and_buffers_of_older_checkpoints_are_optional(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "m")

    def older(weights: Weights) -> Weights:
        kept = drop_weights(lambda name: "pooler" in name)(weights)
        return kept | {"embeddings.position_ids": torch.arange(64)[None]}

    for loader in (load_encoder, start, load_masked_lm):
        loader(copy_with_weights(folder, tmp_path / f"no-pooler-{loader.__name__}", older))
        loader(folder)


def test_half_a_language_model_head_is_rejected(folders: Folders, tmp_path: Path) -> None:
    name = "cls.predictions.transform.dense.weight"
    half = copy_with_weights(folders["masked LM"], tmp_path / "m", drop_weights(name.__eq__))
    with pytest.raises(MismatchError, match=rf"m: the masked-LM head has no weights for {name}"):
        load_masked_lm(half)


def test_a_folder_without_tokenizer_files_is_rejected(folders: Folders, tmp_path: Path) -> None:
    folder = shutil.copytree(folders["encoder"], tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
        with pytest.raises(MismatchError, match=r"m: has no tokenizer files \(tokenizer\.json"):
            load_tokenizer(str(folder))


def test_a_cased_tokenizer_without_its_configuration_is_rejected(tmp_path: Path) -> None:
    for lowercase in (True, False):
        folder = save_tiny_encoder(tmp_path / str(lowercase), lowercase=lowercase)
        whole = load_tokenizer(str(folder))("Rivers")["input_ids"]
        (folder / "tokenizer_config.json").unlink()
        (folder / "meta.json").unlink(missing_ok=True)
        if lowercase:
            assert load_tokenizer(str(folder))("Rivers")["input_ids"] == whole
        else:
            with pytest.raises(MismatchError, match=r"has no tokenizer_config\.json"):
                load_tokenizer(str(folder))


def test_a_vocabulary_file_is_enough_unless_it_is_truncated(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "m")
    tokenizer = load_encoder(folder).tokenizer
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary, key=lambda piece: vocabulary[piece])
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    assert load_encoder(folder).tokenizer("rivers violining")["input_ids"] == tokenizer("rivers violining")["input_ids"]
    for kept, problem in (
        (1, r"'s vocabulary has no \[UNK\], \[CLS\], \[SEP\]"),
        (30, r" has 30 tokens, but the model has \d+ embeddings"),
    ):
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces[:kept]))
        with pytest.raises(MismatchError, match=f"m: its tokenizer{problem}"):
            load_encoder(folder)


@pytest.mark.parametrize("kind", ["encoder", "cross-encoder", "t5"])
def test_a_vocabulary_larger_than_the_embeddings_is_rejected(folders: Folders, tmp_path: Path, kind: str) -> None:
    folder, tokenizer = shutil.copytree(folders[kind], tmp_path / "m"), load_tokenizer(str(folders[kind]))
    rows = len(tokenizer)
    tokenizer.add_tokens(["anewword"])
    tokenizer.save_pretrained(folder)
    message = rf"m: its tokenizer has token ids up to {rows}, but the model has \d+ embeddings"
    with pytest.raises(MismatchError, match=message):
        LOADERS[kind](folder)


@pytest.mark.parametrize("kind", ["encoder", "cross-encoder", "t5", "identity"])
def test_a_model_with_untrusted_code_is_rejected(folders: Folders, tmp_path: Path, kind: str) -> None:
    code = {"auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "modeling_x.XModel"}}
    folder = copy_with_config(folders.get(kind, folders["encoder"]), tmp_path / "m", model_type="x", **code)
    load = LOADERS.get(kind, lambda path: identify_scorer(str(path)))
    with pytest.raises(MismatchError, match=r"m: requires remote code \(modeling_x\.XModel\); read the code"):
        load(folder)


def test_a_saved_tokenizer_does_not_keep_its_last_truncation(folders: Folders, tmp_path: Path) -> None:
    model = load_encoder(folders["encoder"])
    save_encoder(model, tmp_path / "unused")
    model.tokenizer(["a b c d"], truncation=True, max_length=3, padding="max_length")
    save_encoder(model, tmp_path / "used")
    assert (tmp_path / "used" / "tokenizer.json").read_bytes() == (tmp_path / "unused" / "tokenizer.json").read_bytes()


def test_remote_code_is_reported_when_weights_do_not_match(folders: Folders, tmp_path: Path) -> None:
    folder = copy_with_config(folders["encoder"], tmp_path / "m", auto_map={"AutoModel": "modeling_x.XModel"})
    load_encoder(folder)
    other = copy_with_weights(folder, tmp_path / "other", rename_weights(lambda name: name.replace("query", "qkv")))
    with pytest.raises(MismatchError, match=r"requires remote code \(modeling_x\.XModel\); read the code"):
        load_encoder(other)


def test_an_unknown_model_type_without_code_is_a_one_line_error(folders: Folders, tmp_path: Path) -> None:
    for kind in ("t5", "gpt2"):  # their encoders load
        load_encoder(folders[kind])
    with pytest.raises(DrtkError, match="does not recognize this architecture") as caught:
        load_encoder(copy_with_config(folders["encoder"], tmp_path / "m", model_type="x"))
    assert "\n" not in str(caught.value)
    assert "`" not in str(caught.value)  # names in backquotes would be printed as options


def test_a_damaged_pytorch_file_is_reported(folders: Folders, tmp_path: Path) -> None:  # not with torch's advice
    folder = copy_with_config(folders["encoder"], tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"c__builtin__\neval\n")
    with pytest.raises(DrtkError, match="a PyTorch file is damaged or contains code; restore the folder"):
        load_encoder(folder)


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv(TRUST_VARIABLE, "1")
    monkeypatch.syspath_prepend(tmp_path / "modules")


@pytest.mark.usefixtures("trust")
def test_models_with_trusted_code_load(tmp_path: Path) -> None:
    encoder = save_tiny_encoder(tmp_path / "encoder")
    plain = embed_texts(load_encoder(encoder), ["rivers rivering", "engines"], role="query")
    own = embed_texts(load_encoder(add_remote_code(encoder)), ["rivers rivering", "engines"], role="query")
    np.testing.assert_allclose(own, 2 * plain, rtol=1e-5)
    reranker = load_cross_encoder(add_remote_code(save_tiny_cross_encoder(tmp_path / "reranker")))
    assert type(reranker.model).__name__ == "TwiceClassifier"
    generator = load_generation_model(add_remote_code(save_tiny_generator(tmp_path / "writer", "gpt2")))
    assert type(generator.model).__name__ == "TwiceGPT2"


@pytest.mark.usefixtures("trust")
def test_a_trained_model_contains_the_code(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    write_collection(folder, 20)
    add_remote_code(save_tiny_encoder(folder / "m"))
    monkeypatch.delenv(TRUST_VARIABLE)
    call = "train-retriever examples.jsonl --corpus corpus.jsonl --queries queries.jsonl --model m -o out".split()
    call += ["--max-steps", "1", "--batch-size", "4"]
    with pytest.raises(MismatchError, match=r"give `trust_remote_code` \(before the command\)"):
        run_command(capfd, *call)
    run_command(capfd, "--trust-remote-code", *call)
    run_command(capfd, "encode", "corpus.jsonl", "--model", "out", "-o", "vectors")
    monkeypatch.delenv(TRUST_VARIABLE)
    with pytest.raises(MismatchError, match="requires remote code"):
        load_encoder(folder / "out")
