"""The head of a masked language model apart from its encoder, so that several readers may share it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import load_encoder, report_write_errors
from drtk.models.loading import load_weights, report_load_errors, save_tokenizer
from drtk.models.model_folder import read_layout
from drtk.runtime.progress import quiet_transformers, warn

HEADS = "heads"


def head_file(folder: Path, name: str) -> Path:
    """Where the part called `name` lies in the model folder."""
    return folder / HEADS / f"{name}.safetensors"


def save_head(module: nn.Module, folder: Path, name: str) -> None:
    """Write the weights of a part beside the encoder of `folder`, as safetensors, in the precision they have."""
    from safetensors.torch import save_file

    path = head_file(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with report_write_errors(path):
        save_file({key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}, path)


def load_head(module: nn.Module, folder: Path, name: str) -> None:
    """Put the weights that `save_head` wrote into a part of the same shape.

    Raises MismatchError where they are not there or are those of another shape, DrtkError where the file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = head_file(folder, name)
    if not path.exists():
        raise MismatchError(f"{folder}: holds no {HEADS}/{name}.safetensors")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DrtkError(f"{path}: cannot be read: {error}") from error
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise MismatchError(f"{path}: does not fit: {lines[min(1, len(lines) - 1)]}") from error


NAME = "lm_head"


class _Parts(NamedTuple):
    """Where the classes of transformers keep what every family has: decoder(norm(act(dense(h)))) + bias."""

    dense: str
    act: str
    norm: str


_PARTS = {
    "bert": _Parts(*(f"cls.predictions.transform.{part}" for part in ("dense", "transform_act_fn", "LayerNorm"))),
    "roberta": _Parts("lm_head.dense", "", "lm_head.layer_norm"),
    "xlm-roberta": _Parts("lm_head.dense", "", "lm_head.layer_norm"),
    "electra": _Parts(*(f"generator_predictions.{part}" for part in ("dense", "activation", "LayerNorm"))),
    "distilbert": _Parts("vocab_transform", "activation", "vocab_layer_norm"),
    "modernbert": _Parts("head.dense", "head.act", "head.norm"),
}


class LMHead(nn.Module):
    """Token vectors to scores of every word piece: a dense layer, an activation, a norm, and the word embeddings.

    The embeddings are those of the encoder itself and no parameters of this module, unless the checkpoint has others for it.
    `fresh`: its weights are drawn, not trained.
    """

    def __init__(self, model: nn.Module, backbone: nn.Module, *, fresh: bool = False) -> None:
        """`model`: the masked language model whose head this becomes; `backbone`: the encoder whose embeddings it takes.

        Raises MismatchError for a family whose head is not known here.
        """
        super().__init__()
        masked: Any = model
        kind = str(masked.config.model_type)
        if kind not in _PARTS:
            raise MismatchError(
                f"the language-model head of type {kind} is not known; those that are: {', '.join(_PARTS)}"
            )
        parts = _PARTS[kind]
        self.dense: Any = masked.get_submodule(parts.dense)
        self.norm: Any = masked.get_submodule(parts.norm)
        self._act: Callable[[Tensor], Tensor] = masked.get_submodule(parts.act) if parts.act else F.gelu
        decoder = masked.get_output_embeddings()
        self.bias: nn.Parameter | None = decoder.bias
        tied = decoder.weight is masked.get_input_embeddings().weight
        self.own_weight = None if tied else nn.Parameter(decoder.weight.detach())
        self._encoder = (backbone,)  # in a tuple, so that the encoder is no part of the head
        self.fresh = fresh

    @property
    def weight(self) -> Tensor:
        """(V, E): the encoder's word embeddings, as they are now."""
        if self.own_weight is not None:
            return self.own_weight
        encoder: Any = self._encoder[0]
        found: Tensor = encoder.get_input_embeddings().weight
        return found

    def features(self, hidden: Tensor) -> Tensor:
        """What is multiplied by the word embeddings: (…, H) to (…, E)"""
        found: Tensor = self.norm(self._act(self.dense(hidden)))
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """A score for every word piece: (…, H) to (…, V). For many tokens see `drtk.losses.language.token_losses_sum`."""
        return F.linear(self.features(hidden), self.weight, self.bias)


def load_masked_lm(folder: Path, *, announce: bool = True) -> tuple[Any, LMHead, Any]:
    """Encoder, head and tokenizer of a model folder, in float32 on the CPU, in evaluation mode.

    A folder without a head gets one whose weights are drawn from torch's generator; `announce`: and that is said.
    Raises what `load_encoder` raises, and MismatchError for a family whose head is not known.
    """
    loaded = load_encoder(folder)
    backbone = loaded.encoder.backbone
    return backbone, load_lm_head(folder, backbone, announce=announce), loaded.tokenizer


def load_lm_head(folder: Path, backbone: nn.Module, *, announce: bool = True) -> LMHead:
    """The head of the model in `folder` for its encoder `backbone`: what drtk kept in `heads`, or the checkpoint's own."""
    if head_file(folder, NAME).exists():
        head = LMHead(_untrained(backbone), backbone)
        load_head(head, folder, NAME)
        return head.eval()
    from transformers import AutoModelForMaskedLM

    config: Any = backbone.config
    if config.model_type not in _PARTS:
        raise MismatchError(f"{folder}: the language-model head of type {config.model_type} is not known")
    with report_load_errors(folder, "its language-model head cannot be loaded"):
        model, missing = load_weights(AutoModelForMaskedLM, read_layout(folder).backbone)
    parts = _PARTS[config.model_type]
    fresh = {f"{parts.dense}.weight", f"{parts.norm}.weight"} <= {*missing}
    if missing and not fresh:
        raise MismatchError(f"{folder}: its language-model head lacks weights ({missing[0]}); restore the checkpoint")
    if fresh and announce:
        warn_untrained_head(folder)
    return LMHead(model, backbone, fresh=fresh).eval()


def warn_untrained_head(folder: Path) -> None:
    """Say that a head begins untrained."""
    warn(f"{folder}: has no language-model head; an untrained one begins in its place, tied to the word embeddings")


def _untrained(backbone: nn.Module) -> Any:
    """A masked language model of the shape of `backbone` whose weights mean nothing."""
    from transformers import AutoModelForMaskedLM

    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        return AutoModelForMaskedLM.from_config(backbone.config, dtype=torch.float32)


def save_lm_head(head: LMHead, folder: Path) -> None:
    """Write the head beside the encoder in `folder`, whose own files stay as they are."""
    save_head(head, folder, NAME)


def load_trained_masked_lm(folder: Path) -> tuple[Any, Any]:
    """The encoder of `folder` with its head as one masked language model of transformers, and its tokenizer.

    Raises MismatchError where the folder has no trained head.
    """
    backbone, head, tokenizer = load_masked_lm(folder, announce=False)
    if head.fresh:
        raise MismatchError(f"{folder}: has no language-model head; `drtk pretrain` writes one")
    return assemble_masked_lm(backbone, head), tokenizer


def write_masked_lm(model: Any, tokenizer: Any, out: Path) -> None:
    """Write a masked language model so that AutoModelForMaskedLM reads it."""
    out.mkdir(parents=True, exist_ok=True)
    with quiet_transformers(), report_write_errors(out):
        model.save_pretrained(out)
        save_tokenizer(tokenizer, out)


def export_masked_lm(folder: Path, out: Path) -> None:
    """`load_trained_masked_lm` of a folder, written."""
    write_masked_lm(*load_trained_masked_lm(folder), out)


def assemble_masked_lm(backbone: nn.Module, head: LMHead) -> Any:
    """The masked language model of transformers that an encoder and its head are the parts of; a copy of both."""
    model = _untrained(backbone)
    body = getattr(model, model.base_model_prefix)
    given, wanted = backbone.state_dict(), body.state_dict()
    body.load_state_dict({name: given[name] for name in wanted})  # all but the pooler, which a masked LM has not
    parts = _PARTS[str(model.config.model_type)]
    model.get_submodule(parts.dense).load_state_dict(head.dense.state_dict())
    model.get_submodule(parts.norm).load_state_dict(head.norm.state_dict())
    decoder = model.get_output_embeddings()
    with torch.no_grad():
        decoder.weight.copy_(head.weight)
        if head.bias is not None:
            decoder.bias.copy_(head.bias)
    return model.eval()
