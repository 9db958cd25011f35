"""Which choices of `drtk termweight` mean something to which method, and to which of its kinds of work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal, NamedTuple

from drtk.enrichment.termweights import TERM_WEIGHTS
from drtk.errors import UsageError
from drtk.settings.core import default_of
from drtk.settings.weighting import WeightingSettings

Work = Literal["weigh", "collect", "merge", "train"]
_SAYS = {
    "collect": "--collect writes statistics",
    "merge": "--merge joins the files of --collection",
    "train": "--train makes a model",
}


class Use(NamedTuple):
    """The methods that look at a choice, and the work it decides."""

    methods: frozenset[str]
    work: frozenset[str]


_ALL = frozenset(TERM_WEIGHTS)
_COUNTED = frozenset({"tfidf", "inv-freq", "idf", "bm25"})
_BPROP, _BM25, _DEEPIMPACT = frozenset({"bprop"}), frozenset({"bm25"}), frozenset({"deepimpact"})
_WITH_MODEL = frozenset({"bprop", "deepct", "deepimpact"})
_WEIGHING = frozenset({"weigh"})
_READING = frozenset({"weigh", "collect"})
# What decides statistics may be said to --merge as well, so that one list of options does for all.
_COUNTING = _READING | {"merge"}

SETTINGS = {
    "words": Use(_COUNTED | _BPROP, _COUNTING),
    "stemmer": Use(_COUNTED | _BPROP, _COUNTING),
    "stopwords": Use(_COUNTED | _BPROP, _COUNTING),
    "title": Use(_ALL, _COUNTING | {"train"}),
    "spread": Use(_ALL, _WEIGHING),
    "normalize": Use(_ALL, _WEIGHING),
    "k1": Use(_BM25, _WEIGHING),
    "b": Use(_BM25, _WEIGHING),
    "emit": Use(_BPROP, _COUNTING),
    "sub2word": Use(_BPROP, _COUNTING),
    "gather": Use(_BPROP, _COUNTING),
    "saturation": Use(_BPROP, _COUNTING),
    "contrast": Use(_BPROP, _WEIGHING),
    "softmax_temperature": Use(_BPROP, _WEIGHING),
    "min_words": Use(_BPROP, _WEIGHING),
    "max_length": Use(_WITH_MODEL, _COUNTING | {"train"}),
    "batch_tokens": Use(_WITH_MODEL, _COUNTING),
    "dtype": Use(_WITH_MODEL, _COUNTING),
    "expand": Use(_DEEPIMPACT, _WEIGHING | {"train"}),
    "impact_max": Use(_DEEPIMPACT, _WEIGHING),
}
OPTIONS = {
    "INPUT": _READING,
    "--tokenizer": _COUNTING,
    "--collection": _WEIGHING | {"merge"},
    "--collect": frozenset({"collect"}),
    "--merge": frozenset({"merge"}),
    "--report": _WEIGHING,
    "--bare": _WEIGHING,
    "--with": _READING,
    "--shard": _READING,
    "--runner": _READING,
    "--ray-workers": _READING,
    "--ray-address": _READING,
}


def check_settings(method: str, settings: WeightingSettings, work: Work) -> None:
    """Raise UsageError for a setting other than its default that method or work do not look at."""
    for name, flag in _chosen(settings):
        use = SETTINGS[name]
        if method in _ALL and method not in use.methods:  # a method from elsewhere may look at what it likes
            *others, last = (each for each in TERM_WEIGHTS if each in use.methods)
            raise UsageError(f"{flag}: only for --method {', '.join(others)}{' and ' * bool(others)}{last}")
        if work not in use.work:
            raise UsageError(f"{_SAYS[work]}; {flag} is for weighing")
        if settings.emit == "attention" and name in ("contrast", "min_words"):
            raise UsageError(f"{flag}: --emit attention looks at no collection")
        if settings.emit != "softmax" and name == "softmax_temperature":
            raise UsageError(f"{flag}: only with --emit softmax")


def check_options(given: Mapping[str, Any], training: Any, work: Work) -> None:
    """Raise UsageError for an option of `given` that the work does not look at, and for one of training without --train.

    given: flags with a value that is true where they were given
    """
    for flag, value in given.items():
        if value and work not in OPTIONS[flag]:
            raise UsageError(f"{_SAYS[work]}; {flag} is for weighing")
    for _, flag in _chosen(training):
        if work != "train":
            raise UsageError(f"{flag}: only with --train")


def _chosen(settings: Any) -> Iterator[tuple[str, str]]:
    """Names and flags of the settings that are not at their default."""
    for item in fields(settings):
        if getattr(settings, item.name) != default_of(item):
            yield item.name, item.metadata.get("flag") or "--" + item.name.replace("_", "-")
