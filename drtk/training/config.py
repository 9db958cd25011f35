"""Configuration of the trainers: retriever, rerankers and generators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import EVALUATION, HARDWARE, TRAINING, NoEffect, option, redeclare, setting
from drtk.errors import UsageError
from drtk.models.config import PACKED, PairTitle, Precision, Similarity, Title, check_pooling

NOT_MEASURED = NoEffect("requires --dev", {"dev": (None,)})


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of the training loop, `drtk.training.fit.fit`. Each training command has a subclass with its own defaults.

    A subclass removes a setting by declaring its name as a ClassVar.
    """

    batch_size: int = option(64, "Examples per optimizer step, over all devices.", at_least=1, panel=TRAINING)
    epochs: float = option(3.0, "Passes over the examples.", at_least=1e-6, panel=TRAINING)
    max_steps: int | None = option(
        None, "Training steps, instead of --epochs.", at_least=1, replaces="epochs", panel=TRAINING
    )
    learning_rate: float = option(2e-5, "Peak learning rate.", at_least=0, panel=TRAINING)
    warmup: float = setting(0.1, "Warm-up steps; a value below 1 is a fraction of all steps.", at_least=0)
    weight_decay: float = setting(0.01, "Weight decay of all parameters except biases and LayerNorm.", at_least=0)
    eval_steps: int = option(
        500, "Steps between evaluations on --dev.", at_least=1, no_effect=(NOT_MEASURED,), panel=EVALUATION
    )
    patience: int | None = setting(
        None, "Stop after N evaluations without improvement.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    precision: Precision = option(
        "auto", "Compute dtype; auto: bfloat16 if the GPU supports it, else float32.", panel=HARDWARE
    )
    gradient_checkpointing: bool = setting(False, "Recompute activations in the backward pass to save memory.")
    log_steps: int = setting(10, "Steps between entries in log.jsonl.", at_least=1)
    save_steps: int = setting(
        500, "Number of steps between checkpoints for --resume, rounded up to a multiple of log_steps.", at_least=1
    )
    trainer: tuple[str, ...] = setting((), "Argument of transformers' TrainingArguments, as KEY=VALUE; repeatable.")


# Losses registered by users are not listed, because only loading them shows whether they use a teacher.
_NO_TEACHER = NoEffect(
    "requires --loss kl or margin-mse, which learn from a teacher", {"loss": ("infonce", "simlm-paper", "simlm-full")}
)
_NO_CONTRAST = (
    NoEffect(
        "requires `contrastive_weight` above 0 with --loss margin-mse",
        {"loss": ("margin-mse",), "contrastive_weight": (None, 0.0)},
    ),
    NoEffect("has no effect with `contrastive_weight=0`", {"loss": ("kl",), "contrastive_weight": (0.0,)}),
)
_NO_LORA = (NoEffect("requires `lora`, the rank of the adapters", {"lora": (None,)}),)
_NO_AUX = (NoEffect("requires `aux=diffcse`", {"aux": ("none",)}),)
_NO_WARMUP = (NoEffect("requires a warm-up, but `warmup` is 0", {"warmup": (0,)}),)
_NOT_SPARSE = (NoEffect("requires --head sparse", {"head": ("dense",)}),)
_NOT_DENSE = (NoEffect("cannot be combined with --head sparse", {"head": ("sparse",)}),)
_NO_NEGATIVES = (NoEffect("requires hard negatives, but --negatives is 0", {"negatives": (0,)}),)


@redeclare("precision", advanced=True)
@dataclass(frozen=True)
class RetrieverConfig(TrainingConfig):
    """Settings of `drtk train-retriever` (docs/methods/fine-tuning.md).

    The defaults are those of SimLM's Table 12, except the loss and the warm-up.
    """

    loss: str = option(
        "infonce",
        "Loss: infonce; simlm-paper or simlm-full (SimLM's paper or code); kl or margin-mse (distillation).",
        metavar="NAME",
    )
    head: Literal["dense", "sparse"] = option(
        "dense", "Vectors: of hidden states (dense), or term weights of the LM head (sparse, SPLADE)."
    )
    query_flops_weight: float = setting(
        3e-4, "Weight of the FLOPS regularization of queries.", at_least=0, no_effect=_NOT_SPARSE
    )
    passage_flops_weight: float = setting(
        1e-4, "Weight of the FLOPS regularization of passages.", at_least=0, no_effect=_NOT_SPARSE
    )
    flops_warmup: float = setting(
        1 / 3,
        "Steps of the quadratic ramp of the FLOPS weights; a value below 1 is a fraction of all steps.",
        at_least=0,
        no_effect=_NOT_SPARSE,
    )
    contrastive: str = setting(
        "infonce", "Contrastive loss that is added to kl or margin-mse.", no_effect=(_NO_TEACHER, *_NO_CONTRAST)
    )
    contrastive_weight: float | None = setting(
        None,
        "Weight of the contrastive loss that is added to kl or margin-mse. [default: 0.2 for kl, 0 for margin-mse]",
        at_least=0,
        no_effect=(_NO_TEACHER,),
    )
    similarity: Similarity | None = setting(
        None, "Similarity function of the vectors. [default: the start model's, or cosine]", no_effect=_NOT_DENSE
    )
    temperature: float | None = setting(
        None, "Softmax temperature. [default: 0.02 for cosine, 1 for dot]", at_least=1e-6
    )
    temperature_warmup: bool = setting(
        False, "Lower the temperature from 1 during warm-up (1 / temperature grows linearly).", no_effect=_NO_WARMUP
    )
    teacher_temperature: float = setting(
        1.0, "Softmax temperature of the teacher scores.", at_least=1e-6, no_effect=(_NO_TEACHER,)
    )
    negatives: int = option(15, "Hard negatives per query, besides in-batch negatives.", at_least=0)
    negative_sampling: Literal["window", "replacement", "shuffle"] = setting(
        "window",
        "Negatives per epoch: sliding window, window with replacement for short lists, or shuffled.",
        no_effect=_NO_NEGATIVES,
    )
    positive_sampling: Literal["rotate", "first"] = setting(
        "rotate", "Positive per epoch: rotate through all, or always the first."
    )
    grad_cache: int | None = setting(
        None, "GradCache: texts per forward pass, for batches that do not fit into memory.", at_least=1
    )
    packed: bool = setting(True, PACKED)
    train_fraction: float = setting(
        1.0, "Fraction of the queries to train on; smaller samples are subsets of larger ones.", at_least=0, at_most=1
    )
    query_length: int | None = option(
        None, "Maximum query length in tokens. [default: 32, at most the model's maximum]", at_least=3, panel=TRAINING
    )
    passage_length: int | None = option(
        None,
        "Maximum passage length in tokens. [default: 144, at most the model's maximum]",
        at_least=3,
        panel=TRAINING,
    )
    query_prompt: str | None = setting(None, "Text to put before each query. [default: the start model's prompt]")
    passage_prompt: str | None = setting(None, "Text to put before each passage. [default: the start model's prompt]")
    title: Title | None = setting(
        None, "Join titles by a space, separator token or segment, or ignore them. [default: the start model's]"
    )
    pooling: str | None = setting(
        None,
        "Pooling: cls, mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken. [default: the start model's]",
        no_effect=_NOT_DENSE,
    )
    normalize: bool | None = setting(
        None, "Normalize vectors to unit length. [default: the start model's]", no_effect=_NOT_DENSE
    )
    untied: bool = setting(False, "Train separate query and passage encoders (DIR/query, DIR/passage).")
    mask_duplicate_positives: bool = setting(
        False, "Mask copies of a query's positive among its in-batch negatives.", no_effect=_NO_CONTRAST
    )
    mask_false_negatives: bool = setting(
        False, "Mask all labeled positives of a query among its negatives.", no_effect=_NO_CONTRAST
    )
    matryoshka: tuple[int, ...] = setting(
        (), "Matryoshka: also train vectors truncated to N dimensions; repeatable.", at_least=1, no_effect=_NOT_DENSE
    )
    lora: int | None = setting(
        None, "Rank of LoRA adapters, which are trained instead of the model and merged at the end.", at_least=1
    )
    lora_alpha: float | None = setting(None, "LoRA alpha. [default: twice the rank]", no_effect=_NO_LORA)
    lora_dropout: float = setting(0.0, "LoRA dropout rate, 0 to 1.", at_least=0, at_most=1, no_effect=_NO_LORA)
    lora_target: tuple[str, ...] = setting(
        (), "Name of a layer to adapt (LoRA); repeatable. [default: all linear layers]", no_effect=_NO_LORA
    )
    aux: Literal["none", "diffcse"] = setting(
        "none", "Auxiliary loss: none, or diffcse (detect replaced tokens given the text vector).", no_effect=_NOT_DENSE
    )
    aux_weight: float = setting(
        0.005, "Weight of the auxiliary loss of queries and of passages.", at_least=0, no_effect=_NO_AUX
    )
    aux_rate: float = setting(
        0.3, "Masking rate of the auxiliary loss, 0 to 1.", at_least=0, at_most=1, no_effect=_NO_AUX
    )
    aux_generator: str = setting(
        "", "Masked language model that replaces tokens for the auxiliary loss.", no_effect=_NO_AUX
    )
    aux_decode: Literal["sample", "argmax"] = setting(
        "argmax", "Tokens of the auxiliary generator: sampled, or the most likely (argmax).", no_effect=_NO_AUX
    )
    aux_scope: Literal["masked", "all"] = setting(
        "all", "Positions that the auxiliary generator replaces: masked, or all but the first.", no_effect=_NO_AUX
    )
    aux_reduction: Literal["mean", "mean_all", "sum"] = setting(
        "mean_all",
        "Reduction of the auxiliary loss: mean over tokens, mean including padding, or sum.",
        no_effect=_NO_AUX,
    )
    dev_queries: int = setting(
        300, "Maximum number of judged queries of --dev, sampled at random.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    dev_pool: int = setting(
        3000,
        "Passages of --dev to search: all relevant ones, filled up with random ones.",
        at_least=1,
        no_effect=(NOT_MEASURED,),
    )

    def check(self) -> None:
        """Raise UsageError for an unknown pooling, a repeated `matryoshka` size, and values that cannot be combined."""
        check_pooling(self.pooling)
        if self.contrastive in ("kl", "margin-mse") and self.loss in ("kl", "margin-mse"):
            raise UsageError(f"`contrastive` {self.contrastive}: is a distillation loss; choose a contrastive loss")
        if self.aux != "none" and not self.aux_generator:
            raise UsageError("`aux` diffcse requires `aux_generator`, a masked language model")
        if self.batch_size < 2 and self.negatives == 0:
            raise UsageError("`batch_size` 1 with `negatives` 0 leaves no negatives; increase one of them")
        if self.temperature_warmup and self.temperature is not None and self.temperature >= 1:
            raise UsageError(f"`temperature_warmup` requires a `temperature` below 1, got {self.temperature:g}")
        for size in self.matryoshka:
            if self.matryoshka.count(size) > 1:  # its loss would be counted twice under one name
                raise UsageError(f"`matryoshka` {size}: must be given only once")


_NOT_CROSS_ENCODER = (NoEffect("requires `kind=crossencoder`", {"kind": ("hlatr",)}),)
_NOT_LISTWISE = (*_NOT_CROSS_ENCODER, NoEffect("requires `loss=listwise`", {"loss": ("bce",)}))
_NOT_HLATR = (NoEffect("requires `kind=hlatr`", {"kind": ("crossencoder",)}),)
NEGATIVES = 63  # per query (docs/methods/fine-tuning.md)


@redeclare("gradient_checkpointing", no_effect=_NOT_CROSS_ENCODER)
@redeclare("eval_steps", "precision", advanced=True)
@dataclass(frozen=True)
class RerankerConfig(TrainingConfig):
    """Settings of `drtk train-reranker` (docs/methods/re-ranker.md).

    The defaults for cross-encoders are those of SimLM's Table 12, except the warm-up.
    """

    batch_size: int = option(
        64, "Queries (bce: pairs) per optimizer step, over all devices.", at_least=1, panel=TRAINING
    )
    learning_rate: float = option(3e-5, "Peak learning rate.", at_least=0, panel=TRAINING)
    kind: Literal["crossencoder", "hlatr"] = setting(
        "crossencoder", "Model type: cross-encoder of pairs, or HLATR, which reranks lists of --vectors."
    )
    loss: Literal["listwise", "bce"] = setting(
        "listwise",
        "Loss: softmax over the passages of a query (listwise), or binary per pair (bce).",
        no_effect=_NOT_CROSS_ENCODER,
    )
    negatives: int | None = option(
        None, "Negatives per query (listwise loss only). [default: 63]", at_least=1, no_effect=_NOT_LISTWISE
    )
    first_positive: bool = setting(
        False, "Train only on the first positive of each query.", no_effect=_NOT_CROSS_ENCODER
    )
    r_drop: bool = setting(
        False, "Add R-Drop, the KL divergence of two forward passes (listwise loss only).", no_effect=_NOT_LISTWISE
    )
    backward: int | None = setting(
        None,
        "Backpropagate through N passages per query: positive, top negatives (listwise loss only).",
        at_least=2,
        no_effect=_NOT_LISTWISE,
    )
    max_length: int | None = option(
        None,
        "Maximum length of query and passage in tokens. [default: 192, at most the model's maximum]",
        at_least=4,
        no_effect=_NOT_CROSS_ENCODER,
        panel=TRAINING,
    )
    title: PairTitle | None = setting(
        None,
        'Passage text: colon "title: text", join "title text", or none. [default: the start model\'s, or colon]',
        no_effect=_NOT_CROSS_ENCODER,
    )
    micro_batch_size: int | None = option(
        None,
        "Queries (bce: pairs) per forward pass and device. [default: batch size]",
        at_least=1,
        no_effect=_NOT_CROSS_ENCODER,
        panel=HARDWARE,
    )
    packed: bool = setting(True, PACKED, no_effect=_NOT_CROSS_ENCODER)
    depth: int = setting(100, "Top candidates per query (hlatr).", at_least=2, no_effect=_NOT_HLATR)
    layers: int = setting(4, "Layers (hlatr).", at_least=1, no_effect=_NOT_HLATR)
    hidden: int = setting(128, "Hidden size (hlatr).", at_least=1, no_effect=_NOT_HLATR)
    heads: int = setting(2, "Attention heads per layer (hlatr).", at_least=1, no_effect=_NOT_HLATR)
    feedforward: int = setting(768, "Feed-forward size (hlatr).", at_least=1, no_effect=_NOT_HLATR)
    dropout: float = setting(0.1, "Dropout rate, 0 to 0.99 (hlatr).", at_least=0, at_most=0.99, no_effect=_NOT_HLATR)
    dev_queries: int = setting(
        200, "Maximum number of queries of --dev-run, sampled at even intervals.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    dev_depth: int = setting(50, "Top candidates per query of --dev-run.", at_least=2, no_effect=(NOT_MEASURED,))
    dev_split: str = setting("dev", "Split of --dev, the file qrels/NAME.tsv.", no_effect=(NOT_MEASURED,))
    dev_vectors: str | None = setting(
        None, "Pair vectors of --dev-run (hlatr). [default: those in --vectors]", no_effect=_NOT_HLATR
    )
    dev_measure: Literal["RR@10", "nDCG@10"] = setting(
        "RR@10", "Measure on --dev that selects the best checkpoint.", no_effect=(NOT_MEASURED,)
    )

    @property
    def negatives_per_step(self) -> int:
        """The number of negatives per query in a training step; 0 for loss bce, which trains on single pairs."""
        return 0 if self.loss == "bce" else NEGATIVES if self.negatives is None else self.negatives

    def check(self) -> None:
        """Raise UsageError for values that cannot be combined."""
        if self.kind == "hlatr" and self.hidden % self.heads:
            raise UsageError(f"`hidden` {self.hidden}: must be a multiple of `heads` {self.heads}")
        passages = self.negatives_per_step + 1
        if self.kind == "crossencoder" and self.loss == "listwise" and (self.backward or 0) > passages:
            raise UsageError(f"`backward` {self.backward}: must be at most {passages}, the passages per query")


GAR = "gar-"  # prefix of the tasks that expand questions; the expansion type follows
_TASKS = ("doc2query", "gar-answer", "gar-sentence", "gar-title")


def _restrict_to_tasks(*tasks: str) -> tuple[NoEffect, ...]:
    others = tuple(task for task in _TASKS if task not in tasks)
    return (NoEffect(f"requires --task {' or '.join(tasks)}", {"task": others}),)


@redeclare("eval_steps", "patience", no_effect=())
@dataclass(frozen=True)
class GeneratorConfig(TrainingConfig):
    """Settings of `drtk train-generator` (docs/methods/doc2query.md, docs/methods/ear.md), with defaults for T5."""

    batch_size: int = option(64, "Pairs per optimizer step, over all devices.", at_least=1, panel=TRAINING)
    epochs: float = option(2.0, "Passes over the pairs.", at_least=1e-6, panel=TRAINING)
    learning_rate: float = option(1e-3, "Peak learning rate; use about 3e-5 for BART.", at_least=0, panel=TRAINING)
    warmup: float = setting(0.0, "Warm-up steps; a value below 1 is a fraction of all steps.", at_least=0)
    weight_decay: float = setting(0.0, "Weight decay of all parameters except biases and LayerNorm.", at_least=0)
    task: Literal["doc2query", "gar-answer", "gar-sentence", "gar-title"] = option(
        "doc2query", "Task: passage to query (doc2query), or question to answer, sentence or titles (gar-…)."
    )
    depth: int = setting(
        100,
        "Top passages per question to search for answers (gar-sentence, gar-title).",
        at_least=1,
        no_effect=_restrict_to_tasks(*_TASKS[2:]),
    )
    answer_case: Literal["kept", "initial"] = setting(
        "kept",
        "Answers in capitals: unchanged (kept), or only the initials, as for TriviaQA (gar-answer).",
        no_effect=_restrict_to_tasks("gar-answer"),
    )
    title_mode: Literal["all", "first"] = setting(
        "all",
        "Titles of all passages with an answer, or only of the first (gar-title).",
        no_effect=_restrict_to_tasks("gar-title"),
    )
    separator: str = setting(", ", "Separator between titles (gar-title).", no_effect=_restrict_to_tasks("gar-title"))
    match: Literal["tokens", "regex"] = setting(
        "tokens",
        "Match answers by tokens, as in DPR, or as regular expressions (gar-sentence, gar-title).",
        no_effect=_restrict_to_tasks(*_TASKS[2:]),
    )
    match_title: bool = setting(
        False, "Also search passage titles for answers (gar-title).", no_effect=_restrict_to_tasks("gar-title")
    )
    folds: int | None = setting(
        None,
        "Cross-fitting: train N generators, each without one of N folds (GAR).",
        at_least=2,
        no_effect=_restrict_to_tasks(*_TASKS[1:]),
    )
    schedule: Literal["constant", "linear", "cosine"] = setting("constant", "Learning-rate schedule after warm-up.")
    label_smoothing: float = setting(0.0, "Label smoothing factor, 0 to 1.", at_least=0, at_most=0.999)
    title: Literal["join", "none"] | None = setting(
        None,
        "Join titles to texts, or ignore them. [default: the start model's, or join]",
        no_effect=_restrict_to_tasks("doc2query"),
    )
    prefix: str | None = setting(None, "Text to put before each input. [default: the start model's, or none]")
    max_length: int | None = option(
        None, "Maximum input length in tokens. [default: the start model's, or 512]", at_least=2, panel=TRAINING
    )
    target_length: int = option(64, "Maximum target length in tokens.", at_least=2, panel=TRAINING)
    dev_share: float | None = option(
        None, "Fraction of the pairs to evaluate on, 0 to 1, instead of --dev.", at_least=0, at_most=1, panel=EVALUATION
    )
    dev_limit: int = setting(1000, "Maximum number of evaluation pairs, sampled at random.", at_least=1)
    dev_measure: Literal["rouge1", "rouge2", "rougeL", "loss"] | None = setting(
        None, "Measure that selects the best checkpoint. [default: rougeL; GAR: rouge1]"
    )

    @property
    def expansion_type(self) -> str | None:
        """The expansion type that a GAR task generates: "answer", "sentence" or "title"; None for task doc2query."""
        return self.task.removeprefix(GAR) if self.task.startswith(GAR) else None

    @property
    def best_by(self) -> Literal["rouge1", "rouge2", "rougeL", "loss"]:
        """The measure that selects the best weights: `dev_measure`; by default ROUGE-1 for GAR, ROUGE-L for doc2query."""
        return self.dev_measure or ("rougeL" if self.expansion_type is None else "rouge1")
