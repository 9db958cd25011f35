"""Load, initialize, run and save cross-encoders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    digest_tokenizer,
    get_max_length,
    get_max_training_length,
    list_weight_files,
    save_pretrained_model,
)
from drtk.models.config import CrossEncoderSettings, ScorerSettings
from drtk.models.device import choose_device, choose_dtype, iter_inputs, move_model, report_out_of_memory
from drtk.models.encoder import run_in_length_groups
from drtk.models.generative_reranker import LOGIT_SCORE, PromptTokenizer, load_generative_reranker, make_pair_tokenizer
from drtk.models.loading import load_config, load_pretrained, load_tokenizer, report_load_errors
from drtk.models.model_folder import (
    MODULES,
    read_layout,
    read_meta_entry,
    read_module_settings,
    read_modules,
    read_shared_config,
    resolve_model_folder,
    resolve_tower_folder,
)
from drtk.models.packing import enable_packing, is_packed
from drtk.models.seq2seq import GenerationModel
from drtk.runtime.integrity import compute_content_digest, read_object
from drtk.runtime.progress import warn
from drtk.runtime.runners import read_ahead
from drtk.runtime.streams import digest_file
from drtk.text.batching import PairTokenizer, TokenizedTexts, iter_batches_by_length

TOKENIZE_BATCH_SIZE = 16384  # pairs tokenized at once
PAIRING = "pairing"  # entry of meta.json: the format of passages
IDENTITY = "torch.nn.modules.linear.Identity"
_CPU_TOKENS, _GPU_TOKENS = 2048, 65536
_BOUNDS: tuple[tuple[type[nn.Module], tuple[float, float]], ...] = ((nn.Sigmoid, (0, 1)), (nn.Tanh, (-1, 1)))


@dataclass
class CrossEncoder:
    """A sequence classifier with one label, or a generative reranker, with its tokenizer and its activation function.

    max_length: maximum length of a pair, in tokens
    activation: function from logits to scores
    prompt: text before the first text of every pair, or the system message of a chat template (monoT5 ignores it)
    generator: generation model of a generative reranker; None for a classifier
    chat_options: additional arguments of the generator's chat template
    """

    model: nn.Module
    tokenizer: Any
    max_length: int
    activation: nn.Module
    prompt: str = ""
    generator: GenerationModel | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)

    def make_tokenizer(self, max_length: int) -> PromptTokenizer | PairTokenizer:
        """Return the tokenizer of pairs, which truncates them to `max_length` tokens."""
        if self.generator is None:
            return PairTokenizer(self.tokenizer, max_length=max_length, prompt=self.prompt)
        return make_pair_tokenizer(self.generator, max_length=max_length, prompt=self.prompt, options=self.chat_options)


def load_cross_encoder(folder: Path) -> CrossEncoder:
    """Load a cross-encoder of sentence-transformers or transformers in float32 on the CPU, in evaluation mode.

    It may be a classifier or a generative reranker, such as monoT5.
    As in sentence-transformers, the default activation function is a sigmoid.
    Raises MismatchError for another type of model, no trained head or several labels, DrtkError for a damaged folder.
    """
    path, shared = _read_layout(folder)
    settings = read_module_settings(path)
    with report_load_errors(folder, "cannot be loaded as a cross-encoder"):
        config = load_config(path)
        names = config.architectures or ()
        generator: GenerationModel | None = None
        model: nn.Module
        if any(name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in names):
            model, generator = load_generative_reranker(folder, path)
            tokenizer = generator.tokenizer
        else:
            model, tokenizer = _load_classifier(folder, path, config)
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
    prompt = (shared.get("prompts") or {}).get(shared.get("default_prompt_name")) or ""
    chat = (settings.get("processing_kwargs") or {}).get("chat_template") or {}
    return CrossEncoder(
        model.eval(),
        tokenizer,
        min(filter(None, lengths)),
        _load_activation(path, shared, config),
        prompt,
        generator,
        chat,
    )


def _load_classifier(folder: Path, path: Path, config: Any) -> tuple[Any, Any]:
    """Return (sequence classifier, tokenizer). folder: model folder, for errors    path: folder of the weights"""
    from transformers import AutoModelForSequenceClassification

    names = config.architectures or ()
    if names and not any(name.endswith("ForSequenceClassification") for name in names):
        raise MismatchError(f"{folder}: expected a cross-encoder, got {names[0]}; use another model")
    if config.num_labels != 1:
        raise MismatchError(
            f"{folder}: expected a classifier with one label, got {config.num_labels} labels; use another model"
        )
    model, missing = load_pretrained(AutoModelForSequenceClassification, path)
    if missing:  # transformers initializes them at random
        raise MismatchError(
            f"{folder}: not a cross-encoder (no weights for {missing[0]}); train one with `drtk train-reranker`"
        )
    return model, load_tokenizer(path, config)


def _read_layout(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return (folder of the weights, content of config_sentence_transformers.json); the latter is {} without modules.json."""
    if not (folder / MODULES).exists():
        if not (folder / "config.json").exists():
            raise MismatchError(f"{folder}: not a model folder (neither {MODULES} nor config.json); check the path")
        return folder, {}
    shared = read_shared_config(folder)
    kind = shared.get("model_type", "SentenceTransformer")
    if kind != "CrossEncoder":
        raise MismatchError(f"{folder}: expected a CrossEncoder, got a {kind}; train one with `drtk train-reranker`")
    modules = read_modules(folder)
    for module in modules[1:]:
        if module["type"].rpartition(".")[2] != LOGIT_SCORE:
            raise MismatchError(f"{folder / MODULES}: module {module['type']} is not supported; use another model")
    path = folder / modules[0]["path"]
    task = read_module_settings(path).get("transformer_task", "sequence-classification")
    expected = "text-generation" if len(modules) > 1 else "sequence-classification"
    if task != expected:
        raise MismatchError(f"{folder}: expected task {expected}, got {task}; use another model")
    return path, shared


def _load_activation(path: Path, shared: dict[str, Any], config: Any) -> nn.Module:
    stated = getattr(config, "sentence_transformers", None)
    old = getattr(config, "sbert_ce_default_activation_function", None)  # of sentence-transformers before 4
    name = shared.get("activation_fn") or (stated.get("activation_fn") if isinstance(stated, dict) else None) or old
    try:
        return nn.Sigmoid() if name is None else build_activation(path, name)
    except MismatchError as error:  # sentence-transformers falls back to a sigmoid too
        warn(f"{error}; using a sigmoid, which changes the scores but not the ranking")
        return nn.Sigmoid()


class TokenizedPairs(NamedTuple):
    """Tokenized text pairs without duplicates. rows: (pairs,), row in `tokens` of each input pair"""

    tokens: TokenizedTexts
    rows: np.ndarray


class CrossEncoderScorer:
    """Scorer of text pairs with a cross-encoder; higher scores are better.

    Equal pairs that are tokenized together are scored once, so their scores are equal.

    model: a folder or hub name
    logits: return logits instead of applying the activation function
    make_tokenizer: function from the model's tokenizer to a function that tokenizes inputs; None: inputs are text pairs
    batch_field: name of the option that sets `settings.batch_tokens`, for the out-of-memory error
    Raises MismatchError for a `max_length` above the model's or, without `make_tokenizer`, for a query reranker (its scores
    are ranks, lower is better), and the errors of `load_cross_encoder`.
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
        folder = resolve_model_folder(model)
        if make_tokenizer is None:
            check_not_query_reranker(model)
        loaded = load_cross_encoder(folder)
        self._activation = nn.Identity() if logits else loaded.activation
        if settings.max_length is not None and settings.max_length > loaded.max_length:
            raise MismatchError(f"{model}: cannot read {settings.max_length} tokens; use at most {loaded.max_length}")
        self.max_length = settings.max_length or loaded.max_length
        config: Any = loaded.model.config
        self.dtype = choose_dtype(settings.precision, self.device, model_type=config.model_type)
        self._model = loaded.model
        move_model(self._model, self.device, self.dtype)
        if settings.packed:
            enable_packing(self._model.base_model, self.device)
        self._budget = settings.batch_tokens or (_CPU_TOKENS if self.device.type == "cpu" else _GPU_TOKENS)
        if make_tokenizer is not None:
            self._tokenizer = make_tokenizer(loaded.tokenizer)
        else:
            self._tokenizer = loaded.make_tokenizer(self.max_length)

    @property
    def score_bounds(self) -> tuple[float, float]:
        """The lowest and the highest possible score; (-inf, inf) for other activations than sigmoid and tanh."""
        return next((bounds for kind, bounds in _BOUNDS if isinstance(self._activation, kind)), (-inf, inf))

    @property
    def dimension(self) -> int:
        """The dimension of the vectors that `compute_scores_and_vectors` returns."""
        config: Any = self._model.config
        return int(config.get_text_config().hidden_size)

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return the scores of text pairs, (pairs,) float32. Raises the errors of `compute_scores`."""
        batches = (pairs[start : start + TOKENIZE_BATCH_SIZE] for start in range(0, len(pairs), TOKENIZE_BATCH_SIZE))
        scores = [self.compute_scores(tokenized) for tokenized in read_ahead(map(self.tokenize, batches))]
        return np.concatenate(scores) if scores else np.empty(0, dtype=np.float32)

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> TokenizedPairs:
        """Tokenize text pairs, each distinct pair once.

        In pairs of more than `max_length` tokens, the longer text is truncated first. If the model has a prompt template,
        the prompt is truncated before its suffix instead.
        """
        row_of = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
        rows = np.fromiter((row_of[pair] for pair in pairs), dtype=np.int64, count=len(pairs))
        return TokenizedPairs(self._tokenizer(row_of), rows)

    def compute_scores(self, pairs: TokenizedPairs) -> np.ndarray:
        """Return the scores of tokenized pairs, (pairs,) float32. Raises DrtkError for a NaN or infinite score, or out of memory."""
        return self._score_batches(pairs, None)

    def compute_scores_and_vectors(self, pairs: TokenizedPairs) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores, (pairs,), and the last hidden states of the first token, (pairs, dimension), both float32.

        Raises MismatchError if the model has no encoder below its head, and the errors of `compute_scores`.
        """
        if self._model.base_model is self._model:
            raise MismatchError(f"{self.model}: has no encoder to take vectors from; use another cross-encoder")
        vectors = torch.empty((len(pairs.tokens), self.dimension), dtype=torch.float32, device=self.device)
        return self._score_batches(pairs, vectors), vectors.cpu().numpy()[pairs.rows]

    @torch.inference_mode()
    def _score_batches(self, pairs: TokenizedPairs, vectors: Tensor | None) -> np.ndarray:
        """Return the scores, (pairs,). vectors: (len(pairs.tokens), dimension), is filled with vectors; None: no vectors"""
        tokens, rows = pairs
        out = torch.empty(len(tokens), dtype=torch.float32, device=self.device)
        states: list[Tensor] = []
        hook = None
        if vectors is not None:  # one forward pass computes scores and vectors
            body: Any = self._model.base_model
            hook = body.register_forward_hook(lambda _module, _inputs, outputs: states.append(outputs[0]))
        batches = iter_inputs(tokens, self._tokenizer, budget=self._budget, device=self.device)
        try:
            for index, inputs in batches:
                num_tokens = inputs["input_ids"].numel()
                with report_out_of_memory(self.device, f"lower `{self._batch_field}`", num_tokens=num_tokens):
                    logits = self._model(**inputs).logits
                out[index] = self._activation(logits.float()).squeeze(-1)  # (batch,)
                if vectors is not None:
                    hidden = states.pop()  # (batch, tokens, dimension)
                    first = inputs["attention_mask"].argmax(dim=1)  # padding may be on the left
                    vectors[index] = hidden[torch.arange(len(hidden), device=self.device), first].float()
        finally:
            batches.close()
            if hook is not None:
                hook.remove()
        scores: np.ndarray = out.cpu().numpy()
        if not np.isfinite(scores).all():
            raise DrtkError(f"{self.model}: a score is NaN or infinite in {self.dtype}; use `precision` float32")
        return scores[rows]


def check_not_query_reranker(model: str) -> None:
    """Raise MismatchError for a query reranker, whose scores are estimated ranks (lower is better)."""
    if read_meta_entry(resolve_model_folder(model), "query_reranker") is not None:
        raise MismatchError(f"{model}: is a query reranker; use a cross-encoder, or run `drtk rerank-queries apply`")


def identify_scorer(model: str) -> dict[str, Any]:
    """Return a record that identifies a cross-encoder: name, dimension, and digests of weights, configuration, tokenizer."""
    path, _ = _read_layout(resolve_model_folder(model))
    digest = hashlib.blake2b(digest_size=16)
    for file in list_weight_files(path):
        digest.update(compute_content_digest(file).encode())
    config: Any = load_config(path)
    return {
        "model": os.path.abspath(model) if os.path.isdir(model) else model,
        "digest": digest.hexdigest(),
        "dimension": int(config.get_text_config().hidden_size),
        "config": digest_file(path / "config.json"),
        "tokenizer": digest_tokenizer(path),
    }


class PairClassifier(nn.Module):
    """A sequence classifier with one label, for training.

    group_tokens: maximum number of tokens in a group of pairs of similar length, which are scored together to save padding;
        None: score all pairs together, as a packed classifier always does
    """

    def __init__(self, classifier: Any, *, group_tokens: int | None = None) -> None:
        super().__init__()
        self.classifier, self.group_tokens = classifier, group_tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the logits, (pairs,) float32. Each input: (pairs, tokens)"""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        inputs |= {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        if self.group_tokens is None or is_packed(self.classifier.base_model):
            return self._compute_logits(inputs)
        return run_in_length_groups(
            self._compute_logits, inputs, partial(iter_batches_by_length, budget=self.group_tokens)
        )

    def _compute_logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self.classifier(**inputs).logits
        return logits.float().squeeze(-1)


def init_cross_encoder(model: str, *, max_length: int | None, seed: int, default_length: int) -> CrossEncoder:
    """Load a cross-encoder to train: a trained one, or an encoder with a randomly initialized head.

    The result has no activation function and no prompt.

    model: a folder or hub name; of an untied bi-encoder, the passage encoder is used
    max_length: maximum length of a pair in tokens; None: the minimum of `default_length` and the model's maximum
    seed: seed of the new head
    Raises MismatchError for a folder without an encoder or a `max_length` above its maximum, DrtkError for a damaged folder.
    """
    from transformers import AutoModelForSequenceClassification

    folder = resolve_tower_folder(resolve_model_folder(model), "passage")
    if is_classifier(folder):
        loaded = load_cross_encoder(folder)
        classifier, tokenizer = loaded.model, loaded.tokenizer
    else:
        layout = read_layout(folder)
        with report_load_errors(folder, "cannot be loaded as an encoder"), torch.random.fork_rng(devices=[]):
            settings = load_config(layout.backbone)
            if settings.is_encoder_decoder:
                raise MismatchError(
                    f"{folder}: expected an encoder such as BERT, got an encoder-decoder ({settings.model_type})"
                )
            torch.manual_seed(seed)
            classifier, _ = load_pretrained(AutoModelForSequenceClassification, layout.backbone, num_labels=1)
            tokenizer = load_tokenizer(layout.backbone, settings)
        if layout.encoding.lowercase:
            add_lowercasing(tokenizer)
    config: Any = classifier.config
    if tokenizer.pad_token_id is None:
        raise MismatchError(f"{model}: its tokenizer has no padding token; use an encoder such as BERT or ELECTRA")
    limit = get_max_training_length(tokenizer, config)
    if max_length is not None and max_length > limit:
        raise MismatchError(f"{model}: cannot read {max_length} tokens; use at most {limit}")
    return CrossEncoder(classifier, tokenizer, max_length or min(default_length, limit), nn.Identity())


def is_classifier(folder: Path) -> bool:
    """Return whether a model folder contains a sequence classifier with a head, from which training can start."""
    path = folder / read_modules(folder)[0]["path"] if (folder / MODULES).exists() else folder
    if not (path / "config.json").exists():
        return False
    names = read_object(path / "config.json", architectures=list | None).get("architectures")
    return any(str(name).endswith("ForSequenceClassification") for name in names or ())


def save_cross_encoder(model: CrossEncoder, folder: Path) -> None:
    """Write a model folder for sentence-transformers' CrossEncoder, which returns the logits of this model as scores.

    The caller writes `meta.json`, which contains the title format of passages.
    """
    classifier: Any = model.model
    classifier.config.sentence_transformers = {"activation_fn": IDENTITY}
    if hasattr(classifier.config, "sbert_ce_default_activation_function"):  # the older entry would contradict it
        classifier.config.sbert_ce_default_activation_function = IDENTITY
    model.tokenizer.model_max_length = model.max_length
    save_pretrained_model(classifier, model.tokenizer, folder)


def resolve_title_format(model: str, override: str | None, *, strict: bool, default: str = "join") -> str:
    """Return the title format of passages (see `format_passage`): `override`, else that of training, else `default`.

    model: a folder or hub name    strict: raise MismatchError if `override` differs from the format of the training
    """
    stated = (read_meta_entry(resolve_model_folder(model), PAIRING) or {}).get("title")
    if strict and stated and override and override != stated:
        raise MismatchError(f"{model}: was trained with `title` {stated}, not {override}; omit it")
    return str(override or stated or default)


def load_scorer(model: str, settings: ScorerSettings, *, device: str) -> tuple[CrossEncoderScorer, str]:
    """Return the scorer for a cross-encoder (a folder or hub name), and its title format.

    Raises the errors of `CrossEncoderScorer` and `resolve_title_format`.
    """
    title = resolve_title_format(model, settings.scorer_title, strict=True)
    scorer = CrossEncoderScorer(
        model,
        device=device,
        settings=CrossEncoderSettings(batch_tokens=settings.scorer_batch_tokens, precision=settings.scorer_precision),
        logits=settings.scorer_logits,
        batch_field="scorer_batch_tokens",
    )
    return scorer, title
