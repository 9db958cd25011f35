"""Configuration of the trainers: retriever, re-rankers and generators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, option
from drtk.errors import UsageError
from drtk.models.config import PairTitle, Similarity, Title

Precision = Literal["auto", "float32", "float16", "bfloat16"]
NOT_MEASURED = NoEffect("goes with --dev, by which the best weights are kept", {"dev": (None,)})


@dataclass(frozen=True)
class TrainingConfig:
    """Options of the training loop, `drtk.training.fit`. Trainers inherit them and change defaults.

    A trainer without one of them declares its name as a ClassVar.
    """

    batch_size: int = option(64, "Examples in one step, over all devices together.", at_least=1)
    epochs: float = option(3.0, "Passes over the examples.", at_least=1e-6)
    max_steps: int | None = option(None, "Steps to train for, in place of --epochs.", at_least=1, replaces="epochs")
    learning_rate: float = option(2e-5, "Highest learning rate.", at_least=0)
    warmup: float = option(0.1, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = option(0.01, "Weight decay; biases and norms are left out.", at_least=0)
    eval_steps: int = option(500, "Steps between evaluations on --dev.", at_least=1, no_effect=(NOT_MEASURED,))
    patience: int | None = option(
        None, "Stop after so many evaluations without improvement.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    precision: Precision = option(
        "auto", "Precision of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = option(False, "Recompute activations in the backward pass to save memory.")
    log_steps: int = option(10, "Steps between entries of log.jsonl.", at_least=1)
    save_steps: int = option(500, "Steps between checkpoints that --resume can continue from.", at_least=1)
    trainer: tuple[str, ...] = option(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )


# A registered loss of the user's is not listed: whether it learns from a teacher is known once it is loaded.
_NO_TEACHER = NoEffect(
    "goes with --loss kl or margin-mse, which learn from a teacher",
    {"loss": ("infonce", "simlm-paper", "simlm-full")},
)
_NO_SECOND_LOSS = NoEffect(
    "weighs the contrastive loss beside kl or margin-mse; choose one of them with --loss", _NO_TEACHER.when
)
_NO_CONTRAST = (
    NoEffect(
        "is for the contrastive loss, which --loss margin-mse has beside it where --contrastive-weight is given",
        {"loss": ("margin-mse",), "contrastive_weight": (None, 0.0)},
    ),
    NoEffect(
        "is for the contrastive loss, which --contrastive-weight 0 leaves out",
        {"loss": ("kl",), "contrastive_weight": (0.0,)},
    ),
)
_NO_LORA = (NoEffect("goes with --lora, the rank of the adapters", {"lora": (None,)}),)
_NO_AUX = (NoEffect("goes with --aux diffcse", {"aux": ("none",)}),)
_NO_WARMUP = (NoEffect("lasts as long as the learning rate rises, and --warmup is 0", {"warmup": (0,)}),)
_NO_NEGATIVES = (NoEffect("is about hard negatives, of which --negatives 0 takes none", {"negatives": (0,)}),)


@dataclass(frozen=True)
class RetrieverConfig(TrainingConfig):
    """drtk train-retriever (docs/methods/fine-tuning.md). The defaults are those of SimLM's Table 12."""

    loss: str = option(
        "infonce",
        "Loss: infonce, simlm-paper or simlm-full; kl or margin-mse learn from the scores in the examples.",
    )
    contrastive: str = option(
        "infonce", "The contrastive loss beside kl or margin-mse.", no_effect=(_NO_TEACHER, *_NO_CONTRAST)
    )
    contrastive_weight: float | None = option(
        None,
        "Weight of the contrastive loss beside kl (by default 0.2) or margin-mse (by default 0).",
        at_least=0,
        no_effect=(_NO_SECOND_LOSS,),
    )
    similarity: Similarity | None = option(
        None, "Similarity of vectors; by default that of the start model, or cosine."
    )
    temperature: float | None = option(
        None,
        "Scores are divided by this before the softmax; by default 0.02 for cosines, 1 for inner products.",
        at_least=1e-6,
    )
    temperature_warmup: bool = option(
        False,
        "Start at temperature 1; its inverse rises linearly during the learning-rate warm-up.",
        no_effect=_NO_WARMUP,
    )
    teacher_temperature: float = option(
        1.0, "The teacher's scores are divided by this.", at_least=1e-6, no_effect=(_NO_TEACHER,)
    )
    negatives: int = option(15, "Hard negatives per query; the rest of the batch is added to them.", at_least=0)
    negative_sampling: Literal["window", "replacement", "shuffle"] = option(
        "window",
        "How an epoch takes negatives from a list: a window that slides and wraps; the same, but with replacement "
        "from lists that are too short; or the list shuffled.",
        no_effect=_NO_NEGATIVES,
    )
    positive_sampling: Literal["rotate", "first"] = option(
        "rotate", "The positive of an epoch: they take turns, or the first."
    )
    grad_cache: int | None = option(
        None, "Texts in memory at once (gradient caching): memory no longer grows with the batch.", at_least=1
    )
    train_fraction: float = option(
        1.0, "Train on this share of the queries; a smaller share is part of a larger one.", at_least=0, at_most=1
    )
    query_length: int | None = option(
        None, "Longest query, in tokens; by default 32, or what the model can read.", at_least=3
    )
    passage_length: int | None = option(
        None, "Longest passage, in tokens; by default 144, or what the model can read.", at_least=3
    )
    query_prompt: str | None = option(None, "Text put before each query; by default that of the start model.")
    passage_prompt: str | None = option(None, "Text put before each passage; by default that of the start model.")
    title: Title | None = option(
        None,
        "Passage titles: join (title, space, text), sep (a separator token between them), segment (a pair) or none; "
        "by default as the start model.",
    )
    pooling: str | None = option(None, "Pooling of the trained model; by default that of the start model.")
    normalize: bool | None = option(
        None, "Whether the trained model gives vectors of length 1; by default as the start model."
    )
    untied: bool = option(
        False, "Train an encoder each for queries and passages: two model folders, OUT/query and OUT/passage."
    )
    mask_duplicate_positives: bool = option(
        False,
        "Exclude a query's own positive from its negatives if another example of the batch has it too.",
        no_effect=_NO_CONTRAST,
    )
    mask_false_negatives: bool = option(
        False,
        "Exclude every passage labeled as a positive of a query from its negatives, by id.",
        no_effect=_NO_CONTRAST,
    )
    matryoshka: tuple[int, ...] = option(
        (), "Also train the first N dimensions of the vectors to be used alone; repeatable.", at_least=1
    )
    lora: int | None = option(None, "Train adapters of this rank only (LoRA); they are merged at the end.", at_least=1)
    lora_alpha: float | None = option(
        None, "Scale of the adapters, divided by their rank; by default twice the rank.", no_effect=_NO_LORA
    )
    lora_dropout: float = option(0.0, "Dropout before the adapters.", at_least=0, at_most=1, no_effect=_NO_LORA)
    lora_target: tuple[str, ...] = option(
        (), "Layers with adapters, by name; by default all linear ones; repeatable.", no_effect=_NO_LORA
    )
    aux: Literal["none", "diffcse"] = option(
        "none", "Auxiliary task: diffcse has a discriminator detect replaced tokens, given the text's vector."
    )
    aux_weight: float = option(
        0.005, "Weight of --aux, once for queries and once for passages.", at_least=0, no_effect=_NO_AUX
    )
    aux_rate: float = option(0.3, "Share of tokens masked for --aux.", at_least=0, at_most=1, no_effect=_NO_AUX)
    aux_generator: str = option("", "Masked language model that proposes tokens for --aux.", no_effect=_NO_AUX)
    aux_decode: Literal["sample", "argmax"] = option("argmax", "How the generator of --aux chooses.", no_effect=_NO_AUX)
    aux_scope: Literal["masked", "all"] = option(
        "all", "Which tokens the generator of --aux replaces.", no_effect=_NO_AUX
    )
    aux_reduction: Literal["mean", "mean_all", "sum"] = option(
        "mean_all", "Loss of --aux: mean over tokens, mean over padding too, or sum.", no_effect=_NO_AUX
    )
    dev_queries: int = option(
        300, "Judged queries of --dev to evaluate with, sampled at random.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    dev_pool: int = option(
        3000,
        "Passages of --dev to rank: all relevant ones, others sampled at random.",
        at_least=1,
        no_effect=(NOT_MEASURED,),
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
_LISTWISE = (*_PAIRS, NoEffect("is for --loss listwise; bce takes each pair by itself", {"loss": ("bce",)}))
_LISTS = (NoEffect("is for --kind hlatr", {"kind": ("crossencoder",)}),)
NEGATIVES = 63  # per query (docs/methods/fine-tuning.md)


@dataclass(frozen=True)
class RerankerConfig(TrainingConfig):
    """drtk train-reranker (docs/methods/re-ranker.md). The defaults are those of SimLM's Table 12."""

    batch_size: int = option(64, "Queries in one step (bce: pairs), over all devices together.", at_least=1)
    learning_rate: float = option(3e-5, "Highest learning rate.", at_least=0)
    gradient_checkpointing: bool = option(
        False, "Recompute activations in the backward pass to save memory.", no_effect=_PAIRS
    )
    kind: Literal["crossencoder", "hlatr"] = option(
        "crossencoder", "Model: crossencoder (reads query and passage), hlatr (reads lists of --vectors)."
    )
    loss: Literal["listwise", "bce"] = option(
        "listwise",
        "listwise: the positive against its query's negatives; bce: each pair by itself, relevant or not.",
        no_effect=_PAIRS,
    )
    negatives: int | None = option(
        None,
        "listwise: negatives per query and step. [default: 63; bce takes all]",
        at_least=1,
        no_effect=_LISTWISE,
    )
    first_positive: bool = option(
        False, "Train with the first positive of each query only, the gold one.", no_effect=_PAIRS
    )
    r_drop: bool = option(
        False,
        "listwise: pass each batch twice and add the divergence of both distributions (R-Drop).",
        no_effect=_LISTWISE,
    )
    backward: int | None = option(
        None,
        "listwise: score all passages without gradients, then train on this many: the positive and the best negatives.",
        at_least=2,
        no_effect=_LISTWISE,
    )
    max_length: int | None = option(
        None, "Longest pair, in tokens. [default: 192, or what the model can read]", at_least=4, no_effect=_PAIRS
    )
    title: PairTitle | None = option(
        None,
        "Passage titles: colon (title: text), join (title text) or none. [default: as the start model, or colon]",
        no_effect=_PAIRS,
    )
    micro_batch_size: int | None = option(
        None,
        "Queries (bce: pairs) in memory at once on a device; the step stays the same.",
        at_least=1,
        no_effect=_PAIRS,
    )
    depth: int = option(100, "hlatr: candidates per query, in the order of the run.", at_least=2, no_effect=_LISTS)
    layers: int = option(4, "hlatr: layers over the list.", at_least=1, no_effect=_LISTS)
    hidden: int = option(128, "hlatr: width of the layers.", at_least=1, no_effect=_LISTS)
    heads: int = option(2, "hlatr: attention heads per layer.", at_least=1, no_effect=_LISTS)
    feedforward: int = option(768, "hlatr: width of the feed-forward layers.", at_least=1, no_effect=_LISTS)
    dropout: float = option(0.1, "hlatr: dropout.", at_least=0, at_most=0.99, no_effect=_LISTS)
    dev_queries: int = option(
        200, "Queries of --dev to evaluate with, evenly spread.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    dev_depth: int = option(50, "Candidates per query of --dev to score.", at_least=2, no_effect=(NOT_MEASURED,))
    dev_measure: Literal["RR@10", "nDCG@10"] = option(
        "RR@10", "Measure on --dev that selects the best weights.", no_effect=(NOT_MEASURED,)
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


@dataclass(frozen=True)
class GeneratorConfig(TrainingConfig):
    """drtk train-generator. Lengths and learning rate are those of docs/methods/doc2query.md (T5, passage to query)."""

    batch_size: int = option(64, "Pairs in one step, over all devices together.", at_least=1)
    epochs: float = option(2.0, "Passes over the pairs.", at_least=1e-6)
    learning_rate: float = option(1e-3, "Highest learning rate; 1e-3 is for T5, BART needs about 3e-5.", at_least=0)
    warmup: float = option(0.0, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = option(0.0, "Weight decay; biases and norms are left out.", at_least=0)
    eval_steps: int = option(500, "Steps between evaluations on the held-out pairs.", at_least=1)
    patience: int | None = option(None, "Stop after so many evaluations without improvement.", at_least=1)
    task: Literal["doc2query", "gar-answer", "gar-sentence", "gar-title"] = option(
        "doc2query",
        "What to learn: doc2query (passage to query), or GAR (question to answer, to the sentence with it, or to titles).",
    )
    depth: int = option(
        100, "GAR: hits per question in --run to search for answers.", at_least=1, no_effect=_only_with(*_TASKS[2:])
    )
    answer_case: Literal["kept", "initial"] = option(
        "kept",
        "GAR: answers in capitals unchanged, or with initial capitals (TriviaQA).",
        no_effect=_only_with("gar-answer"),
    )
    title_mode: Literal["all", "first"] = option(
        "all",
        "GAR titles: of all answer-bearing passages among the hits, or of the first.",
        no_effect=_only_with("gar-title"),
    )
    separator: str = option(", ", "GAR titles: text between two titles.", no_effect=_only_with("gar-title"))
    match: Literal["tokens", "regex"] = option(
        "tokens",
        "GAR: how answers are matched: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC).",
        no_effect=_only_with(*_TASKS[2:]),
    )
    match_title: bool = option(
        False,
        "GAR titles: search titles for answers too (as GAR's scripts do), not only texts.",
        no_effect=_only_with("gar-title"),
    )
    folds: int | None = option(
        None,
        "GAR: train so many generators, each without one fold of the questions, for expand-queries --holdout.",
        at_least=2,
        no_effect=_only_with(*_TASKS[1:]),
    )
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "Learning-rate schedule after the warm-up: constant, or falling to 0 at the last step."
    )
    label_smoothing: float = option(
        0.0, "Share of each target's probability spread over all words.", at_least=0, at_most=0.999
    )
    title: Literal["join", "none"] | None = option(
        None,
        "Passage titles: join (before the text) or none; by default as the start model, or join.",
        no_effect=_only_with("doc2query"),
    )
    prefix: str | None = option(
        None, "Text before every input, followed by a space; by default that of the start model, or nothing."
    )
    max_length: int | None = option(
        None,
        "Longest input in tokens; the passage is cut, never the prefix; by default that of the start model, or 512.",
        at_least=2,
    )
    target_length: int = option(64, "Longest target, in tokens, end token included.", at_least=2)
    dev_share: float | None = option(
        None,
        "Share of the passages, by a hash of their ids, held out of training to evaluate with.",
        at_least=0,
        at_most=1,
    )
    dev_limit: int = option(1000, "Held-out pairs to evaluate with, at most.", at_least=1)
    dev_measure: Literal["rouge1", "rouge2", "rougeL", "loss"] | None = option(
        None,
        "Measure on the held-out pairs that selects the best weights; loss generates nothing and is quick. "
        "[default: rougeL; GAR rouge1]",
    )

    @property
    def kind(self) -> str | None:
        """The kind of expansion that a GAR task generates: answer, sentence or title; None for doc2query."""
        return self.task.removeprefix(GAR) if self.task.startswith(GAR) else None

    @property
    def best_by(self) -> Literal["rouge1", "rouge2", "rougeL", "loss"]:
        """The measure that selects the weights: `dev_measure`, or ROUGE-1 for GAR (docs/methods/gar.md), ROUGE-L for doc2query."""
        return self.dev_measure or ("rougeL" if self.kind is None else "rouge1")
