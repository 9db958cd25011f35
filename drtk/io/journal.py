"""How far an interrupted filter came: NAME.part.json beside NAME.part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from drtk.errors import DrtkError
from drtk.io.manifest import SOURCES, inputs_named, plain, read_json, unchanged, write_json


@dataclass
class Journal:
    """What the finished windows were made from, and where they end in the part."""

    settings: dict[str, Any]
    sources: list[dict[str, Any]]
    others: list[dict[str, Any]]
    records: int = 0
    lines: int = 0
    offset: int = 0
    digest: str = ""
    counts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, settings: Mapping[str, Any]) -> Journal:
        """The journal of a run that has written nothing yet."""
        values = plain(settings)
        sources = inputs_named({name: values.pop(name, None) for name in SOURCES})
        values.pop("skip_bad", None)
        return cls(values, sources, inputs_named(values))

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """The journal at `path`; None where there is none. Raises DrtkError for a file that is no journal."""
        if not path.exists():
            return None
        content = read_json(path)
        if not isinstance(content, dict) or set(content) != {item.name for item in fields(cls)}:
            raise DrtkError(f"{path}: is not the journal of an interrupted run; remove it, or choose another output")
        return cls(**content)

    def write(self, path: Path) -> None:
        """Replace the journal at `path` in one step."""
        write_json(path, asdict(self))

    def changes(self, now: Journal) -> list[str]:
        """Settings that differ `now`, and files they name that have changed since."""
        names = self.settings.keys() | now.settings.keys()
        changed = sorted(name for name in names if self.settings.get(name) != now.settings.get(name))
        return changed + [entry["path"] for entry in self.others if not unchanged(entry)]

    def same_sources(self, now: Journal) -> bool:
        """Whether the records come from the same files as before, unchanged; what came from stdin may be the same."""
        return self.sources == now.sources
