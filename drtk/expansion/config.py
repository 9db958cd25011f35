"""Options of term weighting and query filtering."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from drtk.config import NoEffect, option, redeclare, setting
from drtk.errors import UsageError
from drtk.expansion.term_weights import TERM_WEIGHTS
from drtk.models.config import PRECISION, Precision, ScorerSettings
from drtk.training.config import TrainingConfig


@dataclass(frozen=True)
class KeepQueriesSettings(ScorerSettings):
    """Settings of the query filter (doc2query--)."""

    scorer: str = option("", "Cross-encoder that scores each query against its passage.", metavar="MODEL")
    keep: float | None = option(
        None, "Fraction of all queries to keep, highest scores first; above 0, at most 1.", at_least=1e-6, at_most=1
    )
    min_score: float | None = option(None, "Drop queries with a score below this.", metavar="X")
    scores: bool = option(False, 'Write the scores of the queries as "query_scores".')

    def check(self) -> None:
        """Raise UsageError for contradictory or missing values."""
        if self.keep is not None and self.min_score is not None:
            raise UsageError("`keep` and `min_score` cannot be combined; give one")
        if self.keep is not None and self.scorer:
            raise UsageError("`keep` requires the scores of all queries; write them first, with `scorer` and `scores`")
        if self.min_score is None and self.keep is None and not (self.scorer and self.scores):
            raise UsageError("give `keep` or `min_score` to drop queries, or `scorer` with `scores` to score them")


def _require_methods(*methods: str) -> tuple[NoEffect, ...]:
    others = tuple(name for name in TERM_WEIGHTS if name not in methods)
    return (NoEffect(f"requires --method {' or '.join(methods)}", {"method": others}),)


_ONLY_COUNTING = _require_methods("bprop", "tfidf", "inv-freq", "idf", "bm25")
_ONLY_MODEL = _require_methods("bprop", "deepct", "deepimpact")
_ONLY_BPROP = _require_methods("bprop")
_ONLY_BM25 = _require_methods("bm25")
_ONLY_DEEPIMPACT = _require_methods("deepimpact")
_ONLY_CONTRAST = (*_ONLY_BPROP, NoEffect("has no effect with `emit=attention`", {"emit": ("attention",)}))
_ONLY_SOFTMAX = (*_ONLY_BPROP, NoEffect("requires `emit=softmax`", {"emit": ("score", "attention")}))


@dataclass(frozen=True)
class WeightingSettings:
    """Settings of drtk termweight (docs/methods/term-weights.md); None selects the default in the help text."""

    words: Literal["treebank", "pieces", "plain"] | None = setting(
        None,
        "Word tokenizer: NLTK's, merged word pieces, or runs of letters and digits. "
        "[default: treebank for bprop, plain for idf and bm25, else pieces]",
        no_effect=_ONLY_COUNTING,
    )
    stemmer: Literal["none", "porter", "snowball"] = setting(
        "none", "Stemmer that is applied to words before counting.", no_effect=_ONLY_COUNTING
    )
    stopwords: str = setting(
        "none",
        "Stop words, which get weight 0: none, lucene, or a file with one word per line.",
        no_effect=_ONLY_COUNTING,
    )
    title: Literal["join", "none"] | None = setting(
        None, "Join titles to texts, or ignore them. [default: as trained, or join]"
    )
    spread: Literal["copy", "first"] = setting(
        "copy", "Word pieces that get the weight of a word: all (copy), or only the first."
    )
    weight_norm: Literal["none", "sum", "max"] = setting(
        "none", "Normalize the weights of a passage by their sum or maximum."
    )
    k1: float = setting(0.9, "BM25 k1, term-frequency saturation (method bm25).", at_least=0, no_effect=_ONLY_BM25)
    b: float = setting(
        0.4, "BM25 b, length normalization, 0 to 1 (method bm25).", at_least=0, at_most=1, no_effect=_ONLY_BM25
    )
    emit: Literal["score", "softmax", "attention"] = setting(
        "score",
        "Weight: contrast with the collection, its softmax, or plain attention (method bprop).",
        no_effect=_ONLY_BPROP,
    )
    sub2word: Literal["sum", "first"] = setting(
        "sum",
        "Attention of a word: sum over its word pieces, or the first one's (method bprop).",
        no_effect=_ONLY_BPROP,
    )
    gather: Literal["sum", "max"] = setting(
        "sum", "Aggregation over the occurrences of a word (method bprop).", no_effect=_ONLY_BPROP
    )
    saturation: Literal["ratio", "sqrt", "sigmoid"] = setting(
        "ratio",
        "Saturation of attention v: v / (v + .01), sqrt(v), or sigmoid around .02 (method bprop).",
        no_effect=_ONLY_BPROP,
    )
    contrast: Literal["cross-entropy", "difference"] = setting(
        "cross-entropy",
        "Contrast: P(w|d) * -log2 P(w|C), or max(0, P(w|d) - P(w|C)) (method bprop).",
        no_effect=_ONLY_CONTRAST,
    )
    softmax_temperature: float | None = setting(
        None,
        "Softmax temperature (method bprop). [default: 1, or 0.1 with contrast=difference]",
        at_least=1e-6,
        no_effect=_ONLY_SOFTMAX,
    )
    min_words: int = setting(
        10,
        "Minimum number of alphabetic words; shorter passages get uniform weights (method bprop).",
        at_least=0,
        no_effect=_ONLY_CONTRAST,
    )
    max_length: int | None = setting(
        None, "Maximum input length in tokens. [default: the model's]", at_least=3, no_effect=_ONLY_MODEL
    )
    batch_tokens: int | None = setting(
        None,
        "Tokens per batch. [default: 2048 on a CPU, 65536 on a GPU; with deepct and deepimpact twice as many]",
        at_least=1,
        no_effect=_ONLY_MODEL,
    )
    precision: Precision = setting("auto", PRECISION, no_effect=_ONLY_MODEL)
    num_workers: int = setting(
        0, "Worker processes that split passages and compute weights; 0: one per core.", at_least=0
    )
    expand: tuple[str, ...] = setting(
        (),
        "Append the texts of this field, such as queries (method deepimpact); repeatable.",
        no_effect=_ONLY_DEEPIMPACT,
    )
    impact_max: float | None = setting(
        None,
        "Impact that is quantized to 255 (method deepimpact). [default: the maximum in training]",
        at_least=1e-6,
        no_effect=_ONLY_DEEPIMPACT,
    )


# Batch sizes and learning rates of the papers or their released code.
BATCH_SIZES = {"deepct": 16, "deepimpact": 32}
LEARNING_RATES = {"deepct": 2e-5, "deepimpact": 3e-6}


@redeclare("precision", advanced=True)
@dataclass(frozen=True)
class WeightTrainingConfig(TrainingConfig):
    """Settings of drtk termweight --train (docs/methods/term-weights.md); `resolve` replaces None."""

    batch_size: int | None = setting(  # type: ignore[assignment]
        None,
        "Passages (deepct) or examples (deepimpact) per step. [default: 16 for deepct, 32 for deepimpact]",
        at_least=1,
    )
    learning_rate: float | None = setting(  # type: ignore[assignment]
        None, "Peak learning rate. [default: 2e-5 for deepct, 3e-6 for deepimpact]", at_least=0
    )
    eval_steps: ClassVar[int] = 0  # type: ignore[misc]
    patience: ClassVar[None] = None  # type: ignore[misc]
    gradient_checkpointing: ClassVar[bool] = False  # type: ignore[misc]

    def resolve(self, method: str) -> WeightTrainingConfig:
        """Return a copy with the defaults of `method`. Raises UsageError for methods without training."""
        if method not in BATCH_SIZES:
            raise UsageError(f"`train`: `method` {method} has no training; use {' or '.join(BATCH_SIZES)}")
        return replace(
            self,
            batch_size=self.batch_size or BATCH_SIZES[method],
            learning_rate=LEARNING_RATES[method] if self.learning_rate is None else self.learning_rate,
        )
