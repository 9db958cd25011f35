"""Registries: names, descriptions, loading on demand."""

import posixpath
import sys
from pathlib import Path

import pytest

from drtk.errors import UsageError
from drtk.registry import Registry


def test_a_registry_maps_names_to_descriptions_and_imports_what_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registered_tool.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    tools = Registry(
        "tool", {"join": ("posixpath:join", "joins paths"), "value": ("registered_tool:value", "a number")}
    )
    assert list(tools.items()) == [("join", "joins paths"), ("value", "a number")]
    assert (len(tools), "join" in tools, "hammer" in tools) == (2, True, False)
    assert tools.load("join") is posixpath.join
    assert "registered_tool" not in sys.modules
    assert tools.load("value") == 3
    for act in (tools.check_name, tools.load):
        with pytest.raises(UsageError, match=r"unknown tool 'hammer'; choose from join, value"):
            act("hammer")
        with pytest.raises(UsageError, match=r"unknown tool 'Jion'; did you mean join\? Choose from join, value"):
            act("Jion")
