"""Records: values that the type checker holds immutable, without the interpreter's cost of that."""

from __future__ import annotations

import pytest

from trims.core.records import event_record, record


@record
class Point:
    x: int
    y: int = 0


@event_record
class Moved:
    to: Point


def test_records_are_equal_and_hash_by_their_fields() -> None:
    assert Point(1) == Point(1, 0) != Point(2)
    assert {Point(1), Point(1, 0)} == {Point(1)}
    assert repr(Moved(to=Point(3))) == "Moved(to=Point(x=3, y=0))"


def test_a_record_has_no_other_fields_and_an_event_is_written_with_names() -> None:
    with pytest.raises(AttributeError):
        Point(1).z = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Moved(Point(3))  # type: ignore[call-arg]


def test_mypy_refuses_to_change_a_record() -> None:
    Point(1).x = 2  # type: ignore[misc] # mypy warns of an ignore that nothing needs, so this is its test
