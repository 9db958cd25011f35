"""Registries: every entry loads and has a description."""

from importlib import import_module

import pytest

from drtk.errors import UsageError
from drtk.registry import Registry
from tests.contract.test_imports import modules, path_of


def find_registries() -> dict[str, Registry]:
    """Return {place: registry}, such as `indexing:INDEXES` and `data.writers:FORMATS.passages`."""
    registries: dict[str, Registry] = {}
    for module in modules():
        if "Registry(" not in path_of(module).read_text(encoding="utf-8") or module == "registry":
            continue
        for name, value in vars(import_module(f"drtk.{module}")).items():
            held = value.items() if isinstance(value, dict) else [(None, value)]
            for key, item in held:
                if isinstance(item, Registry):
                    registries[f"{module}:{name}" + (f".{key}" if key else "")] = item
    return registries


REGISTRIES = find_registries()
ENTRIES = [(place, name) for place, registry in REGISTRIES.items() for name in registry]


def test_the_registries_are_found():
    kinds = {registry.kind for registry in REGISTRIES.values()}
    assert {"index type", "retriever loss"} <= kinds, kinds
    sources = sum(path_of(name).read_text(encoding="utf-8").count("Registry(") for name in modules())
    assert len(REGISTRIES) == sources - 1  # all but the class itself


@pytest.mark.parametrize("place", REGISTRIES)
def test_every_entry_loads_and_has_a_description_and_an_unknown_name_is_rejected_with_all_choices(place):
    registry = REGISTRIES[place]
    with pytest.raises(UsageError) as caught:
        registry.load("no-such-thing")
    assert registry.kind in str(caught.value)
    assert all(name in str(caught.value) for name in registry)
    for name in registry:
        assert registry.load(name) is not None, name
        description = registry[name]
        assert len(description.split()) >= 2, name
        assert description == description.strip(), name
        assert "\n" not in description, name
        assert not description.endswith("."), name  # it is part of lists
