"""Load text encoders from model folders and save them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.config import SPARSE_POOLING, check_pooling
from drtk.models.device import copy_to_device
from drtk.models.encoder import Dense, Encoder
from drtk.models.exported_backbone import ExportedBackbone, find_exported_file
from drtk.models.lm_head import LM_HEAD, LMHead, build_masked_lm, get_head_path, load_lm_head
from drtk.models.loading import load_config, load_pretrained, load_tokenizer, report_load_errors
from drtk.models.model_folder import MODULES, EncodingConfig, Role, read_layout, write_layout, write_sparse_layout
from drtk.runtime.atomic import set_default_permissions, write_json
from drtk.runtime.integrity import compute_content_digest, read_object
from drtk.runtime.progress import silence_transformers
from drtk.runtime.remote_code import is_remote_code_trusted
from drtk.runtime.streams import digest_file
from drtk.text.batching import TextTokenizer, iter_batches_by_length

_TOKENIZER_FILES = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
# Model types whose first position is the one after the padding id
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
DEFAULT_MAX_LENGTH = 512  # tokens, for models and tokenizers without a limit
_BATCH_TOKENS, _SPARSE_BATCH_TOKENS = 1 << 14, 1 << 11  # a sparse encoder computes logits over the vocabulary
_NO_LM_HEAD = "has no trained masked-LM head; train one with `drtk pretrain`"


@dataclass
class TextEncoder:
    """An encoder with its tokenizer and encoding configuration."""

    encoder: Encoder
    tokenizer: Any
    encoding: EncodingConfig

    def get_tokenizer(self, role: Role) -> TextTokenizer:
        """Return the tokenizer for queries or passages, with the prompt and the maximum length of this role."""
        return TextTokenizer(
            self.tokenizer,
            prompt=self.encoding.get_prompt(role),
            max_length=self.encoding.get_max_length(role),
            title=self.encoding.title,
            with_types="token_type_ids" in self.tokenizer.model_input_names,
        )

    def count_prompt_tokens(self, role: Role) -> int:
        """Return the number of tokens at the start of a text that pooling excludes: special tokens and prompt.

        Returns 0 if pooling includes the prompt, or if the role has no prompt.
        """
        prompt = self.encoding.get_prompt(role)
        if self.encoding.include_prompt or not prompt:
            return 0
        ids = self.tokenizer(prompt, truncation=True, max_length=self.encoding.get_max_length(role))["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)


def load_encoder(
    folder: Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    strict: bool = True,
    weights: bool = True,
    model_file: str | None = None,
) -> TextEncoder:
    """Load the text encoder of a model folder in float32 on the CPU, in evaluation mode.

    overrides: fields of the model's EncodingConfig to replace; None values are ignored
    strict: reject overrides that contradict the training of a drtk model
    weights: False: build the backbone without weights, on the meta device
    model_file: ONNX or OpenVINO file of the backbone in the folder, to run instead of the weights
    A plain transformers model gets CLS pooling, or the last token with causal attention, and no normalization.
    Raises MismatchError for a folder without an encoder, or overrides that contradict its training or do not fit it,
    UsageError for an unknown pooling, DrtkError for a damaged folder.
    """
    from transformers import AutoModel, AutoModelForTextEncoding

    layout = read_layout(folder)
    is_plain = not layout.strict and not (folder / MODULES).exists()
    with report_load_errors(folder, "cannot be loaded as an encoder"):
        config = load_config(layout.backbone)
        loader = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
        backbone: Any = None
        if weights and model_file is None:
            backbone, _ = load_pretrained(loader, layout.backbone)
        elif is_plain or model_file is None:
            with torch.device("meta"):
                backbone = loader.from_config(config, dtype=torch.float32, trust_remote_code=is_remote_code_trusted())
        has_causal_default = is_plain and _has_causal_attention(backbone)
        if model_file is not None:
            backbone = ExportedBackbone(find_exported_file(folder, layout.backbone, model_file), config)
        tokenizer = load_tokenizer(layout.backbone, config)
        dense = [_load_dense(path) for path in layout.dense]
    max_length = get_max_length(tokenizer, config)
    encoding = replace(
        layout.encoding,
        pooling=("lasttoken",) if has_causal_default else layout.encoding.pooling,
        query_length=layout.encoding.query_length or max_length,
        passage_length=layout.encoding.passage_length or max_length,
    ).override(overrides or {}, strict=strict and layout.strict, folder=str(folder))
    check_pooling("+".join(encoding.pooling), allow_sparse=True)
    positions = get_max_positions(config)
    has_absolute_positions = config.model_type in ("bert", "roberta", "xlm-roberta", "mpnet", "electra", "distilbert")
    if has_absolute_positions and 0 < positions < (length := max(encoding.query_length, encoding.passage_length)):
        raise MismatchError(f"{folder}: cannot read {length} tokens; use at most {positions}")
    if encoding.title == "sep" and not tokenizer.sep_token:
        raise MismatchError(f"{folder}: `title` sep requires a tokenizer with a separator token; use join or segment")
    if encoding.lowercase:
        add_lowercasing(tokenizer)
    head = load_lm_head(folder, backbone) if weights and encoding.pooling == SPARSE_POOLING else None
    if head is not None and head.is_untrained:
        raise MismatchError(f"{folder}: {_NO_LM_HEAD}")
    encoder = Encoder(
        backbone,
        pooling=encoding.pooling,
        dense=dense,
        normalize=encoding.normalize,
        truncate=encoding.truncate,
        head=head,
    )
    if dense and dense[0].linear.in_features != encoder.hidden_size * len(encoding.pooling):
        raise MismatchError(
            f"{folder}: `pooling` {'+'.join(encoding.pooling)} does not fit the model's Dense module; omit `pooling`"
        )
    return TextEncoder(encoder.eval(), tokenizer, encoding)


def load_masked_lm(folder: Path) -> tuple[Any, LMHead, Any]:
    """Load a model folder as (backbone, masked-LM head, tokenizer), in float32 on the CPU, in evaluation mode.

    If the folder has no head, a head is randomly initialized.
    Raises the errors of `load_encoder` and `load_lm_head`.
    """
    loaded = load_encoder(folder)
    backbone = loaded.encoder.backbone
    return backbone, load_lm_head(folder, backbone), loaded.tokenizer


def load_trained_masked_lm(folder: Path) -> tuple[Any, Any]:
    """Load a model folder as (masked language model of transformers, tokenizer).

    Raises MismatchError if the folder has no trained masked-LM head, and the errors of `load_masked_lm`.
    """
    backbone, head, tokenizer = load_masked_lm(folder)
    if head.is_untrained:
        raise MismatchError(f"{folder}: {_NO_LM_HEAD}")
    return build_masked_lm(backbone, head), tokenizer


def save_lm_head(head: LMHead, folder: Path) -> None:
    """Write a masked-LM head into a model folder."""
    save_module(head, get_head_path(folder, LM_HEAD))


def get_max_length(tokenizer: Any, config: Any) -> int:
    """Return the maximum input length in tokens: the minimum of the tokenizer's limit and the model's number of positions.

    Without any limit: DEFAULT_MAX_LENGTH. config: configuration of transformers
    """
    positions = get_max_positions(config)
    max_length = min(tokenizer.model_max_length, positions) if positions else tokenizer.model_max_length
    return int(max_length) if max_length < 10**9 else DEFAULT_MAX_LENGTH


def get_max_training_length(tokenizer: Any, config: Any) -> int:
    """Return the maximum input length in tokens of a model to train further: its number of positions, if it has any.

    A lower limit of the tokenizer is ignored: it is the length of the training before. config: configuration of transformers
    """
    return get_max_positions(config) or get_max_length(tokenizer, config)


def get_max_positions(config: Any) -> int:
    """Return the maximum input length of a model in tokens, from its transformers configuration; 0 without maximum.

    The positions that RoBERTa reserves for padding do not count.
    """
    positions = getattr(config, "max_position_embeddings", None) or 0
    if positions > 0 and config.model_type in _AFTER_PADDING:
        positions -= config.pad_token_id + 1
    return max(int(positions), 0)


def add_lowercasing(tokenizer: Any) -> None:
    """Make a tokenizer lowercase its input, in place."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    normalizer: Any = backend.normalizer
    parts = list(normalizer) if isinstance(normalizer, Sequence) else [normalizer] if normalizer is not None else []  # type: ignore[call-overload]
    if not any(isinstance(part, Lowercase) for part in parts):
        backend.normalizer = Sequence([Lowercase(), *parts])


def _has_causal_attention(backbone: nn.Module) -> bool:
    """Return whether tokens attend only to earlier tokens, so the first token does not depend on the text."""
    config: Any = backbone.config
    is_bidirectional = (
        getattr(config, "use_bidirectional_attention", False) or getattr(config, "is_causal", True) is False
    )
    return not is_bidirectional and any(getattr(module, "is_causal", False) for module in backbone.modules())


def _load_dense(path: Path) -> Dense:
    from safetensors.torch import load_file

    config = read_object(path / "config.json", in_features=int, out_features=int, activation_function=str | None)
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            raise MismatchError(
                f"{path}: a Dense module applied to {config[name]} is not supported; use a model that applies it to sentence_embedding"
            )
    layer = Dense(config, build_activation(path, config.get("activation_function", "torch.nn.modules.activation.Tanh")))
    file = path / "model.safetensors"
    legacy = path / "pytorch_model.bin"
    layer.load_state_dict(
        load_file(file) if file.exists() else torch.load(legacy, map_location="cpu", weights_only=True)
    )
    return layer.float()


def build_activation(path: Path, name: str) -> nn.Module:
    """Return the activation function with this qualified class name, such as torch.nn.modules.activation.Tanh.

    path: folder, for the error message    Raises MismatchError for a class that is not in torch.nn.
    """
    activation = getattr(nn, name.rpartition(".")[2], None) if name.startswith("torch.nn.") else None
    if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
        raise MismatchError(f"{path}: activation {name} is not supported; use one of torch.nn")
    return activation()


def save_encoder(model: TextEncoder, folder: Path) -> None:
    """Write a model folder that AutoModel and SentenceTransformer or SparseEncoder load: weights, tokenizer and configuration.

    The caller writes `meta.json`, which contains the EncodingConfig.
    """
    encoder = model.encoder
    model.tokenizer.model_max_length = max(model.encoding.query_length, model.encoding.passage_length)
    whole = build_masked_lm(encoder.backbone, encoder.head) if encoder.is_sparse else encoder.backbone
    save_pretrained_model(whole, model.tokenizer, folder)
    if encoder.is_sparse:
        write_sparse_layout(folder, model.encoding, vocabulary=encoder.dimension)
        return
    write_layout(folder, model.encoding, hidden=encoder.hidden_size, dense=len(encoder.dense))
    for number, layer in enumerate(encoder.dense):
        path = folder / f"{number + 2}_Dense"
        write_json(path / "config.json", layer.config)
        save_module(layer, path / "model.safetensors")


def save_pretrained_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model folder that transformers loads: weights, configuration and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer.is_fast:  # the truncation and padding of its last call would make the files differ
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    with silence_transformers(), report_write_errors(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def save_module(module: nn.Module, path: Path) -> None:
    """Write the weights of a module as safetensors in their current dtype."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with report_write_errors(path.parent):
        save_file({name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}, path)


@contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Convert write errors of safetensors and torch, such as a full disk, to a DrtkError that names the folder.

    Also set the permissions of weight files by the umask, which safetensors ignores.
    """
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise DrtkError(f"{folder}: cannot be written ({error}); check disk space and permissions") from error
    except RuntimeError as error:
        if not any(name in str(error) for name in ("PytorchStreamWriter", "inline_container", "iostream error")):
            raise
        raise DrtkError(f"{folder}: cannot be written; the disk may be full") from error
    for path in folder.glob("*.safetensors"):
        set_default_permissions(path)


def digest_weights(folder: Path, *, model_file: str | None = None) -> str:
    """Return a digest, as hex string, of the weights, pooling, normalization and truncation of a text encoder.

    model_file: ONNX or OpenVINO file of the backbone, which is used instead of the weights
    The digest excludes lengths, prompts and title formats, which may differ between the queries and passages of one model.
    """
    layout = read_layout(folder)
    encoding = layout.encoding
    digest = hashlib.blake2b(repr((encoding.pooling, encoding.normalize, encoding.truncate)).encode(), digest_size=16)
    backbone = list_weight_files(layout.backbone)
    if model_file is not None:
        exported = find_exported_file(folder, layout.backbone, model_file)
        backbone = sorted(exported.parent.glob(f"{exported.stem}.*"))  # and its external weights
    for files in (backbone, *map(list_weight_files, layout.dense)):
        for file in files:
            digest.update(compute_content_digest(file).encode())
    return digest.hexdigest()


def list_weight_files(path: Path) -> list[Path]:
    """Return the weight files in a folder, sorted by name: safetensors files, or PyTorch files if there are none."""
    return sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))


def digest_tokenizer(backbone: Path) -> str:
    """Return a digest, as hex string, of the tokenizer files in a backbone's folder."""
    files = sorted(file for pattern in _TOKENIZER_FILES for file in backbone.glob(pattern))
    return hashlib.blake2b("".join(map(digest_file, files)).encode(), digest_size=16).hexdigest()


@torch.inference_mode()
def embed_texts(model: TextEncoder, items: Sequence[Any], *, role: Role) -> np.ndarray:
    """Return the vectors of texts, (len(items), dimension) float32, computed in evaluation mode.

    items: passages, queries or strings    role: whose prompt and maximum length to use
    """
    encoder = model.encoder
    device = next(encoder.parameters(), torch.empty(0)).device  # an exported model has no parameters
    training = encoder.training
    encoder.eval()
    try:
        tokenizer = model.get_tokenizer(role)
        tokens = tokenizer(items)
        vectors = np.empty((len(tokens), encoder.dimension), dtype=np.float32)
        budget = _SPARSE_BATCH_TOKENS if encoder.is_sparse else _BATCH_TOKENS
        prompt_length = model.count_prompt_tokens(role)
        for rows in iter_batches_by_length(tokens.lengths, budget=budget):
            inputs = copy_to_device(tokens.pad(rows, pad=tokenizer.pad, left=tokenizer.left), device)
            vectors[rows] = encoder(**inputs, prompt_length=prompt_length).float().cpu().numpy()
    finally:
        encoder.train(training)
    return vectors


def embed_for_dot_product(towers: Mapping[str, TextEncoder], items: Sequence[Any], role: Role) -> np.ndarray:
    """Return the vectors of items, (len(items), dimension) float32, normalized if the model uses cosine similarity.

    Their dot products are the model's scores. towers: encoders by role, as `load_towers` returns them
    """
    tower = towers.get(role, towers["passage"])
    vectors = embed_texts(tower, items, role=role)
    if tower.encoding.similarity == "cosine":
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors
