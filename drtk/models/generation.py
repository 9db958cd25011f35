"""Generate texts: decoding, sampling, and batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drtk.errors import DrtkError, MismatchError
from drtk.models.config import GenerationSettings
from drtk.models.device import choose_device
from drtk.models.generator_input import load_generator_input, max_input_length, tokenize_texts
from drtk.models.model_folder import locate
from drtk.models.seq2seq import Decoding, GenerationModel, load_generation_model
from drtk.runtime.progress import warn
from drtk.text.batching import Tokens, batches_by_length

# Wishes that would change a text, and the values that say nothing. Left out are those that options decide (lengths, top-k,
# beams), those that only say how a text is cut off (forced_eos_token_id), and those of other ways to decode.
_ALWAYS = {
    "min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "bad_words_ids": [], "suppress_tokens": [],
    "begin_suppress_tokens": [], "sequence_bias": {}, "exponential_decay_length_penalty": None, "guidance_scale": 1.0,
    "stop_strings": [], "watermarking_config": None,
}  # fmt: skip
_OF_SAMPLING = {"min_p": 0.0, "top_h": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
_OF_BEAMS = {"length_penalty": 1.0, "early_stopping": False, "diversity_penalty": 0.0}


def find_ignored_settings(model: Any, decode: str) -> dict[str, Any]:
    """The wishes of a model's generation config that decoding leaves out, by name.

    decode: sample, greedy, beam or greedy+sample, as GenerationSettings has it; sampling and beams have wishes of their own
    """
    neutral = _ALWAYS | (_OF_SAMPLING if "sample" in decode else _OF_BEAMS if decode == "beam" else {})
    found = {name: getattr(model.generation_config, name, None) for name in neutral}
    return {name: value for name, value in found.items() if value is not None and value != neutral[name]}


def _warn_about_ignored_settings(folder: object, model: Any, decode: str) -> None:
    """One line that names what is left out, where something is."""
    wishes = find_ignored_settings(model, decode)
    if wishes:
        named = ", ".join(f"{name} {value}" for name, value in wishes.items())
        warn(f"{folder}: its generation_config.json has {named}; texts are written without")


@contextmanager
def use_generation_config(model: Any, **choices: Any) -> Iterator[Any]:
    """A GenerationConfig of these choices and nothing else, for `model.generate`; the model's own is back afterwards.

    What a passed one leaves open, transformers takes from the model's own, so that this one has to go meanwhile.
    """
    from transformers import GenerationConfig

    before = model.generation_config
    model.generation_config = GenerationConfig(**choices)
    try:
        yield model.generation_config
    finally:
        model.generation_config = before


def filter_logits(logits: Tensor, *, top_k: int, top_p: float, temperature: float) -> tuple[Tensor, Tensor]:
    """(probabilities, tokens), best first, of what is left of each distribution; what is cut off has probability 0.

    First the `top_k` most likely tokens are kept (0: all) and their probabilities brought to a sum of 1; of these the
    smallest set that reaches `top_p` is kept (Holtzman 2020), and brought to a sum of 1 again. The other order keeps more
    (methods: section 2.6).
    logits: (rows, vocabulary); returns: both (rows, top_k or vocabulary), float32 and int64
    """
    width = logits.shape[-1] if top_k == 0 else min(top_k, logits.shape[-1])
    best, tokens = logits.float().topk(width, dim=-1)
    probabilities = torch.softmax(best / temperature, dim=-1)
    if top_p < 1:
        before = probabilities.cumsum(dim=-1) - probabilities  # what more likely tokens hold together
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    return probabilities, tokens


def sample_tokens(probabilities: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """The token of each row whose share of [0, 1) `uniform` falls into, shares lying side by side, the largest first.

    probabilities, tokens: (rows, width); uniform: (rows,); returns: (rows,)
    """
    reached = probabilities.cumsum(dim=-1)  # (rows, width)
    reached = reached / reached[:, -1:]  # rounding must not leave a gap below 1
    place = (reached <= uniform[:, None]).sum(dim=-1).clamp(max=tokens.shape[-1] - 1)
    last = (probabilities > 0).sum(dim=-1) - 1
    return tokens.gather(1, torch.minimum(place, last)[:, None]).squeeze(1)


def sample_uniforms(keys: Sequence[str], *, seed: int, count: int, steps: int) -> np.ndarray:
    """Numbers in [0, 1) for each key, sample and step, decided by (seed, key, sample, step) alone.

    returns: (keys, count, steps), float64
    """
    rows = np.empty((len(keys), count, steps), dtype=np.float64)
    for at, key in enumerate(keys):
        for sample in range(count):
            name = f"{seed}\0{key}\0{sample}".encode(errors="surrogatepass")
            start = int.from_bytes(blake2b(name, digest_size=16).digest(), "big")
            rows[at, sample] = np.random.Generator(np.random.Philox(key=start)).random(steps)
    return rows


_SPARSE = 0.75  # finished rows are taken out once so few of those in the batch are still being written


@torch.inference_mode()
def generate_tokens(
    writer: GenerationModel, ids: Tensor, mask: Tensor, keys: Sequence[str], settings: GenerationSettings, *, seed: int
) -> list[list[list[int]]]:
    """Tokens of the answers to each input, without the one that ends them: [input][answer][token].

    Sampled answers depend on (seed, key of the input, number of the answer) alone. Greedy: one answer an input;
    greedy+sample: the first is that one, the others are the samples of their numbers.
    ids, mask: (inputs, tokens); keys: one an input
    """
    if settings.decode == "beam":
        return _beams(writer, ids, mask, settings)
    count = settings.n if "sample" in settings.decode else 1
    chance = None
    if "sample" in settings.decode:
        table = sample_uniforms(keys, seed=seed, count=count, steps=settings.max_new_tokens)
        if settings.decode == "greedy+sample":
            table[:, 0] = 0.0  # falls into the share of the most likely token, which lies first
        chance = torch.from_numpy(table.reshape(len(keys) * count, -1)).to(ids.device)
    written = _written(writer, Decoding(writer, ids, mask), count, chance, settings)
    lists = [row[: int(end)].tolist() for row, end in zip(*written, strict=True)]
    return [lists[at : at + count] for at in range(0, len(lists), count)]


def _written(
    writer: GenerationModel, decoding: Decoding, count: int, chance: Tensor | None, settings: GenerationSettings
) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, how many of them) of every answer: (answers, max_new_tokens), (answers,)"""
    decoding.repeat(count)
    total, device = len(decoding.logits), decoding.logits.device
    ends = torch.tensor(writer.ends, device=device)
    tokens = torch.zeros((total, settings.max_new_tokens), dtype=torch.long, device=device)
    lengths = torch.full((total,), settings.max_new_tokens, device=device)
    rows = torch.arange(total, device=device)  # the answer that each row of the batch belongs to
    open_ = torch.ones(total, dtype=torch.bool, device=device)  # of the rows of the batch
    for step in range(settings.max_new_tokens):
        chosen = _chosen(decoding.logits, None if chance is None else chance[rows, step], settings)
        ended = torch.isin(chosen, ends)
        lengths[rows[open_ & ended]] = step
        tokens[rows, step] = chosen
        open_ &= ~ended
        left = int(open_.sum())
        if left == 0 or step + 1 == settings.max_new_tokens:
            break
        if left < _SPARSE * len(open_):
            kept = open_.nonzero().squeeze(1)
            decoding.keep(kept)
            rows, chosen, open_ = rows[kept], chosen[kept], open_[kept]
        decoding.step(chosen)
    return tokens.cpu().numpy(), lengths.cpu().numpy()


def _chosen(logits: Tensor, uniform: Tensor | None, settings: GenerationSettings) -> Tensor:
    """logits: (rows, vocabulary); uniform: (rows,); returns: (rows,)"""
    if uniform is None:
        return logits.argmax(dim=-1)
    left = filter_logits(logits, top_k=settings.top_k, top_p=settings.top_p, temperature=settings.temperature)
    return sample_tokens(*left, uniform)


def _beams(writer: GenerationModel, ids: Tensor, mask: Tensor, settings: GenerationSettings) -> list[list[list[int]]]:
    """The n best of `settings.beams` beams, by transformers' own search."""
    model: Any = writer.model
    choices = {
        "do_sample": False,
        "num_beams": max(settings.beams, settings.n),
        "num_return_sequences": settings.n,
        "max_new_tokens": settings.max_new_tokens,
        "pad_token_id": writer.pad,
        "eos_token_id": list(writer.ends),
    }
    if writer.is_encoder_decoder:
        choices |= {"decoder_start_token_id": writer.start, "forced_bos_token_id": writer.first}
    with use_generation_config(model, **choices) as config:
        found = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    begin = 1 if writer.is_encoder_decoder else ids.shape[1]  # the start token, or the input itself
    lists = [_until_end(row[begin:].tolist(), writer) for row in found]
    return [lists[at : at + settings.n] for at in range(0, len(lists), settings.n)]


def _until_end(tokens: list[int], writer: GenerationModel) -> list[int]:
    return tokens[: next((at for at, token in enumerate(tokens) if token in writer.ends), len(tokens))]


_CPU_TOKENS, _GPU_TOKENS = 1 << 14, 1 << 17


class TextGenerator:
    """Writes texts to texts; sampled ones depend on (seed, key of the text, number) alone.

    reading: how it was trained to read, as far as the settings do not say otherwise
    """

    def __init__(
        self,
        model: str,
        settings: GenerationSettings,
        *,
        seed: int,
        device: str,
        is_encoder_decoder: bool | None = None,
    ) -> None:
        """is_encoder_decoder: whether it has to read one text and write another (T5), or to go on with one (GPT-2); None: either

        Raises UsageError where prefix or output leave no room for a text, MismatchError for a model that does not write, or
        was trained to read otherwise.
        """
        self._settings, self._seed = settings, seed
        self._device = choose_device(device)
        folder = locate(model)
        wishes = {"prefix": settings.prefix, "title": settings.title, "max_length": settings.max_length}
        self.reading = load_generator_input(folder, wishes, strict=True)
        self._writer = load_generation_model(folder)
        if is_encoder_decoder is not None and self._writer.is_encoder_decoder != is_encoder_decoder:
            wanted = (
                "reads one text and writes another; one that goes on with a text is needed"
                if self._writer.is_encoder_decoder
                else "goes on with a text; a model that reads one and writes another is needed (T5, BART)"
            )
            raise MismatchError(f"{model}: {wanted}")
        _warn_about_ignored_settings(model, self._writer.model, settings.decode)
        self._writer.model.to(self._device, _dtype(settings.dtype, self._device))
        self._budget = settings.batch_tokens or (_CPU_TOKENS if self._device.type == "cpu" else _GPU_TOKENS)
        self.room = max_input_length(self._writer, self.reading, written=settings.max_new_tokens)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it reads one text and writes another, rather than going on with one."""
        return self._writer.is_encoder_decoder

    def length(self, text: str) -> int:
        """Tokens of a text, special ones included, uncut."""
        return len(self._writer.tokenizer(text)["input_ids"])

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """The texts as they are read, cut to what there is room for."""
        return tokenize_texts(texts, self._writer.tokenizer, room=self.room)

    def write(self, tokens: Tokens, keys: Sequence[str]) -> list[list[str]]:
        """What is written to each text, special tokens left out.

        keys: one a text. Raises DrtkError where memory is too small.
        """
        written: list[list[str]] = [[] for _ in keys]
        cost = self._settings.n * (
            tokens.lengths + self._settings.max_new_tokens
        )  # tokens in memory, once a text written
        for rows in batches_by_length(cost, budget=self._budget):
            for row, texts in zip(rows, self._write(tokens, keys, rows), strict=True):
                written[row] = texts
        return written

    def _write(self, tokens: Tokens, keys: Sequence[str], rows: np.ndarray) -> list[list[str]]:
        writer = self._writer
        batch = tokens.pad(rows, pad=writer.pad, left=not writer.is_encoder_decoder)
        ids, mask = (torch.from_numpy(batch[name]).to(self._device) for name in ("input_ids", "attention_mask"))
        try:
            found = generate_tokens(writer, ids, mask, [keys[row] for row in rows], self._settings, seed=self._seed)
        except torch.OutOfMemoryError as error:
            raise DrtkError(f"{self._device}: out of memory at {ids.numel():,} tokens; lower --batch-tokens") from error
        flat = writer.tokenizer.batch_decode([answer for each in found for answer in each], skip_special_tokens=True)
        texts, at = [], 0
        for each in found:
            texts.append(flat[at : at + len(each)])
            at += len(each)
        return texts


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found: torch.dtype = getattr(torch, name)
    return found
