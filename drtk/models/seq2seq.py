"""Load and run text generation models: encoder-decoder (T5, BART) or decoder-only (GPT-2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from drtk.errors import MismatchError
from drtk.models.checkpoint import DEFAULT_MAX_LENGTH
from drtk.models.loading import load_config, load_pretrained, load_tokenizer, report_load_errors
from drtk.runtime.remote_code import is_remote_code_trusted

SHARED_KEYS = "drtk_shared_keys"  # name of the attention implementation of `_attend`
_CPU_ENCODED_TOKENS = 1 << 11  # input tokens encoded at once on a CPU, so that the activations fit into its cache
_T5 = ("t5", "mt5", "umt5")
# Fusion-in-Decoder's released checkpoints are T5 models with wrappers around the encoder and each of its layers
_WRAPPED = {r"^encoder\.encoder\.": "encoder.", r"^(encoder\.block\.\d+)\.module\.": r"\1."}


@dataclass
class GenerationModel:
    """A generation model with its tokenizer and special tokens.

    start: id of the decoder start token, which is not part of the text
    ends: ids of the end tokens
    max_length: maximum input length in tokens; for a decoder-only model, maximum length of input and output together
    first: id of the token with which every text must start, such as <s> in published BART models; None: any token
    """

    model: nn.Module
    tokenizer: Any
    is_encoder_decoder: bool
    start: int
    ends: tuple[int, ...]
    max_length: int
    first: int | None = None

    @property
    def pad(self) -> int:
        """The id of the padding token; the end token if the tokenizer has none (GPT-2)."""
        pad = self.tokenizer.pad_token_id
        return int(self.ends[0] if pad is None else pad)

    def cut_at_end_token(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens before the first end token."""
        return list(takewhile(lambda token: token not in self.ends, tokens))


def load_generation_model(
    folder: Path, *, tokenizer_folder: Path | None = None, weights: bool = True
) -> GenerationModel:
    """Load a generation model in float32 on the CPU, in evaluation mode.

    tokenizer_folder: folder of the tokenizer; None: the model's folder
    weights: False: build the model without weights, if another engine generates the texts
    Raises MismatchError for a model that cannot generate, missing weights or tokenizer files, DrtkError for a damaged folder.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    if not (folder / "config.json").exists():
        raise MismatchError(f"{folder}: not a model folder (config.json is missing); check the path")
    with report_load_errors(folder, "cannot be loaded"):
        config = load_config(folder)
        loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        if not config.is_encoder_decoder:
            names = " ".join(config.architectures or ())
            is_causal = config.model_type in CAUSAL or "AutoModelForCausalLM" in (
                getattr(config, "auto_map", None) or {}
            )
            if not is_causal or ("CausalLM" not in names and "LMHead" not in names):
                raise MismatchError(
                    f"{folder}: expected a generation model, got an encoder ({config.model_type}); use T5, BART or GPT-2"
                )
        if weights:
            model, missing = load_pretrained(loader, folder, key_mapping=_WRAPPED if config.model_type in _T5 else None)
        else:
            with torch.device("meta"):
                model, missing = loader.from_config(config, trust_remote_code=is_remote_code_trusted()), []
            if (folder / "generation_config.json").exists():
                model.generation_config = GenerationConfig.from_pretrained(folder)
        if missing:  # transformers initializes them at random
            raise MismatchError(
                f"{folder}: the {config.model_type} checkpoint lacks weights for {missing[0]}; restore them"
            )
        tokenizer = load_tokenizer(tokenizer_folder or folder, config)
    if config.is_encoder_decoder and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(SHARED_KEYS)
    _fuse_gelu(model)
    generation = model.generation_config
    ends = generation.eos_token_id if generation.eos_token_id is not None else tokenizer.eos_token_id
    if ends is None:
        raise MismatchError(f"{folder}: has no end token; set eos_token_id in generation_config.json")
    start = generation.decoder_start_token_id
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    limits = [size for size in (tokenizer.model_max_length, positions) if size and size < 10**9]
    return GenerationModel(
        model.eval(),
        tokenizer,
        bool(config.is_encoder_decoder),
        int(start if start is not None else (generation.bos_token_id or 0)),
        tuple(ends) if isinstance(ends, list | tuple) else (int(ends),),
        min(limits, default=DEFAULT_MAX_LENGTH),
        generation.forced_bos_token_id,
    )


def _fuse_gelu(model: nn.Module) -> None:
    """Replace transformers' tanh approximation of GELU by torch's, which is one operation; results differ by rounding."""
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


class DecodingState:
    """State of a batch during incremental decoding: KV cache, attention masks and next-token logits, one row per text.

    logits: (rows, vocabulary), logits of the next token
    To generate several texts per input, call `repeat_rows` before the first `append`, so that each input is encoded once.
    With the attention implementation SHARED_KEYS, the texts of an input also share the KV cache of cross-attention.
    """

    def __init__(
        self, model: GenerationModel, ids: Tensor | None, mask: Tensor, *, hidden: Tensor | None = None
    ) -> None:
        """Encode the inputs and compute the logits of the first token.

        ids, mask: (inputs, tokens), token ids and attention mask, padded on the right for an encoder-decoder, on the left for
            a decoder-only model
        hidden: (inputs, positions, width), encoder output to use instead of `ids`; `mask` is then (inputs, positions)
        """
        from transformers import DynamicCache, EncoderDecoderCache

        network: Any = model.model
        self._model, self._mask = model, mask
        self._is_ragged = False  # whether rows began at different steps
        self._shared_mask: Tensor | None = None  # (inputs, 1, 1, tokens), from the second step on if keys are shared
        self._num_texts = 1  # texts per input
        self._texts = torch.arange(len(mask), device=mask.device)  # input x texts per input + text of each row
        if model.is_encoder_decoder:
            if hidden is None:
                assert ids is not None
                size = max(1, _CPU_ENCODED_TOKENS // max(1, ids.shape[1])) if ids.device.type == "cpu" else len(ids)
                parts = zip(ids.split(size), mask.split(size), strict=True)
                encoder = network.get_encoder()
                hidden = torch.cat([encoder(input_ids=i, attention_mask=m).last_hidden_state for i, m in parts])
            self._hidden = hidden
            self._cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
            self._self_attention: Any = self._cache.self_attention_cache
            self._past = mask.new_ones((len(mask), 1))  # mask of the cache of self-attention
            self.logits = self._forward(torch.full((len(mask), 1), model.start, device=mask.device))
            if model.first is not None:
                self.logits = torch.full_like(self.logits, -torch.inf)
                self.logits[:, model.first] = 0.0
            if network.config._attn_implementation == SHARED_KEYS:
                self._shared_mask = mask.bool()[:, None, None]
                self._hidden = hidden[:1, :1]  # not read again
        else:
            assert ids is not None, "a decoder-only model needs tokens"
            self._cache = self._self_attention = DynamicCache()
            self._past = mask
            self.logits = self._forward(ids)

    @property
    def can_merge(self) -> bool:
        """Whether `merge` is supported: for decoder-only models, and for T5 with SHARED_KEYS.

        BART's decoder, for example, has the same position for all rows of a batch.
        """
        config: Any = self._model.model.config
        return not self._model.is_encoder_decoder or (self._shared_mask is not None and config.model_type in _T5)

    def _forward(self, tokens: Tensor) -> Tensor:
        """Run the decoder on new tokens, (rows, new); return the logits of the next token, (rows, vocabulary)."""
        network: Any = self._model.model
        options: dict[str, Any] = {"past_key_values": self._cache, "use_cache": True}
        if self._model.is_encoder_decoder:
            if self._is_ragged:
                options["decoder_attention_mask"] = self._past
            if self._shared_mask is None:
                options["attention_mask"] = self._mask
            else:
                options["decoding"] = self  # for `_attend`
            output = network(encoder_outputs=(self._hidden,), decoder_input_ids=tokens, **options)
        else:
            positions = self._past.cumsum(dim=-1)[:, -tokens.shape[1] :] - 1
            options |= {"attention_mask": self._past, "position_ids": positions.clamp(min=0), "logits_to_keep": 1}
            output = network(input_ids=tokens, **options)
        return output.logits[:, -1]

    def attend_to_inputs(self, module: Any, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor | None:
        """Return the output of cross-attention to the inputs, (rows, 1, heads, head size); None for self-attention.

        query: (rows, heads, 1, head size)
        key, value: (inputs, heads, tokens, head size), shared by the texts of an input
        """
        if key is not self._cache.cross_attention_cache.layers[module.layer_idx].keys:
            return None
        grid = query.new_zeros((len(key) * self._num_texts, *query.shape[1::2]))  # (texts, heads, head size)
        grid[self._texts] = query[:, :, 0]
        queries = grid.view(len(key), self._num_texts, *grid.shape[1:]).transpose(1, 2)
        output, _ = sdpa_attention_forward(module, queries, key, value, self._shared_mask, **options)
        return output.reshape(grid.shape)[self._texts][:, None]

    def repeat_rows(self, times: int) -> None:
        """Repeat every row `times` times, with the copies of a row next to each other."""
        if times == 1:
            return
        self._past = self._past.repeat_interleave(times, dim=0)
        self.logits = self.logits.repeat_interleave(times, dim=0)
        if self._shared_mask is not None:
            self._num_texts, self._texts = times, torch.arange(len(self.logits), device=self.logits.device)
            self._self_attention.batch_repeat_interleave(times)
            return
        self._cache.batch_repeat_interleave(times)
        if self._model.is_encoder_decoder:
            self._mask = self._mask.repeat_interleave(times, dim=0)
            self._hidden = self._hidden.repeat_interleave(times, dim=0)

    def select_rows(self, rows: Tensor) -> None:
        """Keep only the given rows, in the given order. `logits` are valid again after the next `append`.

        rows: (n,), row indices
        """
        self._past = self._past[rows]
        if self._shared_mask is not None:
            self._self_attention.batch_select_indices(rows)
            texts = self._texts[rows]
            inputs, places = torch.unique(texts // self._num_texts, return_inverse=True)
            self._texts = places * self._num_texts + texts % self._num_texts
            if len(inputs) < len(self._shared_mask):
                mask = self._shared_mask[inputs]
                # Drop the columns that are padding in every remaining input.
                width = int((mask * torch.arange(mask.shape[-1], device=mask.device)).max()) + 1
                for layer in self._cache.cross_attention_cache.layers:
                    layer.keys, layer.values = layer.keys[..., :width, :], layer.values[..., :width, :]
                self._cache.cross_attention_cache.batch_select_indices(inputs)
                self._shared_mask = mask[..., :width]
        else:
            self._cache.batch_select_indices(rows)
            if self._model.is_encoder_decoder:
                self._mask, self._hidden = self._mask[rows], self._hidden[rows]
        width = int(self._past.sum(dim=1).max())  # the first tokens belonged to rows that are gone
        self._past = self._past[:, -width:]
        for layer in self._self_attention.layers:
            layer.keys, layer.values = layer.keys[..., -width:, :], layer.values[..., -width:, :]

    def merge(self, other: DecodingState) -> None:
        """Append the rows of `other`, which is of the same model and has had no `append`.

        Both states must have the same number of texts per input.
        """
        self._is_ragged = True
        self._past = _pad_and_concatenate(self._past, other._past, dim=1, left=True)
        self.logits = torch.cat([self.logits, other.logits])
        _merge_caches(self._self_attention, other._self_attention, left=True)
        if self._shared_mask is not None and other._shared_mask is not None:
            self._texts = torch.cat([self._texts, other._texts + len(self._shared_mask) * self._num_texts])
            self._shared_mask = _pad_and_concatenate(self._shared_mask, other._shared_mask, dim=3, left=False)
            _merge_caches(self._cache.cross_attention_cache, other._cache.cross_attention_cache, left=False)

    def append(self, tokens: Tensor) -> None:
        """Append a token to each row and compute the logits of the next token. tokens: (rows,), token ids"""
        self._past = torch.cat([self._past, self._past.new_ones((len(tokens), 1))], dim=1)
        self.logits = self._forward(tokens[:, None])


@torch.inference_mode()
def count_bytes_per_token(model: GenerationModel) -> float:
    """Return the size of the KV cache per token in bytes; the mean of self- and cross-attention for an encoder-decoder."""
    ids = torch.full((1, 1), model.pad, device=next(model.model.parameters()).device)
    cache = DecodingState(model, ids, torch.ones_like(ids))._cache
    caches = [cache.self_attention_cache, cache.cross_attention_cache] if model.is_encoder_decoder else [cache]
    return sum(layer.keys.nbytes + layer.values.nbytes for each in caches for layer in each.layers) / len(caches)


def _pad_and_concatenate(one: Tensor, other: Tensor, *, dim: int, left: bool) -> Tensor:
    """Pad two tensors with zeros to the same size in dimension `dim`, and concatenate them in dimension 0.

    left: pad before the values, else after them
    """
    width = max(one.shape[dim], other.shape[dim])
    after = [0, 0] * (one.dim() - 1 - dim)

    def pad(tensor: Tensor) -> Tensor:
        missing = width - tensor.shape[dim]  # F.pad would copy a tensor that needs no padding
        return F.pad(tensor, after + ([missing, 0] if left else [0, missing])) if missing else tensor

    return torch.cat([pad(one), pad(other)])


def _merge_caches(cache: Any, other: Any, *, left: bool) -> None:
    for one, two in zip(cache.layers, other.layers, strict=True):
        one.keys = _pad_and_concatenate(one.keys, two.keys, dim=2, left=left)
        one.values = _pad_and_concatenate(one.values, two.values, dim=2, left=left)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    decoding: DecodingState | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: sdpa, but cross-attention uses the shared KV cache of a `DecodingState`."""
    if decoding is not None:
        output = decoding.attend_to_inputs(module, query, key, value, **options)
        if output is not None:
            return output, None
    output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return output, None


AttentionInterface.register(SHARED_KEYS, _attend)
AttentionMaskInterface.register(SHARED_KEYS, sdpa_mask)
