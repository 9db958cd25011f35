"""Registries of named implementations, which are imported on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from drtk.errors import UsageError


class Registry(Mapping[str, str]):
    """A mapping from names to descriptions, in the order of declaration. `load` imports the object of a name.

    kind: what the names stand for in error messages, such as "runner"
    entries: name -> ("module:attribute", description)
    """

    def __init__(self, kind: str, entries: Mapping[str, tuple[str, str]]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: str) -> str:
        """Return `name` unchanged. Raises UsageError if it is not registered."""
        if name not in self._entries:
            raise UsageError(f"unknown {self.kind} '{name}'; choose from {', '.join(self._entries)}")
        return name

    def load(self, name: str) -> Any:
        """Import and return the object that is registered as `name`. Raises UsageError if there is none."""
        return load_attribute(self._entries[self.check(name)][0])


def load_attribute(place: str) -> Any:
    """Import and return the object at `place`, "module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
