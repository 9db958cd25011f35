"""Configuration of the trainers: retriever, re-rankers and generators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import EVALUATION, HARDWARE, TRAINING, NoEffect, option, redeclare
from drtk.errors import UsageError
from drtk.models.config import PairTitle, Similarity, Title

Precision = Literal["auto", "float32", "float16", "bfloat16"]
NOT_MEASURED = NoEffect("needs --dev", {"dev": (None,)})


@dataclass(frozen=True)
class TrainingConfig:
    """Options of the training loop, `drtk.training.fit`. Trainers inherit them and change defaults.

    A trainer without one of them declares its name as a ClassVar.
    """

    batch_size: int = option(64, "Examples per step, over all devices.", at_least=1, panel=TRAINING)
    epochs: float = option(3.0, "Passes over the examples.", at_least=1e-6, panel=TRAINING)
    max_steps: int | None = option(
        None, "Training steps, instead of --epochs.", at_least=1, replaces="epochs", panel=TRAINING
    )
    learning_rate: float = option(2e-5, "Peak learning rate.", at_least=0, panel=TRAINING)
    warmup: float = option(0.1, "Warm-up steps; below 1, a fraction of all steps.", at_least=0, advanced=True)
    weight_decay: float = option(0.01, "Weight decay, except for biases and norms.", at_least=0, advanced=True)
    eval_steps: int = option(
        500, "Steps between evaluations on --dev.", at_least=1, no_effect=(NOT_MEASURED,), panel=EVALUATION
    )
    patience: int | None = option(
        None,
        "Stop after N evaluations without improvement.",
        at_least=1,
        no_effect=(NOT_MEASURED,),
        advanced=True,
    )
    precision: Precision = option(
        "auto", "Compute dtype; auto: bfloat16 on a GPU that has it, else float32.", panel=HARDWARE
    )
    gradient_checkpointing: bool = option(
        False, "Recompute activations in the backward pass to save memory.", advanced=True
    )
    log_steps: int = option(10, "Steps between entries of log.jsonl.", at_least=1, advanced=True)
    save_steps: int = option(500, "Steps between checkpoints for --resume.", at_least=1, advanced=True)
    trainer: tuple[str, ...] = option(
        (), "KEY=VALUE, an argument of transformers' TrainingArguments; repeatable.", advanced=True
    )


# A registered loss of the user's is not listed: whether it learns from a teacher is known once it is loaded.
_NO_TEACHER = NoEffect(
    "needs --loss kl or margin-mse, which learn from a teacher", {"loss": ("infonce", "simlm-paper", "simlm-full")}
)
_NO_CONTRAST = (
    NoEffect(
        "is for the contrastive loss, which --loss margin-mse adds only with `contrastive_weight`",
        {"loss": ("margin-mse",), "contrastive_weight": (None, 0.0)},
    ),
    NoEffect(
        "is for the contrastive loss, which `contrastive_weight=0` removes",
        {"loss": ("kl",), "contrastive_weight": (0.0,)},
    ),
)
_NO_LORA = (NoEffect("needs `lora`, the rank of the adapters", {"lora": (None,)}),)
_NO_AUX = (NoEffect("needs `aux=diffcse`", {"aux": ("none",)}),)
_NO_WARMUP = (NoEffect("needs a warm-up, but `warmup` is 0", {"warmup": (0,)}),)
_NO_NEGATIVES = (NoEffect("needs hard negatives, but --negatives is 0", {"negatives": (0,)}),)


@dataclass(frozen=True)
class RetrieverConfig(TrainingConfig):
    """drtk train-retriever (docs/methods/fine-tuning.md). The defaults are those of SimLM's Table 12."""

    loss: str = option(
        "infonce",
        "infonce, simlm-paper, simlm-full, kl or margin-mse (distillation from scores).",
        metavar="NAME",
    )
    contrastive: str = option(
        "infonce",
        "Contrastive loss added to kl or margin-mse.",
        no_effect=(_NO_TEACHER, *_NO_CONTRAST),
        advanced=True,
    )
    contrastive_weight: float | None = option(
        None,
        "Weight of the contrastive loss beside kl or margin-mse. [default: kl 0.2, margin-mse 0]",
        at_least=0,
        no_effect=(_NO_TEACHER,),
        advanced=True,
    )
    similarity: Similarity | None = option(
        None, "Similarity of vectors. [default: the start model's, or cosine]", advanced=True
    )
    temperature: float | None = option(
        None, "Softmax temperature. [default: cosine 0.02, dot 1]", at_least=1e-6, advanced=True
    )
    temperature_warmup: bool = option(
        False,
        "Start at temperature 1; its inverse grows linearly during warm-up.",
        no_effect=_NO_WARMUP,
        advanced=True,
    )
    teacher_temperature: float = option(
        1.0, "Softmax temperature of the teacher's scores.", at_least=1e-6, no_effect=(_NO_TEACHER,), advanced=True
    )
    negatives: int = option(15, "Hard negatives per query, beside in-batch negatives.", at_least=0)
    negative_sampling: Literal["window", "replacement", "shuffle"] = option(
        "window",
        "Negatives per epoch: sliding window, window that refills short lists with replacement, or shuffled.",
        no_effect=_NO_NEGATIVES,
        advanced=True,
    )
    positive_sampling: Literal["rotate", "first"] = option(
        "rotate", "Positive per epoch: each in turn, or always the first.", advanced=True
    )
    grad_cache: int | None = option(
        None, "GradCache: texts in memory at once, for batches that do not fit.", at_least=1, panel=HARDWARE
    )
    train_fraction: float = option(
        1.0,
        "Fraction of the queries to train on; smaller samples are subsets of larger ones.",
        at_least=0,
        at_most=1,
        advanced=True,
    )
    query_length: int | None = option(
        None, "Maximum query length in tokens. [default: 32, or the model's maximum]", at_least=3, panel=TRAINING
    )
    passage_length: int | None = option(
        None, "Maximum passage length in tokens. [default: 144, or the model's maximum]", at_least=3, panel=TRAINING
    )
    query_prompt: str | None = option(None, "Prefix of each query. [default: the start model's]", advanced=True)
    passage_prompt: str | None = option(None, "Prefix of each passage. [default: the start model's]", advanced=True)
    title: Title | None = option(
        None,
        "How titles are joined to texts: space, separator token, segment pair, or not. [default: the start model's]",
        advanced=True,
    )
    pooling: str | None = option(None, "Pooling. [default: the start model's]", advanced=True)
    normalize: bool | None = option(None, "Scale vectors to length 1. [default: the start model's]", advanced=True)
    untied: bool = option(False, "Train separate query and passage encoders, DIR/query and DIR/passage.", advanced=True)
    mask_duplicate_positives: bool = option(
        False,
        "Do not use copies of a query's positive as its in-batch negatives.",
        no_effect=_NO_CONTRAST,
        advanced=True,
    )
    mask_false_negatives: bool = option(
        False, "Do not use any labeled positive of a query as its negative.", no_effect=_NO_CONTRAST, advanced=True
    )
    matryoshka: tuple[int, ...] = option(
        (), "Also train the first N dimensions as vectors of their own; repeatable.", at_least=1, advanced=True
    )
    lora: int | None = option(None, "Train LoRA adapters of this rank and merge them.", at_least=1, advanced=True)
    lora_alpha: float | None = option(None, "LoRA alpha. [default: twice the rank]", no_effect=_NO_LORA, advanced=True)
    lora_dropout: float = option(0.0, "LoRA dropout, 0 to 1.", at_least=0, at_most=1, no_effect=_NO_LORA, advanced=True)
    lora_target: tuple[str, ...] = option(
        (), "Names of layers with adapters; repeatable. [default: all linear layers]", no_effect=_NO_LORA, advanced=True
    )
    aux: Literal["none", "diffcse"] = option(
        "none", "Auxiliary loss: diffcse detects replaced tokens given the vector.", advanced=True
    )
    aux_weight: float = option(
        0.005,
        "Weight of the auxiliary loss, for queries and for passages.",
        at_least=0,
        no_effect=_NO_AUX,
        advanced=True,
    )
    aux_rate: float = option(
        0.3, "Auxiliary loss: masking rate, 0 to 1.", at_least=0, at_most=1, no_effect=_NO_AUX, advanced=True
    )
    aux_generator: str = option(
        "", "Auxiliary loss: masked language model that replaces tokens.", no_effect=_NO_AUX, advanced=True
    )
    aux_decode: Literal["sample", "argmax"] = option(
        "argmax", "Auxiliary loss: decoding of the generator.", no_effect=_NO_AUX, advanced=True
    )
    aux_scope: Literal["masked", "all"] = option(
        "all", "Auxiliary loss: positions that the generator replaces.", no_effect=_NO_AUX, advanced=True
    )
    aux_reduction: Literal["mean", "mean_all", "sum"] = option(
        "mean_all", "Auxiliary loss: mean over tokens, mean with padding, or sum.", no_effect=_NO_AUX, advanced=True
    )
    dev_queries: int = option(
        300, "Judged queries of --dev, sampled at random.", at_least=1, no_effect=(NOT_MEASURED,), advanced=True
    )
    dev_pool: int = option(
        3000,
        "Passages of --dev: all relevant ones, others sampled at random.",
        at_least=1,
        no_effect=(NOT_MEASURED,),
        advanced=True,
    )

    def check(self) -> None:
        """Raise UsageError for values that contradict each other."""
        if self.contrastive in ("kl", "margin-mse") and self.loss in ("kl", "margin-mse"):
            raise UsageError(f"`contrastive` {self.contrastive}: learns from a teacher; name a contrastive loss")
        if self.aux != "none" and not self.aux_generator:
            raise UsageError("`aux` diffcse needs `aux_generator`, a masked language model")
        if self.temperature_warmup and self.temperature is not None and self.temperature >= 1:
            raise UsageError(
                f"`temperature_warmup` starts at 1, so `temperature` must be below 1, not {self.temperature:g}"
            )
        for size in self.matryoshka:
            if self.matryoshka.count(size) > 1:  # it would count twice, under one name in the log
                raise UsageError(f"`matryoshka` {size}: is given twice")


_PAIRS = (NoEffect("is for --kind crossencoder", {"kind": ("hlatr",)}),)
_LISTWISE = (*_PAIRS, NoEffect("is for --loss listwise", {"loss": ("bce",)}))
_LISTS = (NoEffect("is for --kind hlatr", {"kind": ("crossencoder",)}),)
NEGATIVES = 63  # per query (docs/methods/fine-tuning.md)


@redeclare("gradient_checkpointing", no_effect=_PAIRS)
@dataclass(frozen=True)
class RerankerConfig(TrainingConfig):
    """drtk train-reranker (docs/methods/re-ranker.md). The defaults are those of SimLM's Table 12."""

    batch_size: int = option(64, "Queries (bce: pairs) per step, over all devices.", at_least=1, panel=TRAINING)
    learning_rate: float = option(3e-5, "Peak learning rate.", at_least=0, panel=TRAINING)
    kind: Literal["crossencoder", "hlatr"] = option(
        "crossencoder", "crossencoder reads query and passage, hlatr lists of --vectors."
    )
    loss: Literal["listwise", "bce"] = option(
        "listwise", "listwise: softmax over a query's passages; bce: binary, per pair.", no_effect=_PAIRS
    )
    negatives: int | None = option(
        None, "listwise: negatives per query. [default: 63]", at_least=1, no_effect=_LISTWISE
    )
    first_positive: bool = option(
        False, "Train on the first positive of each query only.", no_effect=_PAIRS, advanced=True
    )
    r_drop: bool = option(
        False, "listwise: add R-Drop, the divergence of two forward passes.", no_effect=_LISTWISE, advanced=True
    )
    backward: int | None = option(
        None,
        "listwise: passages per query with gradients, the positive and the best-scored negatives.",
        at_least=2,
        no_effect=_LISTWISE,
        advanced=True,
    )
    max_length: int | None = option(
        None,
        "Maximum pair length in tokens. [default: 192, or the model's maximum]",
        at_least=4,
        no_effect=_PAIRS,
        panel=TRAINING,
    )
    title: PairTitle | None = option(
        None,
        "How titles are joined to texts: title: text, title text, or not. [default: the start model's, or colon]",
        no_effect=_PAIRS,
        advanced=True,
    )
    micro_batch_size: int | None = option(
        None,
        "Queries (bce: pairs) in memory at once per device; results do not change.",
        at_least=1,
        no_effect=_PAIRS,
        panel=HARDWARE,
    )
    depth: int = option(
        100, "hlatr: candidates per query, in the order of the run.", at_least=2, no_effect=_LISTS, advanced=True
    )
    layers: int = option(4, "hlatr: number of layers.", at_least=1, no_effect=_LISTS, advanced=True)
    hidden: int = option(128, "hlatr: hidden size.", at_least=1, no_effect=_LISTS, advanced=True)
    heads: int = option(2, "hlatr: attention heads per layer.", at_least=1, no_effect=_LISTS, advanced=True)
    feedforward: int = option(768, "hlatr: feed-forward size.", at_least=1, no_effect=_LISTS, advanced=True)
    dropout: float = option(0.1, "hlatr: dropout.", at_least=0, at_most=0.99, no_effect=_LISTS, advanced=True)
    dev_queries: int = option(
        200, "Queries of --dev-run, evenly spaced.", at_least=1, no_effect=(NOT_MEASURED,), advanced=True
    )
    dev_depth: int = option(
        50, "Candidates per query of --dev-run.", at_least=2, no_effect=(NOT_MEASURED,), advanced=True
    )
    dev_split: str = option("dev", "Split of --dev, qrels/NAME.tsv.", no_effect=(NOT_MEASURED,), advanced=True)
    dev_vectors: str | None = option(
        None, "hlatr: pair vectors of --dev-run. [default: those of --vectors]", no_effect=_LISTS, advanced=True
    )
    dev_measure: Literal["RR@10", "nDCG@10"] = option(
        "RR@10", "Measure on --dev that selects the best weights.", no_effect=(NOT_MEASURED,), advanced=True
    )

    @property
    def negatives_in_a_step(self) -> int:
        """Negatives per query and step; 0 if pairs are trained by themselves."""
        return 0 if self.loss == "bce" else NEGATIVES if self.negatives is None else self.negatives

    def check(self) -> None:
        """Raise UsageError for values that contradict each other."""
        if self.kind == "hlatr" and self.hidden % self.heads:
            raise UsageError(f"`heads` {self.heads} does not divide `hidden` {self.hidden}")
        passages = self.negatives_in_a_step + 1
        if self.kind == "crossencoder" and self.loss == "listwise" and (self.backward or 0) > passages:
            raise UsageError(f"`backward` {self.backward}: a query has {passages} passages in a step")


GAR = "gar-"  # prefix of tasks about questions; the kind of expansion follows
_TASKS = ("doc2query", "gar-answer", "gar-sentence", "gar-title")


def _only_with(*tasks: str) -> tuple[NoEffect, ...]:
    others = tuple(task for task in _TASKS if task not in tasks)
    return (NoEffect(f"only with --task {' or '.join(tasks)}", {"task": others}),)


@redeclare("eval_steps", "patience", no_effect=())
@dataclass(frozen=True)
class GeneratorConfig(TrainingConfig):
    """drtk train-generator. Lengths and learning rate are those of docs/methods/doc2query.md (T5, passage to query)."""

    batch_size: int = option(64, "Pairs per step, over all devices.", at_least=1, panel=TRAINING)
    epochs: float = option(2.0, "Passes over the pairs.", at_least=1e-6, panel=TRAINING)
    learning_rate: float = option(1e-3, "Peak learning rate; BART needs about 3e-5.", at_least=0, panel=TRAINING)
    warmup: float = option(0.0, "Warm-up steps; below 1, a fraction of all steps.", at_least=0, advanced=True)
    weight_decay: float = option(0.0, "Weight decay, except for biases and norms.", at_least=0, advanced=True)
    task: Literal["doc2query", "gar-answer", "gar-sentence", "gar-title"] = option(
        "doc2query", "doc2query: passage to query; gar-…: question to answer, sentence or titles."
    )
    depth: int = option(
        100,
        "GAR: hits per question to search for answers.",
        at_least=1,
        no_effect=_only_with(*_TASKS[2:]),
        advanced=True,
    )
    answer_case: Literal["kept", "initial"] = option(
        "kept",
        "GAR: case of answers in capitals: unchanged, or initial capitals (TriviaQA).",
        no_effect=_only_with("gar-answer"),
        advanced=True,
    )
    title_mode: Literal["all", "first"] = option(
        "all",
        "GAR titles: of all hits with an answer, or of the first.",
        no_effect=_only_with("gar-title"),
        advanced=True,
    )
    separator: str = option(
        ", ", "GAR titles: text between two titles.", no_effect=_only_with("gar-title"), advanced=True
    )
    match: Literal["tokens", "regex"] = option(
        "tokens",
        "GAR: answer matching by tokens (DPR) or regular expressions.",
        no_effect=_only_with(*_TASKS[2:]),
        advanced=True,
    )
    match_title: bool = option(
        False, "GAR titles: also search titles for answers.", no_effect=_only_with("gar-title"), advanced=True
    )
    folds: int | None = option(
        None,
        "GAR: train N generators, each without one fold, for expand-queries.",
        at_least=2,
        no_effect=_only_with(*_TASKS[1:]),
        advanced=True,
    )
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "Learning-rate schedule after warm-up.", advanced=True
    )
    label_smoothing: float = option(0.0, "Label smoothing, 0 to 1.", at_least=0, at_most=0.999, advanced=True)
    title: Literal["join", "none"] | None = option(
        None,
        "Put titles before texts, or omit them. [default: the start model's, or join]",
        no_effect=_only_with("doc2query"),
        advanced=True,
    )
    prefix: str | None = option(None, "Prefix of every input. [default: the start model's, or none]", advanced=True)
    max_length: int | None = option(
        None, "Maximum input length in tokens. [default: the start model's, or 512]", at_least=2, panel=TRAINING
    )
    target_length: int = option(64, "Maximum target length in tokens.", at_least=2, panel=TRAINING)
    dev_share: float | None = option(
        None, "Fraction of the pairs to hold out, instead of --dev.", at_least=0, at_most=1, panel=EVALUATION
    )
    dev_limit: int = option(1000, "Maximum number of held-out pairs.", at_least=1, advanced=True)
    dev_measure: Literal["rouge1", "rouge2", "rougeL", "loss"] | None = option(
        None, "Measure that selects the best weights. [default: rougeL, GAR: rouge1]", advanced=True
    )

    @property
    def kind(self) -> str | None:
        """The kind of expansion that a GAR task generates: answer, sentence or title; None for doc2query."""
        return self.task.removeprefix(GAR) if self.task.startswith(GAR) else None

    @property
    def best_by(self) -> Literal["rouge1", "rouge2", "rougeL", "loss"]:
        """The measure that selects the weights: `dev_measure`, or ROUGE-1 for GAR (docs/methods/gar.md), ROUGE-L for doc2query."""
        return self.dev_measure or ("rougeL" if self.kind is None else "rouge1")
