"""MASTER: five decoders on the CLS vectors of up to three passes of one encoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import behind, hidden_states, predicted, through
from tests.reference.means import token_mean, with_total
from tests.reference.mlm import masked_losses
from tests.reference.text import Text

PASS_OF = {"mkp": "mlm", "cmp": "mlm_cmp", "npr": "mlm_npr", "dor": "mlm", "gor": "mlm"}  # decoder -> its encoder pass


@dataclass(frozen=True)
class Tasks:
    """One passage: what the encoder reads and what the decoders rebuild.

    passes: "mlm", the pass of mkp, dor and gor; "mlm_cmp" and "mlm_npr", the passes of cmp and npr. Without one of
      these two, its decoder takes the CLS of "mlm".
    targets: decoder -> its masked target; one that is missing (no next passage) leaves that decoder's mean
    """

    passes: dict[str, Text]
    targets: dict[str, Text]


def master(
    model: BertForMaskedLM, decoders: dict[str, list[nn.Module]], examples: list[Tasks], *, detach_cls: bool = False
) -> dict[str, Tensor]:
    """A term per encoder pass that occurs and per decoder: each a mean over its own hidden positions; weights 1.

    decoders: "mkp", "cmp", "npr", "dor", "gor" -> its layers; fewer for ablations, the same layers under every name
      for a shared decoder
    """
    names = [name for name in ("mlm", "mlm_cmp", "mlm_npr") if any(name in example.passes for example in examples)]
    losses: dict[str, list[list[Tensor]]] = {name: [] for name in (*names, *decoders)}
    for example in examples:
        vectors = {}
        for name, text in example.passes.items():
            last = hidden_states(model.bert, text.inputs, text.types)[-1]
            losses[name].append(masked_losses(model, text, last))
            vectors[name] = last[0].detach() if detach_cls else last[0]
        for name, layers in decoders.items():
            if name not in example.targets:
                continue
            target = example.targets[name]
            cls = vectors.get(PASS_OF[name], vectors["mlm"])
            rows = through(layers, behind(cls, model.bert.embeddings, target))
            losses[name].append(predicted(model, rows, target, target.hidden))
    return with_total({name: token_mean(found) for name, found in losses.items()})
