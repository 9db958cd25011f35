"""The shipped presets: the figures of the papers, every row of their tables, and a step of each (methods: section 5)."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import BertConfig, BertModel

from drtk.config import load_preset, merge, preset_names
from drtk.models.backbone import BackboneAdapter
from drtk.pretraining.assembly import check_composition
from drtk.pretraining.composition import Composition, Contrast, Recover
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.decoders import READERS
from drtk.pretraining.example_builder import load_views
from drtk.pretraining.parse import apply_changes, parse_composition
from tests.enriched import enriched_corpus
from tests.families import saved_masked_lm
from tests.pretraining import World
from tests.running import command

METHODS = Path(__file__).resolve().parents[3] / "docs" / "methods"


# batch, steps or epochs, lr, warm-up, weight decay, length, held out
SCHEDULES = {
    "mlm": (2048, 8.0, 1e-4, 0.1, 0.01, 144, 0),  # 5.2's recipe
    "condenser": (2048, 8.0, 1e-4, 0.1, 0.01, 144, 0),  # 5.2
    "rom": (2048, 8.0, 1e-4, 0.1, 0.01, 144, 0),  # 5.9: Condenser's
    "cocondenser": (2048, 120_000, 1e-4, 0.1, 0.01, 144, 0),  # 5.3
    "qac-cocondenser": (2048, 120_000, 1e-4, 0.1, 0.01, 144, 0),
    "qac-cocondenser-mixed": (2048, 120_000, 1e-4, 0.1, 0.01, 144, 0),
    "corom": (2048, 120_000, 1e-4, 0.1, 0.01, 144, 0),  # 5.9: coCondenser's
    "cotmae": (16_384, 50_000, 4e-4, 0.1, 0.01, 144, 0),  # 5.4
    "qac-cotmae": (16_384, 50_000, 4e-4, 0.1, 0.01, 144, 0),
    "qac-cotmae-mixed": (16_384, 50_000, 4e-4, 0.1, 0.01, 144, 0),
    "qac-cotmae-released": (16_384, 50_000, 4e-4, 0.1, 0.01, 144, 0),
    "simlm": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 4096),  # 5.6
    "simlm-mlm": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 4096),
    "simlm-rtd": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 4096),
    "simlm-ae": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 4096),
    "simlm-table7-mlm": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 4096),
    "simlm-table7-condenser": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 4096),
    "retromae": (2048, 80_000, 3e-4, 4000.0, 0.0, 144, 0),  # 5.7 names none: SimLM's, beside which it is reported
    "master": (2048, 120_000, 3e-4, 4000.0, 0.0, 144, 0),  # 5.8: "everything else as SimLM"
    "master-printed": (2048, 120_000, 3e-4, 4000.0, 0.0, 144, 0),
    "simcse": (64, 2.0, 3e-5, 0.0, 0.0, 32, 0),  # 5.10; batch and learning rate: SimCSE's released code
    "simcse-roberta": (512, 2.0, 1e-5, 0.0, 0.0, 32, 0),
    "diffcse-sts-bert": (64, 2.0, 7e-6, 0.0, 0.0, 32, 0),
    "diffcse-sts-roberta": (64, 2.0, 1e-5, 0.0, 0.0, 32, 0),
    "diffcse-transfer-bert": (64, 2.0, 2e-6, 0.0, 0.0, 32, 0),
    "diffcse-transfer-roberta": (128, 2.0, 3e-6, 0.0, 0.0, 32, 0),
    "ict": (4096, 100_000, 1e-4, 0.1, 0.01, 288, 0),  # ICT's and Contriever's own papers
    "crop": (2048, 100_000, 5e-5, 0.1, 0.01, 256, 0),
}


PAPERS = [name for name in preset_names() if load_preset(name).command == "pretrain" and name != "mixture-example"]


# slot: view, masking, rate, corruption
WHOLE, BERT = "whole-word", "bert"


PASSAGE_30 = ("passage", WHOLE, 0.30, BERT)


PASSAGE_15 = ("passage", WHOLE, 0.15, BERT)


ROM = ("rom", 0.15, BERT)


SLOTS = {
    "mlm": {"passage": PASSAGE_30},
    "condenser": {"passage": PASSAGE_15},
    "rom": {"passage": ("passage", *ROM)},
    "cocondenser": {"a": ("pair.a", WHOLE, 0.15, BERT), "b": ("pair.b", WHOLE, 0.15, BERT)},
    "qac-cocondenser": {"a": PASSAGE_15, "b": ("query", WHOLE, 0.15, BERT)},
    "qac-cocondenser-mixed": {"a": PASSAGE_15, "b": ("query pair.b", WHOLE, 0.15, BERT)},
    "corom": {"a": ("pair.a", *ROM), "b": ("pair.b", *ROM)},
    "cotmae": {"passage": PASSAGE_30, "context": ("pair.b", WHOLE, 0.45, BERT)},
    "qac-cotmae": {"passage": PASSAGE_30, "context": ("query", WHOLE, 0.45, BERT)},
    "qac-cotmae-mixed": {"passage": PASSAGE_30, "context": ("query pair.b", WHOLE, 0.45, BERT)},
    "qac-cotmae-released": {"passage": PASSAGE_30, "context": ("query", "none", 0.0, "none")},
    "simlm": {
        "encoder": ("passage", WHOLE, 0.30, "replaced"),
        "decoder": ("passage", "extension", 0.50, "replaced"),
    },
    "simlm-mlm": {"encoder": ("passage", WHOLE, 0.30, "mask"), "decoder": ("passage", "extension", 0.50, "mask")},
    "simlm-rtd": {
        "encoder": ("passage", WHOLE, 0.30, "replaced"),
        "decoder": ("passage", "extension", 0.50, "replaced"),
    },
    "simlm-ae": {"encoder": ("passage", "none", 0.0, "none"), "decoder": ("passage", "random", 1.0, "mask")},
    "simlm-table7-mlm": {"passage": PASSAGE_30},
    "simlm-table7-condenser": {"passage": PASSAGE_30},
    "retromae": {"encoder": PASSAGE_30, "decoder": ("passage", "none", 0.0, "none")},
    "master": {
        "passage": PASSAGE_30,
        "keywords": ("passage", "keyword", 0.50, BERT),
        "half": ("passage", WHOLE, 0.50, BERT),
        "complement": ("passage", "complement", 0.0, BERT),
        "before": PASSAGE_30,
        "next": ("next", "keyword", 0.50, BERT),
        "queries": ("queries", WHOLE, 0.50, BERT),
        "continuation": ("continuation", WHOLE, 0.50, BERT),
    },
    "master-printed": {
        "passage": PASSAGE_30,
        "keywords": ("passage", "keyword", 0.50, BERT),
        "complement": ("passage", "complement", 0.0, BERT),
        "next": ("next", "keyword", 0.50, BERT),
        "queries": ("queries", WHOLE, 0.50, BERT),
        "continuation": ("continuation", WHOLE, 0.50, BERT),
    },
    "simcse": dict.fromkeys(("one", "two"), ("passage", "none", 0.0, "none")),
    "simcse-roberta": dict.fromkeys(("one", "two"), ("passage", "none", 0.0, "none")),
    "ict": {"query": ("ict.query", "none", 0.0, "none"), "context": ("ict.context", "none", 0.0, "none")},
    "crop": {"one": ("crop-pair.a", "none", 0.0, "none"), "two": ("crop-pair.b", "none", 0.0, "none")},
}


for _name, _rate in (("sts-bert", 0.30), ("sts-roberta", 0.20), ("transfer-bert", 0.15), ("transfer-roberta", 0.15)):
    SLOTS[f"diffcse-{_name}"] = SLOTS["simcse"] | dict.fromkeys(
        ("changed_one", "changed_two"), ("passage", "bernoulli", _rate, "replaced")
    )


# parameters beside a BERT-base encoder and its head, by reader (5.0): two layers are 14,175,744
EXTRA = {
    "condenser": 14_175_744,
    "cocondenser": 14_175_744,
    "qac-cocondenser": 14_175_744,
    "qac-cocondenser-mixed": 14_175_744,
    "cotmae": 14_175_744,
    "qac-cotmae": 14_175_744,
    "simlm": 14_175_744,
    "simlm-mlm": 14_175_744,
    "simlm-ae": 14_175_744,
    "simlm-table7-condenser": 14_175_744,
    "simlm-table7-mlm": 0,
    "retromae": 7_087_872,
    "master": 70_878_720,
    "master-printed": 70_878_720,
    "mlm": 0,
    "rom": 0,
    "corom": 0,
    "simcse": 0,
    "simcse-roberta": 0,
}


def plan(name: str) -> Composition:
    return parse_composition(load_preset(name).content, name)


@pytest.mark.parametrize("name", PAPERS)
def test_schedules_are_those_of_the_papers(name: str) -> None:
    found = dict(load_preset(name).settings)
    batch, length, lr, warmup, decay, tokens, held = SCHEDULES[name]
    assert found.pop("batch") == batch
    assert found.pop("epochs" if isinstance(length, float) else "steps") == length
    assert found.pop("lr") == lr
    assert found.pop("warmup") == warmup
    assert found.pop("weight_decay") == decay
    assert found.pop("max_length") == tokens
    assert found.pop("held_out", 0) == held
    assert found == ({"eval_every": 125} if name.startswith(("diffcse", "simcse")) else {})


@pytest.mark.parametrize("name", PAPERS)
def test_slots_show_what_the_papers_show(name: str) -> None:
    found = {
        slot: (" ".join(each.view), each.masking, each.rate, each.corruption) for slot, each in plan(name).slots.items()
    }
    assert found == SLOTS[name]


def test_what_slots_say_besides() -> None:
    slots = {name: plan(name).slots for name in PAPERS}
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


def test_all_rows_of_query_as_context_pair_random_passages_of_a_document() -> None:
    examples = {name: plan(name).example for name in PAPERS if "cotmae" in name or "cocondenser" in name}
    assert [name for name, example in examples.items() if example == "document"] == ["cocondenser"]
    # the baseline of methods/cotmae.md with a pair for each passage
    changes = ["example=passage", "slots.a.view=passage", "slots.b.spans=random"]
    paired = parse_composition(apply_changes(dict(load_preset("cocondenser").content), changes), "cocondenser")
    mixed_plan = plan("qac-cocondenser-mixed")
    assert (paired.example, load_views(paired, "a")) == (mixed_plan.example, load_views(mixed_plan, "a"))
    assert load_views(paired, "b") == load_views(mixed_plan, "b")[1:]
    baselines = {"cotmae": "context", "cocondenser": "b"}
    mixed = {"qac-cotmae-mixed": "context", "qac-cocondenser-mixed": "b"}
    found = {name: load_views(plan(name), slot)[-1] for name, slot in (baselines | mixed).items()}
    assert {(view.name, view.part) for view in found.values()} == {("pair", "b")}
    spans = {name: view.options["spans"] for name, view in found.items()}
    assert spans.pop("cocondenser") == "distinct"  # one pair for each document: two random passages
    assert set(spans.values()) == {"random"}


def test_master_printed_differs_from_the_released_form_in_its_encoder_passes_alone() -> None:
    released, printed = plan("master"), plan("master-printed")
    assert dict(load_preset("master").settings) == dict(load_preset("master-printed").settings)
    passes = [[each.name for each in made.objectives if not each.vectors_of] for made in (released, printed)]
    assert passes == [["mlm", "mlm_cmp", "mlm_npr"], ["mlm"]]
    decoders = [{each.name: each for each in made.objectives if each.vectors_of} for made in (released, printed)]
    assert list(decoders[0]) == list(decoders[1]) == ["mkp", "cmp", "npr", "dor", "gor"]
    assert {each.vectors_of for each in decoders[1].values()} == {("passage",)}
    for name, each in decoders[1].items():
        assert (each.tokens_of, each.group) == (decoders[0][name].tokens_of, decoders[0][name].group)
    (slot,) = [name for name in printed.slots if printed.slots[name] != released.slots[name]]
    assert (slot, printed.slots[slot].of, released.slots[slot].of) == ("complement", "passage", "half")


def test_rows_of_simlms_table_7_differ_in_objective_and_corruption() -> None:
    page = (METHODS / "simlm.md").read_text(encoding="utf-8")
    table = page.partition("| row (Table 7)")[2].partition("\n\n")[0]
    names = re.findall(r"`--preset (\S+)`", table)
    assert names == ["simlm", "simlm-mlm", "simlm-table7-condenser", "simlm-table7-mlm", "simlm-rtd", "simlm-ae"]
    assert table.count("`--") == len(names)  # no row has flags of its own
    settings = [merge(PretrainSettings, load_preset(name).settings, {}) for name in names]
    assert settings == [settings[0]] * len(names)
    plans = {name: plan(name) for name in names}
    assert len({(made.example, made.title, made.crop, made.pooling) for made in plans.values()}) == 1
    encoded = {name: next(iter(made.slots.values())) for name, made in plans.items() if name != "simlm-ae"}  # unmasked
    reads = {(slot.view, slot.masking, slot.rate, slot.count, slot.max_length) for slot in encoded.values()}
    assert reads == {(("passage",), "whole-word", 0.30, "with-specials", None)}
    assert {name: slot.corruption for name, slot in encoded.items()} == {
        "simlm": "replaced",
        "simlm-mlm": "mask",
        "simlm-table7-condenser": "bert",
        "simlm-table7-mlm": "bert",
        "simlm-rtd": "replaced",
    }


def test_views_keep_the_figures_that_presets_leave_to_them() -> None:
    import inspect

    from drtk.pretraining.views import VIEWS

    assert inspect.signature(VIEWS.load("ict")).parameters["remove"].default == 0.9
    crop = inspect.signature(VIEWS.load("crop-pair")).parameters
    assert (crop["shortest"].default, crop["longest"].default) == (0.05, 0.5)


def test_generators_are_the_papers() -> None:
    for name in ("simlm", "simlm-rtd"):
        made = plan(name).generator
        assert made is not None
        assert (made.model, made.mode, made.decode, made.scope, made.reads) == (
            "google/electra-base-generator",
            "frozen",
            "sample",
            "masked",
            "mask",
        )
    for task, model in (("bert", "distilbert-base-uncased"), ("roberta", "distilroberta-base")):
        for kind in ("sts", "transfer"):
            made = plan(f"diffcse-{kind}-{task}").generator
            assert made is not None
            assert (made.model, made.mode, made.decode, made.scope, made.reads) == (
                model,
                "frozen",
                "argmax",
                "all",
                "bert",
            )


def test_contrasts_compare_as_the_papers_do() -> None:
    wanted = {  # similarity, temperature, candidates, symmetric, projector
        "cocondenser": ("dot", 1.0, "all", True, None),
        "qac-cocondenser": ("dot", 1.0, "all", True, None),
        "qac-cocondenser-mixed": ("dot", 1.0, "all", True, None),
        "corom": ("dot", 1.0, "all", True, None),
        "simcse": ("cosine", 0.05, "other", False, "tanh"),
        "simcse-roberta": ("cosine", 0.05, "other", False, "tanh"),
        "ict": ("dot", 1.0, "other", False, None),
        "crop": ("dot", 0.05, "other", False, None),
    } | dict.fromkeys((name for name in PAPERS if name.startswith("diffcse")), ("cosine", 0.05, "other", False, "bn"))
    found = {}
    for name in PAPERS:
        made = plan(name)
        for each in made.objectives:
            if isinstance(each, Contrast):
                kind = made.projectors[each.projector].kind if each.projector else None
                found[name] = (each.similarity, each.temperature, each.candidates, each.symmetric, kind)
    assert found == wanted


def test_terms_weigh_one_but_diffcses_difference() -> None:
    for name in PAPERS:
        weights = {each.name: each.weight for each in plan(name).objectives}
        difference = {"sts": 0.005, "transfer": 0.05}.get(name.split("-")[1] if name.startswith("diffcse") else "", 1.0)
        assert weights == dict.fromkeys(weights, 1.0) | (
            {"difference": difference} if name.startswith("diffcse") else {}
        )


@pytest.mark.parametrize("name", EXTRA)
def test_presets_add_the_parameters_that_the_papers_count(name: str) -> None:
    made = plan(name)
    with torch.device("meta"):
        anatomy = BackboneAdapter(BertModel(BertConfig()))
        readers = {
            each.reader: READERS.load(made.readers[each.reader].use)(anatomy, **made.readers[each.reader].options)
            for each in made.recovers
        }
    assert sum(weight.numel() for each in readers.values() for weight in each.parameters()) == EXTRA[name]


def test_copies_and_fresh_layers_are_told_apart() -> None:
    for name in PAPERS:
        made = plan(name)
        options = [made.readers[each.reader] for each in made.objectives if isinstance(each, Recover)]
        begun = {each.options.get("init", "random") for each in options if each.use == "decoder"}
        assert begun in (set(), {"copy"} if name.startswith("simlm") else {"random"}), name


METHODS = Path(__file__).resolve().parents[3] / "docs" / "methods"


SETTINGS = {"--" + item.name.replace("_", "-"): item.name for item in fields(PretrainSettings)}


class Row(NamedTuple):
    """A row of a table: the page it is on, what it is called there, and its command line."""

    page: str
    name: str
    flags: str


def rows() -> list[Row]:
    """The rows whose cells hold a command that begins with --preset, and commands in the running text."""
    found = []
    for page in sorted(METHODS.glob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            for flags in re.findall(r"`(--preset [^`]+)`", line):
                name = line.split("|")[1].strip() if line.startswith("|") else "in the text"
                found.append(Row(page.stem, name, flags))
    return found


ROWS = rows()


class Resolved(NamedTuple):
    plan: Composition
    settings: PretrainSettings
    generator: str | None


def resolved(flags: str) -> Resolved:
    """What `drtk pretrain` composes of a command line; a flag it does not have is a fault."""
    preset, generator = "", None
    changes: list[str] = []
    drops: list[str] = []
    given: dict[str, Any] = {}
    words = shlex.split(flags)
    assert len(words) % 2 == 0, flags
    for flag, value in zip(words[::2], words[1::2], strict=True):
        if flag == "--preset":
            preset = value
        elif flag == "--set":
            changes.append(value)
        elif flag == "--drop":
            drops.append(value)
        elif flag == "--generator":
            generator = value
        else:
            number = float(value)
            given[SETTINGS[flag]] = int(number) if number.is_integer() and "." not in value else number
    found = load_preset(preset)
    assert found.command == "pretrain"
    content = apply_changes(found.content, changes)
    if generator is not None:
        content["generator"] = content["generator"] | {"model": generator}
    plan = parse_composition(content, preset)
    return Resolved(plan.without(drops) if drops else plan, merge(PretrainSettings, found.settings, given), generator)


def test_every_row_of_a_page_is_a_composition_of_parts_that_exist() -> None:
    for row in ROWS:
        check_composition(resolved(row.flags).plan, place=f"{row.page}: {row.name}")


def test_the_pages_have_the_rows_of_the_papers() -> None:
    counts = {page: sum(row.page == page for row in ROWS) for page in {row.page for row in ROWS}}
    # SimLM: 6 of Table 7 that train, 6 rates, 3 generators. DiffCSE: 5 + 6 + 4 + 7 + 6 + 8 + 6, and 4 other readings.
    assert counts["simlm"] == 15
    assert counts["diffcse"] == 46
    assert counts["master"] >= 12
    for page in ("condenser", "cocondenser", "cotmae", "rom", "baselines"):
        assert counts[page] >= 1, page


def test_every_preset_has_its_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in METHODS.glob("*.md"))
    for name in PAPERS:
        assert f"`{name}`" in pages or f"--preset {name}" in pages


def of_page(page: str, name: str) -> Resolved:
    """The row of a name, which must be on its page once."""
    (found,) = {row.flags for row in ROWS if (row.page, row.name) == (page, name)}
    return resolved(found)


def difference(plan: Composition) -> Recover:
    (found,) = (each for each in plan.objectives if isinstance(each, Recover))
    return found


def contrast(plan: Composition) -> Contrast:
    (found,) = (each for each in plan.objectives if isinstance(each, Contrast))
    return found


BOTH = ("changed_one", "changed_two")


def test_simcse_and_diffcse_differ_by_the_difference() -> None:
    whole, zero = of_page("diffcse", "DiffCSE").plan, of_page("diffcse", "0").plan
    assert [each.name for each in whole.objectives] == ["contrast", "difference"]
    assert [each.name for each in zero.objectives] == ["contrast"]
    assert (list(zero.slots), zero.generator) == (["one", "two"], None)
    alone = of_page("diffcse", "without contrastive loss").plan
    assert [each.name for each in alone.objectives] == ["difference"]
    assert alone.projectors["head"].slots == ("one", "two")


def test_rows_of_diffcse_differ_in_projector_slots_and_target() -> None:
    kinds = {"SimCSE": "tanh", "SimCSE with batch norm": "bn", "DiffCSE": "bn", "without batch norm": "tanh"}
    assert {name: of_page("diffcse", name).plan.projectors["head"].kind for name in kinds} == kinds
    both = ["passage"] * 2 + ["next"] * 2
    for name, views in (("differences in the next sentence", ["next"] * 2), ("in the same and the next", both)):
        plan = of_page("diffcse", name).plan
        wanted = difference(plan)
        assert [plan.slots[slot].view[0] for slot in wanted.slot] == views
        assert wanted.source == ("one", "two") * (len(views) // 2)
        assert {plan.slots[slot].corruption for slot in wanted.slot} == {"replaced"}
    for name, views in (("same", ["passage"] * 2), ("next", ["next"] * 2), ("both", both)):
        plan = of_page("diffcse", f"conditional MLM, {name}").plan
        wanted = difference(plan)
        assert (wanted.target, wanted.reduction, plan.generator) == ("masked", "mean", None)
        assert [plan.slots[slot].view[0] for slot in wanted.slot] == views
        assert {plan.slots[slot].corruption for slot in wanted.slot} == {"bert"}
    plan = of_page("diffcse", "conditional corrective LM").plan
    assert difference(plan).target == "corrected"
    assert plan.slots["changed_one"].corruption == "replaced"
    edits = {"15% replaced": "replaced", "15% inserted": "inserted", "15% deleted": "deleted", "all": "any"}
    for name, corruption in edits.items():
        plan = of_page("diffcse", name).plan
        assert [(plan.slots[slot].corruption, plan.slots[slot].rate) for slot in BOTH] == [(corruption, 0.15)] * 2
        assert difference(plan).target == "edited"
        assert (plan.generator is None) == (corruption == "deleted")


def test_generators_rates_and_lambdas_are_those_of_the_tables() -> None:
    assert of_page("diffcse", "large").plan.generator.model == "bert-large-uncased"  # type: ignore[union-attr]
    shares = {f"{share}%": share / 100 for share in (15, 20, 25, 30, 40, 50)}
    found = {name: of_page("diffcse", name).plan.slots for name in shares}
    assert {name: slots["changed_one"].rate for name, slots in found.items()} == shares
    assert {name: slots["changed_two"].rate for name, slots in found.items()} == shares
    for name in (".0001", ".0005", ".001", ".005", ".01", ".05", ".1"):
        assert difference(of_page("diffcse", name).plan).weight == float(name)


@pytest.mark.parametrize("kind", ["positive", "negative"])
@pytest.mark.parametrize(
    ("how", "corruption"), [("replaced by MLM", "replaced"), ("inserted", "inserted"), ("deleted", "deleted")]
)
def test_the_change_as_a_positive_or_a_negative(kind: str, how: str, corruption: str) -> None:
    plan = of_page("diffcse", f"{kind}, {how}").plan
    assert (contrast(plan).extra_positives, contrast(plan).extra_negatives) == (
        (("other",), ()) if kind == "positive" else ((), ("other",))
    )
    assert (plan.slots["other"].corruption, plan.slots["other"].rate) == (corruption, 0.15)
    assert list(plan.slots) == ["one", "two", "other"]
    assert plan.projectors["head"].slots == ("one", "two", "other")
    assert (plan.generator is None) == (corruption == "deleted")


def test_the_rates_of_simlm() -> None:
    for encoder, decoder in ((15, 15), (15, 30), (30, 30), (30, 50), (40, 60), (30, 100)):
        slots = of_page("simlm", f"{encoder}, {decoder}").plan.slots
        assert (slots["encoder"].rate, slots["decoder"].rate) == (encoder / 100, decoder / 100)


def test_the_generators_of_simlm() -> None:
    frozen, joint, drawn = (
        of_page("simlm", name).plan.generator for name in ("frozen", "joint", "joint, from random weights")
    )
    assert [each and (each.mode, each.init, each.model) for each in (frozen, joint, drawn)] == [
        ("frozen", "model", "google/electra-base-generator"),
        ("joint", "model", "google/electra-base-generator"),
        ("joint", "random", "google/electra-base-generator"),  # its shape
    ]
    assert joint is not None
    assert (joint.slot, joint.weight) == ("encoder", 0.2)


def test_master_with_one_decoder_and_with_halves_and_with_one_pass() -> None:
    shared = of_page("master", "one decoder for all").plan
    decoders = [each for each in shared.objectives if isinstance(each, Recover) and each.source]
    assert (len(decoders), {each.reader for each in decoders}) == (5, {"shared"})
    halves = of_page("master", "next passage as the second half").plan.slots
    assert (halves["before"].view, halves["next"].view) == (("halves.a",), ("halves.b",))
    one_pass = of_page("master", "complement of the 30% mask").plan
    assert one_pass.slots["complement"].of == "passage"
    assert "half" not in one_pass.slots
    assert "mlm_cmp" not in [each.name for each in one_pass.objectives]


def test_settings_in_the_text_are_options_of_the_command() -> None:
    (original,) = [row for row in ROWS if row.page == "cotmae" and "1200000" in row.flags]
    settings = resolved(original.flags).settings
    assert (settings.steps, settings.batch, settings.lr, settings.max_length) == (1_200_000, 512, 1e-4, 128)


def shape(flags: str) -> str:
    """A composition without rates, weights and the generator's name, which change no part of a step."""
    plan, _, _ = resolved(flags)
    slots = {name: replace(slot, rate=float(slot.rate > 0)) for name, slot in plan.slots.items()}
    objectives = tuple(replace(each, weight=1.0) for each in plan.objectives)
    generator = plan.generator and replace(plan.generator, model="")
    return repr(replace(plan, slots=slots, objectives=objectives, generator=generator))


# Rows with titles need a corpus whose titles have weights.
SHAPES = [*{shape(row.flags): row.flags for row in ROWS if row.page == "master" and "title=" not in row.flags}.values()]
SHAPES += ["--preset simlm --set generator.mode=joint --set generator.slot=encoder --set generator.init=random"]


@pytest.mark.parametrize("flags", SHAPES)
def test_a_step_of_a_row_trains_the_encoder(flags: str, world: World) -> None:
    """tests/unit/pretraining/test_against_references.py has the other presets and the rows of DiffCSE."""
    plan = resolved(flags).plan
    if plan.generator is not None:
        plan = replace(plan, generator=replace(plan.generator, model=str(world.generator)))
    stage = world.stage_of(plan)
    stage.network.train()
    terms = stage.terms(stage.batch(0, 1, 2, 3))
    assert set(terms) >= {each.name for each in plan.objectives}
    assert all(math.isfinite(value.item()) for value in terms.values()), terms
    terms["total"].backward()
    first = stage.network.anatomy.layers[0]
    assert all(each.grad is not None and each.grad.any() for each in first.parameters() if each.dim() == 2)


CALL = ["--batch", "4", "--steps", "1", "--max-length", "32", "--log-every", "1", "--warmup", "0", "-q"]


@pytest.mark.parametrize("preset", ["diffcse-sts-bert", "master", "cocondenser"])
def test_a_preset_trains_and_logs_its_terms(
    preset: str, world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """tests/slow/test_every_preset.py trains all of them."""
    content = load_preset(preset).content
    call = ["pretrain", world.corpus, "--preset", preset, "--model", world.model, "-o", tmp_path / "out", *CALL]
    command(capfd, *call, "--held-out", "2", *(["--generator", world.generator] if "generator" in content else []))
    before, step, _ = (json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines())
    for objective in content["objective"]:
        name = objective["name"]
        assert math.isfinite(step[name])
        assert math.isfinite(before[f"held_out_{name}"])
        assert (f"gain_{name}" in before) == ("source" in objective or name == "head")


@pytest.mark.parametrize("preset", ["diffcse-sts-roberta", "simlm", "master"])
def test_presets_train_a_roberta_with_byte_level_pieces(
    preset: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved_masked_lm("roberta", tmp_path / "model")
    saved_masked_lm("roberta", tmp_path / "generator", num_hidden_layers=1)
    corpus = enriched_corpus(tmp_path / "corpus.jsonl", tmp_path / "model", documents=6)
    call = ["pretrain", corpus, "--preset", preset, "--model", tmp_path / "model", "-o", tmp_path / "out", *CALL]
    call += ["--held-out", "0", *(["--generator", tmp_path / "generator"] if preset != "master" else [])]
    command(capfd, *call)
    (line,) = (json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines())
    assert all(0 < line[objective["name"]] < math.inf for objective in load_preset(preset).content["objective"])
