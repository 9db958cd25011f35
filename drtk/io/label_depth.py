"""How deep was looked for answers when candidates were labelled: each says it itself, or the manifest beside them does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drtk.errors import UsageError
from drtk.io.json_files import read_json
from drtk.io.manifest import is_manifest, manifest_path
from drtk.io.progress import warn
from drtk.io.streams import is_stream, name_of
from drtk.records import Expansion, Query

MAKER = "rerank-queries label"  # "program" of its manifests


class LabelDepths:
    """The rank beyond which no answer was looked for, of the candidates of one file; a check for `read_candidates`.

    usual: of candidates that do not say it themselves: what the manifest beside `source` says, or else `given`, or `otherwise`
    given: what --depth says; check: told each depth when it is first seen
    told: sources of which it was said that their depth is assumed; one file may be read several times
    Raises UsageError where --depth and the labels both say something, and not the same; what `check` raises.
    """

    def __init__(
        self, source: str, *, given: int | None, otherwise: int, check: Callable[[int], None], told: set[str]
    ) -> None:
        self._source, self._given, self._check, self._told = source, given, check, told
        noted = None if is_stream(source) else _noted(source)
        self._guessed = noted is None and given is None
        self._seen: set[int] = set()
        self._question = ""
        self._of_kind: dict[str, int] = {}
        if noted is not None:
            self._see(noted)
        self.usual = next(depth for depth in (noted, given, otherwise) if depth is not None)

    def __call__(self, expansion: Expansion, query: Query) -> str | None:
        """What is wrong with a candidate's depth: nothing, or that it is not that of the others in its list.

        Lists may differ among each other, as pairs are made within one alone. Within one, a candidate that finds nothing
        among 10 passages cannot be told from one that finds something at rank 50.
        """
        depth = expansion.depth or self.usual
        if expansion.depth is not None:
            self._see(depth)
        elif self._guessed:
            self._see(depth)
            self._tell(expansion)
        if query.id != self._question:
            self._question, self._of_kind = query.id, {}
        first = self._of_kind.setdefault(expansion.kind, depth)
        if depth == first:
            return None
        return (
            f"'{expansion.id}' was looked at to depth {depth}, those before it of '{query.id}' for '{expansion.kind}' "
            f"to depth {first}: their ranks cannot be compared; label them alike"
        )

    def _tell(self, expansion: Expansion) -> None:
        if self._source in self._told:
            return
        self._told.add(self._source)
        warn(
            f"{name_of(self._source)}: nothing says how deep was looked for answers ('{expansion.id}' has no 'depth'); "
            f"{self.usual} is assumed, so that greater ranks mean none found (--depth says otherwise)"
        )

    def _see(self, depth: int) -> None:
        if depth in self._seen:
            return
        self._seen.add(depth)
        if self._given not in (None, depth):
            raise UsageError(f"--depth {self._given}: {name_of(self._source)} was labelled with --depth {depth}")
        self._check(depth)


def _noted(source: str) -> int | None:
    path = manifest_path(source)
    if not path.is_file():
        return None
    content: Any = read_json(path)
    if not is_manifest(content) or content.get("program") != MAKER:
        return None
    depth = content["settings"].get("depth")
    return depth if isinstance(depth, int) else None
