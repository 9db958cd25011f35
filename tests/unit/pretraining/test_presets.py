"""The shipped presets: the numbers of the papers, and the command lines of the method pages."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.help import get_examples
from drtk.cli.main import _build_parser
from drtk.config import list_preset_names, load_preset, merge_settings
from drtk.pretraining.assembly import check_composition
from drtk.pretraining.composition import Composition, ContrastiveObjective
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.example_builder import load_views
from drtk.pretraining.parse import apply_changes, parse_composition

METHODS = Path(__file__).resolve().parents[3] / "docs" / "methods"
PAPERS = [name for name in list_preset_names() if load_preset(name).command == "pretrain" and name != "mixture-example"]


def by_name(groups: dict[str, Any]) -> dict[str, Any]:
    """Return one entry for each name of a key."""
    return {name: value for names, value in groups.items() for name in names.split()}


# batch, steps or epochs, lr, warm-up, weight decay, length, held out
SCHEDULES = by_name(
    {
        "mlm condenser rom": (2048, 8.0, 1e-4, 0.1, 0.01, 144, 0),  # 5.2; 5.9: rom as Condenser
        "cocondenser qac-cocondenser qac-cocondenser-mixed corom": (2048, 120_000, 1e-4, 0.1, 0.01, 144, 0),  # 5.3
        "cotmae qac-cotmae qac-cotmae-mixed qac-cotmae-released": (16_384, 50_000, 4e-4, 0.1, 0.01, 144, 0),  # 5.4
        "simlm simlm-mlm simlm-rtd simlm-ae": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 4096),  # 5.6
        "simlm-table7-mlm simlm-table7-condenser": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 4096),
        "retromae": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 0),  # 5.7 names none: SimLM's, beside which it is reported
        "master master-printed": (2048, 120_000, 3e-4, 4000.0, 0.0, 144, 0),  # 5.8: "everything else as SimLM"
        "simcse": (64, 2.0, 3e-5, 0.0, 0.0, 32, 0),  # 5.10; batch and learning rate: SimCSE's released code
        "simcse-roberta": (512, 2.0, 1e-5, 0.0, 0.0, 32, 0),
        "diffcse-sts-bert": (64, 2.0, 7e-6, 0.0, 0.0, 32, 0),
        "diffcse-sts-roberta": (64, 2.0, 1e-5, 0.0, 0.0, 32, 0),
        "diffcse-transfer-bert": (64, 2.0, 2e-6, 0.0, 0.0, 32, 0),
        "diffcse-transfer-roberta": (128, 2.0, 3e-6, 0.0, 0.0, 32, 0),
        "ict": (4096, 100_000, 1e-4, 0.1, 0.01, 288, 0),  # ICT's and Contriever's own papers
        "crop": (2048, 100_000, 5e-5, 0.1, 0.01, 256, 0),
    }
)

# slot: view, masking, rate, corruption
PLAIN, ROM, EXTENSION = ("none", 0.0, "none"), ("rom", 0.15, "bert"), ("extension", 0.50, "replaced")
PASSAGE_15, PASSAGE_30 = (("passage", "whole-word", rate, "bert") for rate in (0.15, 0.30))
MASTER = {
    "passage": PASSAGE_30,
    "keywords": ("passage", "keyword", 0.50, "bert"),
    "complement": ("passage", "complement", 0.0, "bert"),
    "next": ("next", "keyword", 0.50, "bert"),
    "queries": ("queries", "whole-word", 0.50, "bert"),
    "continuation": ("continuation", "whole-word", 0.50, "bert"),
}
SIMCSE = dict.fromkeys(("one", "two"), ("passage", *PLAIN))
SLOTS = by_name(
    {
        "mlm simlm-table7-mlm simlm-table7-condenser": {"passage": PASSAGE_30},
        "condenser": {"passage": PASSAGE_15},
        "rom": {"passage": ("passage", *ROM)},
        "cocondenser": {name: (f"pair.{name}", "whole-word", 0.15, "bert") for name in "ab"},
        "qac-cocondenser": {"a": PASSAGE_15, "b": ("query", "whole-word", 0.15, "bert")},
        "qac-cocondenser-mixed": {"a": PASSAGE_15, "b": ("query pair.b", "whole-word", 0.15, "bert")},
        "corom": {"a": ("pair.a", *ROM), "b": ("pair.b", *ROM)},
        "cotmae": {"passage": PASSAGE_30, "context": ("pair.b", "whole-word", 0.45, "bert")},
        "qac-cotmae": {"passage": PASSAGE_30, "context": ("query", "whole-word", 0.45, "bert")},
        "qac-cotmae-mixed": {"passage": PASSAGE_30, "context": ("query pair.b", "whole-word", 0.45, "bert")},
        "qac-cotmae-released": {"passage": PASSAGE_30, "context": ("query", *PLAIN)},
        "simlm simlm-rtd": {"encoder": ("passage", "whole-word", 0.30, "replaced"), "decoder": ("passage", *EXTENSION)},
        "simlm-mlm": {
            "encoder": ("passage", "whole-word", 0.30, "mask"),
            "decoder": ("passage", "extension", 0.50, "mask"),
        },
        "simlm-ae": {"encoder": ("passage", *PLAIN), "decoder": ("passage", "random", 1.0, "mask")},
        "retromae": {"encoder": PASSAGE_30, "decoder": ("passage", *PLAIN)},
        "master": MASTER | {"half": ("passage", "whole-word", 0.50, "bert"), "before": PASSAGE_30},
        "master-printed": MASTER,
        "simcse simcse-roberta": SIMCSE,
        "ict": {"query": ("ict.query", *PLAIN), "context": ("ict.context", *PLAIN)},
        "crop": {"one": ("crop-pair.a", *PLAIN), "two": ("crop-pair.b", *PLAIN)},
    }
)
for _name, _rate in (("sts-bert", 0.30), ("sts-roberta", 0.20), ("transfer-bert", 0.15), ("transfer-roberta", 0.15)):
    changed = ("passage", "bernoulli", _rate, "replaced")
    SLOTS[f"diffcse-{_name}"] = SIMCSE | {"changed_one": changed, "changed_two": changed}


def load_composition(name: str) -> Composition:
    return parse_composition(load_preset(name).content, name)


@pytest.mark.parametrize("name", PAPERS)
def test_schedules_match_the_papers(name: str) -> None:
    actual = dict(load_preset(name).settings)
    batch, length, lr, warmup, decay, tokens, held = SCHEDULES[name]
    assert actual.pop("batch_size") == batch
    assert actual.pop("epochs" if isinstance(length, float) else "max_steps") == length
    assert actual.pop("learning_rate") == lr
    assert actual.pop("warmup") == warmup
    assert actual.pop("weight_decay") == decay
    assert actual.pop("max_length") == tokens
    assert actual.pop("held_out", 0) == held
    assert actual == ({"eval_steps": 125} if name.startswith(("diffcse", "simcse")) else {})


@pytest.mark.parametrize("name", PAPERS)
def test_slots_match_the_papers(name: str) -> None:
    slots = load_composition(name).slots.items()
    assert {slot: (" ".join(each.view), each.masking, each.rate, each.corruption) for slot, each in slots} == SLOTS[
        name
    ]


def test_other_slot_settings_match_the_papers() -> None:
    slots = {name: load_composition(name).slots for name in PAPERS}
    for name in ("simlm", "simlm-mlm", "simlm-rtd"):  # the released rate counts special tokens, and masks are nested
        assert {slot.count for slot in slots[name].values()} == {"with-specials"}
        assert slots[name]["decoder"].of == "encoder"
    assert slots["master"]["complement"].of == "half"
    assert slots["master-printed"]["complement"].of == "passage"
    for name in ("master", "master-printed"):
        assert slots[name]["queries"].view_options == {"limit": 10}
    assert slots["qac-cotmae"]["context"].view_options == {"limit": 5}
    assert slots["qac-cocondenser"]["b"].view_options == {"limit": 5}
    assert slots["qac-cotmae-released"]["context"].view_options == {"limit": 5}
    for name, slot in (("qac-cotmae-mixed", "context"), ("qac-cocondenser-mixed", "b")):
        assert slots[name][slot].view_options == {"limit": 5, "spans": "random"}
        assert slots[name][slot].draw == "step"
    for name in ("rom", "corom"):
        assert {tuple(slot.masking_options.items()) for slot in slots[name].values()} == {(("scale", "max"),)}
    assert slots["ict"]["context"].view_options == {}  # the view's own default, 90% (below)
    assert slots["crop"]["one"].view_options == {}


def test_query_as_context_presets_pair_random_passages_of_a_document() -> None:
    slots = {"cotmae": "context", "cocondenser": "b", "qac-cotmae-mixed": "context", "qac-cocondenser-mixed": "b"}
    views = {name: load_views(load_composition(name), slot)[-1] for name, slot in slots.items()}
    assert {(view.name, view.key) for view in views.values()} == {("pair", "b")}
    spans = {name: view.options["spans"] for name, view in views.items()}
    assert spans == dict.fromkeys(slots, "random") | {"cocondenser": "distinct"}  # one pair for each document
    assert [name for name in PAPERS if load_composition(name).example == "document"] == ["cocondenser", "corom"]


def test_generators_match_the_papers() -> None:
    simlm = ("google/electra-base-generator", "frozen", "sample", "masked", "mask")
    expected = {"simlm": simlm, "simlm-rtd": simlm}
    for task, model in (("bert", "distilbert-base-uncased"), ("roberta", "distilroberta-base")):
        for kind in ("sts", "transfer"):
            expected[f"diffcse-{kind}-{task}"] = (model, "frozen", "argmax", "all", "bert")
    made = {name: load_composition(name).generator for name in PAPERS}
    actual = {name: (each.model, each.mode, each.decode, each.scope, each.reads) for name, each in made.items() if each}
    assert actual == expected


def test_contrastive_objectives_match_the_papers() -> None:
    expected = {  # similarity, temperature, candidates, symmetric, projector
        "cocondenser": ("dot", 1.0, "all", True, None),
        "qac-cocondenser": ("dot", 1.0, "all", True, None),
        "qac-cocondenser-mixed": ("dot", 1.0, "all", True, None),
        "corom": ("dot", 1.0, "all", True, None),
        "simcse": ("cosine", 0.05, "other", False, "tanh"),
        "simcse-roberta": ("cosine", 0.05, "other", False, "tanh"),
        "ict": ("dot", 1.0, "other", False, None),
        "crop": ("dot", 0.05, "other", False, None),
    } | dict.fromkeys((name for name in PAPERS if name.startswith("diffcse")), ("cosine", 0.05, "other", False, "bn"))
    actual = {}
    for name in PAPERS:
        made = load_composition(name)
        for each in made.objectives:
            if isinstance(each, ContrastiveObjective):
                kind = made.projectors[each.projector].kind if each.projector else None
                actual[name] = (each.similarity, each.temperature, each.candidates, each.symmetric, kind)
    assert actual == expected


def test_objective_weights_match_the_papers() -> None:
    for name in PAPERS:
        weights = {each.name: each.weight for each in load_composition(name).objectives}
        difference = {"sts": 0.005, "transfer": 0.05}.get(name.split("-")[1] if name.startswith("diffcse") else "", 1.0)
        assert weights == dict.fromkeys(weights, 1.0) | (
            {"difference": difference} if name.startswith("diffcse") else {}
        )


def test_decoders_match_the_papers() -> None:
    decoders = {
        name: {
            (decoder.use, decoder.options.get("layers", 2), decoder.options.get("init", "random"))
            for decoder in composition.decoders.values()
            if decoder.use in ("decoder", "condenser")
        }
        for name, composition in ((name, load_composition(name)) for name in PAPERS)
    }
    condenser = "condenser simlm-table7-condenser cocondenser qac-cocondenser qac-cocondenser-mixed"
    random = "cotmae qac-cotmae qac-cotmae-mixed master master-printed"
    expected = {name: {("condenser", 2, "random")} for name in condenser.split()}
    expected |= {name: {("decoder", 2, "random")} for name in random.split()}
    expected |= {name: {("decoder", 2, "copy")} for name in ("simlm", "simlm-mlm", "simlm-ae", "simlm-rtd")}
    assert {name: kinds for name, kinds in decoders.items() if kinds} == expected


# The command lines of the method pages.

SETTINGS = {"--" + item.name.replace("_", "-"): item.name for item in fields(PretrainSettings)}


def read_rows() -> list[tuple[str, str, str]]:
    """Return (page, row, options) of the pre-training options on the method pages.

    A page may name the preset of all its options in a line that begins with "Options after", and define shell variables.
    """
    rows = []
    for page in sorted(METHODS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        default = re.search(r"^Options after `drtk pretrain .*(--preset \S+)`", text, re.MULTILINE)
        for name, value in reversed(re.findall(r'^(\w+)="(.+)"$', text, re.MULTILINE)):
            text = text.replace(f"${name}", value)
        for line in text.splitlines():
            row = line.split("|")[1].strip() if line.startswith("|") else "in the text"
            for options in re.findall(r"`(--(?:preset|set|drop) [^`$]+)`", line):
                if options.startswith("--preset"):
                    rows.append((page.stem, row, options))
                elif default and "VALUE" not in options:
                    rows.append((page.stem, row, f"{default[1]} {options}"))
    return rows


ROWS = read_rows()


def resolve(flags: str) -> tuple[Composition, PretrainSettings]:
    """Return the composition and settings of a command line of `drtk pretrain`."""
    words = shlex.split(flags)
    assert len(words) % 2 == 0, flags
    values: dict[str, list[str]] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        values.setdefault(flag, []).append(value)
    (preset,) = values.pop("--preset")
    found = load_preset(preset)
    assert found.command == "pretrain"
    content, drops = apply_changes(found.content, values.pop("--set", [])), values.pop("--drop", [])
    for model in values.pop("--generator", []):
        content["generator"] = content["generator"] | {"model": model}
    given = {SETTINGS[flag]: json.loads(value) for flag, (value,) in values.items()}
    made = parse_composition(content, preset)
    return made.drop_objectives(drops) if drops else made, merge_settings(PretrainSettings, found.settings, given)


def test_every_documented_variant_is_a_valid_composition() -> None:
    for page, name, flags in ROWS:
        check_composition(resolve(flags)[0], place=f"{page}: {name}")
    for example in get_examples(_build_parser("pretrain")):
        flags = " ".join(re.findall(r"--(?:preset|set|drop) \S+", example))
        check_composition(resolve(flags)[0], place=example)
    counts = {page: sum(row[0] == page for row in ROWS) for page, *_ in ROWS}
    assert (counts["simlm"], counts["diffcse"]) == (15, 13)
    assert counts["master"] >= 12
    assert {"condenser", "cocondenser", "cotmae", "rom", "baselines"} <= counts.keys()
    pages = "".join(page.read_text(encoding="utf-8") for page in METHODS.glob("*.md"))
    assert [name for name in PAPERS if f"`{name}`" not in pages and f"--preset {name}" not in pages] == []
