"""Models that write text: an encoder with a decoder (T5, BART), or a decoder alone (GPT-2), from their folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.checkpoint import report_write_errors
from drtk.models.loading import (
    load_config,
    load_tokenizer,
    load_weights,
    report_load_errors,
    save_tokenizer,
)
from drtk.runtime.progress import quiet_transformers

LONGEST = 512  # tokens of input, where neither folder nor tokenizer says
_T5 = ("t5", "mt5", "umt5")
# Fusion-in-Decoder's released readers are T5 models saved with wrappers around their encoder and each of its layers.
_WRAPPED = {r"^encoder\.encoder\.": "encoder.", r"^(encoder\.block\.\d+)\.module\.": r"\1."}


@dataclass
class GenerationModel:
    """A model that writes, its tokenizer, and the tokens it begins and ends with.

    is_encoder_decoder: whether an encoder reads the input (T5, BART), or the text goes on where the input ends (GPT-2)
    start: what the decoder of a two-sided model is given first, and is no part of the text
    first: the token that every text of a two-sided model has to begin with (published BART: <s>), if there is one
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
        """The padding token; a tokenizer without one (GPT-2) pads with its end."""
        found = self.tokenizer.pad_token_id
        return int(self.ends[0] if found is None else found)


def load_generation_model(folder: Path, *, tokenizer_at: Path | None = None) -> GenerationModel:
    """The writing model of a folder, in float32 on the CPU, ready for inference.

    tokenizer_at: the folder of its tokenizer, where that is another one
    Raises MismatchError for a model that does not write, weights or a tokenizer that are missing, DrtkError for a folder that
    cannot be loaded.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    if not (folder / "config.json").exists():
        raise MismatchError(f"{folder}: is no model folder: it has no config.json")
    with report_load_errors(folder, "cannot be loaded"):
        config = load_config(folder)
        loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        if not config.is_encoder_decoder and not _writes(config):
            raise MismatchError(f"{folder}: is an encoder ({config.model_type}); a model that writes is needed")
        model, missing = load_weights(loader, folder, key_mapping=_WRAPPED if config.model_type in _T5 else None)
        if missing:  # transformers draws them at random
            raise MismatchError(f"{folder}: lacks weights of a {config.model_type}: {missing[0]}")
        tokenizer = load_tokenizer(tokenizer_at or folder, config)
    generation = model.generation_config
    ends = generation.eos_token_id if generation.eos_token_id is not None else tokenizer.eos_token_id
    if ends is None:
        raise MismatchError(f"{folder}: neither model nor tokenizer names a token that ends a text")
    start = generation.decoder_start_token_id
    return GenerationModel(
        model.eval(),
        tokenizer,
        bool(config.is_encoder_decoder),
        int(start if start is not None else (generation.bos_token_id or 0)),
        tuple(ends) if isinstance(ends, list | tuple) else (int(ends),),
        _longest(tokenizer, config),
        generation.forced_bos_token_id,
    )


def save_generation_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a folder that loads with AutoModelForSeq2SeqLM or AutoModelForCausalLM: weights as safetensors, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_transformers(), report_write_errors(folder):
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)


def _writes(config: Any) -> bool:
    """Whether an architecture without an encoder is a language model that goes from left to right."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    named = " ".join(config.architectures or ())
    return config.model_type in KNOWN and ("CausalLM" in named or "LMHead" in named)


def _longest(tokenizer: Any, config: Any) -> int:
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    stated = [size for size in (tokenizer.model_max_length, positions) if size and size < 10**9]
    return min(stated) if stated else LONGEST


class Decoding:
    """A batch of inputs being answered token by token, its rows repeated, dropped and extended.

    Inputs are read once, whatever the number of answers; the first step is one for all answers to an input.
    """

    def __init__(
        self, writer: GenerationModel, ids: Tensor | None, mask: Tensor, *, hidden: Tensor | None = None
    ) -> None:
        """ids, mask: (inputs, tokens), padded right for two-sided models, left for the others

        hidden: (inputs, positions, width), what the encoder of a two-sided model has made already, in the place of `ids`; `mask`
                is over its positions then
        """
        from transformers import DynamicCache, EncoderDecoderCache

        self._writer, self._mask = writer, mask
        model: Any = writer.model
        if writer.is_encoder_decoder:
            if hidden is None:
                hidden = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            self._hidden = hidden
            self._cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
            begin = torch.full((len(mask), 1), writer.start, device=mask.device)
            self.logits = self._forward(begin)
            if writer.first is not None:
                self.logits = torch.full_like(self.logits, -torch.inf)
                self.logits[:, writer.first] = 0.0
        else:
            if ids is None:
                raise ValueError("a model that goes on with a text needs its tokens")
            self._cache = DynamicCache()
            self.logits = self._forward(ids)

    def _forward(self, tokens: Tensor) -> Tensor:
        """tokens: (rows, new); returns: (rows, vocabulary) for the token to come"""
        model: Any = self._writer.model
        common = {"past_key_values": self._cache, "use_cache": True}
        if self._writer.is_encoder_decoder:
            found = model(
                encoder_outputs=(self._hidden,), attention_mask=self._mask, decoder_input_ids=tokens, **common
            )
            return found.logits[:, -1]
        places = self._mask.cumsum(dim=-1)[:, -tokens.shape[1] :] - 1
        found = model(
            input_ids=tokens, attention_mask=self._mask, position_ids=places.clamp(min=0), logits_to_keep=1, **common
        )
        return found.logits[:, -1]

    def repeat(self, times: int) -> None:
        """Every row `times` times, the copies side by side."""
        if times > 1:
            self._cache.batch_repeat_interleave(times)
            self._mask = self._mask.repeat_interleave(times, dim=0)
            self.logits = self.logits.repeat_interleave(times, dim=0)
            if self._writer.is_encoder_decoder:
                self._hidden = self._hidden.repeat_interleave(times, dim=0)

    def keep(self, rows: Tensor) -> None:
        """Only these rows, in this order. rows: (kept,)"""
        self._cache.batch_select_indices(rows)
        self._mask = self._mask[rows]
        if self._writer.is_encoder_decoder:
            self._hidden = self._hidden[rows]

    def step(self, tokens: Tensor) -> None:
        """Take in the token chosen for each row; `logits` are then those of the next. tokens: (rows,)"""
        if not self._writer.is_encoder_decoder:
            self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], dim=1)
        self.logits = self._forward(tokens[:, None])
