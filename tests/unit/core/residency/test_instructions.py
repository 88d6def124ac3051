"""The outbox: instructions in the order of their steps, each written from its replica as it is at that moment."""

from __future__ import annotations

from typing import Any

from trims.core.errors import CapacityError
from trims.core.lease import Lease, Waiter
from trims.core.place import CPU, GPU
from trims.core.replica import Replica, State
from trims.core.residency.events import Abandon, Changed, Fill, Free, Lost, Measure, Ready, Refuse
from trims.core.residency.instructions import Outbox


def a_replica(**more: Any) -> Replica:
    return Replica("a" * 64, GPU, 3, nbytes=40, **more)


def test_instructions_are_kept_in_the_order_in_which_they_were_given() -> None:
    outbox, replica = Outbox(), a_replica(source=CPU, measuring=9)
    waiter, lease = Waiter(1, 5, True, None), Lease(7, 5, replica.key, GPU, 3)
    error = CapacityError("full")
    outbox.measure(replica, behind=True)
    outbox.fill(replica, behind=False)
    outbox.ready(waiter, replica)
    outbox.refuse(waiter, error)
    outbox.free(replica, evicted=True)
    outbox.abandon(replica)
    outbox.lost(lease, "its keeper has ended")
    about: dict[str, Any] = {"key": replica.key, "place": GPU, "generation": 3}
    assert outbox.instructions == [
        Measure(**about, measurement=9, behind=True),
        Fill(**about, source=CPU, nbytes=40, behind=False),
        Ready(ticket=1, key=replica.key, place=GPU, nbytes=40),
        Refuse(ticket=1, error=error),
        Free(**about, evicted=True),
        Abandon(**about),
        Lost(lease=lease, reason="its keeper has ended"),
    ]


def test_a_change_tells_both_states_and_the_reason() -> None:
    outbox, replica = Outbox(), a_replica(state=State.SEALED)
    outbox.changed(replica, State.FILLING, 12.5, "filled")
    (change,) = outbox.instructions
    assert change == Changed(
        at_s=12.5, key=replica.key, place=GPU, generation=3, old=State.FILLING, new=State.SEALED, why="filled"
    )


def test_an_instruction_does_not_change_with_its_replica() -> None:
    outbox, replica = Outbox(), a_replica(source=CPU)
    outbox.fill(replica, behind=True)
    replica.source, replica.nbytes = None, 0
    (fill,) = outbox.instructions
    assert isinstance(fill, Fill)
    assert (fill.source, fill.nbytes) == (CPU, 40)
