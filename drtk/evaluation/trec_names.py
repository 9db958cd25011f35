"""trec_eval's own names of measures: `map`, `ndcg_cut_10`, `P.5,10`, `all_trec`, as names with parameters."""

from __future__ import annotations

from typing import Any

from drtk.errors import UsageError

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
