"""HLATR list reranker: a transformer over all candidates of a query (docs/methods/hlatr.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from drtk.models.checkpoint import save_module
from drtk.models.loading import report_load_errors
from drtk.models.model_folder import LIST_RERANKER
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_object

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ListRerankerConfig:
    """Configuration of a list reranker.

    width: dimension of the cross-encoder vectors    depth: maximum number of candidates per query
    hidden, feedforward: hidden and feed-forward size of the layers
    """

    width: int
    depth: int = 100
    hidden: int = 128
    layers: int = 4
    heads: int = 2
    feedforward: int = 768
    dropout: float = 0.1


class ListReranker(nn.Module):
    """Transformer that computes a logit for each candidate from the cross-encoder vectors of all candidates of a query.

    The input for candidate i is Linear(v_i) + P_i, where v_i is the cross-encoder vector of query and candidate, and P_i is
    the embedding of the candidate's rank. Layer norm, dropout, a bidirectional transformer and a linear layer follow.
    """

    def __init__(self, config: ListRerankerConfig) -> None:
        super().__init__()
        self.settings = config
        self.project = nn.Linear(config.width, config.hidden)
        self.ranks = nn.Embedding(config.depth, config.hidden)
        nn.init.normal_(self.ranks.weight, std=0.02)  # torch's default of 1 would dominate the vectors
        self.norm = nn.LayerNorm(config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        layers = [
            nn.TransformerEncoderLayer(
                config.hidden, config.heads, config.feedforward, config.dropout, activation="gelu", batch_first=True
            )
            for _ in range(1 + config.layers)
        ]
        self.layers = nn.TransformerEncoder(layers[0], config.layers, enable_nested_tensor=False)
        self.layers.layers = nn.ModuleList(layers[1:])  # nn.TransformerEncoder would start with copies of one layer
        self.head = nn.Linear(config.hidden, 1)

    def forward(self, vectors: Tensor, ranks: Tensor, present: Tensor) -> Tensor:
        """Return the logits, (queries, n) float32; logits at padding are undefined.

        vectors: (queries, n, width)    ranks: (queries, n), retrieval ranks from 0
        present: (queries, n) bool, False at padding
        """
        items = self.dropout(self.norm(self.project(vectors) + self.ranks(ranks)))  # (queries, n, hidden)
        logits: Tensor = self.head(self.layers(items, src_key_padding_mask=~present)).squeeze(-1)
        return logits.float()


def init_list_reranker(config: ListRerankerConfig, *, seed: int) -> ListReranker:
    """Return a list reranker with random weights. The global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ListReranker(config)


def load_list_reranker(folder: Path) -> ListReranker:
    """Load a list reranker in float32 on the CPU, in evaluation mode. Raises DrtkError for a damaged folder."""
    from safetensors.torch import load_file

    config = read_list_reranker_config(folder)
    with report_load_errors(folder, "cannot be loaded as a list reranker"):
        model = ListReranker(config)
        model.load_state_dict(load_file(folder / WEIGHTS))
    return model.eval()


def read_list_reranker_config(folder: Path) -> ListRerankerConfig:
    """Read the configuration of a list reranker. Raises DrtkError if the file is damaged."""
    sizes = dict.fromkeys(("width", "depth", "hidden", "layers", "heads", "feedforward"), int)
    content = read_object(folder / LIST_RERANKER, **sizes, dropout=float)
    return ListRerankerConfig(**{name: content[name] for name in ListRerankerConfig.__dataclass_fields__})


def save_list_reranker(model: ListReranker, folder: Path) -> None:
    """Write a model folder: configuration and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / LIST_RERANKER, asdict(model.settings))
    save_module(model, folder / WEIGHTS)
