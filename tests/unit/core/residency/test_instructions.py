"""Instructions in the order of their steps, each written from its replica as it is at that moment."""

from __future__ import annotations

from typing import Any

from trims.core.errors import CapacityError
from trims.core.lease import Lease, Waiter
from trims.core.place import CPU, GPU
from trims.core.replica import Replica, State
from trims.core.residency.events import Abandon, Changed, Fill, Free, Lost, Measure, Ready, Refuse
from trims.core.residency.instructions import Instructions


def a_replica(**more: Any) -> Replica:
    return Replica("a" * 64, GPU, 3, nbytes=40, **more)


def test_instructions_are_kept_in_the_order_in_which_they_were_given() -> None:
    instructions, replica = Instructions(), a_replica(source=CPU, measuring=9)
    waiter, lease = Waiter(1, 5, True, None), Lease(7, 5, replica.key, GPU, 3)
    error = CapacityError("full")
    instructions.measure(replica, behind=True)
    instructions.fill(replica, behind=False)
    instructions.ready(waiter, replica)
    instructions.refuse(waiter, error)
    instructions.free(replica, evicted=True)
    instructions.abandon(replica)
    instructions.lost(lease, "its keeper has ended")
    about: dict[str, Any] = {"key": replica.key, "place": GPU, "generation": 3}
    assert instructions.written == [
        Measure(**about, measurement=9, behind=True),
        Fill(**about, source=CPU, nbytes=40, behind=False),
        Ready(ticket=1, key=replica.key, place=GPU, nbytes=40),
        Refuse(ticket=1, error=error),
        Free(**about, evicted=True),
        Abandon(**about),
        Lost(lease=lease, reason="its keeper has ended"),
    ]


def test_a_change_tells_both_states_and_the_reason() -> None:
    instructions, replica = Instructions(), a_replica(state=State.SEALED)
    instructions.changed(replica, State.FILLING, 12.5, "filled")
    (change,) = instructions.written
    assert change == Changed(
        at_s=12.5, key=replica.key, place=GPU, generation=3, old=State.FILLING, new=State.SEALED, why="filled"
    )


def test_an_instruction_does_not_change_with_its_replica() -> None:
    instructions, replica = Instructions(), a_replica(source=CPU)
    instructions.fill(replica, behind=True)
    replica.source, replica.nbytes = None, 0
    (fill,) = instructions.written
    assert isinstance(fill, Fill)
    assert (fill.source, fill.nbytes) == (CPU, 40)
