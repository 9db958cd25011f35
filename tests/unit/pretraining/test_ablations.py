"""Every row of the papers' tables, as the pages of docs/methods give it, is a composition, and it is the one that is meant."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from drtk.config import load_preset, merge, preset_names
from drtk.pretraining.assembly import check_composition
from drtk.pretraining.composition import Composition, Contrast, Recover
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.parse import apply_changes, parse_composition

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


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.page}: {row.name}: {row.flags[9:70]}" for row in ROWS])
def test_every_row_of_a_page_is_a_composition_of_parts_that_exist(row: Row) -> None:
    check_composition(resolved(row.flags).plan, place=row.name)


def test_the_pages_have_the_rows_of_the_papers() -> None:
    counts = {page: sum(row.page == page for row in ROWS) for page in {row.page for row in ROWS}}
    # SimLM: 6 of Table 7 that train, 6 rates, 3 generators. DiffCSE: 5 + 6 + 4 + 7 + 6 + 8 + 6, and 4 other readings.
    assert counts["simlm"] == 15
    assert counts["diffcse"] == 46
    assert counts["master"] >= 12
    for page in ("condenser", "cocondenser", "cotmae", "rom", "baselines"):
        assert counts[page] >= 1, page


@pytest.mark.parametrize("name", [name for name in preset_names() if load_preset(name).command == "pretrain"])
def test_every_preset_has_its_page(name: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in METHODS.glob("*.md"))
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [("SimCSE", "tanh"), ("SimCSE with batch norm", "bn"), ("DiffCSE", "bn"), ("without batch norm", "tanh")],
)
def test_projectors(name: str, kind: str) -> None:
    assert of_page("diffcse", name).plan.projectors["head"].kind == kind


@pytest.mark.parametrize(
    ("name", "views"),
    [
        ("differences in the next sentence", ["next", "next"]),
        ("in the same and the next", ["passage"] * 2 + ["next"] * 2),
    ],
)
def test_the_vector_of_a_sentence_tells_what_changed_in_the_next(name: str, views: list[str]) -> None:
    plan = of_page("diffcse", name).plan
    wanted = difference(plan)
    assert [plan.slots[slot].view[0] for slot in wanted.slot] == views
    assert [plan.slots[slot].view[0] for slot in wanted.source] == ["passage"] * len(views)
    assert wanted.source == ("one", "two") * (len(views) // 2)
    assert {plan.slots[slot].corruption for slot in wanted.slot} == {"replaced"}


@pytest.mark.parametrize(
    ("name", "views"),
    [
        ("conditional MLM, same", ["passage", "passage"]),
        ("conditional MLM, next", ["next", "next"]),
        ("conditional MLM, both", ["passage", "passage", "next", "next"]),
    ],
)
def test_conditional_mlm_predicts_hidden_words_and_needs_no_generator(name: str, views: list[str]) -> None:
    plan = of_page("diffcse", name).plan
    wanted = difference(plan)
    assert (wanted.target, wanted.reduction, plan.generator) == ("masked", "mean", None)
    assert [plan.slots[slot].view[0] for slot in wanted.slot] == views
    assert {plan.slots[slot].corruption for slot in wanted.slot} == {"bert"}


def test_corrective_lm_sees_replaced_words() -> None:
    plan = of_page("diffcse", "conditional corrective LM").plan
    assert difference(plan).target == "corrected"
    assert plan.slots["changed_one"].corruption == "replaced"
    assert plan.generator is not None


@pytest.mark.parametrize(
    ("name", "corruption", "generated"),
    [
        ("15% replaced", "replaced", True),
        ("15% inserted", "inserted", True),
        ("15% deleted", "deleted", False),
        ("all", "any", True),
    ],
)
def test_augmentations_at_15_percent(name: str, corruption: str, generated: bool) -> None:
    plan = of_page("diffcse", name).plan
    assert [(plan.slots[slot].corruption, plan.slots[slot].rate) for slot in BOTH] == [(corruption, 0.15)] * 2
    assert difference(plan).target == "edited"
    assert (plan.generator is not None) == generated


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
