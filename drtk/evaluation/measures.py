"""Parse measure names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from drtk.errors import UsageError
from drtk.evaluation import METRICS

_RANKS = "5,10,15,20,30,100,200,500,1000"
# family -> what its parameters are, and those it has where none are given
FAMILIES: dict[str, tuple[str, str]] = {
    "runid": ("none", ""),
    "num_q": ("none", ""),
    "num_ret": ("none", ""),
    "num_rel": ("none", ""),
    "num_rel_ret": ("none", ""),
    "map": ("none", ""),
    "gm_map": ("none", ""),
    "Rprec": ("none", ""),
    "bpref": ("none", ""),
    "recip_rank": ("none", ""),
    "iprec_at_recall": ("levels", "0.0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0"),
    "P": ("ranks", _RANKS),
    "relstring": ("length", "10"),
    "recall": ("ranks", _RANKS),
    "infAP": ("none", ""),
    "gm_bpref": ("none", ""),
    "Rprec_mult": ("levels", "0.2,0.4,0.6,0.8,1.0,1.2,1.4,1.6,1.8,2.0"),
    "utility": ("weights", ""),
    "11pt_avg": ("average", ""),
    "binG": ("none", ""),
    "G": ("none", ""),
    "ndcg": ("gains", ""),
    "ndcg_rel": ("none", ""),
    "Rndcg": ("none", ""),
    "ndcg_cut": ("ranks", _RANKS),
    "map_cut": ("ranks", _RANKS),
    "relative_P": ("ranks", _RANKS),
    "success": ("ranks", "1,5,10"),
    "set_P": ("none", ""),
    "set_relative_P": ("none", ""),
    "set_recall": ("none", ""),
    "set_map": ("none", ""),
    "set_F": ("beta", ""),
    "num_nonrel_judged_ret": ("none", ""),
    "rbp": ("persistence", ""),
    "rbp_resid": ("persistence", ""),
    "unj": ("ranks", "5,10,20"),
}
_OFFICIAL = "runid num_q num_ret num_rel num_rel_ret map gm_map Rprec bpref recip_rank iprec_at_recall"
_SET_BASED = "utility set_P set_relative_P set_recall set_map set_F"
SETS = {
    "all_trec": tuple(FAMILIES),
    "official": (*_OFFICIAL.split(), "P.5,10,15,20,30,100,200,500,1000"),
    "set": ("runid", "num_q", "num_ret", "num_rel", "num_rel_ret", *_SET_BASED.split()),
}
Part = tuple[str, str, dict[str, Any]]  # printed name, family, parameters


def trec_measures(name: str) -> list[Part] | None:
    """(printed name, family, parameters) of each measure `name` stands for; None where it is no name of trec_eval's.

    Raises UsageError for parameters that make no sense.
    """
    if name in SETS:
        return [part for member in SETS[name] for part in trec_measures(member) or ()]
    for family in sorted(FAMILIES, key=len, reverse=True):
        if name == family or name.startswith((family + ".", family + "_")):
            given = name[len(family) + 1 :]
            try:
                return list(_parts(family, given))
            except ValueError:
                raise UsageError(f"--measures: '{given}' cannot be a parameter of {family}") from None
    return None


def _parts(family: str, given: str) -> list[Part]:
    kind, default = FAMILIES[family]
    if kind == "none" and given:
        raise ValueError
    if kind == "ranks":
        ranks = [int(float(text)) for text in (given or default).split(",")]
        if min(ranks) < 1:
            raise ValueError
        return [(f"{family}_{rank}", family, {"cutoff": rank}) for rank in ranks]
    if kind == "levels":
        levels = [float(text) for text in (given or default).split(",")]
        return [(f"{family}_{level:.2f}", family, {"recall": level}) for level in levels]
    if not given:
        return [(family, family, {})]
    return [(f"{family}_{given}", family, _single(kind, given))]


def _single(kind: str, given: str) -> dict[str, Any]:
    if kind == "length":
        return {"cutoff": int(given)}
    if kind == "beta":
        return {"beta": float(given)}
    if kind == "persistence":
        name, _, value = given.partition("=")
        if name != "p" or not 0 < float(value) < 1:
            raise ValueError
        return {"p": float(value)}
    if kind == "gains":
        pairs = [pair.split("=") for pair in given.split(",")]
        return {"gains": {int(grade): float(gain) for grade, gain in pairs}}
    numbers = tuple(float(text) for text in given.split(","))
    if kind == "average":
        return {"levels": numbers}
    if len(numbers) != 4:
        raise ValueError
    return {"weights": numbers}


Engine = Literal["pytrec_eval", "own", "ir_measures", "run"]
Aggregate = Literal["mean", "sum", "geometric", "none"]

# ir_measures' names and aliases of ours -> trec_eval families, where pytrec_eval computes them as they stand
_BY_CUTOFF = {"P": "P", "R": "recall", "Success": "success", "nDCG": "ndcg_cut", "AP": "map_cut"}
_PLAIN = {
    "AP": "map",
    "nDCG": "ndcg",
    "Rprec": "Rprec",
    "Bpref": "bpref",
    "infAP": "infAP",
    "SetAP": "set_map",
    "SetP": "set_P",
    "SetR": "set_recall",
    "SetF": "set_F",
}
_HIT = re.compile(r"^(?:Hit|HR|HitRate)(?=[@(])")  # names of ours for ir_measures' Success
_AT = re.compile(r"@(\d+)$")
_WORDS = re.compile(r"(?:[^\s()]|\([^)]*\))+")


@dataclass(frozen=True)
class Measure:
    """One column of a table: its heading, who computes it, and how queries are put together.

    engine: pytrec_eval (`key` is its name), own (`key` is in METRICS), ir_measures (`key` is a measure in its grammar),
    run (a property of the run: its tag or its number of queries).
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
        """How many documents of a ranking it looks at; None where it looks at all of them."""
        if self.engine == "ir_measures":
            found = _AT.search(self.key)
            return None if found is None else int(found[1])
        if self.engine == "pytrec_eval":
            family, _, depth = self.key.rpartition("_")
            return int(depth) if FAMILIES.get(family, ("",))[0] == "ranks" else None
        found_here: int | None = self.params.get("cutoff")
        return found_here


def parse_measures(text: str, *, rel: int = 1, answers: bool = False) -> list[Measure]:
    """The measures named in a text, separated by white space; a name given twice counts once.

    rel: the grade from which on a document is relevant, for measures that do not say it themselves (`RR(rel=2)@10`).
    answers: whether passages are judged by the answers they contain, which Answer@k needs.
    Raises UsageError for a name nobody computes.
    """
    found: dict[str, Measure] = {}
    for name in _WORDS.findall(text):
        for measure in _named(name, rel):
            found.setdefault(measure.name, measure)
    if not found:
        raise UsageError("--measures: no measure is named")
    for measure in found.values():
        if measure.key == "Answer" and not answers:
            raise UsageError(f"--measures: {measure.name} needs --answers FILE; from judgements it is Success@k")
        if measure.key == "Answer" and not measure.params:
            raise UsageError("--measures: Answer needs a cut-off: Answer@20")
    return list(found.values())


def _named(name: str, rel: int) -> list[Measure]:
    if "@" not in name and "(" not in name:
        parts = trec_measures(name)
        if parts is not None:
            return [_trec(printed, family, params, rel) for printed, family, params in parts]
    base, _, cutoff = name.partition("@")
    if base in METRICS and base not in ("RR", "nDCG"):  # these two have parameters, which ir_measures' grammar reads
        return [Measure(name, "own", base, rel, params=_cutoff(name, cutoff))]
    return [_ir(name, rel)]


def _cutoff(name: str, text: str) -> dict[str, Any]:
    if not text:
        return {}
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--measures: '{name}': the cut-off must be at least 1")
    return {"cutoff": int(text)}


def _trec(printed: str, family: str, params: dict[str, Any], rel: int) -> Measure:
    if family in ("runid", "num_q"):
        return Measure(printed, "run", family, aggregate="none")
    if family.startswith("gm_"):
        return Measure(printed, "pytrec_eval", family.removeprefix("gm_"), rel, aggregate="geometric")
    if family in METRICS or "gains" in params:
        key = "nDCG" if "gains" in params else family
        aggregate: Aggregate = "sum" if family == "num_rel" else "none" if family == "relstring" else "mean"
        return Measure(printed, "own", key, rel, params=params, aggregate=aggregate)
    key = f"set_F_{params['beta']}" if "beta" in params else printed
    return Measure(printed, "pytrec_eval", key, rel, aggregate="sum" if family.startswith("num_") else "mean")


def _ir(name: str, default_rel: int) -> Measure:
    import ir_measures

    try:
        parsed = ir_measures.parse_measure(_HIT.sub("Success", name))
        parsed.validate_params()
        if default_rel != 1 and "rel" in parsed.SUPPORTED_PARAMS and "rel" not in parsed.params:
            parsed, name = parsed(rel=default_rel), str(parsed(rel=default_rel))
    except (NameError, AssertionError, ValueError, SyntaxError, TypeError, KeyError) as error:
        why = re.sub(r"=<object object.*", " is missing", str(error))
        raise UsageError(f"--measures: '{name}' is not a measure: {why}") from None
    params = dict(parsed.params)
    rel = int(params.pop("rel", 1))
    cutoff = params.pop("cutoff", None)
    judged_only = bool(params.pop("judged_only", False))
    if cutoff is not None and cutoff < 1:
        raise UsageError(f"--measures: '{name}': the cut-off must be at least 1")
    made = Measure(name, "pytrec_eval", "", rel, judged_only)
    kind = parsed.NAME
    if kind == "RR" and not params:
        return replace(made, engine="own", key="RR", params={} if cutoff is None else {"cutoff": cutoff})
    if kind == "nDCG" and params:
        own = {"cutoff": cutoff, "exponential": params.get("dcg") == "exp-log2", "gains": params.get("gains")}
        return replace(made, engine="own", key="nDCG", params=own)
    if kind == "IPrec":
        return replace(made, engine="own", key="iprec_at_recall", params={"recall": float(params["recall"])})
    if kind in ("NumRet", "NumRel", "NumRelRet"):
        of_relevant = kind == "NumRelRet" or (kind == "NumRet" and "rel" in parsed.params)
        if kind == "NumRel":
            return replace(made, engine="own", key="num_rel", aggregate="sum")
        return replace(made, key="num_rel_ret" if of_relevant else "num_ret", aggregate="sum")
    if kind == "NumQ":
        return replace(made, engine="run", key="num_q", aggregate="none")
    if kind in _BY_CUTOFF and cutoff is not None and not params:
        return replace(made, key=f"{_BY_CUTOFF[kind]}_{cutoff}")
    if kind == "SetF" and params:
        return replace(made, key=f"set_F_{params['beta']}")
    if kind == "SetP" and params.get("relative"):
        return replace(made, key="set_relative_P")
    if kind in _PLAIN and cutoff is None and not params:
        return replace(made, key=_PLAIN[kind])
    if not ir_measures.DefaultPipeline.supports(parsed):
        raise UsageError(
            f"--measures: '{name}' needs a provider of ir_measures that is not installed: "
            "pip install 'ir-measures[cwl_eval]' or 'ir-measures[pyndeval]'"
        )
    return replace(made, engine="ir_measures", key=str(parsed), judged_only=False)
