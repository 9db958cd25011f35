"""Load and run text generation models: encoder-decoder (T5, BART) or decoder-only (GPT-2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.checkpoint import DEFAULT_MAX_LENGTH
from drtk.models.loading import load_config, load_tokenizer, load_weights, report_load_errors

_T5 = ("t5", "mt5", "umt5")
# Fusion-in-Decoder's released checkpoints are T5 models with wrappers around the encoder and each of its layers
_WRAPPED = {r"^encoder\.encoder\.": "encoder.", r"^(encoder\.block\.\d+)\.module\.": r"\1."}


@dataclass
class GenerationModel:
    """A generation model with its tokenizer and special tokens.

    start: id of the decoder start token, which is not part of the text
    ends: ids of the end tokens
    max_length: maximum input length in tokens; for a decoder-only model, of input and output together
    first: id of the token that every text must start with (published BART: <s>), if any
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


def load_generation_model(folder: Path, *, tokenizer_folder: Path | None = None) -> GenerationModel:
    """Load a generation model in float32 on the CPU, in evaluation mode.

    tokenizer_folder: folder of the tokenizer; None: the model's folder
    Raises MismatchError for a model that cannot generate, missing weights or tokenizer files, DrtkError for a damaged folder.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    if not (folder / "config.json").exists():
        raise MismatchError(f"{folder}: not a model folder (config.json is missing); check the path")
    with report_load_errors(folder, "cannot be loaded"):
        config = load_config(folder)
        loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        if not config.is_encoder_decoder:
            names = " ".join(config.architectures or ())
            if config.model_type not in CAUSAL or ("CausalLM" not in names and "LMHead" not in names):
                raise MismatchError(
                    f"{folder}: expected a generation model, got an encoder ({config.model_type}); use T5, BART or GPT-2"
                )
        model, missing = load_weights(loader, folder, key_mapping=_WRAPPED if config.model_type in _T5 else None)
        if missing:  # transformers initializes them at random
            raise MismatchError(
                f"{folder}: the {config.model_type} checkpoint has no weights for {missing[0]}; restore it"
            )
        tokenizer = load_tokenizer(tokenizer_folder or folder, config)
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


class DecodingState:
    """The state of a batch during incremental decoding: key-value cache, attention mask and next-token logits.

    logits: (rows, vocabulary), logits of the next token
    To generate several texts per input, call `repeat_rows` after the first step, so that each input is encoded once.
    """

    def __init__(
        self, model: GenerationModel, ids: Tensor | None, mask: Tensor, *, hidden: Tensor | None = None
    ) -> None:
        """Encode the inputs and compute the logits of the first token.

        ids, mask: (inputs, tokens), padded on the right for an encoder-decoder, on the left for a decoder-only model
        hidden: (inputs, positions, width), encoder output to use instead of `ids`; `mask` is then (inputs, positions)
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
        """Run the decoder on new tokens, (rows, new); return the logits of the next token, (rows, vocabulary)."""
        network: Any = self._model.model
        common = {"attention_mask": self._mask, "past_key_values": self._cache, "use_cache": True}
        if self._model.is_encoder_decoder:
            output = network(encoder_outputs=(self._hidden,), decoder_input_ids=tokens, **common)
        else:
            positions = self._mask.cumsum(dim=-1)[:, -tokens.shape[1] :] - 1
            output = network(input_ids=tokens, position_ids=positions.clamp(min=0), logits_to_keep=1, **common)
        logits: Tensor = output.logits[:, -1]
        return logits

    def repeat_rows(self, times: int) -> None:
        """Repeat every row `times` times; the copies of a row are adjacent."""
        if times > 1:
            self._cache.batch_repeat_interleave(times)
            self._mask = self._mask.repeat_interleave(times, dim=0)
            self.logits = self.logits.repeat_interleave(times, dim=0)
            if self._model.is_encoder_decoder:
                self._hidden = self._hidden.repeat_interleave(times, dim=0)

    def select_rows(self, rows: Tensor) -> None:
        """Keep only the given rows, in the given order; `append` updates the logits. rows: (n,), row indices"""
        self._cache.batch_select_indices(rows)
        self._mask = self._mask[rows]
        if self._model.is_encoder_decoder:
            self._hidden = self._hidden[rows]

    def append(self, tokens: Tensor) -> None:
        """Append a token to each row and compute the logits of the next token. tokens: (rows,)"""
        if not self._model.is_encoder_decoder:
            self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], dim=1)
        self.logits = self._forward(tokens[:, None])
