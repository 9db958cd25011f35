"""The head of a masked language model, separate from its encoder so that several decoders can share it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import load_encoder, report_write_errors, save_module
from drtk.models.loading import load_weights, report_load_errors, save_tokenizer
from drtk.models.model_folder import read_layout
from drtk.runtime.progress import silence_transformers, warn

HEADS = "heads"


def get_head_path(folder: Path, name: str) -> Path:
    """Return the file of a head in a model folder."""
    return folder / HEADS / f"{name}.safetensors"


def load_head(module: nn.Module, folder: Path, name: str) -> None:
    """Load the weights of a head in a model folder into a module of the same shape.

    Raises MismatchError if they are missing or of another shape, DrtkError if the file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = get_head_path(folder, name)
    if not path.exists():
        raise MismatchError(f"{folder}: has no {HEADS}/{name}.safetensors")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DrtkError(f"{path}: cannot be read: {error}") from error
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise MismatchError(f"{path}: does not fit: {lines[min(1, len(lines) - 1)]}") from error


LM_HEAD = "lm_head"


class _HeadModules(NamedTuple):
    """The submodules of decoder(norm(act(dense(h)))) + bias in the classes of transformers."""

    dense: str
    act: str
    norm: str


_PARTS = {
    "bert": _HeadModules(*(f"cls.predictions.transform.{part}" for part in ("dense", "transform_act_fn", "LayerNorm"))),
    "roberta": _HeadModules("lm_head.dense", "", "lm_head.layer_norm"),
    "xlm-roberta": _HeadModules("lm_head.dense", "", "lm_head.layer_norm"),
    "electra": _HeadModules(*(f"generator_predictions.{part}" for part in ("dense", "activation", "LayerNorm"))),
    "distilbert": _HeadModules("vocab_transform", "activation", "vocab_layer_norm"),
    "modernbert": _HeadModules("head.dense", "head.act", "head.norm"),
}


class LMHead(nn.Module):
    """Compute scores of all word pieces from token vectors: dense layer, activation, norm, word embeddings.

    The embeddings are those of the encoder and no parameters of this module, unless the checkpoint does not tie them.
    fresh: the weights are random, not trained
    """

    def __init__(self, model: nn.Module, backbone: nn.Module, *, fresh: bool = False) -> None:
        """model: the masked language model with the head; backbone: the encoder with the embeddings

        Raises MismatchError for an unknown family.
        """
        super().__init__()
        masked: Any = model
        parts = _get_head_modules(str(masked.config.model_type))
        self.dense: Any = masked.get_submodule(parts.dense)
        self.norm: Any = masked.get_submodule(parts.norm)
        self._act: Callable[[Tensor], Tensor] = masked.get_submodule(parts.act) if parts.act else F.gelu
        decoder = masked.get_output_embeddings()
        self.bias: nn.Parameter | None = decoder.bias
        tied = decoder.weight is masked.get_input_embeddings().weight
        self.own_weight = None if tied else nn.Parameter(decoder.weight.detach())
        self._encoder = (backbone,)  # in a tuple, so that the encoder is no submodule of the head
        self.fresh = fresh

    @property
    def weight(self) -> Tensor:
        """(V, E): the encoder's present word embeddings, or the head's own."""
        if self.own_weight is not None:
            return self.own_weight
        encoder: Any = self._encoder[0]
        weight: Tensor = encoder.get_input_embeddings().weight
        return weight

    def features(self, hidden: Tensor) -> Tensor:
        """Return the vectors that are multiplied by the word embeddings, (…, E) from (…, H)."""
        features: Tensor = self.norm(self._act(self.dense(hidden)))
        return features

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores of all word pieces, (…, V) from (…, H); for many tokens use `drtk.losses.language.linear_cross_entropy`."""
        return F.linear(self.features(hidden), self.weight, self.bias)


def _get_head_modules(family: str) -> _HeadModules:
    if family not in _PARTS:
        raise MismatchError(f"unknown language-model head of type {family}; supported: {', '.join(_PARTS)}")
    return _PARTS[family]


def load_masked_lm(folder: Path, *, announce: bool = True) -> tuple[Any, LMHead, Any]:
    """Load encoder, head and tokenizer of a model folder, in float32 on the CPU, in evaluation mode.

    A checkpoint without a head gets one with random weights from torch's generator; announce: with a warning
    Raises what `load_encoder` raises, and MismatchError for an unknown family.
    """
    loaded = load_encoder(folder)
    backbone = loaded.encoder.backbone
    return backbone, load_lm_head(folder, backbone, announce=announce), loaded.tokenizer


def load_lm_head(folder: Path, backbone: nn.Module, *, announce: bool = True) -> LMHead:
    """Load the head of the model in `folder` for its encoder `backbone`: drtk's in `heads`, or the checkpoint's."""
    if get_head_path(folder, LM_HEAD).exists():
        head = LMHead(_init_masked_lm(backbone), backbone)
        load_head(head, folder, LM_HEAD)
        return head.eval()
    from transformers import AutoModelForMaskedLM

    config: Any = backbone.config
    parts = _get_head_modules(config.model_type)
    with report_load_errors(folder, "its language-model head cannot be loaded"):
        model, missing = load_weights(AutoModelForMaskedLM, read_layout(folder).backbone)
    fresh = {f"{parts.dense}.weight", f"{parts.norm}.weight"} <= {*missing}
    if missing and not fresh:
        raise MismatchError(f"{folder}: its language-model head lacks weights ({missing[0]}); restore the checkpoint")
    if fresh and announce:
        warn_untrained_head(folder)
    return LMHead(model, backbone, fresh=fresh).eval()


def warn_untrained_head(folder: Path) -> None:
    """Warn that a head starts untrained."""
    warn(f"{folder}: has no language-model head; training starts with a random one, tied to the word embeddings")


def _init_masked_lm(backbone: nn.Module) -> Any:
    """Return a masked language model of the shape of `backbone` with random weights."""
    from transformers import AutoModelForMaskedLM

    with silence_transformers(), torch.random.fork_rng(devices=[]):
        return AutoModelForMaskedLM.from_config(backbone.config, dtype=torch.float32)


def save_lm_head(head: LMHead, folder: Path) -> None:
    """Write the head beside the encoder in `folder`."""
    save_module(head, get_head_path(folder, LM_HEAD))


def load_trained_masked_lm(folder: Path) -> tuple[Any, Any]:
    """Load encoder and head of `folder` as a masked language model of transformers; return it with its tokenizer.

    Raises MismatchError if the folder has no trained head.
    """
    backbone, head, tokenizer = load_masked_lm(folder, announce=False)
    if head.fresh:
        raise MismatchError(f"{folder}: has no language-model head; `drtk pretrain` writes one")
    model = _init_masked_lm(backbone)
    body = getattr(model, model.base_model_prefix)
    weights = backbone.state_dict()
    body.load_state_dict({name: weights[name] for name in body.state_dict()})  # without the pooler, which it lacks
    parts = _get_head_modules(model.config.model_type)
    model.get_submodule(parts.dense).load_state_dict(head.dense.state_dict())
    model.get_submodule(parts.norm).load_state_dict(head.norm.state_dict())
    decoder = model.get_output_embeddings()
    with torch.no_grad():
        decoder.weight.copy_(head.weight)
        if head.bias is not None:
            decoder.bias.copy_(head.bias)
    return model.eval(), tokenizer


def save_masked_lm(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a masked language model so that AutoModelForMaskedLM loads it."""
    folder.mkdir(parents=True, exist_ok=True)
    with silence_transformers(), report_write_errors(folder):
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
