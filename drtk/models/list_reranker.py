"""HLATR: a small transformer over the list of a query's candidates, with a cross-encoder's vectors as input (docs/methods/hlatr.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from drtk.errors import DrtkError
from drtk.models.checkpoint import save_module
from drtk.models.model_folder import LIST_RERANKER
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_object

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ListRerankerConfig:
    """The sizes of a list re-ranker. width: of the input vectors; depth: the longest list."""

    width: int
    depth: int = 100
    hidden: int = 128
    layers: int = 4
    heads: int = 2
    feedforward: int = 768
    dropout: float = 0.1


class ListReranker(nn.Module):
    """Compute a logit for each candidate, which depends on all candidates of its query.

    Item i is Linear(v_i) + P_i, with v_i the cross-encoder's vector and P_i learned for the rank in retrieval; then layer
    norm, dropout, a bidirectional transformer, and a linear layer to one number.
    """

    def __init__(self, shape: ListRerankerConfig) -> None:
        super().__init__()
        self.shape = shape
        self.project = nn.Linear(shape.width, shape.hidden)
        self.ranks = nn.Embedding(shape.depth, shape.hidden)
        nn.init.normal_(self.ranks.weight, std=0.02)  # torch's default, 1, would dominate the vectors
        self.norm = nn.LayerNorm(shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)
        layers = [
            nn.TransformerEncoderLayer(
                shape.hidden, shape.heads, shape.feedforward, shape.dropout, activation="gelu", batch_first=True
            )
            for _ in range(1 + shape.layers)
        ]
        self.layers = nn.TransformerEncoder(layers[0], shape.layers, enable_nested_tensor=False)
        self.layers.layers = nn.ModuleList(layers[1:])  # torch would start with copies of one layer
        self.head = nn.Linear(shape.hidden, 1)

    def forward(self, vectors: Tensor, ranks: Tensor, present: Tensor) -> Tensor:
        """Return the logits, (queries, n), float32; those at padding are undefined.

        vectors: (queries, n, width)    ranks: (queries, n), in retrieval, from 0    present: (queries, n), False at padding
        """
        items = self.dropout(self.norm(self.project(vectors) + self.ranks(ranks)))  # (queries, n, hidden)
        logits: Tensor = self.head(self.layers(items, src_key_padding_mask=~present)).squeeze(-1)
        return logits.float()


def init_list_reranker(shape: ListRerankerConfig, *, seed: int) -> ListReranker:
    """Return a list re-ranker with random weights; the global generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ListReranker(shape)


def load_list_reranker(folder: Path) -> ListReranker:
    """Load the list re-ranker of a folder, in float32 on the CPU. Raises DrtkError for a damaged folder."""
    from safetensors.torch import load_file

    shape = read_list_reranker_config(folder)
    try:
        model = ListReranker(shape)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except Exception as error:
        raise DrtkError(f"{folder}: cannot be loaded as a list re-ranker: {str(error).splitlines()[0]}") from error
    return model.eval()


def read_list_reranker_config(folder: Path) -> ListRerankerConfig:
    """Return the sizes of the list re-ranker in a folder. Raises DrtkError if its configuration is damaged."""
    sizes = dict.fromkeys(("width", "depth", "hidden", "layers", "heads", "feedforward"), int)
    content = read_object(folder / LIST_RERANKER, **sizes, dropout=float)
    return ListRerankerConfig(**{name: content[name] for name in ListRerankerConfig.__dataclass_fields__})


def save_list_reranker(model: ListReranker, folder: Path) -> None:
    """Write its folder: sizes and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / LIST_RERANKER, asdict(model.shape))
    save_module(model, folder / WEIGHTS)
