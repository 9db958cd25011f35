"""Bi-encoder: a query encoder and a passage encoder, which may be the same model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.checkpoint import TextEncoder, load_encoder, save_encoder
from drtk.models.encoder import Encoder, run_in_length_groups
from drtk.models.model_folder import resolve_model_folder, resolve_tower_folder, write_untied_layout
from drtk.models.packing import is_packed
from drtk.text.batching import group_by_length


class BiEncoder(nn.Module):
    """A query encoder and a passage encoder; `passage` encodes both if `query` is None.

    prompt_lengths: numbers of prompt tokens that pooling excludes, (in queries, in passages)
    group_overhead: fixed cost of a forward pass, in tokens, for dividing texts into groups of similar length to save
        padding (see `group_by_length`); None: encode all texts together, as packed encoders always do
    """

    def __init__(
        self,
        passage: Encoder,
        query: Encoder | None = None,
        *,
        prompt_lengths: tuple[int, int] = (0, 0),
        group_overhead: float | None = None,
    ) -> None:
        super().__init__()
        self.passage = passage
        self.query = query
        self.prompt_lengths, self.group_overhead = prompt_lengths, group_overhead

    def forward(
        self,
        query_input_ids: Tensor,
        query_attention_mask: Tensor,
        passage_input_ids: Tensor,
        passage_attention_mask: Tensor,
        query_token_type_ids: Tensor | None = None,
        passage_token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return (query vectors, passage vectors), each (texts, dimension) float32. Each input: (texts, tokens)"""
        return (
            self.encode("query", query_input_ids, query_attention_mask, query_token_type_ids),
            self.encode("passage", passage_input_ids, passage_attention_mask, passage_token_type_ids),
        )

    def encode(self, role: str, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the vectors of texts, (texts, dimension) float32.

        role: "query" or "passage"    ids, mask, types: (texts, tokens)
        """
        is_query = role == "query"
        encoder = self.query if is_query and self.query is not None else self.passage
        inputs = {"input_ids": ids, "attention_mask": mask} | ({} if types is None else {"token_type_ids": types})

        def run(rows: Mapping[str, Tensor]) -> Tensor:
            return encoder(**rows, prompt_length=self.prompt_lengths[0 if is_query else 1])

        if self.group_overhead is None or is_packed(encoder.backbone):
            return run(inputs)
        return run_in_length_groups(run, inputs, partial(group_by_length, overhead=self.group_overhead))


def load_towers(model: str, *, overrides: Mapping[str, Any], untied: bool) -> dict[str, TextEncoder]:
    """Load the encoders to train: {"query": encoder, "passage": encoder}, or {"passage": encoder} if it encodes both.

    model: a folder or hub name
    overrides: fields of the model's EncodingConfig to replace
    untied: return two encoders even if the folder contains one; the query encoder is then a copy
    Raises MismatchError if the vectors of the two encoders have different dimensions, and the errors of `load_encoder`.
    """
    folder = resolve_model_folder(model)
    paths = {role: resolve_tower_folder(folder, role) for role in ("query", "passage")}
    passage = load_encoder(paths["passage"], overrides=overrides, strict=False)
    if paths["query"] != paths["passage"]:
        query = load_encoder(paths["query"], overrides=overrides, strict=False)
        if query.encoder.dimension != passage.encoder.dimension:
            dimensions = f"{query.encoder.dimension} and {passage.encoder.dimension}"
            raise MismatchError(
                f"{folder}: its query and passage vectors have different dimensions ({dimensions}); use another model"
            )
    elif untied:
        query = TextEncoder(copy.deepcopy(passage.encoder), passage.tokenizer, passage.encoding)
    else:
        return {"passage": passage}
    return {"query": query, "passage": passage}


def save_towers(towers: Mapping[str, TextEncoder], folder: Path) -> None:
    """Write a model folder; untied encoders go into its subfolders `query` and `passage`.

    SentenceTransformer loads both layouts of dense encoders.
    """
    if len(towers) == 1:
        save_encoder(next(iter(towers.values())), folder)
        return
    for role, model in towers.items():
        save_encoder(model, folder / role)
    write_untied_layout(folder, towers["passage"].encoding)
