"""A replica: the steps it may take, and the history it keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import InvalidTransitionError
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK
from trims.core.replica import TRANSITIONS, Replica, State


def test_an_illegal_step_tells_the_replicas_story() -> None:
    replica = Replica("a" * 64, CPU, 1)
    replica.step(State.QUEUED, 1.0, "first waiter")
    with pytest.raises(InvalidTransitionError, match="absent -> queued: first waiter"):
        replica.step(State.DRAINING, 2.0, "nonsense")


@given(st.sampled_from(list(State)), st.sampled_from(list(State)))
def test_a_replica_takes_the_steps_of_the_table_and_no_other(old: State, new: State) -> None:
    replica = Replica("a" * 64, CPU, 1, state=old)
    if (old, new) in TRANSITIONS:
        replica.step(new, 1.0, "a reason")
        assert (replica.state, replica.story()) == (new, [f"1.000000 {old.value} -> {new.value}: a reason"])
    else:
        with pytest.raises(InvalidTransitionError, match=rf"at cpu cannot go from {old.value} to {new.value} \(a rea"):
            replica.step(new, 1.0, "a reason")
        assert (replica.state, replica.story()) == (old, [])


def test_every_state_is_reached_from_absent_and_leads_back_to_it() -> None:
    for steps in (TRANSITIONS, [(new, old) for old, new in TRANSITIONS]):
        reached = {State.ABSENT}
        while more := {new for old, new in steps if old in reached} - reached:
            reached |= more
        assert reached == set(State)


def test_the_story_of_a_replica_keeps_its_latest_steps_only() -> None:
    replica = Replica("a", CPU, 1)
    for turn in range(100):
        replica.step(State.QUEUED, float(turn), "first waiter")
        replica.step(State.ABSENT, float(turn), "last waiter gone or refused")
    assert len(replica.story()) == 32
    assert replica.story()[-1].startswith("99.000000 queued -> absent")


def test_a_replica_is_held_by_a_lease_or_a_running_copy_and_not_by_a_waiter() -> None:
    replica = Replica("a", CPU, 7)
    replica.waiters[1] = Waiter(1, 1, True, None)
    assert not replica.held
    replica.borrowers.add((DISK, 3))
    assert replica.held
    replica.borrowers.clear()
    replica.leases[5] = None
    assert replica.held
    assert replica.id == ("a", CPU, 7)
