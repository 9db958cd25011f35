"""Options of term weighting and query filtering."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from drtk.config import NoEffect, option
from drtk.errors import UsageError
from drtk.expansion.term_weights import TERM_WEIGHTS
from drtk.models.config import PairTitle
from drtk.training.config import TrainingConfig

_NO_SCORER = (NoEffect("only with --scorer", {"scorer": ("",)}),)


@dataclass(frozen=True)
class KeepSettings:
    """Score queries against their passage and drop the lowest (doc2query--): drtk keep-queries, and part of doc2query."""

    scorer: str = option("", "Cross-encoder that scores each query against its passage: a folder or hub name.")
    keep: float | None = option(
        None, "Share of all queries to keep, the best by score: 0.7 drops the lowest 30%.", at_least=1e-6, at_most=1
    )
    min_score: float | None = option(None, "Keep the queries with at least this score.")
    scores: bool = option(False, 'Write "query_scores" beside "queries".')
    scorer_title: PairTitle | None = option(
        None,
        "scorer: passage titles: colon (title: text), join (title text) or none. [default: as trained, or join]",
        no_effect=_NO_SCORER,
    )
    scorer_logits: bool = option(
        False,
        "scorer: scores before the activation function (often a sigmoid) that its folder names.",
        no_effect=_NO_SCORER,
    )
    scorer_batch_tokens: int | None = option(
        None,
        "scorer: tokens per batch, padding included. [default: 2,048 on a CPU, 65,536 on a GPU]",
        at_least=1,
        no_effect=_NO_SCORER,
    )
    scorer_precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "scorer: compute dtype; auto is float32 on a CPU, half precision on a GPU.", no_effect=_NO_SCORER
    )

    def check(self, *, generates: bool) -> None:
        """Raise UsageError for values that contradict each other. generates: the queries are new and have no scores."""
        is_filter = self.keep is not None or self.min_score is not None
        if self.keep is not None and self.min_score is not None:
            raise UsageError("`keep` and `min_score`: choose one")
        if self.scorer and not (is_filter or self.scores):
            raise UsageError("`scorer` goes with `keep`, `min_score` or `scores`, which say what the scores are for")
        if not self.scorer and generates and (is_filter or self.scores):
            raise UsageError("`keep`, `min_score` and `scores` need a cross-encoder: `scorer`")
        if not self.scorer and not generates and not is_filter:
            raise UsageError("nothing to do: `keep` or `min_score` drops queries, `scorer` with `scores` scores them")


def _only_for(*methods: str) -> tuple[NoEffect, ...]:
    others = tuple(name for name in TERM_WEIGHTS if name not in methods)
    return (NoEffect(f"is for --method {' or '.join(methods)}", {"method": others}),)


_ONLY_COUNTING = _only_for("bprop", "tfidf", "inv-freq", "idf", "bm25")
_ONLY_MODEL = _only_for("bprop", "deepct", "deepimpact")
_ONLY_BPROP, _ONLY_BM25, _ONLY_DEEPIMPACT = _only_for("bprop"), _only_for("bm25"), _only_for("deepimpact")
_ONLY_CONTRAST = (*_ONLY_BPROP, NoEffect("has no effect on --emit attention", {"emit": ("attention",)}))
_ONLY_SOFTMAX = (*_ONLY_BPROP, NoEffect("goes with --emit softmax", {"emit": ("score", "attention")}))


@dataclass(frozen=True)
class WeightingSettings:
    """drtk termweight (docs/methods/term-weights.md). What is None depends on the method."""

    words: Literal["treebank", "pieces", "plain"] | None = option(
        None,
        "Word splitting: treebank (nltk's), pieces (what the tokenizer merges) or plain (letters and digits). "
        "[default: bprop treebank; idf, bm25 plain; others pieces]",
        no_effect=_ONLY_COUNTING,
    )
    stemmer: Literal["none", "porter", "snowball"] = option(
        "none", "Count words of one stem as one word.", no_effect=_ONLY_COUNTING
    )
    stopwords: str = option(
        "none", "Words of weight 0 that are not counted: none, lucene, or a file of them.", no_effect=_ONLY_COUNTING
    )
    title: Literal["join", "none"] | None = option(
        None,
        "Passage titles: join (read with the text, and weighted) or none. [default: as a model was trained, or join]",
    )
    spread: Literal["copy", "first"] = option("copy", "Pieces that get a word's weight: all (copy), or the first.")
    weight_norm: Literal["none", "sum", "max"] = option(
        "none", "Divide by the sum, or by the maximum, of the passage's weights."
    )
    k1: float = option(0.9, "bm25: k1, term-frequency saturation.", at_least=0, no_effect=_ONLY_BM25)
    b: float = option(0.4, "bm25: b, length normalization, 0 to 1.", at_least=0, at_most=1, no_effect=_ONLY_BM25)
    emit: Literal["score", "softmax", "attention"] = option(
        "score",
        "bprop: the contrast of passage and collection, its softmax, or the attention alone.",
        no_effect=_ONLY_BPROP,
    )
    sub2word: Literal["sum", "first"] = option(
        "sum",
        "bprop: a word has the attention of all its pieces, or of the first while the others are masked.",
        no_effect=_ONLY_BPROP,
    )
    gather: Literal["sum", "max"] = option(
        "sum", "bprop: sum, or maximum, over the occurrences of a word.", no_effect=_ONLY_BPROP
    )
    saturation: Literal["ratio", "sqrt", "sigmoid"] = option(
        "ratio",
        "bprop: attention v becomes v / (v + .01), its square root, or a sigmoid around .02.",
        no_effect=_ONLY_BPROP,
    )
    contrast: Literal["cross-entropy", "difference"] = option(
        "cross-entropy",
        "bprop: P(w|d) * -log2 P(w|C), or P(w|d) - P(w|C) where that is above 0.",
        no_effect=_ONLY_CONTRAST,
    )
    softmax_temperature: float | None = option(
        None,
        "bprop: temperature of --emit softmax. [default: 1; difference .1]",
        at_least=1e-6,
        no_effect=_ONLY_SOFTMAX,
    )
    min_words: int = option(
        10,
        "bprop: passages of fewer words of letters get equal weights.",
        at_least=0,
        no_effect=_ONLY_CONTRAST,
    )
    max_length: int | None = option(
        None,
        "Longest input of a model, in tokens; later words weigh nothing. [default: the model's]",
        at_least=3,
        no_effect=_ONLY_MODEL,
    )
    batch_tokens: int | None = option(
        None, "Tokens per batch. [default: 2,048 on a CPU, 65,536 on a GPU]", at_least=1, no_effect=_ONLY_MODEL
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Compute dtype of a model; auto is float32 on a CPU, half precision on a GPU.", no_effect=_ONLY_MODEL
    )
    expand: tuple[str, ...] = option(
        (),
        "deepimpact: read the texts in this field too (queries); repeatable. [default: as trained]",
        no_effect=_ONLY_DEEPIMPACT,
    )
    impact_max: float | None = option(
        None,
        "deepimpact: the impact that becomes 255 in an index. [default: the largest in the training passages]",
        at_least=1e-6,
        no_effect=_ONLY_DEEPIMPACT,
    )


# Batch and learning rate of the papers.
BATCH = {"deepct": 16, "deepimpact": 32}
LR = {"deepct": 2e-5, "deepimpact": 3e-6}


@dataclass(frozen=True)
class WeightTrainingConfig(TrainingConfig):
    """drtk termweight --train (docs/methods/term-weights.md). None depends on the method."""

    batch_size: int | None = option(  # type: ignore[assignment]
        None, "train: passages (deepct) or examples per step. [default: deepct 16, deepimpact 32]", at_least=1
    )
    learning_rate: float | None = option(  # type: ignore[assignment]
        None, "train: highest learning rate. [default: deepct 2e-5, deepimpact 3e-6]", at_least=0
    )
    eval_steps: ClassVar[int] = 0  # type: ignore[misc]
    patience: ClassVar[None] = None  # type: ignore[misc]
    gradient_checkpointing: ClassVar[bool] = False  # type: ignore[misc]

    def resolve(self, method: str) -> WeightTrainingConfig:
        """Return the configuration with the batch and learning rate of a method; UsageError if it is not trained."""
        if method not in BATCH:
            raise UsageError(f"`train`: `method` {method} is not trained; {' and '.join(BATCH)} are")
        return replace(
            self,
            batch_size=self.batch_size or BATCH[method],
            learning_rate=LR[method] if self.learning_rate is None else self.learning_rate,
        )
