"""Options of term weighting and query filtering."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from drtk.config import option
from drtk.models.config import PairTitle
from drtk.training.config import TrainingConfig


@dataclass(frozen=True)
class KeepSettings:
    """doc2query-- : queries are scored against their passage, and the lowest go. All of drtk keep-queries, a part of doc2query."""

    scorer: str = option("", "Folder or hub name of a cross-encoder that scores each query against its passage.")
    keep: float | None = option(
        None,
        "Keep this share of the queries of the whole input, the best by score: 0.7 drops the lowest 30%.",
        at_least=0,
        at_most=1,
    )
    min_score: float | None = option(None, "Keep the queries with at least this score.")
    scores: bool = option(False, 'Write "query_scores" beside "queries".')
    scorer_title: PairTitle | None = option(
        None, "scorer: titles: colon (title: text), join (title text) or none. [default: as trained, or join]"
    )
    scorer_logits: bool = option(
        False, "scorer: scores before the activation function (often a sigmoid) that its folder names."
    )
    scorer_batch_tokens: int | None = option(
        None, "Tokens of pairs at once, padding included. [default: 2,048 on a CPU, 65,536 on a GPU]", at_least=1
    )
    scorer_dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers the scorer computes with: auto is float32 on a CPU, half precision on a GPU."
    )


@dataclass(frozen=True)
class WeightingSettings:
    """drtk termweight (methods: section 3). What is None depends on the method."""

    words: Literal["treebank", "pieces", "plain"] | None = option(
        None,
        "What a word is: treebank (nltk's), pieces (what the tokenizer merges) or plain (letters and digits). "
        "By default bprop: treebank; idf, bm25: plain; others: pieces.",
    )
    stemmer: Literal["none", "porter", "snowball"] = option("none", "Words of one stem are one word.")
    stopwords: str = option("none", "Words that weigh nothing and are not counted: none, lucene, or a file of them.")
    title: Literal["join", "none"] | None = option(
        None, "A passage's title: join (read with it, and weighted) or none. [default: as a model was trained, or join]"
    )
    spread: Literal["copy", "first"] = option("copy", "A word's weight: on all its pieces, or on the first alone.")
    normalize: Literal["none", "sum", "max"] = option(
        "none", "Divide by the sum, or by the largest, of the passage's weights."
    )
    k1: float = option(0.9, "bm25: how slowly further occurrences of a word stop counting.", at_least=0)
    b: float = option(0.4, "bm25: how much long passages are held back, 0 to 1.", at_least=0, at_most=1)
    emit: Literal["score", "softmax", "attention"] = option(
        "score", "bprop: the contrast of passage and collection, its softmax, or the attention alone."
    )
    sub2word: Literal["sum", "first"] = option(
        "sum", "bprop: a word has the attention of all its pieces, or of the first, the others being hidden."
    )
    gather: Literal["sum", "max"] = option("sum", "bprop: occurrences of a word add up, or the largest counts.")
    saturation: Literal["ratio", "sqrt", "sigmoid"] = option(
        "ratio", "bprop: attention v becomes v / (v + .01), its square root, or a sigmoid around .02."
    )
    contrast: Literal["cross-entropy", "difference"] = option(
        "cross-entropy", "bprop: P(w|d) * -log2 P(w|C), or P(w|d) - P(w|C) where that is above 0."
    )
    softmax_temperature: float | None = option(
        None, "bprop: divides scores before --emit softmax. [default: 1; difference: .1]", at_least=1e-6
    )
    min_words: int = option(
        10, "bprop: words of letters below which those of a passage all weigh the same.", at_least=0
    )
    max_length: int | None = option(
        None, "Longest input of a model, in tokens; words after it weigh nothing. [default: the model's]", at_least=3
    )
    batch_tokens: int | None = option(None, "Tokens at once. [default: 2048 on a CPU, 65,536 on a GPU]", at_least=1)
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers a model computes with: auto is float32 on a CPU, half precision on a GPU."
    )
    expand: tuple[str, ...] = option(
        (), "deepimpact: read the texts in this field too (queries); repeatable. By default as the model was trained."
    )
    impact_max: float | None = option(
        None,
        "deepimpact: the impact that becomes 255 in an index; by default the largest among the training passages.",
        at_least=1e-6,
    )


# Batch and learning rate of the papers.
BATCH = {"deepct": 16, "deepimpact": 32}
LR = {"deepct": 2e-5, "deepimpact": 3e-6}


@dataclass(frozen=True)
class WeightTrainingConfig(TrainingConfig):
    """drtk termweight --train (methods: sections 3.4 and 3.5). None depends on the method."""

    batch: int | None = option(  # type: ignore[assignment]
        None, "train: passages (deepct) or examples in one step. [default: deepct 16, deepimpact 32]", at_least=1
    )
    lr: float | None = option(  # type: ignore[assignment]
        None, "train: highest learning rate. [default: deepct 2e-5, deepimpact 3e-6]", at_least=0
    )
    eval_every: ClassVar[int] = 0  # type: ignore[misc]
    patience: ClassVar[None] = None  # type: ignore[misc]
    gradient_checkpointing: ClassVar[bool] = False  # type: ignore[misc]

    def resolve(self, method: str) -> WeightTrainingConfig:
        """Return the configuration with the batch and learning rate of a method."""
        return replace(
            self,
            batch=self.batch or BATCH[method],
            lr=LR[method] if self.lr is None else self.lr,
        )
