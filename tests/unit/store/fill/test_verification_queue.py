"""What is still to be verified: in order, each once, and counted until it is over."""

from __future__ import annotations

from typing import Any

from trims.core.place import CPU, DISK
from trims.core.replica import ReplicaId
from trims.store.fill.verification_queue import VerificationQueue

ONE, OTHER, LENT = ReplicaId("a", DISK, 1), ReplicaId("b", DISK, 1), ReplicaId("c", CPU, 1)
JOB: Any = (lambda: None, lambda error: error)


def queue() -> VerificationQueue:
    made = VerificationQueue()
    made.add(ONE, 10, JOB)
    made.add(OTHER, 20, JOB)
    made.add(LENT, 40)
    return made


def test_jobs_come_in_order_and_bytes_count_until_the_end() -> None:
    made = queue()
    assert [made.pop(), made.pop(), made.pop()] == [(ONE, JOB), (OTHER, JOB), None]
    assert made.nbytes == 70
    for replica in (ONE, OTHER, OTHER):
        made.end(replica)
    assert made.nbytes == 40


def test_a_replica_that_moves_up_is_first() -> None:
    made = queue()
    assert (made.move_up(OTHER), made.move_up(LENT)) == (True, True)
    assert made.pop() == (OTHER, JOB)
    assert made.move_up(OTHER), "it is being verified"
    made.end(OTHER)
    assert not made.move_up(OTHER)


def test_a_job_is_taken_once() -> None:
    made = queue()
    assert (made.take(ONE), made.take(ONE), made.take(LENT)) == (JOB, None, None)
    assert made.pop() == (OTHER, JOB)
