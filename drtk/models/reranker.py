"""Cross-encoders in training: what they start from, how they read a pair, and the folder they end in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.io.json_files import read_object
from drtk.io.manifest import is_manifest, read_manifest_if_any
from drtk.models.by_length import by_length
from drtk.models.checkpoint import longest_input, lower_cased, writing_weights
from drtk.models.crossencoder import CrossEncoder, load_crossencoder
from drtk.models.hub import locate, tower
from drtk.models.layout import read_layout, read_modules
from drtk.models.loading import load_config, load_tokenizer, load_weights, loading_faults, quiet_transformers
from drtk.text.batching import batches_by_length

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
    folder = tower(locate(model), "passage")
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
    with loading_faults(folder, "cannot be loaded as an encoder"), torch.random.fork_rng(devices=[]):
        config = load_config(path)
        if config.is_encoder_decoder:
            raise MismatchError(f"{folder}: writes ({config.model_type}); an encoder such as BERT is needed")
        torch.manual_seed(seed)
        model, _ = load_weights(AutoModelForSequenceClassification, path, num_labels=1)
        tokenizer = load_tokenizer(path, config)
    if layout.recipe.lowercase:
        lower_cased(tokenizer)
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
    with quiet_transformers(), writing_weights(folder):
        classifier.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)


def title_of(model: str, wish: str | None, *, sealed: bool, default: str = "join") -> str:
    """How a passage's title is put before a cross-encoder: as it was trained, or as wished for, or `default`.

    Raises MismatchError where the folder says so, is `sealed`, and something else is wished for.
    """
    folder = locate(model)
    content = read_manifest_if_any(folder)
    pairing = content.get(PAIRING) if is_manifest(content) else None
    stated = pairing.get("title") if isinstance(pairing, dict) else None
    if sealed and stated and wish and wish != stated:
        raise MismatchError(f"{model}: was trained with --title {stated}; {wish} contradicts it")
    return str(wish or stated or default)
