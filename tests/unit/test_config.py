"""Defaults, presets and options: precedence, types, bounds, options without effect."""

import pkgutil
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest

import drtk
from drtk.config import NoEffect, list_preset_names, load_preset, merge_settings, option, strip_optional, to_dict
from drtk.errors import DrtkError, UsageError


@dataclass(frozen=True)
class Oven:
    degrees: int = option(180, "How hot.", at_least=50, at_most=300)
    hours: float = option(1.5, "How long.", at_least=0)
    fan: bool = option(False, "Whether air moves.")
    mode: Literal["bake", "grill"] = option("bake", "Which heat.")
    trays: tuple[int, ...] = option((1,), "Which levels.")
    note: str | None = option(None, "What to remember.", flag="--memo")


def test_options_override_presets_and_presets_override_defaults() -> None:
    preset = {"degrees": 200, "hours": 2, "fan": True, "trays": [1, 3]}
    made = merge_settings(Oven, preset, {"degrees": 300, "hours": None, "fan": False})
    assert made == Oven(degrees=300, hours=2.0, fan=False, trays=(1, 3))
    assert type(made.hours) is float
    assert to_dict(made)["trays"] == [1, 3]
    assert merge_settings(Oven, preset, {"fan": None, "degrees": 50}) == Oven(50, 2.0, True, trays=(1, 3))
    assert (strip_optional(str | None), strip_optional(int)) == (str, int)


@pytest.mark.parametrize(
    ("preset", "problem"),
    [
        ({"degree": 200}, "unknown setting 'degree'; choose from degrees, hours, fan, mode, trays, note"),
        ({"degrees": 49}, "--degrees: must be at least 50, is 49"),
        ({"degrees": 301}, "--degrees: must be at most 300, is 301"),
        ({"degrees": "hot"}, "--degrees: expected int, got 'hot'"),
        ({"hours": "long"}, "--hours: expected float, got 'long'"),
        ({"hours": float("nan")}, "--hours: must be a number, is nan"),
        ({"fan": 1}, "--fan: expected bool, got 1"),
        ({"mode": "boil"}, "--mode: 'boil' is not one of bake, grill"),
        ({"trays": "12"}, "--trays: expected a list, got '12'"),
        ({"note": 3}, "--memo: expected str, got 3"),
    ],
)
def test_an_invalid_value_is_rejected_with_its_option(preset: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        merge_settings(Oven, preset, {})
    assert problem in str(caught.value)


@dataclass(frozen=True)
class Walk:
    laps: float = option(8.0, "Times around.", at_least=0)
    meters: int | None = option(None, "How far, in place of laps.", replaces="laps", flag="--far")


@pytest.mark.parametrize(
    ("preset", "given", "expected"),
    [
        ({"meters": 500}, {}, Walk(8.0, 500)),
        ({"meters": 500}, {"laps": 2.0}, Walk(2.0, None)),
        ({"laps": 3.0}, {"meters": 70}, Walk(8.0, 70)),
        ({"meters": 500}, {"meters": 70}, Walk(8.0, 70)),
        ({"meters": 500}, {"laps": None}, Walk(8.0, 500)),
    ],
)
def test_an_option_discards_the_presets_value_that_it_replaces(preset: dict, given: dict, expected: Walk) -> None:
    assert merge_settings(Walk, preset, given) == expected


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"command = ", "not TOML"),
        (b"[settings]\n", 'has no key "command"'),
        (b"command = 3\n", 'has no key "command"'),
        (b'command = "train-retriever"\nsettings = 3\n', "'settings' is not a table"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_preset_that_cannot_be_read_is_rejected(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    with pytest.raises(DrtkError, match=problem) as caught:
        load_preset(str(file))
    assert str(caught.value).startswith(str(file))


def test_a_preset_is_a_file_or_a_shipped_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('command = "chunk"\nsummary = "short"\n[settings]\nmax_words = 50\n')
    actual = load_preset(str(file))
    assert (actual.command, actual.summary, actual.settings) == ("chunk", "short", {"max_words": 50})
    with pytest.raises(UsageError, match=r"unknown preset 'simlmm'; did you mean simlm"):
        load_preset("simlmm")
    with pytest.raises(DrtkError, match="No such file or directory") as caught:
        load_preset(str(tmp_path / "soup.toml"))
    assert caught.value.status == 1


def test_every_shipped_preset_names_a_command() -> None:
    from drtk.cli.main import load_functions

    commands = load_functions()
    for name in list_preset_names():
        assert load_preset(name).command in commands
        assert load_preset(name).summary


def settings_classes() -> list[type]:
    """Return the dataclasses of options of all packages."""
    found = set()
    for item in pkgutil.walk_packages(drtk.__path__, "drtk."):
        if not item.name.endswith(".config"):
            continue
        module = import_module(item.name)
        found |= {kind for kind in vars(module).values() if isinstance(kind, type) and is_dataclass(kind)}
    return sorted(found, key=lambda kind: (kind.__module__, kind.__name__))


def test_steps_replace_epochs_in_every_command() -> None:
    both = [kind for kind in settings_classes() if {"max_steps", "epochs"} <= {item.name for item in fields(kind)}]
    assert {"RetrieverConfig", "RerankerConfig", "PretrainSettings"} <= {kind.__name__ for kind in both}
    for kind in both:
        with pytest.raises(UsageError, match="--max-steps and --epochs cannot be combined"):
            merge_settings(kind, {}, {"max_steps": 3, "epochs": 2.0})
        made: Any = merge_settings(kind, {"max_steps": 3}, {"epochs": 2.0})
        assert (made.max_steps, made.epochs) == (None, 2.0), kind


@dataclass(frozen=True)
class Boat:
    mast: str = option("none", "What carries the sail.")
    sail: float = option(4.0, "How large.", no_effect=(NoEffect("goes with --mast", {"mast": ("none",)}),))
    crew: int | None = option(None, "How many.")
    songs: bool = option(
        False,
        "Whether they sing.",
        no_effect=(NoEffect("is for a crew under sail", {"mast": ("wood",), "crew": (None, 0)}),),
    )


@pytest.mark.parametrize(
    ("kind", "preset", "given", "problem"),
    [
        (Boat, {}, {"sail": 4.0}, "--sail goes with --mast"),
        (Boat, {"mast": "wood"}, {"sail": 6.0, "mast": "none"}, "--sail goes with --mast"),
        (Boat, {"mast": "wood"}, {"songs": True}, "--songs is for a crew under sail"),
        (Boat, {"mast": "wood", "crew": 3}, {"songs": True, "crew": 0}, "--songs is for a crew under sail"),
        (Walk, {}, {"laps": 2.0, "meters": 500}, "--far and --laps cannot be combined; give one"),
        (Walk, {"laps": 2.0, "meters": 500}, {}, "preset: --far and --laps cannot be combined; give one"),
    ],
)
def test_options_without_effect_or_that_replace_each_other_are_rejected(
    kind: type, preset: dict, given: dict, problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        merge_settings(kind, preset, given)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ({"sail": 6.0, "songs": True}, {}),  # a preset may set options without effect
        ({"mast": "wood"}, {"sail": 6.0}),
        ({}, {"sail": 6.0, "mast": "wood"}),
        ({"mast": "wood"}, {"songs": False}),  # switched off
        ({"mast": "wood", "crew": 3}, {"songs": True}),
        ({}, {"songs": True, "crew": None}),
    ],
)
def test_an_option_with_effect_is_accepted(preset: dict, given: dict) -> None:
    made = merge_settings(Boat, preset, given)
    assert {name: getattr(made, name) for name in given if given[name] is not None}.items() <= given.items()
