"""Load, initialize, run and save cross-encoders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import (
    add_lowercasing,
    build_activation,
    digest_config,
    digest_tokenizer,
    get_max_length,
    list_weight_files,
    report_write_errors,
)
from drtk.models.config import CrossEncoderSettings
from drtk.models.device import choose_device, choose_dtype
from drtk.models.encoder import run_by_length
from drtk.models.loading import (
    load_config,
    load_tokenizer,
    load_weights,
    report_load_errors,
    save_tokenizer,
)
from drtk.models.model_folder import (
    MODULES,
    locate,
    read_layout,
    read_module_settings,
    read_modules,
    read_shared_config,
    read_training_entry,
    resolve_tower_folder,
)
from drtk.runtime.integrity import compute_content_digest, read_object
from drtk.runtime.progress import silence_transformers, warn
from drtk.runtime.workers import read_ahead
from drtk.text.batching import PairTokenizer, TokenizedTexts, iter_batches_by_length

WINDOW = 16384  # pairs tokenized at once
PAIRING = "pairing"  # entry of meta.json: the format of passages
IDENTITY = "torch.nn.modules.linear.Identity"
_CPU_TOKENS, _GPU_TOKENS = 2048, 65536
_BOUNDS: tuple[tuple[type[nn.Module], tuple[float, float]], ...] = ((nn.Sigmoid, (0, 1)), (nn.Tanh, (-1, 1)))
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")  # their first position is the one after the padding id


@dataclass
class CrossEncoder:
    """A sequence classifier with one label, its tokenizer and its activation function.

    max_length: maximum length of a pair, in tokens
    activation: applied to the logit
    prompt: text before the first text of every pair
    """

    model: nn.Module
    tokenizer: Any
    max_length: int
    activation: nn.Module
    prompt: str = ""


def load_cross_encoder(folder: Path) -> CrossEncoder:
    """Load a cross-encoder that sentence-transformers can load, in float32 on the CPU.

    As in sentence-transformers, the activation function is a sigmoid unless the folder names another.
    Raises MismatchError for a model without a trained head or with several labels, DrtkError for a damaged folder.
    """
    from transformers import AutoModelForSequenceClassification

    path, shared = _read_layout(folder)
    settings = read_module_settings(path)
    with report_load_errors(folder, "cannot be loaded as a cross-encoder"):
        config = load_config(path)
        names = config.architectures or ()
        if names and not any(name.endswith("ForSequenceClassification") for name in names):
            raise MismatchError(f"{folder}: is a {names[0]}; a cross-encoder is needed")
        if config.num_labels != 1:
            raise MismatchError(f"{folder}: has {config.num_labels} labels; a model with one label is needed")
        model, missing = load_weights(AutoModelForSequenceClassification, path)
        if missing:  # transformers initializes them at random
            raise MismatchError(
                f"{folder}: is no cross-encoder: it has no weights for {missing[0]}; train one with `drtk train-reranker`"
            )
        tokenizer = load_tokenizer(path, config)
    if settings.get("do_lower_case"):
        add_lowercasing(tokenizer)
    processor = settings.get("processor_kwargs") or settings.get("tokenizer_args") or {}
    text = (settings.get("processing_kwargs") or {}).get("text") or {}
    lengths = (  # sentence-transformers stores the maximum length in several places
        settings.get("max_seq_length"),
        processor.get("model_max_length"),
        text.get("max_length"),
        get_max_length(tokenizer, config),
    )
    return CrossEncoder(
        model.eval(),
        tokenizer,
        min(filter(None, lengths)),
        _load_activation(path, shared, config),
        (shared.get("prompts") or {}).get(shared.get("default_prompt_name")) or "",
    )


def _read_layout(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the weights and config_sentence_transformers.json, {} for the older layout without it."""
    if not (folder / MODULES).exists():
        if not (folder / "config.json").exists():
            raise MismatchError(f"{folder}: is no model folder: it has neither {MODULES} nor config.json")
        return folder, {}
    shared = read_shared_config(folder)
    kind = shared.get("model_type", "SentenceTransformer")
    if kind != "CrossEncoder":
        raise MismatchError(f"{folder}: is a {kind}; a CrossEncoder is needed: train one with `drtk train-reranker`")
    modules = read_modules(folder)
    for module in modules[1:]:
        raise MismatchError(f"{folder / MODULES}: has a module that drtk does not support: {module['type']}")
    path = folder / modules[0]["path"]
    task = read_module_settings(path).get("transformer_task", "sequence-classification")
    if task != "sequence-classification":
        raise MismatchError(f"{folder}: its task is {task}; a model for sequence-classification is needed")
    return path, shared


def _load_activation(path: Path, shared: dict[str, Any], config: Any) -> nn.Module:
    stated = getattr(config, "sentence_transformers", None)
    old = getattr(config, "sbert_ce_default_activation_function", None)  # before version 4
    name = shared.get("activation_fn") or (stated.get("activation_fn") if isinstance(stated, dict) else None) or old
    try:
        return nn.Sigmoid() if name is None else build_activation(path, name)
    except MismatchError as error:  # sentence-transformers falls back to a sigmoid too
        warn(f"{error}; using a sigmoid, which changes the scores but not their order")
        return nn.Sigmoid()


class TokenizedPairs(NamedTuple):
    """The tokens of the distinct pairs, and for every pair the row of its tokens, (pairs,)."""

    tokens: TokenizedTexts
    rows: np.ndarray


class CrossEncoderScorer:
    """Score pairs of texts with a cross-encoder; higher scores are better.

    Equal pairs are scored once, so their scores are equal in any batch.

    model: a folder or hub name
    logits: return logits instead of applying the activation function
    make_tokenizer: (tokenizer of the model) -> function from inputs to Tokens, for models whose inputs are not pairs
    batch_field: the field that sets `settings.batch_tokens`, named in the out-of-memory error
    Raises MismatchError for a `max_length` above the model's, or a query re-ranker (its lower scores are better), and what
    `load_cross_encoder` raises.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        settings: CrossEncoderSettings | None = None,
        logits: bool = False,
        make_tokenizer: Callable[[Any], Any] | None = None,
        batch_field: str = "batch_tokens",
    ) -> None:
        settings = settings or CrossEncoderSettings()
        self.model, self._batch_field = model, batch_field
        self.device = choose_device(device)
        folder = locate(model)
        if make_tokenizer is None:
            check_not_query_reranker(model)
        loaded = load_cross_encoder(folder)
        self._activation = nn.Identity() if logits else loaded.activation
        if settings.max_length is not None and settings.max_length > loaded.max_length:
            raise MismatchError(
                f"{model}: reads at most {loaded.max_length} tokens; {settings.max_length} were requested"
            )
        self.max_length = settings.max_length or loaded.max_length
        config: Any = loaded.model.config
        self.dtype = choose_dtype(settings.precision, self.device, kind=config.model_type)
        self._model = loaded.model.to(self.device, self.dtype)
        self._budget = settings.batch_tokens or (_CPU_TOKENS if self.device.type == "cpu" else _GPU_TOKENS)
        self._tokenizer = (
            PairTokenizer(loaded.tokenizer, max_length=self.max_length, prompt=loaded.prompt)
            if make_tokenizer is None
            else make_tokenizer(loaded.tokenizer)
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and highest possible score."""
        return next((bounds for kind, bounds in _BOUNDS if isinstance(self._activation, kind)), (-inf, inf))

    @property
    def dimension(self) -> int:
        """Dimension of the vectors of `scores_and_vectors`."""
        config: Any = self._model.config
        return int(config.get_text_config().hidden_size)

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return the scores of the pairs, (pairs,) float32."""
        windows = (pairs[start : start + WINDOW] for start in range(0, len(pairs), WINDOW))
        scores = [self.scores(tokenized) for tokenized in read_ahead(map(self.tokenize, windows))]
        return np.concatenate(scores) if scores else np.empty(0, dtype=np.float32)

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> TokenizedPairs:
        """Tokenize the pairs; the longer text of a pair that exceeds `max_length` is truncated."""
        row_of = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
        rows = np.fromiter((row_of[pair] for pair in pairs), dtype=np.int64, count=len(pairs))
        return TokenizedPairs(self._tokenizer(row_of), rows)

    def scores(self, pairs: TokenizedPairs) -> np.ndarray:
        """Return the scores of tokenized pairs, (pairs,) float32. Raises DrtkError for a NaN or infinite score, or out of memory."""
        return self._run(pairs, None)

    def scores_and_vectors(self, pairs: TokenizedPairs) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores, (pairs,), and the last hidden states of the first token, (pairs, dimension), both float32.

        Raises MismatchError for a model without a base model below its head, and what `scores` raises.
        """
        if self._model.base_model is self._model:
            raise MismatchError(f"{self.model}: has no base model below its head, so it has no vectors")
        vectors = torch.empty((len(pairs.tokens), self.dimension), dtype=torch.float32, device=self.device)
        return self._run(pairs, vectors), vectors.cpu().numpy()[pairs.rows]

    @torch.inference_mode()
    def _run(self, pairs: TokenizedPairs, vectors: Tensor | None) -> np.ndarray:
        """Return the scores, (pairs,); write the vectors of the distinct pairs into `vectors` if it is not None."""
        tokens, rows = pairs
        out = torch.empty(len(tokens), dtype=torch.float32, device=self.device)
        states: list[Tensor] = []
        hook = None
        if vectors is not None:  # one forward pass computes scores and vectors
            body: Any = self._model.base_model
            hook = body.register_forward_hook(lambda _module, _inputs, outputs: states.append(outputs[0]))
        try:
            for batch_rows in iter_batches_by_length(tokens.lengths, budget=self._budget):
                batch = tokens.pad(batch_rows, pad=self._tokenizer.pad, left=self._tokenizer.left)
                inputs = {name: torch.from_numpy(array).to(self.device) for name, array in batch.items()}
                index = torch.from_numpy(batch_rows).to(self.device)
                try:
                    logits = self._model(**inputs).logits
                except torch.OutOfMemoryError as error:
                    raise DrtkError(
                        f"{self.device}: out of memory at {batch['input_ids'].size:,} tokens of pairs; "
                        f"lower `{self._batch_field}`"
                    ) from error
                out[index] = self._activation(logits.float()).squeeze(-1)  # (batch,)
                if vectors is not None:
                    hidden = states.pop()  # (batch, tokens, dimension)
                    first = inputs["attention_mask"].argmax(dim=1)  # padding may be on the left
                    vectors[index] = hidden[torch.arange(len(hidden), device=self.device), first].float()
        finally:
            if hook is not None:
                hook.remove()
        scores: np.ndarray = out.cpu().numpy()
        if not np.isfinite(scores).all():
            raise DrtkError(f"{self.model}: a score is NaN or infinite in {self.dtype}")
        return scores[rows]


def check_not_query_reranker(model: str) -> None:
    """Raise MismatchError for a query re-ranker, whose scores are estimated ranks (lower is better)."""
    if read_training_entry(locate(model), "query_reranker") is not None:
        raise MismatchError(
            f"{model}: is a query re-ranker; use it with `drtk rerank-queries apply`, or a cross-encoder here"
        )


def identify_scorer(model: str) -> dict[str, Any]:
    """Return the identity of a cross-encoder: name, dimension, and digests of weights, configuration and tokenizer."""
    path, _ = _read_layout(locate(model))
    digest = hashlib.blake2b(digest_size=16)
    for file in list_weight_files(path):
        digest.update(compute_content_digest(file).encode())
    config: Any = load_config(path)
    return {
        "model": os.path.abspath(model) if os.path.isdir(model) else model,
        "digest": digest.hexdigest(),
        "dimension": int(config.get_text_config().hidden_size),
        "config": digest_config(path),
        "tokenizer": digest_tokenizer(path),
    }


class PairClassifier(nn.Module):
    """A sequence classifier with one label, for training.

    group_tokens: score pairs in groups of similar length of at most this many tokens, to save padding; None: all together
    """

    def __init__(self, classifier: nn.Module, *, group_tokens: int | None = None) -> None:
        super().__init__()
        self.classifier, self.group_tokens = classifier, group_tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the logits, (pairs,) float32. Each input: (pairs, tokens)"""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        inputs |= {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        if self.group_tokens is None:
            return self._logits(inputs)
        return run_by_length(self._logits, inputs, partial(iter_batches_by_length, budget=self.group_tokens))

    def _logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self.classifier(**inputs).logits
        return logits.float().squeeze(-1)


def init_cross_encoder(model: str, *, max_length: int | None, seed: int, default: int) -> CrossEncoder:
    """Load the cross-encoder to start training from: an existing one, or an encoder with a new randomly initialized head.

    The result has no activation function and no prompt.

    model: a folder or hub name; the passage encoder of an untied bi-encoder
    max_length: maximum length of a pair in tokens; None: `default`, or the model's maximum if that is less
    Raises MismatchError for a folder without an encoder or a `max_length` above its maximum, DrtkError for a damaged folder.
    """
    from transformers import AutoModelForSequenceClassification

    folder = resolve_tower_folder(locate(model), "passage")
    layout = None if is_classifier(folder) else read_layout(folder)
    if layout is None:
        loaded = load_cross_encoder(folder)
        classifier, tokenizer = loaded.model, loaded.tokenizer
    else:
        with report_load_errors(folder, "cannot be loaded as an encoder"), torch.random.fork_rng(devices=[]):
            settings = load_config(layout.backbone)
            if settings.is_encoder_decoder:
                raise MismatchError(
                    f"{folder}: is an encoder-decoder ({settings.model_type}); an encoder such as BERT is needed"
                )
            torch.manual_seed(seed)
            classifier, _ = load_weights(AutoModelForSequenceClassification, layout.backbone, num_labels=1)
            tokenizer = load_tokenizer(layout.backbone, settings)
        if layout.encoding.lowercase:
            add_lowercasing(tokenizer)
    config: Any = classifier.config
    if tokenizer.pad_token_id is None:
        raise MismatchError(
            f"{model}: its tokenizer has no padding token; an encoder such as BERT or ELECTRA is needed"
        )
    positions = max(0, int(getattr(config, "max_position_embeddings", None) or 0))
    if positions and config.model_type in _AFTER_PADDING:
        positions -= config.pad_token_id + 1
    limit = positions or get_max_length(tokenizer, config)
    if max_length is not None and max_length > limit:
        raise MismatchError(f"{model}: reads at most {limit} tokens; {max_length} were requested")
    return CrossEncoder(classifier, tokenizer, max_length or min(default, limit), nn.Identity())


def is_classifier(folder: Path) -> bool:
    """Return whether a folder contains a sequence classifier, whose head training continues with."""
    path = folder / read_modules(folder)[0]["path"] if (folder / MODULES).exists() else folder
    if not (path / "config.json").exists():
        return False
    names = read_object(path / "config.json", architectures=list | None).get("architectures")
    return any(str(name).endswith("ForSequenceClassification") for name in names or ())


def save_cross_encoder(model: CrossEncoder, folder: Path) -> None:
    """Write a model folder that sentence-transformers' CrossEncoder loads, with the logits as scores.

    The caller writes the format of passages into `meta.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    classifier: Any = model.model
    classifier.config.sentence_transformers = {"activation_fn": IDENTITY}
    if hasattr(classifier.config, "sbert_ce_default_activation_function"):  # the older entry would contradict it
        classifier.config.sbert_ce_default_activation_function = IDENTITY
    model.tokenizer.model_max_length = model.max_length
    with silence_transformers(), report_write_errors(folder):
        classifier.save_pretrained(folder)
        save_tokenizer(model.tokenizer, folder)


def resolve_title(model: str, override: str | None, *, strict: bool, default: str = "join") -> str:
    """Return a cross-encoder's format of passage titles: `override`, else the format of its training, else `default`.

    strict: raise MismatchError if `override` contradicts the training
    """
    stated = (read_training_entry(locate(model), PAIRING) or {}).get("title")
    if strict and stated and override and override != stated:
        raise MismatchError(f"{model}: was trained with `title` {stated}; {override} contradicts it")
    return str(override or stated or default)
