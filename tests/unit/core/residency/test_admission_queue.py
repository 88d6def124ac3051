"""The line at one place: the oldest, the smallest behind it, and replicas that left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trims.core.place import CPU
from trims.core.replica import Replica
from trims.core.residency.admission_queue import AdmissionQueue


def queued(generation: int, nbytes: int) -> Replica:
    return Replica(f"image {generation}", CPU, generation, nbytes=nbytes)


def test_an_empty_line_has_no_first_and_nothing_behind_it() -> None:
    line = AdmissionQueue()
    assert (len(line), line.first()) == (0, None)
    assert line.smallest_after(queued(1, 10)) is None


def test_a_replica_stands_at_the_position_of_its_generation_however_late_it_is_added() -> None:
    line = AdmissionQueue()
    older, newer = queued(1, 50), queued(2, 10)
    for replica in (newer, older, older):
        line.add(replica)
    assert (len(line), line.first(), line.smallest_after(older)) == (2, older, newer)


def test_of_two_equal_sizes_the_older_replica_comes_first() -> None:
    line = AdmissionQueue()
    first, older, newer = queued(1, 99), queued(2, 10), queued(3, 10)
    for replica in (newer, first, older):
        line.add(replica)
    assert line.smallest_after(first) is older


def test_the_first_is_never_the_smallest_behind_itself_and_stays_in_line() -> None:
    line = AdmissionQueue()
    first = queued(1, 1)
    line.add(first)
    assert line.smallest_after(first) is None
    line.add(queued(2, 5))
    found = line.smallest_after(first)
    assert found is not None
    assert found.generation == 2
    assert line.smallest_after(found) is first


@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(1, 12)), max_size=300))
def test_any_sequence_of_steps_agrees_with_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    replicas = {number: queued(number, nbytes=number * 7 % 5) for number in range(1, 13)}
    line, there = AdmissionQueue(), set[int]()
    for step, number in steps:
        if step == "add":
            line.add(replicas[number])
            there.add(number)
        else:
            line.remove(replicas[number])
            there.discard(number)
        first = line.first()
        assert first is (replicas[min(there)] if there else None)
        assert len(line) == len(there)
        if first is not None:
            behind = sorted((replicas[it].nbytes, it) for it in there - {first.generation})
            assert line.smallest_after(first) is (replicas[behind[0][1]] if behind else None)
        assert all((replica in line) == (number in there) for number, replica in replicas.items())
