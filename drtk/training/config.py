"""Configuration of the trainers: retriever, rerankers and generators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import EVALUATION, HARDWARE, TRAINING, NoEffect, option, redeclare, setting
from drtk.errors import UsageError
from drtk.models.config import PairTitle, Similarity, Title

Precision = Literal["auto", "float32", "float16", "bfloat16"]
NOT_MEASURED = NoEffect("needs --dev", {"dev": (None,)})


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of the training loop, `drtk.training.fit.fit`, whose defaults the subclasses of each trainer override.

    A subclass removes a setting by declaring its name as a ClassVar.
    """

    batch_size: int = option(64, "Examples per step, over all devices.", at_least=1, panel=TRAINING)
    epochs: float = option(3.0, "Passes over the examples.", at_least=1e-6, panel=TRAINING)
    max_steps: int | None = option(
        None, "Training steps, instead of --epochs.", at_least=1, replaces="epochs", panel=TRAINING
    )
    learning_rate: float = option(2e-5, "Peak learning rate.", at_least=0, panel=TRAINING)
    warmup: float = setting(0.1, "Warm-up steps; below 1, a fraction of all steps.", at_least=0)
    weight_decay: float = setting(0.01, "Weight decay, except for biases and norms.", at_least=0)
    eval_steps: int = option(
        500, "Steps between evaluations on --dev.", at_least=1, no_effect=(NOT_MEASURED,), panel=EVALUATION
    )
    patience: int | None = setting(
        None, "Stop after N evaluations without improvement.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    precision: Precision = option(
        "auto", "Compute dtype; auto: bfloat16 on a GPU that has it, else float32.", panel=HARDWARE
    )
    gradient_checkpointing: bool = setting(False, "Recompute activations in the backward pass to save memory.")
    log_steps: int = setting(10, "Steps between entries of log.jsonl.", at_least=1)
    save_steps: int = setting(500, "Steps between checkpoints for --resume.", at_least=1)
    trainer: tuple[str, ...] = setting((), "KEY=VALUE, an argument of transformers' TrainingArguments; repeatable.")


# Losses registered by users are not listed, because only loading them shows whether they use a teacher.
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
    """Settings of `drtk train-retriever` (docs/methods/fine-tuning.md), by default those of SimLM's Table 12."""

    loss: str = option(
        "infonce", "infonce, simlm-paper, simlm-full, kl or margin-mse (distillation from scores).", metavar="NAME"
    )
    contrastive: str = setting(
        "infonce", "Contrastive loss added to kl or margin-mse.", no_effect=(_NO_TEACHER, *_NO_CONTRAST)
    )
    contrastive_weight: float | None = setting(
        None,
        "Weight of the contrastive loss beside kl or margin-mse. [default: kl 0.2, margin-mse 0]",
        at_least=0,
        no_effect=(_NO_TEACHER,),
    )
    similarity: Similarity | None = setting(None, "Similarity of vectors. [default: the start model's, or cosine]")
    temperature: float | None = setting(None, "Softmax temperature. [default: cosine 0.02, dot 1]", at_least=1e-6)
    temperature_warmup: bool = setting(
        False, "Start at temperature 1; its inverse grows linearly during warm-up.", no_effect=_NO_WARMUP
    )
    teacher_temperature: float = setting(
        1.0, "Softmax temperature of the teacher's scores.", at_least=1e-6, no_effect=(_NO_TEACHER,)
    )
    negatives: int = option(15, "Hard negatives per query, beside in-batch negatives.", at_least=0)
    negative_sampling: Literal["window", "replacement", "shuffle"] = setting(
        "window",
        "Negatives per epoch: sliding window, window that refills short lists with replacement, or shuffled.",
        no_effect=_NO_NEGATIVES,
    )
    positive_sampling: Literal["rotate", "first"] = setting(
        "rotate", "Positive per epoch: each in turn, or always the first."
    )
    grad_cache: int | None = option(
        None, "GradCache: texts in memory at once, for batches that do not fit.", at_least=1, panel=HARDWARE
    )
    train_fraction: float = setting(
        1.0, "Fraction of the queries to train on; smaller samples are subsets of larger ones.", at_least=0, at_most=1
    )
    query_length: int | None = option(
        None, "Maximum query length in tokens. [default: 32, or the model's maximum]", at_least=3, panel=TRAINING
    )
    passage_length: int | None = option(
        None, "Maximum passage length in tokens. [default: 144, or the model's maximum]", at_least=3, panel=TRAINING
    )
    query_prompt: str | None = setting(None, "Prefix of each query. [default: the start model's]")
    passage_prompt: str | None = setting(None, "Prefix of each passage. [default: the start model's]")
    title: Title | None = setting(
        None,
        "How titles are joined to texts: space, separator token, segment pair, or not. [default: the start model's]",
    )
    pooling: str | None = setting(None, "Pooling. [default: the start model's]")
    normalize: bool | None = setting(None, "Scale vectors to length 1. [default: the start model's]")
    untied: bool = setting(False, "Train separate query and passage encoders, DIR/query and DIR/passage.")
    mask_duplicate_positives: bool = setting(
        False, "Do not use copies of a query's positive as its in-batch negatives.", no_effect=_NO_CONTRAST
    )
    mask_false_negatives: bool = setting(
        False, "Do not use any labeled positive of a query as its negative.", no_effect=_NO_CONTRAST
    )
    matryoshka: tuple[int, ...] = setting(
        (), "Also train the first N dimensions as vectors of their own; repeatable.", at_least=1
    )
    lora: int | None = setting(None, "Train LoRA adapters of this rank and merge them.", at_least=1)
    lora_alpha: float | None = setting(None, "LoRA alpha. [default: twice the rank]", no_effect=_NO_LORA)
    lora_dropout: float = setting(0.0, "LoRA dropout, 0 to 1.", at_least=0, at_most=1, no_effect=_NO_LORA)
    lora_target: tuple[str, ...] = setting(
        (), "Names of layers with adapters; repeatable. [default: all linear layers]", no_effect=_NO_LORA
    )
    aux: Literal["none", "diffcse"] = setting(
        "none", "Auxiliary loss: diffcse detects replaced tokens given the vector."
    )
    aux_weight: float = setting(
        0.005, "Weight of the auxiliary loss, for queries and for passages.", at_least=0, no_effect=_NO_AUX
    )
    aux_rate: float = setting(0.3, "Auxiliary loss: masking rate, 0 to 1.", at_least=0, at_most=1, no_effect=_NO_AUX)
    aux_generator: str = setting("", "Auxiliary loss: masked language model that replaces tokens.", no_effect=_NO_AUX)
    aux_decode: Literal["sample", "argmax"] = setting(
        "argmax", "Auxiliary loss: decoding of the generator.", no_effect=_NO_AUX
    )
    aux_scope: Literal["masked", "all"] = setting(
        "all", "Auxiliary loss: positions that the generator replaces.", no_effect=_NO_AUX
    )
    aux_reduction: Literal["mean", "mean_all", "sum"] = setting(
        "mean_all", "Auxiliary loss: mean over tokens, mean with padding, or sum.", no_effect=_NO_AUX
    )
    dev_queries: int = setting(
        300, "Judged queries of --dev, sampled at random.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    dev_pool: int = setting(
        3000, "Passages of --dev: all relevant ones, others sampled at random.", at_least=1, no_effect=(NOT_MEASURED,)
    )

    def check(self) -> None:
        """Raise UsageError for values that cannot be combined."""
        if self.contrastive in ("kl", "margin-mse") and self.loss in ("kl", "margin-mse"):
            raise UsageError(f"`contrastive` {self.contrastive}: is a distillation loss; choose a contrastive loss")
        if self.aux != "none" and not self.aux_generator:
            raise UsageError("`aux` diffcse requires `aux_generator`, a masked language model")
        if self.temperature_warmup and self.temperature is not None and self.temperature >= 1:
            raise UsageError(f"`temperature_warmup` requires a `temperature` below 1, got {self.temperature:g}")
        for size in self.matryoshka:
            if self.matryoshka.count(size) > 1:  # its loss would be counted twice under one name
                raise UsageError(f"`matryoshka` {size}: must be given only once")


_PAIRS = (NoEffect("is for --kind crossencoder", {"kind": ("hlatr",)}),)
_LISTWISE = (*_PAIRS, NoEffect("is for --loss listwise", {"loss": ("bce",)}))
_LISTS = (NoEffect("is for --kind hlatr", {"kind": ("crossencoder",)}),)
NEGATIVES = 63  # per query (docs/methods/fine-tuning.md)


@redeclare("gradient_checkpointing", no_effect=_PAIRS)
@dataclass(frozen=True)
class RerankerConfig(TrainingConfig):
    """Settings of `drtk train-reranker` (docs/methods/re-ranker.md), by default those of SimLM's Table 12."""

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
    first_positive: bool = setting(False, "Train on the first positive of each query only.", no_effect=_PAIRS)
    r_drop: bool = setting(False, "listwise: add R-Drop, the divergence of two forward passes.", no_effect=_LISTWISE)
    backward: int | None = setting(
        None,
        "listwise: passages per query with gradients, the positive and the best-scored negatives.",
        at_least=2,
        no_effect=_LISTWISE,
    )
    max_length: int | None = option(
        None,
        "Maximum pair length in tokens. [default: 192, or the model's maximum]",
        at_least=4,
        no_effect=_PAIRS,
        panel=TRAINING,
    )
    title: PairTitle | None = setting(
        None,
        "How titles are joined to texts: title: text, title text, or not. [default: the start model's, or colon]",
        no_effect=_PAIRS,
    )
    micro_batch_size: int | None = option(
        None,
        "Queries (bce: pairs) in memory at once per device; results do not change.",
        at_least=1,
        no_effect=_PAIRS,
        panel=HARDWARE,
    )
    depth: int = setting(100, "hlatr: candidates per query, in the order of the run.", at_least=2, no_effect=_LISTS)
    layers: int = setting(4, "hlatr: number of layers.", at_least=1, no_effect=_LISTS)
    hidden: int = setting(128, "hlatr: hidden size.", at_least=1, no_effect=_LISTS)
    heads: int = setting(2, "hlatr: attention heads per layer.", at_least=1, no_effect=_LISTS)
    feedforward: int = setting(768, "hlatr: feed-forward size.", at_least=1, no_effect=_LISTS)
    dropout: float = setting(0.1, "hlatr: dropout.", at_least=0, at_most=0.99, no_effect=_LISTS)
    dev_queries: int = setting(200, "Queries of --dev-run, evenly spaced.", at_least=1, no_effect=(NOT_MEASURED,))
    dev_depth: int = setting(50, "Candidates per query of --dev-run.", at_least=2, no_effect=(NOT_MEASURED,))
    dev_split: str = setting("dev", "Split of --dev, qrels/NAME.tsv.", no_effect=(NOT_MEASURED,))
    dev_vectors: str | None = setting(
        None, "hlatr: pair vectors of --dev-run. [default: those of --vectors]", no_effect=_LISTS
    )
    dev_measure: Literal["RR@10", "nDCG@10"] = setting(
        "RR@10", "Measure on --dev that selects the best weights.", no_effect=(NOT_MEASURED,)
    )

    @property
    def negatives_in_a_step(self) -> int:
        """The number of negatives per query and step; 0 for loss bce, which trains on single pairs."""
        return 0 if self.loss == "bce" else NEGATIVES if self.negatives is None else self.negatives

    def check(self) -> None:
        """Raise UsageError for values that cannot be combined."""
        if self.kind == "hlatr" and self.hidden % self.heads:
            raise UsageError(f"`hidden` {self.hidden}: must be a multiple of `heads` {self.heads}")
        passages = self.negatives_in_a_step + 1
        if self.kind == "crossencoder" and self.loss == "listwise" and (self.backward or 0) > passages:
            raise UsageError(f"`backward` {self.backward}: must be at most {passages}, the passages per query")


GAR = "gar-"  # prefix of the tasks that expand questions; the expansion type follows
_TASKS = ("doc2query", "gar-answer", "gar-sentence", "gar-title")


def _only_with(*tasks: str) -> tuple[NoEffect, ...]:
    others = tuple(task for task in _TASKS if task not in tasks)
    return (NoEffect(f"only with --task {' or '.join(tasks)}", {"task": others}),)


@redeclare("eval_steps", "patience", no_effect=())
@dataclass(frozen=True)
class GeneratorConfig(TrainingConfig):
    """Settings of `drtk train-generator`, by default lengths and learning rate of T5 in docs/methods/doc2query.md."""

    batch_size: int = option(64, "Pairs per step, over all devices.", at_least=1, panel=TRAINING)
    epochs: float = option(2.0, "Passes over the pairs.", at_least=1e-6, panel=TRAINING)
    learning_rate: float = option(1e-3, "Peak learning rate; BART needs about 3e-5.", at_least=0, panel=TRAINING)
    warmup: float = setting(0.0, "Warm-up steps; below 1, a fraction of all steps.", at_least=0)
    weight_decay: float = setting(0.0, "Weight decay, except for biases and norms.", at_least=0)
    task: Literal["doc2query", "gar-answer", "gar-sentence", "gar-title"] = option(
        "doc2query", "doc2query: passage to query; gar-…: question to answer, sentence or titles."
    )
    depth: int = setting(
        100, "GAR: hits per question to search for answers.", at_least=1, no_effect=_only_with(*_TASKS[2:])
    )
    answer_case: Literal["kept", "initial"] = setting(
        "kept",
        "GAR: case of answers in capitals: unchanged, or initial capitals (TriviaQA).",
        no_effect=_only_with("gar-answer"),
    )
    title_mode: Literal["all", "first"] = setting(
        "all", "GAR titles: of all hits with an answer, or of the first.", no_effect=_only_with("gar-title")
    )
    separator: str = setting(", ", "GAR titles: text between two titles.", no_effect=_only_with("gar-title"))
    match: Literal["tokens", "regex"] = setting(
        "tokens", "GAR: answer matching by tokens (DPR) or regular expressions.", no_effect=_only_with(*_TASKS[2:])
    )
    match_title: bool = setting(False, "GAR titles: also search titles for answers.", no_effect=_only_with("gar-title"))
    folds: int | None = setting(
        None,
        "GAR: train N generators, each without one fold, for expand-queries.",
        at_least=2,
        no_effect=_only_with(*_TASKS[1:]),
    )
    schedule: Literal["constant", "linear", "cosine"] = setting("constant", "Learning-rate schedule after warm-up.")
    label_smoothing: float = setting(0.0, "Label smoothing, 0 to 1.", at_least=0, at_most=0.999)
    title: Literal["join", "none"] | None = setting(
        None,
        "Put titles before texts, or omit them. [default: the start model's, or join]",
        no_effect=_only_with("doc2query"),
    )
    prefix: str | None = setting(None, "Prefix of every input. [default: the start model's, or none]")
    max_length: int | None = option(
        None, "Maximum input length in tokens. [default: the start model's, or 512]", at_least=2, panel=TRAINING
    )
    target_length: int = option(64, "Maximum target length in tokens.", at_least=2, panel=TRAINING)
    dev_share: float | None = option(
        None, "Fraction of the pairs to hold out, instead of --dev.", at_least=0, at_most=1, panel=EVALUATION
    )
    dev_limit: int = setting(1000, "Maximum number of held-out pairs.", at_least=1)
    dev_measure: Literal["rouge1", "rouge2", "rougeL", "loss"] | None = setting(
        None, "Measure that selects the best weights. [default: rougeL, GAR: rouge1]"
    )

    @property
    def kind(self) -> str | None:
        """The expansion type that a GAR task generates, "answer", "sentence" or "title"; None for doc2query."""
        return self.task.removeprefix(GAR) if self.task.startswith(GAR) else None

    @property
    def best_by(self) -> Literal["rouge1", "rouge2", "rougeL", "loss"]:
        """The measure that selects the best weights: `dev_measure`, else ROUGE-1 for GAR, ROUGE-L for doc2query."""
        return self.dev_measure or ("rougeL" if self.kind is None else "rouge1")
