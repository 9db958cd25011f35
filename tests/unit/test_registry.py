"""A registry names its choices, and imports only what is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from drtk.errors import UsageError
from drtk.registry import Registry

TOOLS = Registry(
    "tool",
    {"join": ("posixpath:join", "puts paths together"), "dict": ("collections:OrderedDict", "remembers the order")},
)


def test_a_registry_is_a_mapping_from_names_to_descriptions_in_the_order_declared() -> None:
    assert dict(TOOLS) == {"join": "puts paths together", "dict": "remembers the order"}
    assert list(TOOLS) == ["join", "dict"]
    assert len(TOOLS) == 2
    assert "join" in TOOLS
    assert "hammer" not in TOOLS


def test_load_gives_the_attribute_itself() -> None:
    import posixpath

    assert TOOLS.load("join") is posixpath.join


@pytest.mark.parametrize("ask", [TOOLS.check, TOOLS.load])
def test_an_unknown_name_is_refused_with_the_choices(ask: object) -> None:
    with pytest.raises(UsageError, match=r"unknown tool 'hammer'; choose from join, dict"):
        ask("hammer")  # type: ignore[operator]


def test_declaring_an_entry_does_not_import_it() -> None:
    program = (
        "import sys; from drtk.registry import Registry\n"
        "tools = Registry('tool', {'w': ('wave:open', 'x')}); print('wave' in sys.modules)\n"
        "tools.load('w'); print('wave' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]
