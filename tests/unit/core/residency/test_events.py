"""Events and instructions: values that residency takes in and that the store carries out."""

from __future__ import annotations

from typing import Any

import pytest

from trims.core.errors import ArtifactError
from trims.core.lease import Waiter
from trims.core.place import CPU
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.residency import events
from trims.core.residency.events import (
    Adopted,
    Changed,
    Closed,
    DrainRequested,
    Event,
    EvictRequested,
    Filled,
    FillFailed,
    Freed,
    KeepAlive,
    ManifestChanged,
    Measure,
    Measured,
    MeasureFailed,
    MemoryShort,
    PinChanged,
    PlaceLost,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
    WorkspaceKnown,
)
from trims.core.residency.residency import Residency

_ABOUT: dict[str, Any] = {"key": "a", "place": CPU, "generation": 1}
_ERROR = ArtifactError("torn")
#: The least that each event must say.
EVENTS: dict[type[Event], dict[str, Any]] = {
    Requested: {"key": "a", "place": CPU, "waiter": Waiter(1, 1, True, None)},
    Closed: {"lease": 7, "session": 1},
    SessionEnded: {"session": 1},
    WaiterLeft: {"ticket": 7},
    Measured: {**_ABOUT, "measurement": 1, "nbytes": 1},
    MeasureFailed: {**_ABOUT, "measurement": 1, "error": _ERROR},
    Filled: {**_ABOUT, "cost_s": 1.0},
    FillFailed: {**_ABOUT, "error": _ERROR},
    Freed: _ABOUT,
    EvictRequested: {"key": "a", "place": CPU, "drain": False},
    ReplicaBroken: {**_ABOUT, "reason": "a bit flipped"},
    PlaceLost: {"place": CPU, "reason": "gone"},
    MemoryShort: {"place": CPU, "missing_bytes": 1},
    WorkspaceKnown: {"key": "a", "nbytes": 1},
    ManifestChanged: {"key": "a"},
    PinChanged: {"key": "a", "place": CPU, "pinned": True},
    Adopted: {"key": "a", "place": CPU, "nbytes": 1},
    DrainRequested: {},
    Tick: {},
}


def test_every_event_there_is_is_sampled_here() -> None:
    there = {each for each in vars(events).values() if isinstance(each, type) and issubclass(each, Event)}
    assert set(EVENTS) == there - {Event}


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_residency_takes_every_event_into_empty_books(kind: type[Event]) -> None:
    residency = Residency({CPU: 100}, {CPU: LeastRecentlyUsed()})
    told = residency.handle(kind(at_s=1.0, **EVENTS[kind]))
    residency.validate()
    answers = {Requested: [Changed, Measure], Adopted: [Changed]}
    assert [type(each) for each in told] == answers.get(kind, [])


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_is_a_value_with_fields_of_its_own_only(kind: type[Event]) -> None:
    event = kind(at_s=1.0, **EVENTS[kind])
    assert event == kind(at_s=1.0, **EVENTS[kind])
    assert event != kind(at_s=2.0, **EVENTS[kind])
    assert hash(event) == hash(kind(at_s=1.0, **EVENTS[kind]))
    with pytest.raises(AttributeError):
        event.another = 5.0  # type: ignore[attr-defined]


def test_an_event_is_written_with_the_names_of_its_fields() -> None:
    with pytest.raises(TypeError):
        Closed(1.0, 7, 1)  # type: ignore[call-arg]


def test_a_request_without_a_keep_alive_differs_from_one_with_a_lazy_keep_alive() -> None:
    waiter = Waiter(1, 1, True, None)
    silent = Requested(at_s=1.0, key="a", place=CPU, waiter=waiter)
    lazy = Requested(at_s=1.0, key="a", place=CPU, waiter=waiter, keep=KeepAlive(None))
    assert silent != lazy
    assert (silent.keep, silent.workspace_bytes) == (None, None)
