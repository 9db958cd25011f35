"""What a checkpoint's generation_config.json wishes for, beside what the options of a command say: which of it is heard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drtk.io.progress import warn

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


def unheard(model: Any, decode: str) -> dict[str, Any]:
    """The wishes of a model's generation config that decoding leaves out, by name.

    decode: sample, greedy, beam or greedy+sample, as GenerationSettings has it; sampling and beams have wishes of their own
    """
    neutral = _ALWAYS | (_OF_SAMPLING if "sample" in decode else _OF_BEAMS if decode == "beam" else {})
    found = {name: getattr(model.generation_config, name, None) for name in neutral}
    return {name: value for name, value in found.items() if value is not None and value != neutral[name]}


def warn_of_unheard(folder: object, model: Any, decode: str) -> None:
    """One line that names what is left out, where something is."""
    wishes = unheard(model, decode)
    if wishes:
        named = ", ".join(f"{name} {value}" for name, value in wishes.items())
        warn(f"{folder}: its generation_config.json has {named}; texts are written without")


@contextmanager
def alone(model: Any, **choices: Any) -> Iterator[Any]:
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
