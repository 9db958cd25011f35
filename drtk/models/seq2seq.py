"""Generation models: encoder-decoder (T5, BART) or decoder-only (GPT-2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.checkpoint import DEFAULT_MAX_LENGTH, report_write_errors
from drtk.models.loading import (
    load_config,
    load_tokenizer,
    load_weights,
    report_load_errors,
    save_tokenizer,
)
from drtk.runtime.progress import silence_transformers

_T5 = ("t5", "mt5", "umt5")
# The released readers of Fusion-in-Decoder are T5 models with wrappers around the encoder and each of its layers.
_WRAPPED = {r"^encoder\.encoder\.": "encoder.", r"^(encoder\.block\.\d+)\.module\.": r"\1."}


@dataclass
class GenerationModel:
    """A model, its tokenizer, and the tokens with which a text starts and ends.

    is_encoder_decoder: whether an encoder reads the input (T5, BART), or the input is continued (GPT-2)
    start: first token of the decoder, not part of the text
    first: the token that every text must start with (published BART: <s>), if any
    """

    model: nn.Module
    tokenizer: Any
    is_encoder_decoder: bool
    start: int
    ends: tuple[int, ...]
    longest: int
    first: int | None = None

    @property
    def pad(self) -> int:
        """The id of the padding token; the end token if the tokenizer has none (GPT-2)."""
        pad = self.tokenizer.pad_token_id
        return int(self.ends[0] if pad is None else pad)


def load_generation_model(folder: Path, *, tokenizer_at: Path | None = None) -> GenerationModel:
    """Load the generation model of a folder, in float32 on the CPU, in evaluation mode.

    tokenizer_at: the folder of the tokenizer, if it is another one
    Raises MismatchError for another kind of model or missing weights or tokenizer files, DrtkError for a damaged folder.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    if not (folder / "config.json").exists():
        raise MismatchError(f"{folder}: is no model folder: it has no config.json")
    with report_load_errors(folder, "cannot be loaded"):
        config = load_config(folder)
        loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        if not config.is_encoder_decoder:
            names = " ".join(config.architectures or ())
            if config.model_type not in CAUSAL or ("CausalLM" not in names and "LMHead" not in names):
                raise MismatchError(f"{folder}: is an encoder ({config.model_type}); a generation model is needed")
        model, missing = load_weights(loader, folder, key_mapping=_WRAPPED if config.model_type in _T5 else None)
        if missing:  # transformers initializes them at random
            raise MismatchError(f"{folder}: lacks weights of a {config.model_type}: {missing[0]}")
        tokenizer = load_tokenizer(tokenizer_at or folder, config)
    generation = model.generation_config
    ends = generation.eos_token_id if generation.eos_token_id is not None else tokenizer.eos_token_id
    if ends is None:
        raise MismatchError(f"{folder}: neither model nor tokenizer names an end token")
    start = generation.decoder_start_token_id
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    longest = [size for size in (tokenizer.model_max_length, positions) if size and size < 10**9]
    return GenerationModel(
        model.eval(),
        tokenizer,
        bool(config.is_encoder_decoder),
        int(start if start is not None else (generation.bos_token_id or 0)),
        tuple(ends) if isinstance(ends, list | tuple) else (int(ends),),
        min(longest, default=DEFAULT_MAX_LENGTH),
        generation.forced_bos_token_id,
    )


def save_generation_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a folder that AutoModelForSeq2SeqLM or AutoModelForCausalLM loads: weights as safetensors, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    with silence_transformers(), report_write_errors(folder):
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)


class DecodingState:
    """Incremental decoding of a batch, whose rows can be repeated, removed and extended.

    Inputs are encoded once, and the first step is computed once, whatever the number of texts per input.
    """

    def __init__(
        self, model: GenerationModel, ids: Tensor | None, mask: Tensor, *, hidden: Tensor | None = None
    ) -> None:
        """ids, mask: (inputs, tokens), padded on the right for an encoder-decoder, otherwise on the left

        hidden: (inputs, positions, width), the output of the encoder instead of `ids`; `mask` is over its positions
        """
        from transformers import DynamicCache, EncoderDecoderCache

        self._model, self._mask = model, mask
        network: Any = model.model
        if model.is_encoder_decoder:
            if hidden is None:
                hidden = network.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            self._hidden = hidden
            self._cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
            self.logits = self._forward(torch.full((len(mask), 1), model.start, device=mask.device))
            if model.first is not None:
                self.logits = torch.full_like(self.logits, -torch.inf)
                self.logits[:, model.first] = 0.0
        else:
            assert ids is not None, "a decoder-only model needs tokens"
            self._cache = DynamicCache()
            self.logits = self._forward(ids)

    def _forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token, (rows, vocabulary), from new tokens (rows, new)."""
        network: Any = self._model.model
        common = {"attention_mask": self._mask, "past_key_values": self._cache, "use_cache": True}
        if self._model.is_encoder_decoder:
            output = network(encoder_outputs=(self._hidden,), decoder_input_ids=tokens, **common)
        else:
            positions = self._mask.cumsum(dim=-1)[:, -tokens.shape[1] :] - 1
            output = network(input_ids=tokens, position_ids=positions.clamp(min=0), logits_to_keep=1, **common)
        logits: Tensor = output.logits[:, -1]
        return logits

    def repeat(self, times: int) -> None:
        """Repeat every row, copies adjacent."""
        if times > 1:
            self._cache.batch_repeat_interleave(times)
            self._mask = self._mask.repeat_interleave(times, dim=0)
            self.logits = self.logits.repeat_interleave(times, dim=0)
            if self._model.is_encoder_decoder:
                self._hidden = self._hidden.repeat_interleave(times, dim=0)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order. rows: (kept,)"""
        self._cache.batch_select_indices(rows)
        self._mask = self._mask[rows]
        if self._model.is_encoder_decoder:
            self._hidden = self._hidden[rows]

    def step(self, tokens: Tensor) -> None:
        """Append the chosen token of each row, (rows,), and compute the logits of the next."""
        if not self._model.is_encoder_decoder:
            self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], dim=1)
        self.logits = self._forward(tokens[:, None])
