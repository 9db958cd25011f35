"""default < preset < option, with types and bounds checked wherever a value comes from."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest

import drtk
from drtk.config import Idle, knob, load_preset, merge, plain_type, preset_names, to_dict
from drtk.errors import DrtkError, UsageError


@dataclass(frozen=True)
class Oven:
    degrees: int = knob(180, "How hot.", at_least=50, at_most=300)
    hours: float = knob(1.5, "How long.", at_least=0)
    fan: bool = knob(False, "Whether air moves.")
    mode: Literal["bake", "grill"] = knob("bake", "Which heat.")
    trays: tuple[int, ...] = knob((1,), "Which levels.")
    note: str | None = knob(None, "What to remember.", flag="--memo")


def test_options_win_over_presets_and_presets_over_defaults() -> None:
    made = merge(Oven, {"degrees": 200, "hours": 2}, {"degrees": 220, "hours": None, "fan": None})
    assert made == Oven(degrees=220, hours=2.0, fan=False)


def test_an_option_that_was_not_given_is_none_and_false_is_a_choice() -> None:
    assert merge(Oven, {"fan": True}, {"fan": False}).fan is False
    assert merge(Oven, {"fan": True}, {"fan": None}).fan is True


@pytest.mark.parametrize(
    ("preset", "complaint"),
    [
        ({"degree": 200}, "unknown setting 'degree'; choose from degrees, hours, fan, mode, trays, note"),
        ({"degrees": 49}, "--degrees: must be at least 50, is 49"),
        ({"degrees": 301}, "--degrees: must be at most 300, is 301"),
        ({"degrees": "hot"}, "--degrees: expected int, found 'hot'"),
        ({"degrees": 200.5}, "--degrees: expected int, found 200.5"),
        ({"degrees": True}, "--degrees: expected int, found True"),
        ({"hours": "long"}, "--hours: expected float, found 'long'"),
        ({"hours": float("nan")}, "--hours: is not a number"),
        ({"fan": 1}, "--fan: expected bool, found 1"),
        ({"mode": "boil"}, "--mode: 'boil' is not one of bake, grill"),
        ({"trays": "12"}, "--trays: expected a list, found '12'"),
        ({"trays": [1, "2"]}, "--trays: expected int, found '2'"),
        ({"note": 3}, "--memo: expected str, found 3"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_its_flag(preset: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        merge(Oven, preset, {})
    assert complaint in str(caught.value)


@dataclass(frozen=True)
class Walk:
    laps: float = knob(8.0, "Times around.", at_least=0)
    metres: int | None = knob(None, "How far, in place of laps.", instead_of="laps", flag="--far")


@pytest.mark.parametrize(
    ("preset", "given", "expected"),
    [
        ({"metres": 500}, {}, Walk(8.0, 500)),
        ({"metres": 500}, {"laps": 2.0}, Walk(2.0, None)),
        ({"laps": 3.0}, {"metres": 70}, Walk(8.0, 70)),
        ({"metres": 500}, {"metres": 70}, Walk(8.0, 70)),
        ({"metres": 500}, {"laps": None}, Walk(8.0, 500)),
    ],
)
def test_an_option_takes_away_what_a_preset_says_instead(preset: dict, given: dict, expected: Walk) -> None:
    assert merge(Walk, preset, given) == expected


@pytest.mark.parametrize(
    ("preset", "given", "complaint"),
    [
        ({}, {"laps": 2.0, "metres": 500}, "--far and --laps: choose one"),
        ({"laps": 2.0, "metres": 500}, {}, "preset: --far and --laps: choose one"),
    ],
)
def test_two_ways_to_say_one_thing_are_refused_together(preset: dict, given: dict, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        merge(Walk, preset, given)
    assert str(caught.value) == complaint


def test_a_whole_number_serves_where_a_fraction_is_asked_for() -> None:
    made = merge(Oven, {"hours": 2}, {})
    assert (made.hours, type(made.hours)) == (2.0, float)


def test_bounds_are_part_of_what_is_allowed() -> None:
    assert merge(Oven, {"degrees": 50}, {}).degrees == 50
    assert merge(Oven, {"degrees": 300}, {}).degrees == 300


def test_lists_from_toml_become_tuples_and_go_back_as_lists() -> None:
    made = merge(Oven, {"trays": [1, 3]}, {})
    assert made.trays == (1, 3)
    assert to_dict(made)["trays"] == [1, 3]


def test_the_plain_type_leaves_none_away() -> None:
    assert plain_type(str | None) is str
    assert plain_type(int) is int


def test_a_preset_file_of_the_users_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('command = "chunk"\nsummary = "short"\n[settings]\nmax_words = 50\n')
    found = load_preset(str(file))
    assert (found.command, found.summary, found.settings) == ("chunk", "short", {"max_words": 50})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"command = ", "not TOML"),
        (b"[settings]\n", "a preset names its command"),
        (b"command = 3\n", "a preset names its command"),
        (b'command = "train-retriever"\nsettings = 3\n', "'settings' is not a table"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_preset_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    with pytest.raises(DrtkError, match=complaint) as caught:
        load_preset(str(file))
    assert str(caught.value).startswith(str(file))


def test_an_unknown_preset_is_wrong_usage_and_a_missing_file_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown preset 'soup'"):
        load_preset("soup")
    with pytest.raises(DrtkError, match="No such file or directory") as caught:
        load_preset(str(tmp_path / "soup.toml"))
    assert caught.value.status == 1


def test_every_shipped_preset_can_be_read_and_names_a_command() -> None:
    from drtk.cli.main import FUNCTIONS

    for name in preset_names():
        assert load_preset(name).command in FUNCTIONS
        assert load_preset(name).summary


def test_a_misspelt_preset_is_told_what_comes_near():
    with pytest.raises(UsageError, match=r"unknown preset 'simlmm'; did you mean simlm[^?]*\? drtk presets lists them"):
        load_preset("simlmm")


def settings_classes() -> list[type]:
    """Return the dataclasses of options of all packages."""
    found = set()
    for item in pkgutil.walk_packages(drtk.__path__, "drtk."):
        if not item.name.endswith(".config"):
            continue
        module = import_module(item.name)
        found |= {kind for kind in vars(module).values() if isinstance(kind, type) and is_dataclass(kind)}
    return sorted(found, key=lambda kind: (kind.__module__, kind.__name__))


def test_steps_stand_in_place_of_epochs_wherever_a_command_has_both() -> None:
    both = [kind for kind in settings_classes() if {"steps", "epochs"} <= {item.name for item in fields(kind)}]
    assert {"RetrieverConfig", "RerankerConfig", "PretrainSettings"} <= {kind.__name__ for kind in both}
    for kind in both:
        with pytest.raises(UsageError, match="--steps and --epochs: choose one"):
            merge(kind, {}, {"steps": 3, "epochs": 2.0})
        made: Any = merge(kind, {"steps": 3}, {"epochs": 2.0})
        assert (made.steps, made.epochs) == (None, 2.0), kind


@dataclass(frozen=True)
class Boat:
    mast: str = knob("none", "What carries the sail.")
    sail: float = knob(4.0, "How large.", idle=(Idle("goes with --mast", {"mast": ("none",)}),))
    crew: int | None = knob(None, "How many.")
    songs: bool = knob(
        False, "Whether they sing.", idle=(Idle("is for a crew under sail", {"mast": ("wood",), "crew": (None, 0)}),)
    )


@pytest.mark.parametrize(
    ("preset", "given", "complaint"),
    [
        ({}, {"sail": 4.0}, "--sail goes with --mast"),
        ({"mast": "wood"}, {"sail": 6.0, "mast": "none"}, "--sail goes with --mast"),
        ({"mast": "wood"}, {"songs": True}, "--songs is for a crew under sail"),
        ({"mast": "wood", "crew": 3}, {"songs": True, "crew": 0}, "--songs is for a crew under sail"),
    ],
)
def test_an_option_that_does_nothing_beside_the_others_is_refused(preset: dict, given: dict, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        merge(Boat, preset, given)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ({"sail": 6.0, "songs": True}, {}),  # a preset may hold figures of what an option adds
        ({"mast": "wood"}, {"sail": 6.0}),
        ({}, {"sail": 6.0, "mast": "wood"}),
        ({"mast": "wood"}, {"songs": False}),  # to do without is no mistake
        ({"mast": "wood", "crew": 3}, {"songs": True}),
        ({}, {"songs": True, "crew": None}),
    ],
)
def test_an_option_that_does_something_is_taken(preset: dict, given: dict) -> None:
    made = merge(Boat, preset, given)
    assert {name: getattr(made, name) for name in given if given[name] is not None}.items() <= given.items()
