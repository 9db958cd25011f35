"""Options of the trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, option
from drtk.errors import UsageError
from drtk.models.config import ScoringSettings, Similarity, Title

# A loss of one's own is none of these: whether it learns from a teacher is known where it is loaded.
_NO_TEACHER = NoEffect(
    "goes with --loss kl or margin-mse, which learn from a teacher",
    {"loss": ("infonce", "simlm-paper", "simlm-full")},
)
_NOTHING_BESIDE = NoEffect(
    "weighs the contrastive loss beside kl or margin-mse; choose one of them with --loss", _NO_TEACHER.when
)
_NO_CONTRAST = (
    NoEffect(
        "is for the contrastive loss, which --loss margin-mse has beside it where --alpha is given",
        {"loss": ("margin-mse",), "alpha": (None, 0.0)},
    ),
    NoEffect("is for the contrastive loss, which --alpha 0 leaves out", {"loss": ("kl",), "alpha": (0.0,)}),
)
_NO_ADAPTERS = NoEffect("goes with --lora, the rank of the adapters", {"lora": (None,)})
_NO_TASK = NoEffect("goes with --aux diffcse", {"aux": ("none",)})
NOT_MEASURED = NoEffect("goes with --dev, by which the best weights are kept", {"dev": (None,)})
_NO_WARMUP = NoEffect("lasts as long as the learning rate rises, and --warmup is 0", {"warmup": (0,)})
_NO_NEGATIVES = NoEffect("is about hard negatives, of which --negatives 0 takes none", {"negatives": (0,)})


@dataclass(frozen=True)
class RetrieverSettings:
    """drtk train-retriever (methods: sections 5.11 and 6.2 to 6.8). The defaults are those of SimLM's Table 12."""

    loss: str = option(
        "infonce",
        "What is minimised: infonce, simlm-paper or simlm-full; kl or margin-mse learn from the scores in the examples.",
    )
    contrastive: str = option(
        "infonce", "The contrastive loss beside kl or margin-mse.", no_effect=(_NO_TEACHER, *_NO_CONTRAST)
    )
    alpha: float | None = option(
        None,
        "Weight of the contrastive loss beside kl (by default 0.2) or margin-mse (by default 0).",
        at_least=0,
        no_effect=(_NOTHING_BESIDE,),
    )
    similarity: Similarity | None = option(
        None, "How vectors are compared; by default as the start model says, or cosine."
    )
    temperature: float | None = option(
        None,
        "Scores are divided by this before the softmax; by default 0.02 for cosines, 1 for inner products.",
        at_least=1e-6,
    )
    temperature_warmup: bool = option(
        False,
        "Begin at temperature 1: its inverse rises in a line while the learning rate rises.",
        no_effect=(_NO_WARMUP,),
    )
    teacher_temperature: float = option(
        1.0, "A teacher's scores are divided by this.", at_least=1e-6, no_effect=(_NO_TEACHER,)
    )
    negatives: int = option(15, "Hard negatives of each query; the rest of the batch is added to them.", at_least=0)
    draw: Literal["window", "replacement", "shuffle"] = option(
        "window",
        "How an epoch takes negatives from a list: a window that slides and wraps; the same, but with replacement "
        "from lists that are too short; or the list shuffled.",
        no_effect=(_NO_NEGATIVES,),
    )
    positive: Literal["rotate", "first"] = option("rotate", "The positive of an epoch: they take turns, or the first.")
    batch: int = option(64, "Examples in one step, over all devices together.", at_least=1)
    cache_chunk: int | None = option(
        None, "Texts in memory at once (gradient caching): memory no longer grows with the batch.", at_least=1
    )
    epochs: float = option(3.0, "Passes over the examples.", at_least=1e-6)
    steps: int | None = option(None, "Steps to train for, in place of --epochs.", at_least=1, replaces="epochs")
    train_fraction: float = option(
        1.0, "Train on this share of the queries; a smaller share is part of a larger one.", at_least=0, at_most=1
    )
    lr: float = option(2e-5, "Highest learning rate.", at_least=0)
    warmup: float = option(0.1, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = option(0.01, "Weight decay, biases and norms left out.", at_least=0)
    query_length: int | None = option(
        None, "Longest query, in tokens; by default 32, or what the model can.", at_least=3
    )
    passage_length: int | None = option(
        None, "Longest passage, in tokens; by default 144, or what the model can.", at_least=3
    )
    query_prompt: str | None = option(None, "Text put before each query; by default as the start model says.")
    passage_prompt: str | None = option(None, "Text put before each passage; by default as the start model says.")
    title: Title | None = option(
        None,
        "Passage titles: join (title, space, text), sep (a separator token between them), segment (a pair) or none; "
        "by default as the start model says.",
    )
    pooling: str | None = option(None, "Pooling of the trained model; by default that of the start model.")
    normalize: bool | None = option(
        None, "Whether the trained model gives vectors of length 1; by default as the start."
    )
    untied: bool = option(
        False, "Train an encoder each for queries and passages: two model folders, OUT/query and OUT/passage."
    )
    mask_duplicate_positives: bool = option(
        False,
        "Leave a query's own positive out of its negatives where another example of the batch brings it too.",
        no_effect=_NO_CONTRAST,
    )
    mask_false_negatives: bool = option(
        False,
        "Leave every passage labelled as a positive of a query out of its negatives, by id.",
        no_effect=_NO_CONTRAST,
    )
    matryoshka: tuple[int, ...] = option(
        (), "Train the first N numbers of the vectors to serve alone, too; repeatable.", at_least=1
    )
    lora: int | None = option(None, "Train adapters of this rank alone (LoRA); they are merged in the end.", at_least=1)
    lora_alpha: float | None = option(
        None, "What adapters are scaled by, over their rank; by default twice it.", no_effect=(_NO_ADAPTERS,)
    )
    lora_dropout: float = option(0.0, "Dropout before the adapters.", at_least=0, at_most=1, no_effect=(_NO_ADAPTERS,))
    lora_target: tuple[str, ...] = option(
        (), "Layers with adapters, by name; by default all linear ones; repeatable.", no_effect=(_NO_ADAPTERS,)
    )
    aux: Literal["none", "diffcse"] = option(
        "none", "A further task: diffcse has a discriminator find replaced tokens, told the text by its vector."
    )
    aux_weight: float = option(
        0.005, "Weight of --aux, once for queries and once for passages.", at_least=0, no_effect=(_NO_TASK,)
    )
    aux_rate: float = option(0.3, "Share of tokens masked for --aux.", at_least=0, at_most=1, no_effect=(_NO_TASK,))
    aux_generator: str = option("", "Masked language model that proposes tokens for --aux.", no_effect=(_NO_TASK,))
    aux_decode: Literal["sample", "argmax"] = option(
        "argmax", "How the generator of --aux chooses.", no_effect=(_NO_TASK,)
    )
    aux_scope: Literal["masked", "all"] = option(
        "all", "Which tokens the generator of --aux replaces.", no_effect=(_NO_TASK,)
    )
    aux_reduction: Literal["mean", "mean_all", "sum"] = option(
        "mean_all", "Loss of --aux: mean over tokens, mean over padding too, or sum.", no_effect=(_NO_TASK,)
    )
    eval_every: int = option(500, "Steps between measurements on --dev.", at_least=1, no_effect=(NOT_MEASURED,))
    patience: int | None = option(None, "End training after so many measurements without a better one.", at_least=1)
    dev_queries: int = option(
        300, "Judged queries of --dev that are asked, by lot.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    dev_pool: int = option(
        3000,
        "Passages of --dev that are ranked: all that are relevant, others by lot.",
        at_least=1,
        no_effect=(NOT_MEASURED,),
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = option(False, "Compute activations twice and keep fewer of them in memory.")
    log_every: int = option(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = option(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = option(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )

    def check(self) -> None:
        """Raise UsageError for settings that cannot be meant together. Which losses of one's own learn from a teacher is seen later."""
        if self.contrastive in ("kl", "margin-mse") and self.loss in ("kl", "margin-mse"):
            raise UsageError(f"--contrastive {self.contrastive}: learns from a teacher; name a contrastive loss")
        if self.aux != "none" and not self.aux_generator:
            raise UsageError("--aux diffcse needs --aux-generator: a masked language model that proposes tokens")
        for size in self.matryoshka:
            if self.matryoshka.count(size) > 1:  # it would count twice, under one name in the log
                raise UsageError(f"--matryoshka {size}: is given twice")
        if self.temperature_warmup and self.temperature is not None and self.temperature >= 1:
            raise UsageError(
                f"--temperature-warmup begins at temperature 1; the last one, {self.temperature:g}, is not below it"
            )


PairTitle = Literal["colon", "join", "none"]
_PAIRS = (NoEffect("is for --kind crossencoder", {"kind": ("hlatr",)}),)
NEGATIVES = 63  # of a query (methods, section 6.4)
_LISTS = (NoEffect("is for --kind hlatr", {"kind": ("crossencoder",)}),)


@dataclass(frozen=True)
class RerankerSettings:
    """drtk train-reranker (methods: sections 6.4, 6.7, 6.9, 7.10). The defaults are those of SimLM's Table 12."""

    kind: Literal["crossencoder", "hlatr"] = option(
        "crossencoder", "What is trained: crossencoder (reads query and passage), hlatr (reads lists of --vectors)."
    )
    loss: Literal["listwise", "bce"] = option(
        "listwise",
        "listwise: the positive against its query's negatives; bce: each pair by itself, right or wrong.",
        no_effect=_PAIRS,
    )
    negatives: int | None = option(
        None,
        "listwise: negatives of each query in a step. [default: 63; bce takes all there are]",
        at_least=1,
        no_effect=_PAIRS,
    )
    first_positive: bool = option(
        False, "Train with the first positive of each query alone, the gold one.", no_effect=_PAIRS
    )
    r_drop: bool = option(
        False, "listwise: pass each batch twice and draw both passes' distributions together.", no_effect=_PAIRS
    )
    backward: int | None = option(
        None,
        "listwise: score all passages without gradients, then train on so many: the positive and the best negatives.",
        at_least=2,
        no_effect=_PAIRS,
    )
    max_length: int | None = option(
        None, "Longest pair, in tokens. [default: 192, or what the model can read]", at_least=4, no_effect=_PAIRS
    )
    title: PairTitle | None = option(
        None,
        "Passage titles: colon (title: text), join (title text) or none. [default: as the start model, or colon]",
        no_effect=_PAIRS,
    )
    batch: int = option(64, "Queries in one step (bce: pairs), over all devices together.", at_least=1)
    micro_batch: int | None = option(
        None,
        "Queries (bce: pairs) that go through a device at once; less memory, the same step.",
        at_least=1,
        no_effect=_PAIRS,
    )
    epochs: float = option(3.0, "Passes over the examples.", at_least=1e-6)
    steps: int | None = option(None, "Steps to train for, in place of --epochs.", at_least=1, replaces="epochs")
    lr: float = option(3e-5, "Highest learning rate.", at_least=0)
    warmup: float = option(0.1, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = option(0.01, "Weight decay, biases and norms left out.", at_least=0)
    depth: int = option(100, "hlatr: candidates of a query, in the order of the run.", at_least=2, no_effect=_LISTS)
    layers: int = option(4, "hlatr: layers over the list.", at_least=1, no_effect=_LISTS)
    hidden: int = option(128, "hlatr: width of the layers.", at_least=1, no_effect=_LISTS)
    heads: int = option(2, "hlatr: attention heads of a layer.", at_least=1, no_effect=_LISTS)
    feedforward: int = option(768, "hlatr: width of the feed-forward parts.", at_least=1, no_effect=_LISTS)
    dropout: float = option(0.1, "hlatr: dropout.", at_least=0, at_most=0.99, no_effect=_LISTS)
    dev_queries: int = option(
        200, "--dev: so many of its queries are measured, evenly spread.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    dev_depth: int = option(
        50, "--dev: candidates of each query that are scored.", at_least=2, no_effect=(NOT_MEASURED,)
    )
    eval_every: int = option(500, "--dev: steps between measurements.", at_least=1, no_effect=(NOT_MEASURED,))
    select: Literal["RR@10", "nDCG@10"] = option(
        "RR@10", "--dev: the measure that says which weights are the best.", no_effect=(NOT_MEASURED,)
    )
    patience: int | None = option(None, "--dev: end after so many measurements that are not the best.", at_least=1)
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = option(
        False, "Compute activations twice and keep fewer of them in memory.", no_effect=_PAIRS
    )
    log_every: int = option(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = option(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = option(
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

    title: PairTitle | None = option(
        None, "Passage titles: colon (title: text), join (title text) or none. [default: as trained, or join]"
    )
    logits: bool = option(
        False, "Scores before the activation function (often a sigmoid) that the model's folder names."
    )


@dataclass(frozen=True)
class RerankSettings(ScoreSettings):
    """drtk rerank (methods, sections 6.7 and 6.9)."""

    depth: int | None = option(
        None, "Documents of each query that are scored. [default: 200, or as many as a list model reads]", at_least=1
    )
    store: Literal["float32", "float16"] = option("float16", "--vectors: numbers to store.")
    tag: str = option("drtk", "Last column of the run.", one_word=True)


GAR = "gar-"  # what tasks about questions begin with; the kind of expansion follows


@dataclass(frozen=True)
class GeneratorSettings:
    """drtk train-generator. Lengths and learning rate are those of methods, section 2.1 (T5, passage to query)."""

    task: Literal["doc2query", "gar-answer", "gar-sentence", "gar-title"] = option(
        "doc2query",
        "What is learnt: doc2query (passage to query), or GAR (question to answer, to the sentence that holds it, or to titles).",
    )
    depth: int = option(100, "GAR: hits of each question in --run that are looked at.", at_least=1)
    answer_case: Literal["kept", "initial"] = option(
        "kept", "GAR: answers in capitals alone as they are, or with initial capitals (TriviaQA)."
    )
    title_mode: Literal["all", "first"] = option(
        "all", "GAR titles: of all answer-bearing passages among the hits, or of the first."
    )
    separator: str = option(", ", "GAR titles: what stands between two.")
    match: Literal["tokens", "regex"] = option(
        "tokens",
        "GAR: how answers are looked for: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC).",
    )
    match_title: bool = option(
        False, "GAR titles: look for answers in titles too (as GAR's scripts do), not in texts alone."
    )
    folds: int | None = option(
        None,
        "GAR: train so many generators, each without one fold of the questions, for expand-queries --holdout.",
        at_least=2,
    )
    batch: int = option(64, "Pairs in one step, over all devices together.", at_least=1)
    epochs: float = option(2.0, "Passes over the pairs.", at_least=1e-6)
    steps: int | None = option(None, "Steps to train for, in place of --epochs.", at_least=1, replaces="epochs")
    lr: float = option(1e-3, "Highest learning rate; 1e-3 is for T5, BART wants about 3e-5.", at_least=0)
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "What becomes of the learning rate: it stays, or falls to 0 at the last step."
    )
    warmup: float = option(0.0, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = option(0.0, "Weight decay, biases and norms left out.", at_least=0)
    label_smoothing: float = option(
        0.0, "Share of each target's probability spread over all words.", at_least=0, at_most=0.999
    )
    title: Literal["join", "none"] | None = option(
        None, "A passage's title: join (before its text) or none; by default as the start model says, or join."
    )
    prefix: str | None = option(
        None, "Put before every passage; a space follows it; by default as the start model says, or nothing."
    )
    max_length: int | None = option(
        None,
        "Longest input in tokens; the passage is cut, never the prefix; by default as the start model says, or 512.",
        at_least=2,
    )
    target_length: int = option(64, "Longest text to write, in tokens, with the one that ends it.", at_least=2)
    dev_share: float | None = option(
        None,
        "Share of the passages, by a hash of their ids, to measure with instead of training.",
        at_least=0,
        at_most=1,
    )
    dev_limit: int = option(1000, "Pairs to measure with, at most.", at_least=1)
    eval_every: int = option(500, "Steps between two measurements on the pairs held out.", at_least=1)
    select: Literal["rouge1", "rouge2", "rougeL", "loss"] | None = option(
        None,
        "Which weights are kept: the best on the pairs held out by this; loss writes nothing and is quick. "
        "[default: rougeL; GAR rouge1]",
    )
    patience: int | None = option(None, "End training after so many measurements without a better one.", at_least=1)
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = option(False, "Compute activations twice and keep fewer of them in memory.")
    log_every: int = option(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = option(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = option(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )

    @property
    def kind(self) -> str | None:
        """The kind of expansion that a GAR task writes: answer, sentence or title; None for doc2query."""
        return self.task.removeprefix(GAR) if self.task.startswith(GAR) else None

    @property
    def best_by(self) -> Literal["rouge1", "rouge2", "rougeL", "loss"]:
        """By what the best weights are told: --select, or ROUGE-1 for GAR (methods, section 7.2) and ROUGE-L for doc2query."""
        return self.select or ("rougeL" if self.kind is None else "rouge1")

    def check(self) -> None:
        """Raise UsageError for a choice other than its default that --task does not look at."""
        usual = type(self)
        found = ("gar-sentence", "gar-title")  # targets are found in passages
        questions = ("gar-answer", *found)
        for flag, changed, tasks in (
            ("--title", self.title is not None, ("doc2query",)),
            ("--depth", self.depth != usual.depth, found),
            ("--answer-case", self.answer_case != usual.answer_case, ("gar-answer",)),
            ("--title-mode", self.title_mode != usual.title_mode, ("gar-title",)),
            ("--separator", self.separator != usual.separator, ("gar-title",)),
            ("--match", self.match != usual.match, found),
            ("--match-title", self.match_title != usual.match_title, ("gar-title",)),
            ("--folds", self.folds is not None, questions),
        ):
            if changed and self.task not in tasks:
                raise UsageError(f"{flag}: only with --task {' or '.join(tasks)}")
