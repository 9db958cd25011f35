"""Registries of named implementations, which are imported on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
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

    def check_name(self, name: str) -> str:
        """Return `name` unchanged. Raises UsageError if it is not registered."""
        if name not in self._entries:
            raise UsageError(self.describe_unknown(name))
        return name

    def describe_unknown(self, name: str) -> str:
        """Return the error message for a name that is not registered, with a similar name, if any, and all names."""
        near = get_close_matches(name.lower(), self._entries, n=1)
        choose = f"did you mean {near[0]}? Choose from" if near else "choose from"
        return f"unknown {self.kind} '{name}'; {choose} {', '.join(self._entries)}"

    def load(self, name: str) -> Any:
        """Import and return the object that is registered as `name`. Raises UsageError if there is none."""
        return load_attribute(self._entries[self.check_name(name)][0])


def load_attribute(place: str) -> Any:
    """Import and return the object at `place`, "module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
