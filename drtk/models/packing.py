"""Run transformer models without padding (packing): the texts of a batch are concatenated to one row of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PACKED = "drtk_packed"  # name of the attention implementation
# Model types whose attention depends on query, key and value only, and whose forward pass accepts position ids
MODEL_TYPES = (
    *("bert", "camembert", "distilbert", "electra", "modernbert", "nomic_bert", "roberta", "xlm-roberta"),
    *("llama", "mistral", "qwen2", "qwen3"),
)
# Device type -> compute dtypes in which packing is used
DTYPES: dict[str, tuple[torch.dtype, ...]] = {"cuda": (torch.bfloat16, torch.float16)}
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_OPTIONS = {"return_dict", "use_cache"}


class Packing(NamedTuple):
    """Positions of the T tokens of a padded batch, (B, L), for converting the batch to one row of tokens and back.

    tokens: (T,), indices of the tokens in the flattened batch    batch, width: B and L
    offsets: (B + 1,) int32, index of each text's first token in the row, and T
    """

    tokens: Tensor
    offsets: Tensor
    batch: int
    width: int

    @classmethod
    def from_mask(cls, mask: Tensor) -> Packing:
        """Return the packing of a batch. mask: (B, L), 0 at padding"""
        mask = mask.bool()
        offsets = nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).to(torch.int32)
        return cls(mask.flatten().nonzero().squeeze(1), offsets, *mask.shape)

    @property
    def positions(self) -> Tensor:
        """The column of each token in the padded batch, (1, T)."""
        return (self.tokens % self.width).unsqueeze(0)

    def pack(self, values: Tensor) -> Tensor:
        """Remove padding: (B, L, …) to (1, T, …)."""
        return values.flatten(0, 1).index_select(0, self.tokens).unsqueeze(0)

    def pad(self, values: Tensor) -> Tensor:
        """Restore padding, as zeros: (1, T, …) to (B, L, …)."""
        padded = values.new_zeros(self.batch * self.width, *values.shape[2:])
        return padded.index_copy(0, self.tokens, values[0]).unflatten(0, (self.batch, self.width))


def enable_packing(model: Any, device: torch.device) -> bool:
    """Make a transformers model run without padding if its type, attention (sdpa) and device support it.

    Return whether they do.

    The model accepts and returns padded tensors as before; its outputs at padding are 0. It still runs with padding in other
    dtypes than DTYPES, and if it is called with other inputs than token ids, attention mask and token types.
    """
    config = model.config
    if config._attn_implementation == PACKED:
        return True
    if config.model_type not in MODEL_TYPES or config._attn_implementation != "sdpa" or device.type not in DTYPES:
        return False
    if device.type == "cuda" and not _has_flash_kernel(config, device):
        return False
    model.set_attn_implementation(PACKED)
    model.register_forward_pre_hook(_pack_inputs, with_kwargs=True)
    model.register_forward_hook(_pad_outputs, with_kwargs=True)
    return True


def _has_flash_kernel(config: Any, device: torch.device) -> bool:
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if not torch.backends.cuda.is_flash_attention_available() or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and head_size % 8 == 0 and head_size <= 256


def is_packed(model: Any) -> bool:
    """Return whether the next forward pass runs without padding: packing is enabled, and the compute dtype supports it."""
    if model.config._attn_implementation != PACKED:
        return False
    kind = model.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype
    return dtype in DTYPES.get(kind, ())


def _pack_inputs(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook that packs padded inputs; calls with other arguments, such as hidden states, are not changed."""
    inputs = dict(zip(("input_ids",), args, strict=False)) | {
        name: value for name, value in kwargs.items() if value is not None
    }
    mask = inputs.get("attention_mask")
    names = {*inputs} - _OPTIONS
    is_plain = len(args) < 2 and {"input_ids", "attention_mask"} <= names <= _INPUTS
    if not is_plain or mask is None or mask.dim() != 2 or not is_packed(model):
        return args, kwargs
    packing, ids = Packing.from_mask(mask), inputs["input_ids"]
    positions = packing.positions
    create_position_ids = getattr(getattr(model, "embeddings", None), "create_position_ids_from_input_ids", None)
    if create_position_ids is not None:  # RoBERTa's positions begin after the id of its padding token
        positions = packing.pack(create_position_ids(ids, model.config.pad_token_id))
    packed = {name: packing.pack(value) if name in _INPUTS else value for name, value in inputs.items()}
    # transformers passes on 4-dimensional masks unchanged; `run_packed_attention` does not read this one
    packed |= {"attention_mask": mask.new_ones(1, 1, 1, 1), "position_ids": positions, "packing": packing}
    return (), packed


def _pad_outputs(model: Any, _args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Forward hook that pads the packed hidden states, and computes the pooler output again."""
    if (packing := kwargs.get("packing")) is not None:
        output.last_hidden_state = packing.pad(output.last_hidden_state)
        if getattr(output, "pooler_output", None) is not None:
            output.pooler_output = model.pooler(output.last_hidden_state)
    return output


def run_packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: flash attention within each text of a packed row; sdpa without `packing`.

    query, key, value: (1, heads, T, head size); key and value may have fewer heads (grouped-query attention)
    sliding_window: attend only to tokens at a smaller distance than this    returns: (1, T, heads, head size)
    """
    if packing is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return output
    is_causal = getattr(module, "is_causal", True) and getattr(module.config, "is_causal", True)
    left = -1 if sliding_window is None or sliding_window >= packing.width else sliding_window - 1
    # under autocast, rotary embeddings make queries and keys float32
    inputs = [each[0].transpose(0, 1).to(value.dtype) for each in (query, key, value)]  # (T, heads, head size)
    # the kernel of `torch.nn.attention.varlen`, whose public function does not support dropout
    context: Tensor = torch.ops.aten._flash_attention_forward(
        *inputs,
        packing.offsets,
        packing.offsets,
        packing.width,
        packing.width,
        dropout,
        is_causal and left < 0,
        False,
        scale=scaling,
        window_size_left=left,
        window_size_right=0 if is_causal else left,
    )[0]
    return context.unsqueeze(0), None


AttentionInterface.register(PACKED, run_packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
