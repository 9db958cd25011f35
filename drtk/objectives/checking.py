"""Whether the views, maskings and readers a composition names exist, with the options it gives them."""

from __future__ import annotations

from drtk.errors import UsageError
from drtk.models.readers import READERS
from drtk.objectives import TARGETS
from drtk.objectives.network import recovering
from drtk.settings.composition import Composition
from drtk.text.slots import fields_of
from drtk.text.views.base import check_options


def checked(composition: Composition, *, place: str) -> set[str]:
    """What a corpus must hold beside texts and titles, for a composition of which everything exists.

    Nothing is loaded but code. Raises UsageError, beginning with `place`, for a view, masking, reader or target that does not exist,
    an option it lacks, a reader without the source it starts from, and a source nobody looks at.
    """
    try:
        _check_readers(composition)
        return fields_of(composition)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _check_readers(composition: Composition) -> None:
    for objective in recovering(composition):
        reader = composition.readers[objective.reader]
        what = f"objective '{objective.name}': reader '{reader.use}'"
        try:
            kind = READERS.load(reader.use)
            TARGETS.check(objective.target)
        except UsageError as error:
            raise UsageError(f"objective '{objective.name}': {error}") from error
        if getattr(kind, "says_next", False) and objective.target != "all":
            raise UsageError(f'{what} writes the next token: target = "all"')
        check_options(what, kind.__init__, reader.options, given=("self", "anatomy"))
        needs_source = getattr(kind, "needs_source", False)
        if needs_source and not objective.source:
            raise UsageError(f"{what} needs 'source': the slot whose vector it starts from")
        if objective.source and not needs_source:
            raise UsageError(f"{what} looks at no other slot's vector: there can be no 'source'")
