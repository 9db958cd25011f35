"""Rerankers that score a pair by two logits of a generation model, such as Qwen3-Reranker and monoT5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from drtk.errors import MismatchError
from drtk.models.model_folder import MODULES, read_meta_entry, read_modules
from drtk.models.seq2seq import GenerationModel, load_generation_model
from drtk.runtime.integrity import read_object
from drtk.runtime.progress import log
from drtk.text.batching import PairTokenizer, TokenizedTexts

LOGIT_SCORE = "LogitScore"  # module of sentence-transformers with the ids of the true and the false token
_FILLERS = ("0", "1 2 3 4")  # texts without a common last token


class GenerativeReranker(nn.Module):
    """A generative model that scores a prompt by logit(true token) - logit(false token) of the next token.

    true, false: ids of the two tokens; `false` None: score by logit(true token) alone
    """

    def __init__(self, loaded: GenerationModel, true: int, false: int | None) -> None:
        super().__init__()
        self.network: Any = loaded.model
        self.config = self.network.config
        self._start = loaded.start if loaded.is_encoder_decoder else None
        self._true, self._false = true, false

    @property
    def base_model(self) -> nn.Module:
        """The model itself. There is no separate encoder, so pair vectors are not supported."""
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SequenceClassifierOutput:
        """Return the scores as logits, (pairs, 1). Both inputs: (pairs, tokens), padded on the left for a decoder-only model"""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._start is None:
            logits = self.network(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1]  # (pairs, vocabulary)
        else:
            first = input_ids.new_full((len(input_ids), 1), self._start)
            logits = self.network(**inputs, decoder_input_ids=first, use_cache=False).logits[:, -1]
        score = logits[:, self._true] if self._false is None else logits[:, self._true] - logits[:, self._false]
        return SequenceClassifierOutput(logits=score.unsqueeze(1))


class PromptTokenizer:
    """Base class of tokenizers of query-text pairs that are formatted as a prompt.

    suffix: token ids at the end of every prompt, which truncation keeps    left: pad on the left
    """

    def __init__(self, tokenizer: Any, *, max_length: int, left: bool) -> None:
        self.tokenizer, self.max_length, self.left = tokenizer, max_length, left
        self.pad = int(tokenizer.pad_token_id or 0)
        self.suffix: list[int] = []

    def format(self, query: str, text: str) -> str:
        """Return the prompt of a pair, without the special tokens that the tokenizer would add."""
        raise NotImplementedError

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> TokenizedTexts:
        """Tokenize the prompts of the pairs."""
        prompts = [self.format(query, text) for query, text in pairs]
        ids = self.tokenizer(prompts, add_special_tokens=False, verbose=False)["input_ids"] if prompts else []
        return TokenizedTexts.from_lists([self.truncate_prompt(row) for row in ids], None)

    def truncate_prompt(self, ids: list[int]) -> list[int]:
        """Return the token ids; if there are more than `max_length`, replace the last ones by the suffix."""
        if len(ids) <= self.max_length:
            return ids
        suffix = self.suffix[-self.max_length :]
        return ids[: self.max_length - len(suffix)] + suffix


class ChatTokenizer(PromptTokenizer):
    """Tokenizer of pairs with the model's chat template, whose roles are query, document, and system for the instruction.

    Prompts are truncated as in sentence-transformers.
    prompt: instruction; "": none    options: additional arguments of the chat template
    Raises MismatchError for a chat template that omits or rejects the query or the document.
    """

    def __init__(self, tokenizer: Any, *, max_length: int, prompt: str, options: Mapping[str, Any]) -> None:
        super().__init__(tokenizer, max_length=max_length, left=True)
        self._prompt, self._options = prompt, {name: options[name] for name in options if name != "restore_suffix"}
        try:
            rows = [self.format(filler, filler) for filler in _FILLERS]
            prompts = {*rows, self.format(*_FILLERS), self.format(*_FILLERS[::-1])}
        except TemplateError:  # templates of chat models raise it for other roles than user and assistant
            prompts = set()
        if len(prompts) < 4:
            raise MismatchError(
                f"{tokenizer.name_or_path}: its chat template has no roles query and document; use a model for "
                "sentence-transformers' CrossEncoder"
            )
        first, second = self.tokenizer(rows, add_special_tokens=False)["input_ids"]
        count = 0
        while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
            count += 1
        self.suffix = first[len(first) - count :]

    def format(self, query: str, text: str) -> str:
        """Return the prompt of a pair."""
        messages = [{"role": "system", "content": self._prompt}] if self._prompt else []
        messages += [{"role": "query", "content": query}, {"role": "document", "content": text}]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **self._options))


class MonoT5Tokenizer(PromptTokenizer):
    """Tokenizer of pairs as `Query: … Document: … Relevant:` (Nogueira et al. 2020)."""

    def __init__(self, tokenizer: Any, *, max_length: int) -> None:
        super().__init__(tokenizer, max_length=max_length, left=False)
        self.suffix = tokenizer("Relevant:")["input_ids"]  # ends with </s>

    def format(self, query: str, text: str) -> str:
        """Return the prompt of a pair, without the suffix "Relevant:"."""
        return f"Query: {query} Document: {text}"

    def truncate_prompt(self, ids: list[int]) -> list[int]:
        """Return the token ids with the suffix. The ids before it are truncated, to `max_length` in all."""
        return super().truncate_prompt(ids + self.suffix)


def read_logit_score_config(folder: Path) -> dict[str, Any] | None:
    """Return the configuration of the LogitScore module in a sentence-transformers folder; None if it has no such module."""
    for module in read_modules(folder) if (folder / MODULES).exists() else []:
        if module["type"].rpartition(".")[2] == LOGIT_SCORE:
            return read_object(folder / module["path"] / "config.json", true_token_id=int, false_token_id=int | None)
    return None


def load_generative_reranker(folder: Path, path: Path) -> tuple[GenerativeReranker, GenerationModel]:
    """Return (reranker, its generation model): a decoder-only reranker, or an encoder-decoder like monoT5.

    folder: model folder    path: folder of the weights
    Raises MismatchError for a generator of drtk, and for a tokenizer without the true or the false token.
    """
    if read_meta_entry(folder, "writing") is not None:
        raise MismatchError(f"{folder}: expected a cross-encoder, got a generator; use another model")
    loaded = load_generation_model(path)
    config = read_logit_score_config(folder)
    if config is not None:
        return GenerativeReranker(loaded, config["true_token_id"], config.get("false_token_id")), loaded
    words = ("▁true", "▁false") if loaded.is_encoder_decoder else ("yes", "no")
    vocabulary = loaded.tokenizer.get_vocab()
    for word in words:
        if word not in vocabulary:
            kind = type(loaded.model).__name__
            raise MismatchError(
                f"{folder}: expected a cross-encoder, got {kind} without a token '{word}'; use another model"
            )
    true, false = (vocabulary[word] for word in words)
    kind = "monoT5" if loaded.is_encoder_decoder else "Qwen3-Reranker"
    log(f"{folder}: scores are the logit of {words[0]} minus the logit of {words[1]}, as in {kind}")
    return GenerativeReranker(loaded, true, false), loaded


def make_pair_tokenizer(
    loaded: GenerationModel, *, max_length: int, prompt: str, options: Mapping[str, Any]
) -> PromptTokenizer | PairTokenizer:
    """Return the tokenizer of pairs for a generative reranker.

    A decoder-only model without chat template gets a PairTokenizer, which concatenates prompt, query and text.
    prompt: instruction, the system message of the chat template; ignored for an encoder-decoder
    options: additional arguments of the chat template
    """
    if loaded.is_encoder_decoder:
        return MonoT5Tokenizer(loaded.tokenizer, max_length=max_length)
    if loaded.tokenizer.chat_template is None:
        loaded.tokenizer.padding_side = "left"
        return PairTokenizer(loaded.tokenizer, max_length=max_length, prompt=prompt)
    return ChatTokenizer(loaded.tokenizer, max_length=max_length, prompt=prompt, options=options)
