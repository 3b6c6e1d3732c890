"""Protects the quick copies of frozen records: they are those of dataclasses, no cached property is taken over, and an unknown
field is refused."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import pytest

from pagefleet_operator.domain.base.frozen import made, replace


@dataclasses.dataclass(frozen=True)
class Record:
    one: int
    two: tuple[int, ...] = ()
    three: dict[str, int] = dataclasses.field(default_factory=dict)

    @cached_property
    def total(self) -> int:
        return self.one + sum(self.two)


def test_a_copy_is_that_of_dataclasses() -> None:
    record = Record(1, (2, 3), {"a": 4})
    assert replace(record, two=()) == dataclasses.replace(record, two=()) == Record(1, (), {"a": 4})
    assert replace(record) == record and replace(record) is not record
    assert record == Record(1, (2, 3), {"a": 4}), "the record itself stays"
    assert made(Record, {"one": 1, "two": (2, 3), "three": {"a": 4}}) == record


def test_a_copy_computes_its_cached_properties_anew() -> None:
    record = Record(1, (2, 3))
    assert record.total == 6
    assert replace(record, one=5).total == 10


def test_a_copy_is_frozen_and_has_no_other_fields() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        replace(Record(1)).one = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="four"):
        replace(Record(1), four=4)  # type: ignore[call-arg]
