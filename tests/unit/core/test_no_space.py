"""A machine with less room than a tier's capacity says: idle images leave, the books learn it, and refusals say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from books import Bench, error_of, kinds, only

from trims.core.errors import NoSpaceError, TooLargeError
from trims.core.place import CPU, DISK
from trims.core.replica import State
from trims.core.residency.events import (
    Closed,
    EvictRequested,
    Fill,
    FillFailed,
    Free,
    Grant,
    Measure,
    MemoryShort,
    Refuse,
    SessionEnded,
    Tick,
)
from trims.core.residency.room import BELIEVED_FULL_S

if TYPE_CHECKING:
    from trims.core.place import Place
    from trims.core.residency.events import Instruction


class Full(Bench):
    """A shared memory of 100 bytes whose machine has less."""

    def no_space(self, key: str, room_bytes: int | None, place: Place = CPU) -> list[Instruction]:
        error = NoSpaceError("/dev/shm is full", room_bytes)
        return self.feed(FillFailed, key=key, place=place, generation=self.generation(key, place), error=error)

    def capacity(self, place: Place = CPU) -> int:
        return self.residency.capacity.at[place].capacity_bytes

    def fill(self, key: str, nbytes: int, **more: object) -> list[Instruction]:
        self.ask(key, **more)  # type: ignore[arg-type]
        return self.measured(key, nbytes)


def keys(kind: type[Instruction], out: list[Instruction]) -> list[str]:
    return [each.key for each in only(kind, out)]  # type: ignore[attr-defined]


def test_a_fill_that_finds_no_space_evicts_the_longest_idle_and_is_tried_again() -> None:
    bench = Full()
    for key in ("old", "new"):
        bench.resident(key, 20)
    assert kinds(bench.fill("a", 30)) == [Fill]
    assert kinds(bench.no_space("a", room_bytes=10)) == [Measure]
    assert bench.capacity() == 50, "40 lie there and 10 are left"
    assert keys(Free, bench.measured("a", 30)) == ["old"]
    assert kinds(bench.freed("old")) == [Fill]
    assert kinds(bench.filled("a")) == [Grant]
    assert bench.state("new") is State.SEALED


def test_a_tier_that_reports_no_room_left_has_the_size_of_the_image_evicted() -> None:
    bench = Full()
    for key in ("old", "new"):
        bench.resident(key, 20)
    bench.fill("a", 30)
    bench.no_space("a", room_bytes=None)
    assert keys(Free, bench.measured("a", 30)) == ["old", "new"]


def test_an_image_from_another_place_is_copied_again_without_a_measurement() -> None:
    bench = Full()
    bench.resident("idle", 60)
    bench.resident("a", 40, DISK)
    assert kinds(bench.ask("a")) == [Fill]
    assert keys(Free, bench.no_space("a", room_bytes=0)) == ["idle"]
    assert kinds(bench.freed("idle")) == [Fill]


def test_fills_that_find_no_space_again_and_again_end_in_an_error_with_the_numbers() -> None:
    bench = Full()
    for key in "bcdefghi":
        bench.resident(key, 10)
    bench.resident("a", 20, DISK)
    bench.ask("a")
    for _ in range(2):
        for key in keys(Free, bench.no_space("a", room_bytes=15)):
            bench.freed(key)
        assert bench.state("a") is State.FILLING
    out = bench.no_space("a", room_bytes=15)
    error = error_of(out)
    assert type(error) is NoSpaceError
    assert error.retryable
    assert all(number in str(error) for number in ("/dev/shm is full", "50 B at cpu", "100 B that its tier"))
    assert not only(Fill, out)


def test_without_an_idle_image_the_request_is_refused_at_once() -> None:
    bench = Full()
    bench.resident("read", 60)
    bench.opened("read")
    bench.fill("a", 30)
    out = bench.no_space("a", room_bytes=5)
    assert kinds(out) == [Refuse]
    assert isinstance(error_of(out), NoSpaceError)
    assert bench.state("a") is State.ABSENT


def test_a_request_with_a_deadline_waits_for_readers_to_make_room() -> None:
    bench = Full()
    bench.resident("read", 60)
    lease = bench.opened("read", session=2)
    bench.fill("a", 30, deadline_in_s=50.0)
    assert kinds(bench.no_space("a", room_bytes=5)) == [Measure]
    assert bench.measured("a", 30) == []
    assert keys(Free, bench.feed(Closed, lease=lease, session=2)) == ["read"]
    assert kinds(bench.freed("read")) == [Fill]


def test_later_requests_go_by_the_room_that_was_found() -> None:
    bench = Full()
    bench.resident("read", 60)
    bench.opened("read")
    bench.fill("a", 30)
    bench.no_space("a", room_bytes=5)
    assert bench.capacity() == 65
    bench.fill("b", 5)
    assert kinds(bench.filled("b")) == [Grant]
    bench.feed(SessionEnded, session=1)
    bench.opened("read", session=2)
    assert keys(Free, bench.fill("c", 5)) == ["b"], "although the stated capacity has room beside it"


def test_a_request_that_only_the_belief_would_refuse_asks_the_tier_again() -> None:
    bench = Full()
    bench.resident("read", 60)
    bench.opened("read")
    for key in "ab":
        assert kinds(bench.fill(key, 30)) == [Fill]
        assert kinds(bench.no_space(key, room_bytes=5)) == [Refuse]
    assert kinds(bench.fill("c", 30)) == [Fill]
    assert kinds(bench.filled("c")) == [Grant], "another program has given room back"


def test_a_late_request_at_a_full_place_gets_the_room_that_was_found() -> None:
    bench = Full()
    bench.resident("read", 60)
    bench.opened("read", session=2)
    bench.fill("a", 30, deadline_in_s=5.0)
    bench.no_space("a", room_bytes=5)
    bench.measured("a", 30)
    bench.now += 10.0
    error = error_of(bench.feed(Tick))
    assert all(words in str(error) for words in ("5 B free of 65 B", "of 100 B that the tier may hold"))


def test_the_stated_capacity_is_tried_again_after_a_while() -> None:
    bench = Full()
    bench.resident("read", 60)
    bench.opened("read")
    bench.fill("a", 30)
    bench.no_space("a", room_bytes=5)
    due = bench.residency.next_due_s()
    assert due == bench.now + BELIEVED_FULL_S
    bench.feed(Tick)
    assert bench.capacity() == 65
    bench.now = due
    bench.feed(Tick)
    assert bench.capacity() == 100
    assert kinds(bench.fill("a", 30)) == [Fill]


def test_an_image_is_too_large_by_the_stated_capacity_only() -> None:
    bench = Full()
    bench.resident("read", 20)
    bench.opened("read")
    bench.fill("a", 30)
    bench.no_space("a", room_bytes=0)
    out = bench.fill("b", 80)
    assert not isinstance(error_of(bench.no_space("b", room_bytes=0) if Fill in kinds(out) else out), TooLargeError)
    assert isinstance(error_of(bench.fill("c", 101)), TooLargeError)


def test_room_that_was_promised_to_another_request_is_decided_upon_again() -> None:
    bench = Full()
    bench.resident("idle", 60)
    bench.fill("a", 40)
    assert keys(Free, bench.fill("b", 50)) == ["idle"], "60 come back, of which 50 are kept for b"
    out = bench.no_space("a", room_bytes=0)
    assert kinds(out) == [Measure]
    assert bench.capacity() == 60
    assert kinds(bench.freed("idle")) == [Fill], "of b"


@pytest.mark.parametrize("room_bytes", [0, 29, 30, 1000, None])
def test_whatever_a_tier_says_is_left_the_books_hold_together(room_bytes: int | None) -> None:
    bench = Full()
    bench.resident("idle", 60)
    bench.fill("a", 30)
    bench.no_space("a", room_bytes)
    assert 60 <= bench.capacity() < 90, "never room for what found none, never less than lies there"


@pytest.mark.parametrize("room_bytes", [0, None])
def test_a_fill_that_began_before_other_bytes_came_back_is_tried_again(room_bytes: int | None) -> None:
    bench = Full()
    bench.resident("old", 45)
    assert kinds(bench.fill("a", 30)) == [Fill]
    assert kinds(bench.feed(EvictRequested, key="old", place=CPU, drain=False)) == [Free]
    bench.freed("old")
    again = bench.no_space("a", room_bytes=room_bytes)
    assert kinds(again) == [Measure], "the tier's figure is from before 45 bytes came back"
    assert kinds(bench.measured("a", 30)) == [Fill]
    assert kinds(bench.filled("a")) == [Grant]


def test_bytes_that_came_back_help_one_fill_once() -> None:
    bench = Full()
    bench.resident("old", 45)
    bench.fill("a", 30)
    bench.feed(EvictRequested, key="old", place=CPU, drain=False)
    bench.freed("old")
    bench.no_space("a", room_bytes=0)
    bench.measured("a", 30)
    (refused,) = only(Refuse, bench.no_space("a", room_bytes=0))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, NoSpaceError)


def test_memory_that_grows_short_evicts_the_longest_idle_until_enough_comes_back() -> None:
    bench = Full()
    for key in ("old", "new", "newest"):
        bench.resident(key, 20)
    assert keys(Free, bench.feed(MemoryShort, place=CPU, missing_bytes=30)) == ["old", "new"]
    assert bench.feed(MemoryShort, place=CPU, missing_bytes=30) == [], "40 are on their way back already"
    for key in ("old", "new"):
        bench.freed(key)
    assert bench.capacity() == 60, "no more than lay there, for a while"
    bench.now += BELIEVED_FULL_S
    bench.feed(Tick)
    assert bench.capacity() == 100


def test_memory_that_grows_short_takes_nothing_from_a_reader() -> None:
    bench = Full()
    bench.fill("read", 60)
    assert kinds(bench.filled("read")) == [Grant]
    assert bench.feed(MemoryShort, place=CPU, missing_bytes=30) == []
    assert bench.state("read") is State.SEALED
