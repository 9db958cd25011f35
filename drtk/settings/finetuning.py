"""How a retriever is trained from examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.errors import UsageError
from drtk.settings.core import Idle, knob
from drtk.settings.encoding import Similarity, Title

# A loss of one's own is none of these: whether it learns from a teacher is known where it is loaded.
_NO_TEACHER = Idle(
    "goes with --loss kl or margin-mse, which learn from a teacher",
    {"loss": ("infonce", "simlm-paper", "simlm-full")},
)
_NOTHING_BESIDE = Idle(
    "weighs the contrastive loss beside kl or margin-mse; choose one of them with --loss", _NO_TEACHER.when
)
_NO_CONTRAST = (
    Idle(
        "is for the contrastive loss, which --loss margin-mse has beside it where --alpha is given",
        {"loss": ("margin-mse",), "alpha": (None, 0.0)},
    ),
    Idle("is for the contrastive loss, which --alpha 0 leaves out", {"loss": ("kl",), "alpha": (0.0,)}),
)
_NO_ADAPTERS = Idle("goes with --lora, the rank of the adapters", {"lora": (None,)})
_NO_TASK = Idle("goes with --aux diffcse", {"aux": ("none",)})
NOT_MEASURED = Idle("goes with --dev, by which the best weights are kept", {"dev": (None,)})
_NO_WARMUP = Idle("lasts as long as the learning rate rises, and --warmup is 0", {"warmup": (0,)})
_NO_NEGATIVES = Idle("is about hard negatives, of which --negatives 0 takes none", {"negatives": (0,)})


@dataclass(frozen=True)
class RetrieverSettings:
    """drtk train-retriever (methods: sections 5.11 and 6.2 to 6.8). The defaults are those of SimLM's Table 12."""

    loss: str = knob(
        "infonce",
        "What is minimised: infonce, simlm-paper or simlm-full; kl or margin-mse learn from the scores in the examples.",
    )
    contrastive: str = knob(
        "infonce", "The contrastive loss beside kl or margin-mse.", idle=(_NO_TEACHER, *_NO_CONTRAST)
    )
    alpha: float | None = knob(
        None,
        "Weight of the contrastive loss beside kl (by default 0.2) or margin-mse (by default 0).",
        at_least=0,
        idle=(_NOTHING_BESIDE,),
    )
    similarity: Similarity | None = knob(
        None, "How vectors are compared; by default as the start model says, or cosine."
    )
    temperature: float | None = knob(
        None,
        "Scores are divided by this before the softmax; by default 0.02 for cosines, 1 for inner products.",
        at_least=1e-6,
    )
    temperature_warmup: bool = knob(
        False,
        "Begin at temperature 1: its inverse rises in a line while the learning rate rises.",
        idle=(_NO_WARMUP,),
    )
    teacher_temperature: float = knob(
        1.0, "A teacher's scores are divided by this.", at_least=1e-6, idle=(_NO_TEACHER,)
    )
    negatives: int = knob(15, "Hard negatives of each query; the rest of the batch is added to them.", at_least=0)
    draw: Literal["window", "replacement", "shuffle"] = knob(
        "window",
        "How an epoch takes negatives from a list: a window that slides and wraps; the same, but with replacement "
        "from lists that are too short; or the list shuffled.",
        idle=(_NO_NEGATIVES,),
    )
    positive: Literal["rotate", "first"] = knob("rotate", "The positive of an epoch: they take turns, or the first.")
    batch: int = knob(64, "Examples in one step, over all devices together.", at_least=1)
    cache_chunk: int | None = knob(
        None, "Texts in memory at once (gradient caching): memory no longer grows with the batch.", at_least=1
    )
    epochs: float = knob(3.0, "Passes over the examples.", at_least=1e-6)
    steps: int | None = knob(None, "Steps to train for, in place of --epochs.", at_least=1, instead_of="epochs")
    train_fraction: float = knob(
        1.0, "Train on this share of the queries; a smaller share is part of a larger one.", at_least=0, at_most=1
    )
    lr: float = knob(2e-5, "Highest learning rate.", at_least=0)
    warmup: float = knob(0.1, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = knob(0.01, "Weight decay, biases and norms left out.", at_least=0)
    query_length: int | None = knob(None, "Longest query, in tokens; by default 32, or what the model can.", at_least=3)
    passage_length: int | None = knob(
        None, "Longest passage, in tokens; by default 144, or what the model can.", at_least=3
    )
    query_prompt: str | None = knob(None, "Text put before each query; by default as the start model says.")
    passage_prompt: str | None = knob(None, "Text put before each passage; by default as the start model says.")
    title: Title | None = knob(
        None,
        "Passage titles: join (title, space, text), sep (a separator token between them), segment (a pair) or none; "
        "by default as the start model says.",
    )
    pooling: str | None = knob(None, "Pooling of the trained model; by default that of the start model.")
    normalize: bool | None = knob(None, "Whether the trained model gives vectors of length 1; by default as the start.")
    untied: bool = knob(
        False, "Train an encoder each for queries and passages: two model folders, OUT/query and OUT/passage."
    )
    mask_duplicate_positives: bool = knob(
        False,
        "Leave a query's own positive out of its negatives where another example of the batch brings it too.",
        idle=_NO_CONTRAST,
    )
    mask_false_negatives: bool = knob(
        False, "Leave every passage labelled as a positive of a query out of its negatives, by id.", idle=_NO_CONTRAST
    )
    matryoshka: tuple[int, ...] = knob(
        (), "Train the first N numbers of the vectors to serve alone, too; repeatable.", at_least=1
    )
    lora: int | None = knob(None, "Train adapters of this rank alone (LoRA); they are merged in the end.", at_least=1)
    lora_alpha: float | None = knob(
        None, "What adapters are scaled by, over their rank; by default twice it.", idle=(_NO_ADAPTERS,)
    )
    lora_dropout: float = knob(0.0, "Dropout before the adapters.", at_least=0, at_most=1, idle=(_NO_ADAPTERS,))
    lora_target: tuple[str, ...] = knob(
        (), "Layers with adapters, by name; by default all linear ones; repeatable.", idle=(_NO_ADAPTERS,)
    )
    aux: Literal["none", "diffcse"] = knob(
        "none", "A further task: diffcse has a discriminator find replaced tokens, told the text by its vector."
    )
    aux_weight: float = knob(
        0.005, "Weight of --aux, once for queries and once for passages.", at_least=0, idle=(_NO_TASK,)
    )
    aux_rate: float = knob(0.3, "Share of tokens masked for --aux.", at_least=0, at_most=1, idle=(_NO_TASK,))
    aux_generator: str = knob("", "Masked language model that proposes tokens for --aux.", idle=(_NO_TASK,))
    aux_decode: Literal["sample", "argmax"] = knob("argmax", "How the generator of --aux chooses.", idle=(_NO_TASK,))
    aux_scope: Literal["masked", "all"] = knob("all", "Which tokens the generator of --aux replaces.", idle=(_NO_TASK,))
    aux_reduction: Literal["mean", "mean_all", "sum"] = knob(
        "mean_all", "Loss of --aux: mean over tokens, mean over padding too, or sum.", idle=(_NO_TASK,)
    )
    eval_every: int = knob(500, "Steps between measurements on --dev.", at_least=1, idle=(NOT_MEASURED,))
    patience: int | None = knob(None, "End training after so many measurements without a better one.", at_least=1)
    dev_queries: int = knob(300, "Judged queries of --dev that are asked, by lot.", at_least=1, idle=(NOT_MEASURED,))
    dev_pool: int = knob(
        3000,
        "Passages of --dev that are ranked: all that are relevant, others by lot.",
        at_least=1,
        idle=(NOT_MEASURED,),
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = knob(False, "Compute activations twice and keep fewer of them in memory.")
    log_every: int = knob(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = knob(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = knob(
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
