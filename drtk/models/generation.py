"""Generate texts: greedy decoding, sampling and beam search, in batches of similar length."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drtk.errors import MismatchError
from drtk.models.config import GenerationSettings
from drtk.models.device import choose_device, choose_dtype, copy_to_device, move_model, report_out_of_memory
from drtk.models.generator_input import get_max_input_length, load_input_format
from drtk.models.model_folder import resolve_model_folder
from drtk.models.seq2seq import DecodingState, GenerationModel, count_bytes_per_token, load_generation_model
from drtk.runtime.progress import warn
from drtk.text.batching import TokenizedTexts, tokenize_texts

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
_CPU_TOKENS = 1 << 14
_ENCODED_TOKENS = 1 << 16  # maximum number of input tokens that are encoded at once
_MEMORY_SHARE = 0.5  # share of the free GPU memory to use for keys, values and logits
_TOP_P_TOKENS = 4096  # number of most likely tokens that usually have a total probability of `top_p`
_COMPACT_BELOW = 0.75  # replace finished rows of the batch when the share of unfinished ones is below this


def find_ignored_settings(model: Any, decode: str) -> dict[str, Any]:
    """Return the entries of a model's generation config that would change the texts but are ignored, {name: value}.

    decode: decoding method, see GenerationSettings
    """
    neutral = _NEUTRAL | (_NEUTRAL_SAMPLING if "sample" in decode else _NEUTRAL_BEAMS if decode == "beam" else {})
    stated = {name: getattr(model.generation_config, name, None) for name in neutral}
    return {name: value for name, value in stated.items() if value is not None and value != neutral[name]}


def compute_filtered_probabilities(
    logits: Tensor, *, top_k: int, top_p: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """Apply top-k, then top-p filtering; return (probabilities, token ids), most likely first, (rows, k) each.

    Keep the `top_k` most likely tokens (0: all) and normalize, then keep the smallest set with a total probability of at
    least `top_p` (Holtzman et al. 2020) and normalize again (docs/methods/doc2query.md). Removed tokens have probability 0.
    logits: (rows, vocabulary)    k: at most `top_k`, or the vocabulary size if `top_k` is 0
    """
    vocabulary = logits.shape[-1]
    best, tokens = logits.topk(min(top_k or _TOP_P_TOKENS, vocabulary), dim=-1)
    probabilities = torch.softmax(best.float() / temperature, dim=-1)
    if top_k == 0 and best.shape[-1] < vocabulary:
        total, of_best = (torch.logsumexp(part.float() / temperature, dim=-1, keepdim=True) for part in (logits, best))
        probabilities *= torch.exp(of_best - total)
        flat = (probabilities.sum(dim=-1) < top_p).nonzero().squeeze(1)  # rows where many tokens are similarly likely
        if len(flat):
            best, order = logits[flat].sort(dim=-1, descending=True)
            padding = (0, vocabulary - tokens.shape[-1])
            probabilities, tokens = F.pad(probabilities, padding), F.pad(tokens, padding)
            probabilities[flat], tokens[flat] = torch.softmax(best.float() / temperature, dim=-1), order
    if top_p < 1:
        before = probabilities.cumsum(dim=-1) - probabilities  # total probability of the more likely tokens
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    return probabilities, tokens


def sample_tokens(probabilities: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """Sample a token id per row by inverse transform sampling; return (rows,).

    probabilities, tokens: (rows, width), probabilities and token ids, most likely first
    uniform: (rows,), random numbers in [0, 1); 0 selects the most likely token
    """
    cumulative = probabilities.cumsum(dim=-1)  # (rows, width)
    cumulative = cumulative / cumulative[:, -1:]  # rounding must not leave a gap below 1
    column = (cumulative <= uniform[:, None]).sum(dim=-1).clamp(max=tokens.shape[-1] - 1)
    last = (probabilities > 0).sum(dim=-1) - 1
    return tokens.gather(1, torch.minimum(column, last)[:, None]).squeeze(1)


def sample_from_softmax(logits: Tensor, uniform: Tensor) -> Tensor:
    """Sample a token id per row from the softmax of logits, by inverse transform sampling; return (rows,).

    Cumulative sums are computed over blocks of tokens, then within the selected block.
    logits: (rows, vocabulary)    uniform: (rows,), random numbers in [0, 1)
    """
    probabilities = logits.softmax(dim=1, dtype=torch.float32)
    vocabulary = logits.shape[1]
    size = math.isqrt(vocabulary)
    blocks = probabilities[:, : vocabulary // size * size].unflatten(1, (-1, size)).sum(dim=2)
    rest = probabilities[:, vocabulary // size * size :].sum(dim=1, keepdim=True)  # a smaller block, or none
    ends = torch.cat([blocks, rest], dim=1).cumsum(dim=1)  # (rows, blocks)
    points = (uniform.unsqueeze(1) * ends[:, -1:]).float()  # the total may be rounded below 1
    last = blocks.shape[1] - (vocabulary % size == 0)
    block = torch.searchsorted(ends, points, right=True).clamp(max=last)  # (rows, 1)
    begins = F.pad(ends, (1, 0)).gather(1, block)
    columns = block * size + torch.arange(size, device=logits.device)  # (rows, size)
    within = probabilities.gather(1, columns.clamp(max=vocabulary - 1)).cumsum(dim=1)
    column = torch.searchsorted(within, points - begins, right=True).clamp(max=size - 1)
    return (block * size + column).squeeze(1).clamp(max=vocabulary - 1)


def sample_uniforms(keys: Sequence[str], *, seed: int, count: int, steps: int) -> np.ndarray:
    """Return uniform random numbers in [0, 1), (keys, count, steps) float64: `count` sequences of `steps` numbers per key.

    Each number depends on (seed, key, index of the sequence, step) only. It is an output of SplitMix64 (Steele et al. 2014)
    with a hash of seed and key as initial state.
    """
    names = (f"{seed}\0{key}".encode(errors="surrogatepass") for key in keys)
    start = np.frombuffer(b"".join(blake2b(name, digest_size=8).digest() for name in names), dtype="<u8")
    counter = (np.arange(count, dtype=np.uint64)[:, None] << np.uint64(32)) + np.arange(steps, dtype=np.uint64)
    state: np.ndarray = start[:, None, None] + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)) * 2.0**-53  # a float64 holds 53 bits


@dataclass
class InputBatch:
    """A batch of inputs to generate texts from.

    ids, mask: (inputs, tokens), token ids and attention mask    input_indices: index of each input
    keys: key of each input, which together with the seed determines its random numbers
    """

    ids: Tensor
    mask: Tensor
    input_indices: Sequence[int]
    keys: Sequence[str]


# Token ids of texts by (index of the input, index of the text)
GeneratedTokens = dict[tuple[int, int], list[int]]


def generate_tokens(
    model: GenerationModel, ids: Tensor, mask: Tensor, keys: Sequence[str], settings: GenerationSettings, *, seed: int
) -> list[list[list[int]]]:
    """Generate texts; return token ids without the end token, indexed [input][text][token].

    Sampled texts depend on (seed, key of the input, index of the text) only. Decoding "greedy+sample" returns the greedy
    text first, then the samples.
    ids, mask: (inputs, tokens), token ids and attention mask    keys: key of each input
    """
    batches = iter([InputBatch(ids, mask, range(len(keys)), keys)])
    texts: GeneratedTokens = {}
    for finished in iter_generated_tokens(model, lambda: next(batches, None), settings, seed=seed):
        texts |= finished
    count = max(text for _, text in texts) + 1 if texts else 0
    return [[texts[row, text] for text in range(count)] for row in range(len(keys))]


@torch.inference_mode()
def iter_generated_tokens(
    model: GenerationModel, read: Callable[[], InputBatch | None], settings: GenerationSettings, *, seed: int
) -> Iterator[GeneratedTokens]:
    """Generate the texts of all inputs (continuous batching); yield finished texts as token ids without the end token.

    Finished texts are removed when they are more than a quarter of the batch. New inputs join the batch when `read`
    returns them. In beam search, or if `DecodingState.can_merge` is False, new inputs wait until the batch is finished.
    read: function that returns the next inputs; None at the end, or as long as they do not fit into memory
    """
    if settings.decode == "beam":
        while (batch := read()) is not None:
            groups = zip(batch.input_indices, _search_beams(model, batch.ids, batch.mask, settings), strict=True)
            yield {(number, index): text for number, group in groups for index, text in enumerate(group)}
        return
    decoding: DecodingState | None = None
    rows: dict[str, Tensor] = {}  # of each text: number, tokens, length, is_open, uniform
    ends = torch.tensor(model.ends)
    while True:
        while (decoding is None or decoding.can_merge) and (batch := read()) is not None:
            new, new_rows = _start_decoding(model, batch, settings, seed=seed)
            ends = ends.to(batch.ids.device)
            if decoding is None:
                decoding, rows = new, new_rows
            else:
                decoding.merge(new)
                rows = {name: torch.cat([rows[name], new_rows[name]]) for name in rows}
        if decoding is None:
            return
        length, is_open = rows["length"][:, None], rows["is_open"]
        if "uniform" in rows:
            numbers = rows["uniform"].gather(1, length.clamp(max=settings.max_new_tokens - 1)).squeeze(1)
            tokens = _sample_next_tokens(decoding.logits, numbers, settings)
        else:
            tokens = decoding.logits.argmax(dim=-1)
        rows["tokens"].scatter_(1, length, tokens[:, None])  # finished texts have room for one more, which is not read
        is_open &= ~torch.isin(tokens, ends)
        rows["length"] += is_open
        is_open &= rows["length"] < settings.max_new_tokens
        num_open = int(is_open.sum())
        if num_open < _COMPACT_BELOW * len(is_open) or num_open == 0:
            finished = {name: value[~is_open].tolist() for name, value in rows.items() if name != "uniform"}
            yield {
                (number // settings.n, number % settings.n): text[:length]
                for number, text, length in zip(finished["number"], finished["tokens"], finished["length"], strict=True)
            }
            if num_open == 0:
                decoding, rows = None, {}
                continue
            unfinished = is_open.nonzero().squeeze(1)
            decoding.select_rows(unfinished)
            tokens, rows = tokens[unfinished], {name: value[unfinished] for name, value in rows.items()}
        decoding.append(tokens)


def _sample_next_tokens(logits: Tensor, uniform: Tensor, settings: GenerationSettings) -> Tensor:
    """Sample a token id per row with the settings' top-k, top-p and temperature; return (rows,).

    logits: (rows, vocabulary)    uniform: (rows,), random numbers in [0, 1); 0 selects the most likely token
    """
    if settings.top_k or settings.top_p < 1:
        return sample_tokens(
            *compute_filtered_probabilities(
                logits, top_k=settings.top_k, top_p=settings.top_p, temperature=settings.temperature
            ),
            uniform,
        )
    tokens = sample_from_softmax(logits / settings.temperature, uniform)
    return torch.where(uniform == 0, logits.argmax(dim=-1), tokens)


def _start_decoding(
    model: GenerationModel, batch: InputBatch, settings: GenerationSettings, *, seed: int
) -> tuple[DecodingState, dict[str, Tensor]]:
    """Encode a batch; return its decoding state before the first token, and the state of its texts (`rows` in `iter_generated_tokens`)."""
    device, count = batch.ids.device, settings.n if "sample" in settings.decode else 1
    decoding = DecodingState(model, batch.ids, batch.mask)
    decoding.repeat_rows(count)
    total = len(batch.input_indices) * count
    numbers = torch.tensor(batch.input_indices, device=device)[:, None] * settings.n + torch.arange(
        count, device=device
    )
    rows = {
        "number": numbers.flatten(),
        "tokens": torch.zeros((total, settings.max_new_tokens + 1), dtype=torch.long, device=device),
        "length": torch.zeros(total, dtype=torch.long, device=device),
        "is_open": torch.ones(total, dtype=torch.bool, device=device),
    }
    if "sample" in settings.decode:
        uniforms = sample_uniforms(batch.keys, seed=seed, count=count, steps=settings.max_new_tokens)
        if settings.decode == "greedy+sample":
            uniforms[:, 0] = 0.0  # selects the most likely token
        dtype = torch.float32 if device.type == "mps" else torch.float64  # Apple GPUs have no float64
        rows["uniform"] = torch.from_numpy(uniforms.reshape(total, -1)).to(device, dtype)
    return decoding, rows


def _search_beams(
    model: GenerationModel, ids: Tensor, mask: Tensor, settings: GenerationSettings
) -> list[list[list[int]]]:
    """Return the token ids of the `settings.n` best texts of transformers' beam search, indexed [input][text][token]."""
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
    # As an argument it would inherit missing options from the model's.
    network.generation_config = GenerationConfig(**options)
    try:
        rows = network.generate(input_ids=ids, attention_mask=mask)
    finally:
        network.generation_config = original
    begin = 1 if model.is_encoder_decoder else ids.shape[1]  # skip the start token, or the input
    texts = [model.cut_at_end_token(row[begin:].tolist()) for row in rows]
    return [texts[start : start + settings.n] for start in range(0, len(texts), settings.n)]


@dataclass
class _Results:
    """The generated texts of a batch of inputs.

    texts: indexed [input][text]    first: index of the batch's first input    missing: number of unfinished texts
    """

    texts: list[list[str]]
    first: int
    missing: int


class _InputQueue:
    """Queue of the inputs of several batches, longest first, which also collects the finished texts of each batch.

    budget: token budget, the maximum number of tokens in memory, see GenerationSettings.batch_tokens
    """

    def __init__(
        self,
        batches: Iterable[tuple[TokenizedTexts, Sequence[str]]],
        model: GenerationModel,
        settings: GenerationSettings,
        budget: int,
        device: torch.device,
    ) -> None:
        self._batches = iter(batches)
        self._model, self._budget, self._device = model, budget, device
        self._count = 1 if settings.decode == "greedy" else settings.n
        self._new_tokens = settings.max_new_tokens
        self._open: dict[int, tuple[int, int]] = {}  # by input number: its length, and number of unfinished texts
        self._update_used()
        self._tokens, self._keys = TokenizedTexts.from_lists([], None), list[str]()
        self._order, self._first = np.empty(0, dtype=np.int64), 0  # rows of `_tokens` to read; number of the first row
        self._places: dict[int, _Results] = {}  # by number of the input
        self._results: deque[_Results] = deque()
        self._decoded: deque[tuple[list[tuple[int, int]], Future[list[str]]]] = deque()

    def _count_tokens(self, length: Any, inputs: int, texts: int) -> Any:
        """Return the number of tokens in the KV cache at the last step.

        length: tokens of the longest input, to which all are padded; a number or an array
        inputs, texts: number of inputs, and of their generated sequences
        In an encoder-decoder the sequences share the cached input; in a decoder-only model each has its own copy.
        """
        return (inputs if self._model.is_encoder_decoder else texts) * length + texts * self._new_tokens

    def next_batch(self) -> InputBatch | None:
        """Return the next inputs that fit into the free part of the token budget.

        Return None if no inputs are left, if less than a quarter of the budget is free, or if the next input does not fit.
        If the whole budget is free, return at least one input, even if it does not fit.
        """
        if self._used > _COMPACT_BELOW * self._budget:
            return None
        if not len(self._order):
            self._read_batches()
        if not len(self._order):
            return None
        length = int(self._tokens.lengths[self._order[0]])
        longest = max(length, self._longest)
        free = self._budget - self._count_tokens(longest, len(self._open), self._num_texts)
        number = min(int(free // self._count_tokens(longest, 1, self._count)), _ENCODED_TOKENS // max(1, length))
        if number < 1 and self._open:
            return None
        rows, self._order = np.split(self._order, [max(1, number)])
        numbers = (self._first + rows).tolist()
        self._open |= {
            number: (int(self._tokens.lengths[row]), self._count) for number, row in zip(numbers, rows, strict=True)
        }
        self._update_used()
        batch = self._tokens.pad(rows, pad=self._model.pad, left=not self._model.is_encoder_decoder)
        inputs = copy_to_device(batch, self._device)
        return InputBatch(inputs["input_ids"], inputs["attention_mask"], numbers, [self._keys[row] for row in rows])

    def _update_used(self) -> None:
        self._longest = max((length for length, _ in self._open.values()), default=0)
        self._num_texts = sum(texts for _, texts in self._open.values())
        self._used = self._count_tokens(self._longest, len(self._open), self._num_texts)

    def _read_batches(self) -> None:
        """Read the next batches until their inputs fill the token budget."""
        self._first += len(self._tokens)
        parts: list[TokenizedTexts] = []
        self._keys, needed = [], 0
        while needed < self._budget and (batch := next(self._batches, None)) is not None:
            tokens, keys = batch
            begin = self._first + len(self._keys)
            results = _Results([[""] * self._count for _ in keys], begin, len(keys) * self._count)
            self._places |= {begin + row: results for row in range(len(keys))}
            self._results.append(results)
            self._keys += keys
            parts.append(tokens)
            needed += int(self._count_tokens(tokens.lengths, 1, self._count).sum())
        self._tokens = TokenizedTexts.concatenate(parts)
        self._order = np.argsort(-self._tokens.lengths, kind="stable")

    def add_finished(self, texts: Iterable[tuple[int, int]], decoded: Future[list[str]]) -> None:
        """Add finished texts.

        texts: (input index, text index) pairs    decoded: the decoded texts in the same order
        """
        texts = list(texts)
        for number, _ in texts:
            length, unfinished = self._open.pop(number)
            if unfinished > 1:
                self._open[number] = length, unfinished - 1
        self._update_used()
        self._decoded.append((texts, decoded))

    def pop_finished(self, *, wait: bool) -> Iterator[list[list[str]]]:
        """Yield the texts of each finished batch, in the order of the batches. wait: wait until all texts are decoded"""
        while self._decoded and (wait or self._decoded[0][1].done()):
            texts, decoded = self._decoded.popleft()
            for (number, index), text in zip(texts, decoded.result(), strict=True):
                results = self._places[number]
                results.texts[number - results.first][index] = text
                results.missing -= 1
        while self._results and not self._results[0].missing:
            results = self._results.popleft()
            for number in range(results.first, results.first + len(results.texts)):
                del self._places[number]
            yield results.texts


class TextGenerator:
    """Generator of texts from input texts. Sampled texts depend on (seed, key of the input, index of the text) only.

    input_format: input format of the model's training, with the overrides of the settings
    max_input_tokens: maximum input length in tokens; longer inputs are truncated
    """

    def __init__(
        self, model: str, settings: GenerationSettings, *, seed: int, device: str, needs_encoder: bool | None = None
    ) -> None:
        """Load the model (a folder or hub name).

        needs_encoder: True: require an encoder-decoder (T5); False: require a decoder-only model (GPT-2); None: accept both
        Raises UsageError if prefix or output leave no tokens for the input, MismatchError for a model of another type or
        settings that contradict its training.
        """
        self._settings, self._seed = settings, seed
        self._device = choose_device(device)
        folder = resolve_model_folder(model)
        overrides = {"prefix": settings.prefix, "title": settings.title, "max_length": settings.max_length}
        self.input_format = load_input_format(folder, overrides, strict=True)
        self._model = load_generation_model(folder, weights=settings.engine == "transformers")
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
        self.max_input_tokens = get_max_input_length(self._model, self.input_format, new_tokens=settings.max_new_tokens)
        self._prepare_model(folder)

    def _prepare_model(self, folder: Path) -> None:
        """Move the model to the device, and choose the token budget."""
        dtype = choose_dtype(self._settings.precision, self._device, half="bfloat16")
        move_model(self._model.model, self._device, dtype)
        self._budget = self._settings.batch_tokens or self._choose_budget()

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model is an encoder-decoder (T5) rather than decoder-only (GPT-2)."""
        return self._model.is_encoder_decoder

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, including special tokens, without truncation."""
        return len(self._model.tokenizer(text)["input_ids"])

    def tokenize(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenize texts, truncated to `max_input_tokens`."""
        return tokenize_texts(self._model.tokenizer, texts, max_length=self.max_input_tokens)

    def _choose_budget(self) -> int:
        """Return the default token budget: the number of tokens whose KV cache and logits take half of a CUDA GPU's free memory.

        The logits of one position per text are float32; a text has at least `max_new_tokens` tokens. On other devices: 16,384.
        """
        if self._device.type != "cuda":
            return _CPU_TOKENS
        free, _ = torch.cuda.mem_get_info(self._device)
        network: Any = self._model.model
        vocabulary = len(network.get_output_embeddings().weight)
        per_token = count_bytes_per_token(self._model) + 4 * vocabulary / self._settings.max_new_tokens
        return int(_MEMORY_SHARE * free / per_token)

    def generate(self, tokens: TokenizedTexts, keys: Sequence[str]) -> list[list[str]]:
        """Return the generated texts of each input, without special tokens.

        keys: key of each input, with which its random numbers are generated    Raises DrtkError when out of memory.
        """
        return next(self.generate_batches([(tokens, keys)]))

    def generate_batches(self, batches: Iterable[tuple[TokenizedTexts, Sequence[str]]]) -> Iterator[list[list[str]]]:
        """Yield what `generate` returns for each batch (inputs, keys). Inputs of several batches are processed together."""
        source = _InputQueue(batches, self._model, self._settings, self._budget, self._device)
        with report_out_of_memory(self._device, "lower `batch_tokens`"), ThreadPoolExecutor(1) as pool:
            for finished in iter_generated_tokens(self._model, source.next_batch, self._settings, seed=self._seed):
                source.add_finished(finished, pool.submit(self._detokenize, [*finished.values()]))
                yield from source.pop_finished(wait=False)
            yield from source.pop_finished(wait=True)

    def _detokenize(self, texts: list[list[int]]) -> list[str]:
        return self._model.tokenizer.batch_decode(texts, skip_special_tokens=True)
