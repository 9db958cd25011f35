"""Generate texts with vLLM (extra `vllm`), for decoder-only models."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from drtk.errors import MismatchError, UsageError, format_pip_command
from drtk.models.config import GenerationSettings
from drtk.models.generation import TextGenerator
from drtk.runtime.remote_code import is_remote_code_trusted
from drtk.text.batching import TokenizedTexts

_BATCHES = 16  # passed to vLLM at once, which processes up to a thousand texts together


def load_generator(
    model: str, settings: GenerationSettings, *, seed: int, device: str, needs_encoder: bool | None = None
) -> TextGenerator:
    """Return a text generator with the engine `settings.engine`.

    Arguments and errors are those of TextGenerator or VllmGenerator. vLLM uses the first visible GPU; raises UsageError if
    `device` is neither auto nor cuda.
    """
    if settings.engine == "vllm" and device not in ("auto", "cuda"):
        raise UsageError(
            f"`device` {device}: `engine` vllm uses the first GPU; omit `device` and set CUDA_VISIBLE_DEVICES"
        )
    engine = VllmGenerator if settings.engine == "vllm" else TextGenerator
    return engine(model, settings, seed=seed, device=device, needs_encoder=needs_encoder)


class VllmGenerator(TextGenerator):
    """Generator that runs a decoder-only model with vLLM.

    As in TextGenerator, sampled texts depend on (seed, key of the input, index of the text) only.
    Raises UsageError if vllm is not installed, MismatchError for an encoder-decoder, and the errors of TextGenerator.
    """

    def _prepare_model(self, folder: Path) -> None:
        if self.is_encoder_decoder:
            raise MismatchError(f"{folder}: `engine` vllm requires a decoder-only model; use `engine` transformers")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # by default stdout, which is for records
        with _redirect_stdout_to_stderr():
            try:
                from vllm import LLM, SamplingParams
            except ImportError:
                raise UsageError(f"`engine` vllm requires vllm; run {format_pip_command('vllm')}") from None
            self._params: Any = SamplingParams
            self._engine: Any = LLM(
                model=str(folder),
                dtype=self._settings.precision,
                max_model_len=self.max_input_tokens + self._settings.max_new_tokens,
                trust_remote_code=is_remote_code_trusted(),
                generation_config="vllm",  # use the settings only
            )

    def generate_batches(self, batches: Iterable[tuple[TokenizedTexts, Sequence[str]]]) -> Iterator[list[list[str]]]:
        """Yield what `generate` returns for each batch (inputs, keys). Several batches are processed together."""
        batches = iter(batches)
        while group := list(islice(batches, _BATCHES)):
            prompts = [
                tokens.ids[start : start + length].tolist() or [self._model.pad]  # vLLM rejects an empty prompt
                for tokens, _ in group
                for start, length in zip(tokens.starts, tokens.lengths, strict=True)
            ]
            texts = iter(self._generate(prompts, [key for _, keys in group for key in keys]))
            yield from ([*islice(texts, len(keys))] for _, keys in group)

    def _generate(self, prompts: list[list[int]], keys: Sequence[str]) -> list[list[str]]:
        """Return the texts for each prompt: the greedy text, the samples, or both. prompts: token ids    keys: one per prompt"""
        settings = self._settings
        texts: list[list[str]] = [[] for _ in prompts]
        is_greedy = settings.decode != "sample"
        samples = 0 if settings.decode == "greedy" else settings.n - is_greedy
        requests: list[list[dict[str, Any]]] = []
        if is_greedy:
            requests.append([{"temperature": 0.0}] * len(prompts))
        if samples:
            shared = {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
            requests.append([shared | {"n": samples, "seed": self._compute_seed(key)} for key in keys])
        for options in requests:
            params = [
                self._params(
                    **each, max_tokens=settings.max_new_tokens, stop_token_ids=[*self._model.ends], detokenize=False
                )
                for each in options
            ]
            inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
            for row, output in zip(texts, self._engine.generate(inputs, params, use_tqdm=False), strict=True):
                row += self._detokenize([self._model.cut_at_end_token(each.token_ids) for each in output.outputs])
        return texts

    def _compute_seed(self, key: str) -> int:
        """Return the seed of the first text of a key; vLLM adds the index of the text."""
        name = f"{self._seed}\0{key}".encode(errors="surrogatepass")
        return int.from_bytes(blake2b(name, digest_size=7).digest(), "little")  # below 2**56


@contextmanager
def _redirect_stdout_to_stderr() -> Iterator[None]:
    """Redirect stdout to stderr, also for libraries and for child processes that are started meanwhile."""
    sys.stdout.flush()
    original = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(original, 1)
        os.close(original)
