"""Masked-LM heads, separate from the encoder, so that several decoders can share a head."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.loading import load_pretrained, report_load_errors
from drtk.models.model_folder import read_layout
from drtk.runtime.progress import silence_transformers
from drtk.runtime.remote_code import is_remote_code_trusted

HEADS = "heads"


def get_head_path(folder: Path, name: str) -> Path:
    """Return the path of the weights of the head `name` in a model folder."""
    return folder / HEADS / f"{name}.safetensors"


def load_head(module: nn.Module, folder: Path, name: str) -> None:
    """Load the weights of the head `name` from a model folder into `module`.

    Raises MismatchError for weights that are missing or do not fit the module, DrtkError for a damaged file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = get_head_path(folder, name)
    if not path.exists():
        raise MismatchError(f"{folder}: {HEADS}/{name}.safetensors is missing; restore the folder")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DrtkError(f"{path}: cannot be read ({error}); restore the file") from error
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        problem = lines[min(1, len(lines) - 1)].rstrip(".")
        raise MismatchError(f"{path}: does not fit the model ({problem}); restore the file") from error


LM_HEAD = "lm_head"


_BERT, _ELECTRA = "cls.predictions.transform", "generator_predictions"
_SUBMODULES = {  # names of (dense layer, norm, activation) in transformers by model type; activation "" is GELU
    "bert": (f"{_BERT}.dense", f"{_BERT}.LayerNorm", f"{_BERT}.transform_act_fn"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", ""),
    "xlm-roberta": ("lm_head.dense", "lm_head.layer_norm", ""),
    "electra": (f"{_ELECTRA}.dense", f"{_ELECTRA}.LayerNorm", f"{_ELECTRA}.activation"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "activation"),
    "modernbert": ("head.dense", "head.norm", "head.act"),
}


class LMHead(nn.Module):
    """A masked-LM head, which computes decoder(norm(activation(dense(hidden)))) + bias.

    A tied output layer uses the encoder's word embeddings, which are not parameters of this module.

    is_untrained: whether the weights are randomly initialized
    """

    def __init__(self, model: nn.Module, backbone: nn.Module, *, is_untrained: bool = False) -> None:
        """Create the head from a masked language model of transformers.

        model: the masked language model    backbone: the encoder whose word embeddings a tied output layer uses
        Raises MismatchError for an unsupported model type.
        """
        super().__init__()
        masked: Any = model
        dense, norm, activation = _get_submodules(str(masked.config.model_type))
        self.dense: Any = masked.get_submodule(dense)
        self.norm: Any = masked.get_submodule(norm)
        self._activation: Callable[[Tensor], Tensor] = masked.get_submodule(activation) if activation else F.gelu
        decoder = masked.get_output_embeddings()
        self.bias: nn.Parameter | None = decoder.bias
        tied = decoder.weight is masked.get_input_embeddings().weight
        self.own_weight = None if tied else nn.Parameter(decoder.weight.detach())
        self._encoder = (backbone,)  # in a tuple, so that the encoder does not become a submodule
        self.is_untrained = is_untrained

    @property
    def weight(self) -> Tensor:
        """The weight of the output layer, (V, E): the encoder's word embeddings, or a separate weight if they are not tied."""
        if self.own_weight is not None:
            return self.own_weight
        encoder: Any = self._encoder[0]
        return encoder.get_input_embeddings().weight

    def compute_features(self, hidden: Tensor) -> Tensor:
        """Return the input of the output layer, (…, E), for hidden states (…, H)."""
        return self.norm(self._activation(self.dense(hidden)))

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits over the vocabulary, (…, V), for hidden states (…, H)."""
        return F.linear(self.compute_features(hidden), self.weight, self.bias)


def _get_submodules(model_type: str) -> tuple[str, str, str]:
    if model_type not in _SUBMODULES:
        raise MismatchError(
            f"masked-LM heads of type {model_type} are not supported; use a model of type {', '.join(_SUBMODULES)}"
        )
    return _SUBMODULES[model_type]


def load_lm_head(folder: Path, backbone: nn.Module) -> LMHead:
    """Load the masked-LM head of a model folder: from its subfolder heads/, where drtk saves it, else from the checkpoint.

    If there is none, the head is randomly initialized.
    backbone: the encoder of the folder, already loaded
    Raises MismatchError for an unsupported model type or a head with missing weights, DrtkError for a damaged file.
    """
    if get_head_path(folder, LM_HEAD).exists():
        head = LMHead(_init_masked_lm(backbone), backbone)
        load_head(head, folder, LM_HEAD)
        return head.eval()
    from transformers import AutoModelForMaskedLM

    config: Any = backbone.config
    dense, norm, _ = _get_submodules(config.model_type)
    with report_load_errors(folder, "its masked-LM head cannot be loaded"):
        model, missing = load_pretrained(AutoModelForMaskedLM, read_layout(folder).backbone)
    is_untrained = {f"{dense}.weight", f"{norm}.weight"} <= {*missing}
    if missing and not is_untrained:
        raise MismatchError(f"{folder}: the masked-LM head has no weights for {missing[0]}; restore the checkpoint")
    return LMHead(model, backbone, is_untrained=is_untrained).eval()


def _init_masked_lm(backbone: nn.Module) -> Any:
    """Return a randomly initialized masked language model with the configuration of `backbone`."""
    from transformers import AutoModelForMaskedLM

    with silence_transformers(), torch.random.fork_rng(devices=[]):
        config = deepcopy(backbone.config)  # from_config would set its attention implementation
        return AutoModelForMaskedLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=is_remote_code_trusted()
        )


def build_masked_lm(backbone: Any, head: LMHead) -> Any:
    """Return the masked language model of transformers with the weights of an encoder and a head, in float32 on the CPU."""
    model = _init_masked_lm(backbone)
    body = getattr(model, model.base_model_prefix)
    weights = backbone.state_dict()
    body.load_state_dict({name: weights[name] for name in body.state_dict()})  # without the pooler, which it lacks
    dense, norm, _ = _get_submodules(model.config.model_type)
    model.get_submodule(dense).load_state_dict(head.dense.state_dict())
    model.get_submodule(norm).load_state_dict(head.norm.state_dict())
    decoder = model.get_output_embeddings()
    with torch.no_grad():
        decoder.weight.copy_(head.weight)
        if head.bias is not None:
            decoder.bias.copy_(head.bias)
    return model.eval()
