"""An encoder with a head that gives each token a number: how much the word weighs that begins with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import TextEncoder, load_encoder, report_write_errors, save_encoder
from drtk.models.device import choose_device
from drtk.runtime.manifest import read_manifest_if_any
from drtk.text.batching import Tokens, batches_by_length

HEADS = "heads"
_CPU_TOKENS, _GPU_TOKENS = 4096, 131_072
_LONGEST = 512  # tokens, where neither tokenizer nor model says


class ImpactHead(nn.Module):
    """ReLU(w2 . Dropout(ReLU(W1 h)) + b): a number of 0 or more (DeepImpact; methods: section 3.4)."""

    def __init__(self, hidden: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(hidden, 1)
        # Above 0 to begin with: a word whose impact is 0 has no gradient, and half of all would start so.
        nn.init.constant_(self.outer.bias, 1.0)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (..., hidden); returns: (..., 1)"""
        found: Tensor = self.outer(self.dropout(self.inner(hidden).relu())).relu()
        return found


def new_head(method: str, hidden: int) -> nn.Module:
    """The untrained head of a method: one linear unit (deepct), or a perceptron above 0 (deepimpact)."""
    return nn.Linear(hidden, 1) if method == "deepct" else ImpactHead(hidden)


class TermWeighter(nn.Module):
    """Tokens to numbers."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Both (batch, tokens); returns: (batch, tokens), float32, of the last layer's vectors."""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):
            weights: Tensor = self.head(hidden.float()).squeeze(-1)
        return weights


@dataclass
class TermWeightModel:
    """A model that weighs words, with its tokenizer.

    folder: where its tokenizer lies
    facts: what its training settled, kept in meta.json: for deepimpact `expand` and `largest`
    first, last: special tokens around a text
    """

    method: str
    folder: Path
    encoder: TextEncoder
    module: TermWeighter
    facts: dict[str, Any]

    def __post_init__(self) -> None:
        tokenizer = self.encoder.tokenizer
        content = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        begin = next(at for at in range(len(whole)) if whole[at : at + len(content)] == content)
        self.first, self.last = whole[:begin], whole[begin + len(content) :]
        self.pad = int(tokenizer.pad_token_id or 0)

    def room(self, length: int) -> int:
        """Word pieces that an input of so many tokens holds. Raises MismatchError where the model reads less."""
        if length > self.longest:
            raise MismatchError(
                f"{self.folder}: the model reads at most {self.longest} tokens; {length} were asked for"
            )
        return length - len(self.first) - len(self.last)

    @property
    def longest(self) -> int:
        """Tokens of the longest input."""
        config: Any = self.encoder.encoder.backbone.config
        stated = (self.encoder.tokenizer.model_max_length, getattr(config, "max_position_embeddings", None))
        return int(min(item if item and item > 0 else _LONGEST for item in stated if not item or item < 10**9))

    def tokens(self, texts: Sequence[Sequence[int]], *, room: int) -> Tokens:
        """Inputs of texts given as word pieces, each cut to `room` and put between the special tokens."""
        return Tokens.of([[*self.first, *pieces[:room], *self.last] for pieces in texts], None)


def init_term_weighter(model: Path, method: str, *, seed: int) -> TermWeightModel:
    """The encoder of a model folder with an untrained head, drawn with `seed`."""
    encoder = load_encoder(model, strict=False)
    torch.manual_seed(seed)
    head = new_head(method, encoder.encoder.hidden)
    weigher = TermWeightModel(method, model, encoder, TermWeighter(encoder.encoder.backbone, head), {})
    encoder.recipe = replace(encoder.recipe, passage_length=weigher.longest)  # what the folder that is saved reads
    return weigher


def read_training_facts(folder: Path, method: str) -> dict[str, Any]:
    """What training settled, as meta.json of a folder says.

    Raises MismatchError for a folder that holds no model that weighs words, or one of another method.
    """
    manifest = read_manifest_if_any(folder)
    facts = manifest.get("term_weights")
    if not isinstance(facts, dict):
        raise MismatchError(
            f"{folder}: was not trained to weigh words; drtk termweight --method {method} --train makes such a model"
        )
    if facts.get("method") != method:
        raise MismatchError(f"{folder}: was trained with --method {facts.get('method')}, not {method}")
    return facts


def load_term_weighter(folder: Path, method: str) -> TermWeightModel:
    """What `save_term_weighter` wrote and meta.json describes.

    Raises MismatchError for a folder that holds no such model, or one of another method.
    """
    facts = read_training_facts(folder, method)
    encoder = load_encoder(folder, strict=False)
    head = new_head(method, encoder.encoder.hidden)
    path = folder / HEADS / f"{method}.safetensors"
    try:
        head.load_state_dict(load_file(path))
    except Exception as error:
        raise DrtkError(f"{path}: cannot be loaded: {str(error).splitlines()[0]}") from error
    return TermWeightModel(method, folder, encoder, TermWeighter(encoder.encoder.backbone, head).eval(), facts)


def save_term_weighter(weigher: TermWeightModel, folder: Path) -> None:
    """Write the encoder's folder, which AutoModel loads, and the head apart. meta.json is the caller's."""
    save_encoder(weigher.encoder, folder)
    (folder / HEADS).mkdir(exist_ok=True)
    with report_write_errors(folder):
        weights = {name: value.contiguous() for name, value in weigher.module.head.state_dict().items()}
        save_file(weights, folder / HEADS / f"{weigher.method}.safetensors")


class TermWeightPredictor:
    """A weigher at work: word pieces in, a number each out, in batches of like length.

    max_length: tokens of an input; None: what the model can
    """

    def __init__(
        self,
        weigher: TermWeightModel,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_length: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self._weigher = weigher
        self._device = choose_device(device)
        self._room = weigher.room(max_length or weigher.longest)
        on_cpu = self._device.type == "cpu"
        self._budget = batch_tokens or (_CPU_TOKENS if on_cpu else _GPU_TOKENS)
        self._dtype = getattr(torch, dtype if dtype != "auto" else "float32" if on_cpu else "bfloat16")
        weigher.module.to(self._device).eval()
        weigher.module.backbone.to(self._dtype)  # the head stays float32

    @torch.inference_mode()
    def __call__(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """For each text, given as word pieces, a number for each of them, float32; 0 beyond what the model reads."""
        tokens = self._weigher.tokens(texts, room=self._room)
        found = [np.zeros(len(pieces), dtype=np.float32) for pieces in texts]
        before = len(self._weigher.first)
        for rows in batches_by_length(tokens.lengths, budget=self._budget):
            batch = {name: torch.from_numpy(array) for name, array in tokens.pad(rows, pad=self._weigher.pad).items()}
            try:
                values = self._weigher.module(**{name: value.to(self._device) for name, value in batch.items()})
            except torch.OutOfMemoryError as error:
                size = batch["input_ids"].numel()
                raise DrtkError(f"{self._device}: out of memory at {size:,} tokens; lower --batch-tokens") from error
            for row, numbers in zip(rows, values.cpu().numpy(), strict=True):
                read = min(len(texts[row]), self._room)
                found[row][:read] = numbers[before : before + read]
        return found
