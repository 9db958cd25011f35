"""How a re-ranker is trained, and how one is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.errors import UsageError
from drtk.settings.core import Idle, knob
from drtk.settings.finetuning import NOT_MEASURED
from drtk.settings.scoring import ScoringSettings

PairTitle = Literal["colon", "join", "none"]
_PAIRS = (Idle("is for --kind crossencoder", {"kind": ("hlatr",)}),)
NEGATIVES = 63  # of a query (methods, section 6.4)
_LISTS = (Idle("is for --kind hlatr", {"kind": ("crossencoder",)}),)


@dataclass(frozen=True)
class RerankerSettings:
    """drtk train-reranker (methods: sections 6.4, 6.7, 6.9, 7.10). The defaults are those of SimLM's Table 12."""

    kind: Literal["crossencoder", "hlatr"] = knob(
        "crossencoder", "What is trained: crossencoder (reads query and passage), hlatr (reads lists of --vectors)."
    )
    loss: Literal["listwise", "bce"] = knob(
        "listwise",
        "listwise: the positive against its query's negatives; bce: each pair by itself, right or wrong.",
        idle=_PAIRS,
    )
    negatives: int | None = knob(
        None,
        "listwise: negatives of each query in a step. [default: 63; bce takes all there are]",
        at_least=1,
        idle=_PAIRS,
    )
    first_positive: bool = knob(False, "Train with the first positive of each query alone, the gold one.", idle=_PAIRS)
    r_drop: bool = knob(
        False, "listwise: pass each batch twice and draw both passes' distributions together.", idle=_PAIRS
    )
    backward: int | None = knob(
        None,
        "listwise: score all passages without gradients, then train on so many: the positive and the best negatives.",
        at_least=2,
        idle=_PAIRS,
    )
    max_length: int | None = knob(
        None, "Longest pair, in tokens. [default: 192, or what the model can read]", at_least=4, idle=_PAIRS
    )
    title: PairTitle | None = knob(
        None,
        "Passage titles: colon (title: text), join (title text) or none. [default: as the start model, or colon]",
        idle=_PAIRS,
    )
    batch: int = knob(64, "Queries in one step (bce: pairs), over all devices together.", at_least=1)
    micro_batch: int | None = knob(
        None,
        "Queries (bce: pairs) that go through a device at once; less memory, the same step.",
        at_least=1,
        idle=_PAIRS,
    )
    epochs: float = knob(3.0, "Passes over the examples.", at_least=1e-6)
    steps: int | None = knob(None, "Steps to train for, in place of --epochs.", at_least=1, instead_of="epochs")
    lr: float = knob(3e-5, "Highest learning rate.", at_least=0)
    warmup: float = knob(0.1, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = knob(0.01, "Weight decay, biases and norms left out.", at_least=0)
    depth: int = knob(100, "hlatr: candidates of a query, in the order of the run.", at_least=2, idle=_LISTS)
    layers: int = knob(4, "hlatr: layers over the list.", at_least=1, idle=_LISTS)
    hidden: int = knob(128, "hlatr: width of the layers.", at_least=1, idle=_LISTS)
    heads: int = knob(2, "hlatr: attention heads of a layer.", at_least=1, idle=_LISTS)
    feedforward: int = knob(768, "hlatr: width of the feed-forward parts.", at_least=1, idle=_LISTS)
    dropout: float = knob(0.1, "hlatr: dropout.", at_least=0, at_most=0.99, idle=_LISTS)
    dev_queries: int = knob(
        200, "--dev: so many of its queries are measured, evenly spread.", at_least=1, idle=(NOT_MEASURED,)
    )
    dev_depth: int = knob(50, "--dev: candidates of each query that are scored.", at_least=2, idle=(NOT_MEASURED,))
    eval_every: int = knob(500, "--dev: steps between measurements.", at_least=1, idle=(NOT_MEASURED,))
    select: Literal["RR@10", "nDCG@10"] = knob(
        "RR@10", "--dev: the measure that says which weights are the best.", idle=(NOT_MEASURED,)
    )
    patience: int | None = knob(None, "--dev: end after so many measurements that are not the best.", at_least=1)
    precision: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = knob(
        False, "Compute activations twice and keep fewer of them in memory.", idle=_PAIRS
    )
    log_every: int = knob(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = knob(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = knob(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )

    @property
    def negatives_in_a_step(self) -> int:
        """Negatives of a query in a step; 0 where pairs are trained by themselves."""
        return 0 if self.loss == "bce" else NEGATIVES if self.negatives is None else self.negatives

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.kind == "hlatr":
            if self.hidden % self.heads:
                raise UsageError(f"--heads {self.heads} does not divide --hidden {self.hidden}")
            return
        for flag, given in (
            ("--negatives", self.negatives is not None),
            ("--r-drop", self.r_drop),
            ("--backward", self.backward is not None),
        ):
            if given and self.loss == "bce":
                raise UsageError(f"{flag}: is for --loss listwise; bce takes each pair by itself")
        passages = self.negatives_in_a_step + 1
        if self.backward is not None and self.backward > passages:
            raise UsageError(f"--backward {self.backward}: a query has {passages} passages in a step")


@dataclass(frozen=True)
class ScoreSettings(ScoringSettings):
    """drtk score."""

    title: PairTitle | None = knob(
        None, "Passage titles: colon (title: text), join (title text) or none. [default: as trained, or join]"
    )
    logits: bool = knob(False, "Scores before the activation function (often a sigmoid) that the model's folder names.")


@dataclass(frozen=True)
class RerankSettings(ScoreSettings):
    """drtk rerank (methods, sections 6.7 and 6.9)."""

    depth: int | None = knob(
        None, "Documents of each query that are scored. [default: 200, or as many as a list model reads]", at_least=1
    )
    store: Literal["float32", "float16"] = knob("float16", "--vectors: numbers to store.")
    tag: str = knob("drtk", "Last column of the run.", one_word=True)
