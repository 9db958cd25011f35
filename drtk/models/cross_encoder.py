"""Cross-encoders: inference, training start and saving."""

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
    config_digest,
    longest_input,
    report_write_errors,
    tokenizer_digest,
)
from drtk.models.config import ScoringSettings
from drtk.models.device import choose_device, choose_dtype
from drtk.models.encoder import by_length
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
    module_settings,
    read_layout,
    read_modules,
    read_shared,
    tower_folder,
)
from drtk.models.query_reranker_input import refuse_query_reranker
from drtk.runtime.integrity import content_digest, read_object
from drtk.runtime.manifest import is_manifest, read_manifest_if_any
from drtk.runtime.progress import quiet_transformers, warn
from drtk.runtime.workers import read_ahead
from drtk.text.batching import PairTokenizer, Tokens, batches_by_length

Pair = tuple[str, str]
WINDOW = 16384  # pairs tokenised together by `Scorer.__call__`
_CPU_TOKENS, _GPU_TOKENS = 2048, 65536
_BOUNDED: tuple[tuple[type[nn.Module], tuple[float, float]], ...] = ((nn.Sigmoid, (0, 1)), (nn.Tanh, (-1, 1)))


@dataclass
class CrossEncoder:
    """A classifier with one label, its tokenizer, and what becomes of its logit.

    prompt: put before the first text of every pair
    """

    model: nn.Module
    tokenizer: Any
    max_length: int
    activation: nn.Module
    prompt: str = ""


def load_crossencoder(folder: Path) -> CrossEncoder:
    """The cross-encoder of a folder that sentence-transformers reads, old layout or new, in float32 on the CPU.

    Without a word about it in the folder, a logit goes through a sigmoid, as in sentence-transformers.
    Raises MismatchError for a folder without the weights of a head, or with more labels than one, DrtkError for one that
    cannot be loaded.
    """
    from transformers import AutoModelForSequenceClassification

    path, shared = _layout(folder)
    settings = module_settings(path)
    with report_load_errors(folder, "cannot be loaded as a cross-encoder"):
        config = load_config(path)
        _check_head(folder, config)
        model, missing = load_weights(AutoModelForSequenceClassification, path)
        if missing:  # transformers draws them at random
            raise MismatchError(
                f"{folder}: is no cross-encoder: it has no weights for {missing[0]}; drtk train-reranker trains one"
            )
        tokenizer = load_tokenizer(path, config)
    if settings.get("do_lower_case"):
        add_lowercasing(tokenizer)
    return CrossEncoder(
        model.eval(),
        tokenizer,
        min(filter(None, (*_lengths(settings), longest_input(tokenizer, config)))),
        _activation(path, shared, config),
        (shared.get("prompts") or {}).get(shared.get("default_prompt_name")) or "",
    )


def _layout(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where the weights lie, and what sentence-transformers noted of the model; nothing in its old layout."""
    if not (folder / MODULES).exists():
        if not (folder / "config.json").exists():
            raise MismatchError(f"{folder}: is no model folder: it has neither {MODULES} nor config.json")
        return folder, {}
    shared = read_shared(folder)
    kind = shared.get("model_type", "SentenceTransformer")
    if kind != "CrossEncoder":
        raise MismatchError(f"{folder}: is a {kind}; a CrossEncoder is needed, which drtk train-reranker makes of it")
    modules = read_modules(folder)
    for module in modules[1:]:
        raise MismatchError(f"{folder / MODULES}: holds a module drtk cannot run there: {module['type']}")
    path = folder / modules[0]["path"]
    task = module_settings(path).get("transformer_task", "sequence-classification")
    if task != "sequence-classification":
        raise MismatchError(f"{folder}: scores by {task}; a sequence classifier is needed")
    return path, shared


def _check_head(folder: Path, config: Any) -> None:
    names = config.architectures or ()
    if names and not any(name.endswith("ForSequenceClassification") for name in names):
        raise MismatchError(f"{folder}: is no cross-encoder but a {names[0]}")
    if config.num_labels != 1:
        raise MismatchError(f"{folder}: gives {config.num_labels} labels to a pair; a model with one is needed")


def _lengths(settings: dict[str, Any]) -> tuple[int | None, ...]:
    """The longest pair in tokens, in each of the places where sentence-transformers may have noted one."""
    processor = settings.get("processor_kwargs") or settings.get("tokenizer_args") or {}
    text = (settings.get("processing_kwargs") or {}).get("text") or {}
    return settings.get("max_seq_length"), processor.get("model_max_length"), text.get("max_length")


def _activation(path: Path, shared: dict[str, Any], config: Any) -> nn.Module:
    stated = getattr(config, "sentence_transformers", None)
    noted = stated if isinstance(stated, dict) else {}
    old = getattr(config, "sbert_ce_default_activation_function", None)  # before version 4
    name = shared.get("activation_fn") or noted.get("activation_fn") or old
    if name is None:
        return nn.Sigmoid()
    try:
        return build_activation(path, name)
    except MismatchError as error:  # sentence-transformers does the same with what it does not trust
        warn(f"{error}; a sigmoid takes its place, which changes scores but not their order")
        return nn.Sigmoid()


class TokenizedPairs(NamedTuple):
    """Pairs as tokens, each different pair once, and for each pair asked for the row of its tokens."""

    tokens: Tokens
    rows: np.ndarray


class Scorer:
    """Pairs of texts to scores with one cross-encoder; the higher, the better the texts go together.

    model: a folder or a hub name
    logits: give the model's logits, without the activation function that its folder asks for
    option: the one that sets `settings.batch_tokens`, which is named where memory is too small
    tokenizing: made of the tokenizer, turns what is scored into tokens in place of pairs; for models that read other things
    Equal pairs are scored once, so that they have equal scores whatever the batches.
    Raises what `load_crossencoder` raises, MismatchError where `settings` ask for more tokens than the model reads, and for
    a query re-ranker, whose scores mean the opposite.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        settings: ScoringSettings | None = None,
        logits: bool = False,
        tokenizing: Callable[[Any], Any] | None = None,
        option: str = "--batch-tokens",
    ) -> None:
        settings = settings or ScoringSettings()
        self.model, self._option = model, option
        self.device = choose_device(device)
        folder = locate(model)
        if tokenizing is None:
            refuse_query_reranker(model, folder)
        loaded = load_crossencoder(folder)
        self._activation = nn.Identity() if logits else loaded.activation
        if settings.max_length is not None and settings.max_length > loaded.max_length:
            raise MismatchError(
                f"{model}: reads at most {loaded.max_length} tokens; {settings.max_length} were asked for"
            )
        self.max_length = settings.max_length or loaded.max_length
        config: Any = loaded.model.config
        self.dtype = choose_dtype(settings.dtype, self.device, kind=config.model_type)
        self._model = loaded.model.to(self.device, self.dtype)
        self._budget = settings.batch_tokens or (_CPU_TOKENS if self.device.type == "cpu" else _GPU_TOKENS)
        self._tokenizing = (
            PairTokenizer(loaded.tokenizer, max_length=self.max_length, prompt=loaded.prompt)
            if tokenizing is None
            else tokenizing(loaded.tokenizer)
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """What no score lies below or above, by the activation function: logits have no bounds."""
        return next((found for kind, found in _BOUNDED if isinstance(self._activation, kind)), (-inf, inf))

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        config: Any = self._model.config
        return int(config.get_text_config().hidden_size)

    def __call__(self, pairs: Sequence[Pair]) -> np.ndarray:
        """The scores of the pairs in their order, (len(pairs),), float32."""
        windows = (pairs[start : start + WINDOW] for start in range(0, len(pairs), WINDOW))
        found = [self.scores(prepared) for prepared in read_ahead(map(self.prepare, windows))]
        return np.concatenate(found) if found else np.empty(0, dtype=np.float32)

    def prepare(self, pairs: Sequence[Pair]) -> TokenizedPairs:
        """The pairs as tokens, what exceeds the longest input cut off the longer text."""
        places = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
        rows = np.fromiter((places[pair] for pair in pairs), dtype=np.int64, count=len(pairs))
        return TokenizedPairs(self._tokenizing(places), rows)

    def scores(self, prepared: TokenizedPairs) -> np.ndarray:
        """The scores of prepared pairs, (pairs,), float32. Raises DrtkError where one is not finite, or memory is too small."""
        return self._run(prepared, None)

    def scores_and_vectors(self, prepared: TokenizedPairs) -> tuple[np.ndarray, np.ndarray]:
        """The scores, (pairs,), and the last layer's vectors at the first position, (pairs, dimension), float32.

        Raises MismatchError for a model that has no body apart from its head, and what `scores` raises.
        """
        body = self._model.base_model  # type: ignore[union-attr]
        if body is self._model:
            raise MismatchError(f"{self.model}: has no body whose vectors could be told from its head")
        vectors = torch.empty((len(prepared.tokens), self.dimension), dtype=torch.float32, device=self.device)
        return self._run(prepared, vectors), vectors.cpu().numpy()[prepared.rows]

    @torch.inference_mode()
    def _run(self, prepared: TokenizedPairs, vectors: torch.Tensor | None) -> np.ndarray:
        """The scores; `vectors` (different pairs, dimension) is filled where it is given."""
        tokens, rows = prepared
        out = torch.empty(len(tokens), dtype=torch.float32, device=self.device)
        seen: list[torch.Tensor] = []
        watch = None
        if vectors is not None:  # the head sees the same states: one pass through the model gives both
            body: Any = self._model.base_model
            watch = body.register_forward_hook(lambda _module, _given, made: seen.append(made[0]))
        try:
            for chosen in batches_by_length(tokens.lengths, budget=self._budget):
                batch = tokens.pad(chosen, pad=self._tokenizing.pad, left=self._tokenizing.left)
                inputs = {name: torch.from_numpy(array).to(self.device) for name, array in batch.items()}
                places = torch.from_numpy(chosen).to(self.device)
                try:
                    logits = self._model(**inputs).logits
                except torch.OutOfMemoryError as error:
                    raise DrtkError(
                        f"{self.device}: out of memory at {batch['input_ids'].size:,} tokens of pairs; lower {self._option}"
                    ) from error
                out[places] = self._activation(logits.float()).squeeze(-1)  # (batch,)
                if vectors is not None:
                    hidden = seen.pop()  # (batch, tokens, dimension)
                    first = inputs["attention_mask"].argmax(dim=1)  # padding may be on the left
                    vectors[places] = hidden[torch.arange(len(hidden), device=self.device), first].float()
        finally:
            if watch is not None:
                watch.remove()
        found: np.ndarray = out.cpu().numpy()
        if not np.isfinite(found).all():
            raise DrtkError(f"{self.model}: gave a score that is no finite number, computing in {self.dtype}")
        return found[rows]


def identify_scorer(model: str) -> dict[str, Any]:
    """Return what identifies the cross-encoder of pair vectors: name, dimension, digests of weights, config and tokenizer."""
    folder = locate(model)
    path, _ = _layout(folder)
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin")):
        digest.update(content_digest(file).encode())
    config: Any = load_config(path)
    return {
        "model": os.path.abspath(model) if os.path.isdir(model) else model,
        "digest": digest.hexdigest(),
        "dimension": int(config.get_text_config().hidden_size),
        "config": config_digest(path),
        "tokenizer": tokenizer_digest(path),
    }


PAIRING = "pairing"  # the entry of meta.json: how a passage is put before the model
IDENTITY = "torch.nn.modules.linear.Identity"
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")  # their positions begin after the padding's own


class PairScorer(nn.Module):
    """A classifier as a function of padded pairs; on a CPU, pairs of like length go through it together.

    group_tokens: tokens of such a group; None: all pairs at once
    """

    def __init__(self, classifier: nn.Module, *, group_tokens: int | None = None) -> None:
        super().__init__()
        self.classifier, self.group_tokens = classifier, group_tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """The logits, float32. Each input: (pairs, tokens); returns: (pairs,)"""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        given |= {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        if self.group_tokens is None:
            return self._logits(given)
        return by_length(self._logits, given, partial(batches_by_length, budget=self.group_tokens))

    def _logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self.classifier(**inputs).logits
        return logits.float().squeeze(-1)


def start_crossencoder(model: str, *, max_length: int | None, seed: int, default: int) -> CrossEncoder:
    """The cross-encoder that training starts with: one there is, or any encoder with a new head drawn from `seed`.

    model: a folder or hub name; of a pair of towers, that of passages
    max_length: longest pair in tokens; None: `default`, or what the model can read where that is less
    Its scores are logits, whatever activation function the folder names; it reads no prompt.
    Raises MismatchError for a folder that is no encoder, or a length that it cannot read, DrtkError for a damaged one.
    """
    folder = tower_folder(locate(model), "passage")
    if not (folder / "config.json").exists() and not (folder / "modules.json").exists():
        raise MismatchError(f"{model}: is no model folder: it has neither modules.json nor config.json")
    if is_classifier(folder):
        found = load_crossencoder(folder)
        classifier, tokenizer = found.model, found.tokenizer
    else:
        classifier, tokenizer = _with_new_head(folder, seed=seed)
    config: Any = classifier.config
    if tokenizer.pad_token_id is None:
        raise MismatchError(f"{model}: its tokenizer has no padding; an encoder such as BERT or ELECTRA is needed")
    longest = _positions(config) or longest_input(tokenizer, load_config(_backbone(folder)))
    if max_length is not None and max_length > longest:
        raise MismatchError(f"{model}: reads at most {longest} tokens; {max_length} were asked for")
    return CrossEncoder(classifier, tokenizer, max_length or min(default, longest), nn.Identity())


def is_classifier(folder: Path) -> bool:
    """Whether a folder claims to be a classifier, so that its head is to be kept; an encoder gets a new one."""
    path = _backbone(folder)
    known = (path / "config.json").exists()
    names = read_object(path / "config.json", architectures=list | None).get("architectures") if known else None
    return any(str(name).endswith("ForSequenceClassification") for name in names or ())


def _backbone(folder: Path) -> Path:
    """Where the weights of the transformer lie: deeper than `folder` in some folders of sentence-transformers."""
    if not (folder / "modules.json").exists():
        return folder
    return folder / read_modules(folder)[0]["path"]


def _with_new_head(folder: Path, *, seed: int) -> tuple[nn.Module, Any]:
    from transformers import AutoModelForSequenceClassification

    layout = read_layout(folder)
    path = layout.backbone
    with report_load_errors(folder, "cannot be loaded as an encoder"), torch.random.fork_rng(devices=[]):
        config = load_config(path)
        if config.is_encoder_decoder:
            raise MismatchError(f"{folder}: writes ({config.model_type}); an encoder such as BERT is needed")
        torch.manual_seed(seed)
        model, _ = load_weights(AutoModelForSequenceClassification, path, num_labels=1)
        tokenizer = load_tokenizer(path, config)
    if layout.recipe.lowercase:
        add_lowercasing(tokenizer)
    return model, tokenizer


def _positions(config: Any) -> int:
    """The most tokens a model has positions for; 0 where it does not say."""
    found = int(getattr(config, "max_position_embeddings", None) or 0)
    return found - config.pad_token_id - 1 if found and config.model_type in _AFTER_PADDING else max(found, 0)


def save_crossencoder(model: CrossEncoder, folder: Path) -> None:
    """Write the folder of a cross-encoder; sentence-transformers' CrossEncoder gives its logits.

    How passages are put before it is for the caller to write into `meta.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    classifier: Any = model.model
    classifier.config.sentence_transformers = {"activation_fn": IDENTITY}
    if hasattr(classifier.config, "sbert_ce_default_activation_function"):  # the older name would contradict it
        classifier.config.sbert_ce_default_activation_function = IDENTITY
    model.tokenizer.model_max_length = model.max_length
    with quiet_transformers(), report_write_errors(folder):
        classifier.save_pretrained(folder)
        save_tokenizer(model.tokenizer, folder)


def resolve_title(model: str, override: str | None, *, strict: bool, default: str = "join") -> str:
    """How a passage's title is put before a cross-encoder: as it was trained, or as wished for, or `default`.

    Raises MismatchError where the folder says so, is `strict`, and something else is wished for.
    """
    folder = locate(model)
    content = read_manifest_if_any(folder)
    pairing = content.get(PAIRING) if is_manifest(content) else None
    stated = pairing.get("title") if isinstance(pairing, dict) else None
    if strict and stated and override and override != stated:
        raise MismatchError(f"{model}: was trained with --title {stated}; {override} contradicts it")
    return str(override or stated or default)
