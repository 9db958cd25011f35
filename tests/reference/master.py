"""MASTER: five decoders on the CLS vectors of up to three passes of one encoder."""

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import apply_layers, build_decoder_input, hidden_states, token_losses
from tests.reference.means import token_mean, with_total
from tests.reference.mlm import masked_losses
from tests.reference.text import Text

PASS_OF = {"mkp": "mlm", "cmp": "mlm_cmp", "npr": "mlm_npr", "dor": "mlm", "gor": "mlm"}  # decoder -> its encoder pass


@dataclass(frozen=True)
class Tasks:
    """Inputs of one passage for encoder and decoders.

    passes: encoder inputs: "mlm" for mkp, dor and gor; "mlm_cmp" for cmp and "mlm_npr" for npr. If one of the last two
      is missing, its decoder uses the CLS vector of "mlm".
    targets: masked target of each decoder; missing targets (no next passage) are excluded from the decoder's mean
    """

    passes: dict[str, Text]
    targets: dict[str, Text]


def master(model: BertForMaskedLM, decoders: dict[str, list[nn.Module]], examples: list[Tasks]) -> dict[str, Tensor]:
    """Return a term per encoder pass and decoder, the mean loss over its masked positions, and their sum.

    decoders: layers of "mkp", "cmp", "npr", "dor", "gor"; fewer for ablations; shared decoders have the same layers
    """
    names = [name for name in ("mlm", "mlm_cmp", "mlm_npr") if any(name in example.passes for example in examples)]
    losses: dict[str, list[list[Tensor]]] = {name: [] for name in (*names, *decoders)}
    for example in examples:
        vectors = {}
        for name, text in example.passes.items():
            last = hidden_states(model.bert, text.inputs, text.types)[-1]
            losses[name].append(masked_losses(model, text, last))
            vectors[name] = last[0]
        for name, layers in decoders.items():
            if name not in example.targets:
                continue
            target = example.targets[name]
            cls = vectors.get(PASS_OF[name], vectors["mlm"])
            rows = apply_layers(layers, build_decoder_input(cls, model.bert.embeddings, target))
            losses[name].append(token_losses(model, rows, target, target.hidden))
    return with_total({name: token_mean(found) for name, found in losses.items()})
