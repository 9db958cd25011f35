"""Parse measure names of trec_eval (map, P_30, all_trec) and ir_measures (nDCG@10, RR(rel=2)@10).

Case is ignored, except in the set names all_trec, official and set, and in parameters.
Other common names are accepted with a cut-off: mrr@10, recall@100, map@100, hits@5, precision@10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from drtk.errors import UsageError
from drtk.evaluation import METRICS

# ir_measures' parser of trec_eval names lacks 15 of these, so drtk has its own.
_TREC_NAMES = [
    "runid", "num_q", "num_ret", "num_rel", "num_rel_ret", "map", "gm_map", "Rprec", "bpref", "recip_rank",
    "iprec_at_recall", "P", "relstring", "recall", "infAP", "gm_bpref", "Rprec_mult", "utility", "11pt_avg", "binG",
    "G", "ndcg", "ndcg_rel", "Rndcg", "ndcg_cut", "map_cut", "relative_P", "success", "set_P", "set_relative_P",
    "set_recall", "set_map", "set_F", "num_nonrel_judged_ret", "rbp", "rbp_resid", "unj",
]  # fmt: skip
_CUTOFFS = "5,10,15,20,30,100,200,500,1000"
_PARAMETERS = {  # measure -> (kind of its parameters, default); other measures have none
    "iprec_at_recall": ("levels", "0.0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0"),
    "Rprec_mult": ("levels", "0.2,0.4,0.6,0.8,1.0,1.2,1.4,1.6,1.8,2.0"),
    "P": ("cutoffs", _CUTOFFS),
    "recall": ("cutoffs", _CUTOFFS),
    "ndcg_cut": ("cutoffs", _CUTOFFS),
    "map_cut": ("cutoffs", _CUTOFFS),
    "relative_P": ("cutoffs", _CUTOFFS),
    "success": ("cutoffs", "1,5,10"),
    "unj": ("cutoffs", "5,10,20"),
    "relstring": ("length", "10"),
    "utility": ("weights", ""),
    "11pt_avg": ("average", ""),
    "ndcg": ("gains", ""),
    "set_F": ("beta", ""),
    "rbp": ("persistence", ""),
    "rbp_resid": ("persistence", ""),
}
_COUNTS = ["runid", "num_q", "num_ret", "num_rel", "num_rel_ret"]
_TREC_SETS = {
    "all_trec": _TREC_NAMES,
    "official": [*_COUNTS, "map", "gm_map", "Rprec", "bpref", "recip_rank", "iprec_at_recall", "P"],
    "set": [*_COUNTS, "utility", "set_P", "set_relative_P", "set_recall", "set_map", "set_F"],
}
# ir_measures' name -> trec_eval's, with and without a cut-off
_WITH_CUTOFF = {
    "P": "P", "R": "recall", "Success": "success", "nDCG": "ndcg_cut", "AP": "map_cut", "RR": "recip_rank"
}  # fmt: skip
_WITHOUT_CUTOFF = {
    "AP": "map", "nDCG": "ndcg", "RR": "recip_rank", "Rprec": "Rprec", "Bpref": "bpref", "infAP": "infAP", "SetAP": "set_map",
    "SetP": "set_P", "SetR": "set_recall", "SetF": "set_F", "NumRel": "num_rel", "NumRelRet": "num_rel_ret",
}  # fmt: skip
_ALIASES = {
    "hit": "Success", "hits": "Success", "hr": "Success", "hitrate": "Success", "hit_rate": "Success", "success_rate": "Success",
    "reciprocal_rank": "RR", "recip_rank": "RR", "average_precision": "AP", "map_cut": "AP", "ndcg_cut": "nDCG",
}  # fmt: skip
_CUTOFF = re.compile(r"@(\d+)$")
# A comma separates names, but also parameters of one name: P.5,10 or Answer@1,5
_NAME = re.compile(r"(?:[^\s(),]|\([^)]*\)|,(?=[-.\d])(?!11pt))+")

Engine = Literal["trec_eval", "builtin", "ir_measures", "run"]
Aggregate = Literal["mean", "sum", "geometric", "none"]


@dataclass(frozen=True)
class Measure:
    """An evaluation measure: its name, how it is computed, and how per-query values are aggregated.

    engine: trec_eval (RANK_MEASURES or pytrec_eval), builtin (METRICS), ir_measures, or run (tag or number of queries)
    key: name of the measure in its engine
    judged_only: remove unjudged documents before computing the measure
    """

    name: str
    engine: Engine
    key: str
    rel: int = 1
    judged_only: bool = False
    params: dict[str, Any] = field(default_factory=dict)
    aggregate: Aggregate = "mean"

    @property
    def cutoff(self) -> int | None:
        """Rank cut-off, such as 10 for nDCG@10; None for a measure without a cut-off."""
        if self.engine == "ir_measures":
            match = _CUTOFF.search(self.key)
            return None if match is None else int(match[1])
        return self.params.get("cutoff")


def parse_measures(text: str, *, rel: int = 1, answers: bool = False) -> list[Measure]:
    """Parse measure names separated by white space or commas; convert them to standard names and drop duplicates.

    rel: minimum relevance grade of measures whose name has no (rel=N)
    answers: allow Answer@k, because passages are judged by answer matching
    Raises UsageError for an empty text, unknown names, invalid parameters, and measures whose package is not installed.
    """
    measures: dict[str, Measure] = {}
    for name in _NAME.findall(text):
        for measure in _parse_name(name, rel):
            measures.setdefault(measure.name, measure)
    if not measures:
        raise UsageError("`measures` is empty; give at least one measure, such as nDCG@10")
    for measure in measures.values():
        if measure.key == "Answer" and not answers:
            raise UsageError(f"`measures`: {measure.name} requires `answers`; with `qrels`, use Success@k")
    return list(measures.values())


def _parse_name(name: str, rel: int) -> list[Measure]:
    if name in _TREC_SETS:
        return [measure for member in _TREC_SETS[name] for measure in _parse_name(member, rel)]
    base, at, cutoffs = name.rpartition("@")
    if at and re.fullmatch(r"\d+(,\d+)+", cutoffs):
        return [measure for cutoff in cutoffs.split(",") for measure in _parse_name(f"{base}@{cutoff}", rel)]
    lower = name.lower()
    if "@" not in name and "(" not in name:
        for family in sorted(_TREC_NAMES, key=len, reverse=True):
            if lower == family.lower() or lower.startswith((family.lower() + ".", family.lower() + "_")):
                return _parse_trec(family, name, rel)
    measure_name = re.split("[@(]", name)[0]
    standard_names = _load_names()
    standard = standard_names.get(measure_name) or standard_names.get(measure_name.lower())
    if standard is None:
        raise UsageError(f"`measures`: unknown measure '{name}'; {_suggest_measures(name, measure_name)}")
    parameters = name[len(measure_name) :]
    is_builtin = standard in METRICS
    # IPrec@0.1 is at a recall level.
    has_cutoff = standard == "Answer" or (is_builtin and parameters) or ("@" in parameters and standard != "IPrec")
    if has_cutoff and not re.fullmatch("@0*[1-9][0-9]*" if is_builtin else r"(\(.*\))?@0*[1-9][0-9]*", parameters):
        raise UsageError(f"`measures`: '{name}' requires a cut-off of at least 1, such as {measure_name}@10")
    if not is_builtin:
        return [_parse_ir(name, standard, parameters, rel)]
    params = {"cutoff": int(parameters[1:])} if parameters else {}
    name = standard + "".join(f"@{cutoff}" for cutoff in params.values())
    return [Measure(name, "builtin", standard, rel, params=params)]


def _load_names() -> Mapping[str, str]:
    """Return {accepted spelling: standard name} of the measures in METRICS and ir_measures.

    Names in lower case and aliases are also accepted.
    """
    from ir_measures.measures import registry

    names = [name for name in reversed([*registry, *METRICS]) if name.isascii()]
    return {name.lower(): name for name in names} | _ALIASES | {name: name for name in names}


def _suggest_measures(name: str, measure_name: str) -> str:
    cutoff = re.search(r"[@_.]?(\d+)$", name)
    stem = measure_name[: cutoff.start()].lower() if cutoff and "@" not in name else measure_name.lower()
    suffix = f"@{cutoff[1]}" if cutoff else ""
    standard_names = _load_names()
    transposed = [known for known in standard_names if sorted(known) == sorted(stem)]  # ngcd@10
    close = [*transposed, *get_close_matches(stem, standard_names, n=2)]
    near = dict.fromkeys(standard_names[known] + suffix for known in close)
    return f"did you mean {' or '.join(near)}?" if near else "for example nDCG@10, RR@10, R@100, AP, P@10, Success@5"


def _parse_trec(family: str, name: str, rel: int) -> list[Measure]:
    label, text = name if name in _WITHOUT_CUTOFF else family, name[len(family) + 1 :]
    kind, default = _PARAMETERS.get(family, ("none", ""))
    try:
        pairs = _parse_parameters(kind, text, default)
    except ValueError:
        hint = f"; did you mean {family}_cut_{text}?" if text.isdecimal() and f"{family}_cut" in _TREC_NAMES else ""
        raise UsageError(f"`measures`: '{text}' is not a valid parameter of {family}{hint}") from None
    return [_make_trec_measure(label + suffix, family, suffix, params, rel) for suffix, params in pairs]


def _parse_parameters(kind: str, text: str, default: str) -> list[tuple[str, dict[str, Any]]]:
    """Parse the parameters of a trec_eval measure, such as 5,10 in P.5,10; return (name suffix, values) per measure.

    kind: syntax of the parameters (see _PARAMETERS); default: parsed if `text` is empty (cutoffs, levels, length)
    Raises ValueError for invalid parameters.
    """
    if kind == "cutoffs":
        cutoffs = [int(float(item)) for item in (text or default).split(",")]
        if min(cutoffs) < 1:
            raise ValueError
        return [(f"_{cutoff}", {"cutoff": cutoff}) for cutoff in cutoffs]
    if kind == "levels":
        levels = [float(item) for item in (text or default).split(",")]
        return [(f"_{level:.2f}", {"recall": level}) for level in levels]
    if kind == "length":
        return [(f"_{text}" if text else "", {"cutoff": int(text or default)})]
    if not text:
        return [("", {})]
    if kind == "none":
        raise ValueError
    if kind == "beta":
        return [(f"_{text}", {"beta": float(text)})]
    if kind == "persistence":
        name, _, value = text.partition("=")
        if name != "p" or not 0 < float(value) < 1:
            raise ValueError
        return [(f"_{text}", {"p": float(value)})]
    if kind == "gains":
        pairs = [pair.split("=") for pair in text.split(",")]
        return [(f"_{text}", {"gains": {int(grade): float(gain) for grade, gain in pairs}})]
    numbers = tuple(float(item) for item in text.split(","))
    if kind == "weights" and len(numbers) != 4:
        raise ValueError
    return [(f"_{text}", {"levels" if kind == "average" else "weights": numbers})]


def _make_trec_measure(name: str, family: str, suffix: str, params: dict[str, Any], rel: int) -> Measure:
    if family in ("runid", "num_q"):
        return Measure(name, "run", family, aggregate="none")
    if family.startswith("gm_"):
        return Measure(name, "trec_eval", family.removeprefix("gm_"), rel, aggregate="geometric")
    aggregate: Aggregate = "none" if family == "relstring" else "sum" if family.startswith("num_") else "mean"
    if family in METRICS:
        return Measure(name, "builtin", family, rel, params=params, aggregate=aggregate)
    key = f"set_F_{params['beta']}" if "beta" in params else family if "gains" in params else family + suffix
    return Measure(name, "trec_eval", key, rel, params=params, aggregate=aggregate)


def _parse_ir(name: str, standard: str, parameters: str, default_rel: int) -> Measure:
    """Parse `standard` + `parameters`, such as nDCG + (rel=2)@10, by ir_measures. name: as the user wrote it"""
    import ir_measures

    try:
        parsed = ir_measures.parse_measure(standard + parameters)
        parsed.validate_params()
        label = f"{parsed.NAME}{parameters}"
        if default_rel != 1 and "rel" in parsed.SUPPORTED_PARAMS and "rel" not in parsed.params:
            parsed = parsed(rel=default_rel)
            label = str(parsed)
    except (NameError, AssertionError, ValueError, SyntaxError, TypeError, KeyError) as error:
        if "invalid param cutoff" in str(error):
            raise UsageError(f"`measures`: '{name}' requires a cut-off, such as {name}@10") from None
        problem = re.sub(r"=<object object.*", " is missing", str(error))
        raise UsageError(f"`measures`: '{name}' is not a valid measure: {problem}") from None
    params = dict(parsed.params)
    has_rel = "rel" in params
    rel = int(params.pop("rel", 1))
    cutoff = params.pop("cutoff", None)
    judged_only = bool(params.pop("judged_only", False))
    kind = parsed.NAME
    at = {} if cutoff is None else {"cutoff": cutoff}

    def make_measure(key: str, **params: Any) -> Measure:
        aggregate: Aggregate = "sum" if key.startswith("num_") else "mean"
        engine: Engine = "builtin" if key in METRICS else "trec_eval"
        return Measure(label, engine, key, rel, judged_only, params, aggregate)

    if kind == "nDCG" and params:
        gains = {"exponential": params.get("dcg") == "exp-log2", "gains": params.get("gains")}
        return make_measure("ndcg" if cutoff is None else f"ndcg_cut_{cutoff}", **at, **gains)
    if kind == "IPrec":
        return make_measure("iprec_at_recall", recall=float(params["recall"]))
    if kind == "NumRet":
        return make_measure("num_rel_ret" if has_rel else "num_ret")
    if kind == "NumQ":
        return Measure(label, "run", "num_q", rel, judged_only, aggregate="none")
    if kind == "SetF" and params:
        return make_measure(f"set_F_{params['beta']}")
    if kind == "SetP" and params.get("relative"):
        return make_measure("set_relative_P")
    if not params and cutoff is not None and kind in _WITH_CUTOFF:
        return make_measure(f"{_WITH_CUTOFF[kind]}_{cutoff}", **at)
    if not params and cutoff is None and kind in _WITHOUT_CUTOFF:
        return make_measure(_WITHOUT_CUTOFF[kind])
    if not ir_measures.DefaultPipeline.supports(parsed):
        raise UsageError(
            f"`measures`: '{name}' requires a package that is not installed; run "
            "pip install 'ir-measures[cwl_eval]' or 'ir-measures[pyndeval]'"
        )
    return Measure(label, "ir_measures", str(parsed), rel)
