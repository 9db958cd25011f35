"""HLATR: a small transformer over the list of a query's candidates, fed with a cross-encoder's vectors (methods, section 6.9)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from drtk.errors import DrtkError, UsageError
from drtk.models.checkpoint import report_write_errors
from drtk.models.model_folder import CONFIG, WEIGHTS
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_object


@dataclass(frozen=True)
class ListShape:
    """The sizes of a list re-ranker. width: of the vectors it reads; depth: the longest list."""

    width: int
    depth: int = 100
    hidden: int = 128
    layers: int = 4
    heads: int = 2
    feedforward: int = 768
    dropout: float = 0.1


class ListReranker(nn.Module):
    """A logit for each candidate, which depends on all candidates of its query.

    Item i is Linear(v_i) + P_i, with v_i the cross-encoder's vector and P_i learned for the rank in retrieval; then layer
    norm, dropout, a bidirectional transformer, and a linear layer to one number.
    """

    def __init__(self, shape: ListShape) -> None:
        super().__init__()
        if shape.hidden % shape.heads:
            raise UsageError(f"--heads {shape.heads} does not divide --hidden {shape.hidden}")
        self.shape = shape
        self.project = nn.Linear(shape.width, shape.hidden)
        self.ranks = nn.Embedding(shape.depth, shape.hidden)
        nn.init.normal_(self.ranks.weight, std=0.02)  # torch's own, of deviation 1, would drown the vectors
        self.norm = nn.LayerNorm(shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)
        self.layers = nn.TransformerEncoder(_layer(shape), shape.layers, enable_nested_tensor=False)
        # torch copies the one layer it is given; layers that begin alike are drawn apart by dropout alone
        self.layers.layers = nn.ModuleList(_layer(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.hidden, 1)

    def forward(self, vectors: Tensor, ranks: Tensor, present: Tensor) -> Tensor:
        """The logits, (queries, n), float32; what stands at padding means nothing.

        vectors: (queries, n, width)    ranks: (queries, n), in retrieval, from 0    present: (queries, n), False at padding
        """
        items = self.dropout(self.norm(self.project(vectors) + self.ranks(ranks)))  # (queries, n, hidden)
        logits: Tensor = self.head(self.layers(items, src_key_padding_mask=~present)).squeeze(-1)
        return logits.float()


def _layer(shape: ListShape) -> nn.TransformerEncoderLayer:
    """A layer with weights of its own."""
    return nn.TransformerEncoderLayer(
        shape.hidden, shape.heads, shape.feedforward, shape.dropout, activation="gelu", batch_first=True
    )


def init_list_reranker(shape: ListShape, *, seed: int) -> ListReranker:
    """One with weights drawn from `seed`; the global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ListReranker(shape)


def load_list_reranker(folder: Path) -> ListReranker:
    """The list re-ranker of a folder, in float32 on the CPU. Raises DrtkError for a folder that is damaged."""
    from safetensors.torch import load_file

    shape = read_list_shape(folder)
    try:
        model = ListReranker(shape)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except DrtkError:
        raise
    except Exception as error:
        raise DrtkError(f"{folder}: cannot be loaded as a list re-ranker: {str(error).splitlines()[0]}") from error
    return model.eval()


def read_list_shape(folder: Path) -> ListShape:
    """Return the sizes of the list re-ranker in a folder. Raises DrtkError if its configuration is damaged."""
    sizes = dict.fromkeys(("width", "depth", "hidden", "layers", "heads", "feedforward"), int)
    content = read_object(folder / CONFIG, **sizes, dropout=float)
    return ListShape(**{name: content[name] for name in ListShape.__dataclass_fields__})


def save_list_reranker(model: ListReranker, folder: Path) -> None:
    """Write its folder: sizes and weights."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, asdict(model.shape))
    with report_write_errors(folder):
        save_file({name: each.contiguous() for name, each in model.state_dict().items()}, folder / WEIGHTS)
