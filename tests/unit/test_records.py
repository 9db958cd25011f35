"""Records are frozen and slotted, and do not share defaults."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest

from drtk import records

RECORDS = [item for item in vars(records).values() if isinstance(item, type) and is_dataclass(item)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_is_frozen_and_slotted(record: type) -> None:
    made = record(**{item.name: "x" for item in fields(record)})
    with pytest.raises(FrozenInstanceError):
        setattr(made, fields(record)[0].name, "y")
    assert not hasattr(made, "__dict__")


@pytest.mark.parametrize("record", [records.Passage, records.Query], ids=lambda record: record.__name__)
def test_records_do_not_share_extra(record: type) -> None:
    first, second = record("a", "text"), record("b", "text")
    first.extra["queries"] = ["q"]
    assert second.extra == {}
