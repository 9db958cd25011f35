"""Generate texts: greedy decoding, sampling and beam search, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drtk.errors import MismatchError
from drtk.models.config import GenerationSettings
from drtk.models.device import choose_device, choose_dtype, move_model, report_out_of_memory
from drtk.models.generator_input import get_max_input_length, load_input_format, tokenize_texts
from drtk.models.model_folder import locate
from drtk.models.seq2seq import DecodingState, GenerationModel, load_generation_model
from drtk.runtime.progress import warn
from drtk.text.batching import TokenizedTexts, iter_batches_by_length

# Entries of generation_config.json that change the generated text, with the values that change nothing. Not listed:
# entries that options set (lengths, top-k, beams), that only affect truncation (forced_eos_token_id), or that belong to
# other decoding methods.
_NEUTRAL = {
    "min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "bad_words_ids": [], "suppress_tokens": [],
    "begin_suppress_tokens": [], "sequence_bias": {}, "exponential_decay_length_penalty": None, "guidance_scale": 1.0,
    "stop_strings": [], "watermarking_config": None,
}  # fmt: skip
_NEUTRAL_SAMPLING = {"min_p": 0.0, "top_h": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
_NEUTRAL_BEAMS = {"length_penalty": 1.0, "early_stopping": False, "diversity_penalty": 0.0}
_CPU_TOKENS, _GPU_TOKENS = 1 << 14, 1 << 17
_COMPACT_BELOW = 0.75  # remove finished rows from the batch when the share of unfinished ones is below this


def find_ignored_settings(model: Any, decode: str) -> dict[str, Any]:
    """Return the entries of a model's generation config that `decode` (see GenerationSettings) ignores, by name."""
    neutral = _NEUTRAL | (_NEUTRAL_SAMPLING if "sample" in decode else _NEUTRAL_BEAMS if decode == "beam" else {})
    stated = {name: getattr(model.generation_config, name, None) for name in neutral}
    return {name: value for name, value in stated.items() if value is not None and value != neutral[name]}


def filter_logits(logits: Tensor, *, top_k: int, top_p: float, temperature: float) -> tuple[Tensor, Tensor]:
    """Apply top-k, then top-p filtering; return (probabilities, token ids), most likely first, (rows, k) each.

    Keep the `top_k` most likely tokens (0: all) and normalize, then keep the smallest set with a total probability of at
    least `top_p` (Holtzman et al. 2020) and normalize again (docs/methods/doc2query.md).
    logits: (rows, vocabulary)
    """
    width = logits.shape[-1] if top_k == 0 else min(top_k, logits.shape[-1])
    best, tokens = logits.float().topk(width, dim=-1)
    probabilities = torch.softmax(best / temperature, dim=-1)
    if top_p < 1:
        before = probabilities.cumsum(dim=-1) - probabilities  # total probability of the more likely tokens
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    return probabilities, tokens


def sample_tokens(probabilities: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """Sample a token per row by inverse transform sampling, (rows,); `uniform` 0 selects the most likely token.

    probabilities, tokens: (rows, width), most likely first    uniform: (rows,), random numbers in [0, 1)
    """
    cumulative = probabilities.cumsum(dim=-1)  # (rows, width)
    cumulative = cumulative / cumulative[:, -1:]  # rounding must not leave a gap below 1
    column = (cumulative <= uniform[:, None]).sum(dim=-1).clamp(max=tokens.shape[-1] - 1)
    last = (probabilities > 0).sum(dim=-1) - 1
    return tokens.gather(1, torch.minimum(column, last)[:, None]).squeeze(1)


def sample_uniforms(keys: Sequence[str], *, seed: int, count: int, steps: int) -> np.ndarray:
    """Return uniform random numbers in [0, 1), (keys, count, steps) float64: `count` sequences of `steps` numbers per key.

    The numbers depend on (seed, key, index of the sequence, step) only.
    """
    numbers = np.empty((len(keys), count, steps), dtype=np.float64)
    for row, key in enumerate(keys):
        for sample in range(count):
            name = f"{seed}\0{key}\0{sample}".encode(errors="surrogatepass")
            start = int.from_bytes(blake2b(name, digest_size=16).digest(), "big")
            numbers[row, sample] = np.random.Generator(np.random.Philox(key=start)).random(steps)
    return numbers


@torch.inference_mode()
def generate_tokens(
    model: GenerationModel, ids: Tensor, mask: Tensor, keys: Sequence[str], settings: GenerationSettings, *, seed: int
) -> list[list[list[int]]]:
    """Generate texts; return token ids without the end token, indexed [input][text][token].

    Sampled texts depend on (seed, key of the input, index of the text) only. greedy+sample returns the greedy text first,
    then the samples.
    ids, mask: (inputs, tokens)    keys: a sampling key for each input
    """
    if settings.decode == "beam":
        return _search_beams(model, ids, mask, settings)
    count, uniform = 1, None
    if "sample" in settings.decode:
        count = settings.n
        uniforms = sample_uniforms(keys, seed=seed, count=count, steps=settings.max_new_tokens)
        if settings.decode == "greedy+sample":
            uniforms[:, 0] = 0.0  # selects the most likely token
        dtype = torch.float32 if ids.device.type == "mps" else torch.float64  # Apple GPUs have no float64
        uniform = torch.from_numpy(uniforms.reshape(len(keys) * count, -1)).to(ids.device, dtype)
    tokens, lengths = _decode(model, DecodingState(model, ids, mask), count, uniform, settings)
    texts = [row[: int(length)].tolist() for row, length in zip(tokens, lengths, strict=True)]
    return [texts[start : start + count] for start in range(0, len(texts), count)]


def _decode(
    model: GenerationModel, decoding: DecodingState, count: int, uniform: Tensor | None, settings: GenerationSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Decode greedily or by sampling; return (tokens, (texts, max_new_tokens); lengths, (texts,))."""
    decoding.repeat_rows(count)
    total, device = len(decoding.logits), decoding.logits.device
    ends = torch.tensor(model.ends, device=device)
    tokens = torch.zeros((total, settings.max_new_tokens), dtype=torch.long, device=device)
    lengths = torch.full((total,), settings.max_new_tokens, device=device)
    rows = torch.arange(total, device=device)  # index of the text in each row of the batch
    is_open = torch.ones(total, dtype=torch.bool, device=device)  # rows whose text is unfinished
    for step in range(settings.max_new_tokens):
        if uniform is None:
            new_tokens = decoding.logits.argmax(dim=-1)
        else:
            candidates = filter_logits(
                decoding.logits, top_k=settings.top_k, top_p=settings.top_p, temperature=settings.temperature
            )
            new_tokens = sample_tokens(*candidates, uniform[rows, step])
        is_end = torch.isin(new_tokens, ends)
        lengths[rows[is_open & is_end]] = step
        tokens[rows, step] = new_tokens
        is_open &= ~is_end
        num_open = int(is_open.sum())
        if num_open == 0 or step + 1 == settings.max_new_tokens:
            break
        if num_open < _COMPACT_BELOW * len(is_open):
            unfinished = is_open.nonzero().squeeze(1)
            decoding.select_rows(unfinished)
            rows, new_tokens, is_open = rows[unfinished], new_tokens[unfinished], is_open[unfinished]
        decoding.append(new_tokens)
    return tokens.cpu().numpy(), lengths.cpu().numpy()


def _search_beams(
    model: GenerationModel, ids: Tensor, mask: Tensor, settings: GenerationSettings
) -> list[list[list[int]]]:
    """Return the token ids of the n best texts of transformers' beam search."""
    from transformers import GenerationConfig

    network: Any = model.model
    options = {
        "do_sample": False,
        "num_beams": max(settings.beams, settings.n),
        "num_return_sequences": settings.n,
        "max_new_tokens": settings.max_new_tokens,
        "pad_token_id": model.pad,
        "eos_token_id": list(model.ends),
    }
    if model.is_encoder_decoder:
        options |= {"decoder_start_token_id": model.start, "forced_bos_token_id": model.first}
    original = network.generation_config
    network.generation_config = GenerationConfig(
        **options
    )  # an argument would inherit missing options from the model's
    try:
        rows = network.generate(input_ids=ids, attention_mask=mask)
    finally:
        network.generation_config = original
    begin = 1 if model.is_encoder_decoder else ids.shape[1]  # skip the start token, or the input
    texts = []
    for row in rows:
        tokens = row[begin:].tolist()
        texts.append(tokens[: next((index for index, token in enumerate(tokens) if token in model.ends), len(tokens))])
    return [texts[start : start + settings.n] for start in range(0, len(texts), settings.n)]


class TextGenerator:
    """Generator of texts from input texts. Sampled texts depend on (seed, key of the input, index of the text) only.

    input_format: the input format of the training, with the overrides of the settings
    max_input_tokens: maximum input length; longer inputs are truncated
    """

    def __init__(
        self, model: str, settings: GenerationSettings, *, seed: int, device: str, needs_encoder: bool | None = None
    ) -> None:
        """Load the model.

        needs_encoder: True: require an encoder-decoder (T5); False: a decoder-only model (GPT-2); None: accept both
        Raises UsageError if prefix or output leave no tokens for the input, MismatchError for a model of another type or
        settings that contradict its training.
        """
        self._settings, self._seed = settings, seed
        self._device = choose_device(device)
        folder = locate(model)
        overrides = {"prefix": settings.prefix, "title": settings.title, "max_length": settings.max_length}
        self.input_format = load_input_format(folder, overrides, strict=True)
        self._model = load_generation_model(folder)
        if needs_encoder is not None and self.is_encoder_decoder != needs_encoder:
            raise MismatchError(
                f"{model}: is a decoder-only model; use an encoder-decoder such as T5 or BART"
                if needs_encoder
                else f"{model}: is an encoder-decoder; use a decoder-only model such as GPT-2"
            )
        ignored = find_ignored_settings(self._model.model, settings.decode)
        if ignored:
            entries = ", ".join(f"{name} {value}" for name, value in ignored.items())
            warn(f"{model}: ignoring {entries} in its generation_config.json")
        dtype = choose_dtype(settings.precision, self._device, half="bfloat16")
        move_model(self._model.model, self._device, dtype)
        self._budget = settings.batch_tokens or (_CPU_TOKENS if self._device.type == "cpu" else _GPU_TOKENS)
        self.max_input_tokens = get_max_input_length(self._model, self.input_format, new_tokens=settings.max_new_tokens)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model is an encoder-decoder (T5) rather than decoder-only (GPT-2)."""
        return self._model.is_encoder_decoder

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, including special tokens, without truncation."""
        return len(self._model.tokenizer(text)["input_ids"])

    def tokenize(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenize texts, truncated to `max_input_tokens`."""
        return tokenize_texts(texts, self._model.tokenizer, max_length=self.max_input_tokens)

    def generate(self, tokens: TokenizedTexts, keys: Sequence[str]) -> list[list[str]]:
        """Return the generated texts of each input, without special tokens.

        keys: a sampling key for each input. Raises DrtkError when out of memory.
        """
        texts: list[list[str]] = [[] for _ in keys]
        cost = self._settings.n * (tokens.lengths + self._settings.max_new_tokens)  # tokens in memory at the last step
        for rows in iter_batches_by_length(cost, budget=self._budget):
            for row, generated in zip(rows, self._generate_batch(tokens, keys, rows), strict=True):
                texts[row] = generated
        return texts

    def _generate_batch(self, tokens: TokenizedTexts, keys: Sequence[str], rows: np.ndarray) -> list[list[str]]:
        model = self._model
        batch = tokens.pad(rows, pad=model.pad, left=not model.is_encoder_decoder)
        ids, mask = (torch.from_numpy(batch[name]).to(self._device) for name in ("input_ids", "attention_mask"))
        with report_out_of_memory(self._device, "lower `batch_tokens`", num_tokens=ids.numel()):
            outputs = generate_tokens(model, ids, mask, [keys[row] for row in rows], self._settings, seed=self._seed)
        flat = [text for group in outputs for text in group]
        texts = iter(model.tokenizer.batch_decode(flat, skip_special_tokens=True))
        return [[next(texts) for _ in group] for group in outputs]
