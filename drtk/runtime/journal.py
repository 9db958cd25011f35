"""How far an interrupted filter came: NAME.part.json beside NAME.part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from drtk.errors import DrtkError
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import SOURCES, are_entries, from_stream, plain, unchanged


@dataclass
class Journal:
    """What the finished windows were made from, and where they end in the part.

    sources: inputs that were still being read; the digest of their records says whether they are the same.
    others: inputs read to their end before, and everything else on disk that the settings name.
    seconds: what the finished windows took, over all stretches of the run.
    replaces: the finished output that the run was allowed to replace (`identity`); None if there was none.
    """

    settings: dict[str, Any]
    sources: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    lines: int = 0
    offset: int = 0
    digest: str = ""
    counts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    replaces: dict[str, int] | None = None

    @classmethod
    def begin(cls, settings: Mapping[str, Any], output: Path) -> Journal:
        """The journal of a run that has written nothing yet."""
        left_out = (*SOURCES, "skip_bad")
        kept = {name: value for name, value in plain(settings).items() if name not in left_out}
        return cls(kept, replaces=identity(output))

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """The journal at `path`; None where there is none. Raises DrtkError for a file that is no journal."""
        if not path.exists():
            return None
        content = read_json(path)
        # Journals of earlier versions lack `seconds` and `replaces`.
        if not isinstance(content, dict) or not _is_journal({"seconds": 0.0, "replaces": None} | content):
            raise DrtkError(f"{path}: is not the journal of an interrupted run; remove it, or choose another output")
        return cls(**content)

    def write(self, path: Path, *, inputs: list[dict[str, Any]], named: list[dict[str, Any]]) -> None:
        """Replace the journal at `path` in one step.

        inputs: those the command has opened so far. named: what its settings named when it began.
        """
        opened = {entry["path"] for entry in inputs}
        self.sources = [entry for entry in inputs if entry.get("digest") is None]
        self.others = [entry for entry in inputs if entry.get("digest") is not None]
        self.others += [entry for entry in named if entry["path"] not in opened]
        write_json(path, asdict(self))

    def changes(self, now: Journal) -> list[str]:
        """Settings that differ `now`, and files and folders that have changed since."""
        names = self.settings.keys() | now.settings.keys()
        changed = sorted(name for name in names if self.settings.get(name) != now.settings.get(name))
        return changed + _changed(self.others)

    def other_sources(self) -> list[str]:
        """Files the records came from that have changed since, perhaps only further on than where they were read."""
        return _changed(self.sources)


def identity(output: Path) -> dict[str, int] | None:
    """Return the size and modification time of a finished output, which identify it; None without one."""
    try:
        facts = output.stat()
    except OSError:
        return None
    return {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def _is_journal(content: dict[str, Any]) -> bool:
    """Return whether a JSON object has the fields of a journal, each of the right type."""
    kinds = {item.name: type(getattr(Journal({}), item.name)) for item in fields(Journal)}
    if content.keys() != kinds.keys():
        return False
    if any(type(content[name]) is not kind for name, kind in kinds.items() if name not in ("seconds", "replaces")):
        return False
    counts = (content["records"], content["lines"], content["offset"])
    return (
        type(content["seconds"]) in (int, float)
        and isinstance(content["replaces"], dict | None)
        and min(counts) >= 0
        and _is_count(content["counts"])
        and are_entries(content["sources"] + content["others"])
    )


def _is_count(value: Any) -> bool:
    """Return whether a value contains only numbers, also in nested lists and objects."""
    if isinstance(value, dict):
        return all(map(_is_count, value.values()))
    return all(map(_is_count, value)) if isinstance(value, list) else type(value) in (int, float)


def _changed(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["path"] for entry in entries if not from_stream(entry) and not unchanged(entry)]
