"""Load text encoders from model folders and save them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.encoder import POOLINGS, Dense, Encoder
from drtk.models.loading import (
    load_config,
    load_tokenizer,
    load_weights,
    report_load_errors,
    save_tokenizer,
)
from drtk.models.model_folder import Recipe, Role, read_layout, write_layout
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import content_digest, read_object
from drtk.runtime.progress import quiet_transformers
from drtk.runtime.streams import digest_file
from drtk.text.batching import TextTokenizer, batches_by_length

_TOKENIZER_FILES = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
LONGEST = 512  # tokens, where neither the folder nor its tokenizer says


@dataclass
class TextEncoder:
    """An encoder with its tokenizer and its recipe."""

    encoder: Encoder
    tokenizer: Any
    recipe: Recipe

    def tokenizing(self, role: Role) -> TextTokenizer:
        """What turns the texts of `role` into tokens."""
        prompt = self.recipe.prompt(role)
        return TextTokenizer(
            self.tokenizer,
            prompt=prompt,
            max_length=self.recipe.length(role),
            title=self.recipe.title,
            with_types="token_type_ids" in self.tokenizer.model_input_names,
        )

    def prompt_length(self, role: Role) -> int:
        """Tokens that pooling leaves out: those of the prompt and the special ones before it, where the recipe says so."""
        prompt = self.recipe.prompt(role)
        if self.recipe.include_prompt or not prompt:
            return 0
        ids = self.tokenizer(prompt, truncation=True, max_length=self.recipe.length(role))["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)


def load_encoder(
    folder: Path, *, overrides: Mapping[str, Any] | None = None, strict: bool = True, weights: bool = True
) -> TextEncoder:
    """The text encoder of a model folder, in float32 on the CPU, ready for inference.

    overrides: entries of the recipe to be otherwise; with `strict`, a model of drtk's own refuses them
    weights: False leaves the backbone's on disk: it then says how it is built, and computes nothing
    Raises MismatchError for a folder that is no encoder or contradicts a wish, DrtkError for one that is damaged.
    """
    from transformers import AutoModel, AutoModelForTextEncoding

    layout = read_layout(folder)
    with report_load_errors(folder, "cannot be loaded as an encoder"):
        config = load_config(layout.backbone)
        loader = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
        if weights:
            backbone, _ = load_weights(loader, layout.backbone)
        else:
            with torch.device("meta"):
                backbone = loader.from_config(config, dtype=torch.float32)
        tokenizer = load_tokenizer(layout.backbone, config)
        dense = [_load_dense(path) for path in layout.dense]
    longest = longest_input(tokenizer, config)
    stated = replace(
        layout.recipe,
        query_length=layout.recipe.query_length or longest,
        passage_length=layout.recipe.passage_length or longest,
    )
    recipe = stated.override(overrides or {}, strict=strict and layout.strict, folder=str(folder)).checked(POOLINGS)
    _check_length(folder, recipe, config)
    if recipe.title == "sep" and not tokenizer.sep_token:
        raise MismatchError(f"{folder}: its tokenizer has no separator token to put after a title")
    if recipe.lowercase:
        add_lowercasing(tokenizer)
    encoder = Encoder(
        backbone, pooling=recipe.pooling, dense=dense, normalize=recipe.normalize, truncate=recipe.truncate
    )
    if dense and dense[0].linear.in_features != encoder.hidden * len(recipe.pooling):
        raise MismatchError(f"{folder}: its Dense module does not fit the pooling {'+'.join(recipe.pooling)}")
    return TextEncoder(encoder.eval(), tokenizer, recipe)


def longest_input(tokenizer: Any, config: Any) -> int:
    """The longest input in tokens, as sentence-transformers takes it: the tokenizer's word, capped by the positions."""
    if not isinstance(tokenizer.model_max_length, int | float):
        raise MismatchError(
            f"{tokenizer.name_or_path}/tokenizer_config.json: 'model_max_length' must be a number; restore the file"
        )
    positions = getattr(config, "max_position_embeddings", None)
    longest = min(tokenizer.model_max_length, positions if positions and positions > 0 else tokenizer.model_max_length)
    return int(longest) if longest < 10**9 else LONGEST


def _check_length(folder: Path, recipe: Recipe, config: Any) -> None:
    positions = getattr(config, "max_position_embeddings", None) or 0
    absolute = getattr(config, "model_type", "") in ("bert", "roberta", "xlm-roberta", "mpnet", "electra", "distilbert")
    wanted = max(recipe.query_length, recipe.passage_length)
    if absolute and 0 < positions < wanted:
        raise MismatchError(f"{folder}: reads at most {positions} tokens; {wanted} were asked for")


def add_lowercasing(tokenizer: Any) -> None:
    """Let a tokenizer put texts into lower case first."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    found = backend.normalizer
    parts: list[Any] = list(found) if isinstance(found, Sequence) else [found] if found is not None else []  # type: ignore[call-overload]
    if not any(isinstance(part, Lowercase) for part in parts):
        backend.normalizer = Sequence([Lowercase(), *parts])


def _load_dense(path: Path) -> Dense:
    config = read_object(path / "config.json", in_features=int, out_features=int, activation_function=str | None)
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            raise MismatchError(f"{path}: a Dense module over {config[name]} gives no vector a text")
    layer = Dense(config, build_activation(path, config.get("activation_function", "torch.nn.modules.activation.Tanh")))
    if (path / "model.safetensors").exists():
        from safetensors.torch import load_file

        weights = load_file(path / "model.safetensors")
    else:
        weights = torch.load(path / "pytorch_model.bin", map_location="cpu", weights_only=True)
    layer.load_state_dict(weights)
    return layer.float()


def build_activation(path: Path, name: str) -> nn.Module:
    """The activation function that the folder `path` calls `name`. Raises MismatchError where it is none of torch.nn."""
    found = getattr(nn, name.rpartition(".")[2], None) if name.startswith("torch.nn.") else None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise MismatchError(f"{path}: the activation {name} is none of torch.nn")
    return found()


def save_encoder(model: TextEncoder, folder: Path) -> None:
    """Write the folder of an encoder: float32 weights as safetensors, tokenizer, and the files of `write_layout`.

    It loads with AutoModel and with SentenceTransformer; drtk reads the recipe from `meta.json`, which the caller writes.
    """
    from safetensors.torch import save_file

    encoder = model.encoder
    folder.mkdir(parents=True, exist_ok=True)
    model.tokenizer.model_max_length = max(model.recipe.query_length, model.recipe.passage_length)
    with quiet_transformers(), report_write_errors(folder):
        encoder.backbone.save_pretrained(folder)
        save_tokenizer(model.tokenizer, folder)
    write_layout(folder, model.recipe, hidden=encoder.hidden, dense=len(encoder.dense))
    for number, layer in enumerate(encoder.dense):
        path = folder / f"{number + 2}_Dense"
        write_json(path / "config.json", layer.config)
        with report_write_errors(path):
            save_file(
                {name: value.contiguous() for name, value in layer.state_dict().items()}, path / "model.safetensors"
            )


@contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """A disk that fills up is a DrtkError with its place: safetensors and torch have errors of their own for it.

    Weights may be read by whoever may read the folder's other files, which safetensors would not have.
    """
    from safetensors import SafetensorError

    try:
        yield
        for path in folder.glob("*.safetensors") if folder.is_dir() else ():
            path.chmod(0o666 & ~_umask())
    except SafetensorError as error:
        raise DrtkError(f"{folder}: {error}") from error
    except RuntimeError as error:
        if not any(name in str(error) for name in ("PytorchStreamWriter", "inline_container", "iostream error")):
            raise
        raise DrtkError(f"{folder}: cannot be written; the disk may be full") from error


def _umask() -> int:
    found = os.umask(0o077)  # it can only be read by setting it
    os.umask(found)
    return found


def weights_digest(folder: Path) -> str:
    """A digest of what decides the vectors of a folder: weights of the backbone and of Dense modules, and pooling.

    Lengths, prompts and titles are not in it: queries and passages of one model may differ in them.
    """
    layout = read_layout(folder)
    digest = hashlib.blake2b(digest_size=16)
    recipe = layout.recipe
    digest.update(repr((recipe.pooling, recipe.normalize, recipe.truncate)).encode())
    for path in (layout.backbone, *layout.dense):
        files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
        for file in files:
            digest.update(content_digest(file).encode())
    return digest.hexdigest()


def config_digest(backbone: Path) -> str:
    """Return a digest of the configuration beside a backbone's weights."""
    return digest_file(backbone / "config.json")


def tokenizer_digest(backbone: Path) -> str:
    """Return a digest of the tokenizer files beside a backbone's weights."""
    files = sorted(file for pattern in _TOKENIZER_FILES for file in backbone.glob(pattern))
    return hashlib.blake2b("".join(map(digest_file, files)).encode(), digest_size=16).hexdigest()


_TOKENS = 1 << 14


@torch.inference_mode()
def embed_texts(model: TextEncoder, items: Sequence[Any], *, role: Role) -> np.ndarray:
    """The vectors of passages, queries or plain texts in their order, (items, dimension) float32, in evaluation mode."""
    encoder = model.encoder
    device = next(encoder.parameters()).device
    was = encoder.training
    encoder.eval()
    try:
        tokenizing = model.tokenizing(role)
        tokens = tokenizing(items)
        found = np.empty((len(tokens), encoder.dimension), dtype=np.float32)
        for rows in batches_by_length(tokens.lengths, budget=_TOKENS):
            batch = tokens.pad(rows, pad=tokenizing.pad, left=tokenizing.left)
            inputs = {name: torch.from_numpy(values).to(device) for name, values in batch.items()}
            found[rows] = encoder(**inputs, prompt_length=model.prompt_length(role)).float().cpu().numpy()
    finally:
        encoder.train(was)
    return found


def embed_for_scoring(towers: Mapping[str, TextEncoder], items: Sequence[Any], role: Role) -> np.ndarray:
    """`embedded` by the tower of a role, of length 1 where vectors are compared by cosine: inner products then do."""
    tower = towers.get(role, towers["passage"])
    rows = embed_texts(tower, items, role=role)
    if tower.recipe.similarity == "cosine":
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows
