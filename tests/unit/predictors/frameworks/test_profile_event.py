"""Which events of a profile are recorded: down to a level, the outer ones first."""

from __future__ import annotations

import pytest
from trims_predictors.frameworks.profile_event import (
    CALL,
    LAYER,
    MOST_SPANS,
    OPERATOR,
    RUN,
    Event,
    Profile,
    nbytes_of,
    within,
)

from trims.trace.levels import Level


def event(own: int, parent: int = RUN, level: Level = Level.FRAMEWORK, kind: str = OPERATOR, end_ns: int = 10) -> Event:
    return Event(own, parent, kind, str(own), level, own, own + end_ns)


def test_deeper_levels_are_left_out_and_their_parts_go_to_who_is_left() -> None:
    events = [event(1), event(2, 1, Level.LIBRARY, CALL), event(3, 2, Level.FRAMEWORK)]
    kept, cut = within(events, Level.FRAMEWORK)
    assert [(each.id, each.parent) for each in kept] == [(1, RUN), (3, 1)]
    assert cut == 0


def test_a_profile_that_is_too_long_loses_its_inner_spans_and_counts_them() -> None:
    events = [event(1), event(2), *(event(n, 1) for n in range(3, 9)), *(event(n, 3) for n in range(9, 12))]
    kept, cut = within(events, Level.HARDWARE, most=4)
    assert [each.id for each in kept] == [1, 2, 3, 4]
    assert cut == 7


def test_many_levels_of_operators_in_one_another_are_no_trouble() -> None:
    kept, cut = within([event(n, n - 1) for n in range(1, MOST_SPANS + 3)], Level.HARDWARE)
    assert (len(kept), cut) == (MOST_SPANS, 2)


def test_time_of_operators_inside_of_others_counts_once() -> None:
    inner = Event(2, 1, OPERATOR, "in", Level.LIBRARY, 0, 10, is_joined=True)
    stray = Event(3, RUN, OPERATOR, "stray", Level.FRAMEWORK, 0, 30, is_joined=False)
    layer = Event(4, RUN, LAYER, "layer", Level.FRAMEWORK, 0, 100)
    assert Profile("p", (event(1), inner, stray, layer), Level.LIBRARY).accounted == pytest.approx(10 / 40)
    assert Profile("p", (), Level.LIBRARY).accounted == 1.0


@pytest.mark.parametrize(
    ("shapes", "dtypes", "nbytes"),
    [
        (([2, 3], [4]), ("float", "double"), 24 + 32), (([2], []), ("long", "Scalar"), 16), (([2],), ("odd",), None),
        ((["N"],), ("float",), None), ((), (), None), ((3,), ("float",), None),
    ],
)  # fmt: skip
def test_bytes_of_inputs_are_known_where_their_types_are(
    shapes: tuple[object, ...], dtypes: tuple[str, ...], nbytes: int | None
) -> None:
    assert nbytes_of(shapes, dtypes) == nbytes
