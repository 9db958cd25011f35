"""Files that stand in each other's place: told by their first lines, before anything is loaded."""

from __future__ import annotations

from drtk.errors import MismatchError
from drtk.io import kinds
from drtk.io.progress import warn
from drtk.io.streams import is_stream, open_input
from drtk.io.tables import is_table

_NEITHER = (kinds.JUDGEMENTS, kinds.RANKED, kinds.CANDIDATES, kinds.PASSAGES)
_NO_EXAMPLES = (*_NEITHER, kinds.RUN, kinds.PREDICTIONS, kinds.EXPANSIONS)
_NO_RUN = (*_NEITHER, kinds.EXAMPLES, kinds.QUERIES, kinds.EITHER)


def kind_of_file(path: str) -> str | None:
    """What a file seems to hold, in words of `drtk.io.kinds`; None for what its beginning does not tell, and for streams."""
    if is_stream(path) or is_table(path):
        return None
    stream, _ = open_input(path)
    with stream:
        try:
            return kinds.kind_of(stream.peek(1 << 12))  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - damaged data; reading it will say so, and where
            return None


def check_examples(source: str) -> None:
    """Raise MismatchError for a file that seems to hold something else than training examples."""
    if (kind := kind_of_file(source)) in _NO_EXAMPLES:
        raise MismatchError(
            f"{source}: seems to hold {kind}; training examples are wanted, which drtk mine-negatives makes"
        )


def check_run(source: str) -> None:
    """Raise MismatchError for a file that seems to hold something else than a run."""
    if (kind := kind_of_file(source)) in _NO_RUN:
        raise MismatchError(f"{source}: seems to hold {kind}; a TREC run is wanted, which drtk search makes")


def warn_if_swapped(corpus: str, queries: str) -> None:
    """Warn where --queries seems to hold passages, and --corpus does not."""
    if kind_of_file(queries) == kinds.PASSAGES and kind_of_file(corpus) in (kinds.QUERIES, kinds.EITHER):
        warn(f"{queries} seems to hold passages, and {corpus} queries: were --queries and --corpus swapped?")
