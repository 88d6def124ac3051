"""The client's half of an upgrade: what is asked, what moves, and what becomes of the leases."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from raw_door import grant
from trims_client.mapping import upgrades
from trims_client.mapping.mapped_image import Upgrade
from trims_client.mapping.mappings import MappedImages

from trims.core.errors import ImageError, LostPeerError, ModelNotFoundError
from trims.memory import mapping

if TYPE_CHECKING:
    from collections.abc import Callable


class Granter:
    """Part of a channel that an upgrade needs. Answers a resume with what it was given, or raises it."""

    def __init__(self) -> None:
        self.owed: deque[int] = deque()
        self.broken = False
        self.asked: list[dict[str, Any]] = []
        self.answers: deque[Any] = deque()

    def request(self, message: dict[str, Any], _: float) -> Any:
        self.asked.append(message)
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "_WORTH_BYTES", 1)


@pytest.fixture
def granter() -> Any:
    return Granter()


def on_disk(mappings: MappedImages, granter: Any, fd: int, lease: int = 1, **more: Any) -> Any:
    """Weights that are read from disk, and an event that they lie in memory, too."""
    answer = grant({"id": lease}, fd, lease=lease, place="disk", anywhere=True, **more)
    borrow = mappings.borrow(granter, answer, os.dup(fd))
    mappings.upgrades.append(Upgrade(granter, "k", "cpu"))
    return borrow


def test_weights_move_and_give_every_old_lease_back(granter: Any, segment: Callable[..., int]) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    first, second = on_disk(mappings, granter, disk, 1), on_disk(mappings, granter, disk, 2)
    before = bytes(first.data[-1:])
    granter.answers.append((grant({"id": 9}, memory, lease=3), os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert granter.asked == [{"op": "resume", "key": "k", "place": "cpu"}]
    assert (first.place, second.place) == ("cpu", "cpu")
    assert bytes(first.data[-1:]) != before
    assert sorted(granter.owed) == [1, 2]
    first.close()
    assert sorted(granter.owed) == [1, 2]
    second.close()
    assert sorted(granter.owed) == [1, 2, 3]
    assert mappings.held() == []


@pytest.mark.parametrize("answer", [ModelNotFoundError("it has left"), LostPeerError("the daemon is away")])
def test_a_refusal_leaves_the_weights_where_they_are(
    answer: Exception, granter: Any, segment: Callable[..., int]
) -> None:
    mappings, disk = MappedImages(), segment()
    borrow = on_disk(mappings, granter, disk)
    granter.answers.append(answer)
    for _ in range(3):
        upgrades.upgrade(granter, mappings)
    assert (borrow.place, list(granter.owed), len(granter.asked)) == ("disk", [], 1)
    borrow.close()
    assert list(granter.owed) == [1]


@pytest.mark.parametrize("wrong", [{"digest": "another"}, {"digest": ""}, {"key": "another"}])
def test_memory_with_other_bytes_is_given_back_and_not_mapped(
    wrong: dict[str, str], granter: Any, segment: Callable[..., int]
) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    borrow = on_disk(mappings, granter, disk)
    before = bytes(borrow.data)
    granter.answers.append((grant({"id": 9}, memory, lease=3, **wrong), os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert (bytes(borrow.data), borrow.place, list(granter.owed)) == (before, "disk", [3])
    borrow.close()


def test_a_digest_that_is_not_known_on_disk_is_the_same_as_no_other(granter: Any, segment: Callable[..., int]) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    borrow = on_disk(mappings, granter, disk, digest="")
    granter.answers.append((grant({"id": 9}, memory, lease=3, digest=""), os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert (borrow.place, list(granter.owed)) == ("disk", [3])
    borrow.close()


def test_a_grant_without_a_descriptor_is_given_back(granter: Any, segment: Callable[..., int]) -> None:
    mappings, disk = MappedImages(), segment()
    borrow = on_disk(mappings, granter, disk)
    granter.answers.append((grant({"id": 9}, disk, lease=3), -1))
    upgrades.upgrade(granter, mappings)
    assert (borrow.place, list(granter.owed)) == ("disk", [3])
    borrow.close()


def test_weights_that_were_asked_for_on_disk_are_not_asked_about(granter: Any, segment: Callable[..., int]) -> None:
    mappings, disk = MappedImages(), segment()
    free = on_disk(mappings, granter, disk, 1)
    bound = mappings.borrow(granter, grant({"id": 2}, disk, lease=2, place="disk"), os.dup(disk))
    upgrades.upgrade(granter, mappings)
    assert granter.asked == []
    free.close()
    bound.close()


def test_an_event_that_comes_before_its_grant_is_mapped_is_kept_for_some_rounds(
    granter: Any, segment: Callable[..., int]
) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    mappings.upgrades.append(Upgrade(granter, "k", "cpu"))
    upgrades.upgrade(granter, mappings)
    assert len(mappings.upgrades) == 1
    borrow = mappings.borrow(granter, grant({"id": 1}, disk, place="disk", anywhere=True), os.dup(disk))
    granter.answers.append((grant({"id": 9}, memory, lease=3), os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert borrow.place == "cpu"
    borrow.close()
    for _ in range(10):
        upgrades.upgrade(granter, mappings)
    assert not mappings.upgrades
    assert len(granter.asked) == 1


def test_one_event_moves_every_mapping_of_its_image(granter: Any, segment: Callable[..., int]) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    first = on_disk(mappings, granter, disk, 1)
    view = first.data
    first.close()
    again = mappings.borrow(granter, grant({"id": 2}, disk, lease=2, place="disk", anywhere=True), os.dup(disk))
    assert len(mappings.held()) == 2
    for number in (3, 4):
        granter.answers.append((grant({"id": 9}, memory, lease=number), os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert {each.place for each in mappings.held()} == {"cpu"}
    assert bytes(view) == bytes(again.data)
    again.close()
    del view
    assert sorted(granter.owed) == [1, 2, 3, 4]
    assert mappings.held() == []


def test_a_mapping_whose_last_view_goes_while_it_moves_is_not_kept(
    granter: Any, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    borrow = on_disk(mappings, granter, disk)
    mapping, views = borrow.mapping, [borrow.data]
    borrow.close()
    real = mapping.attachment.exchange

    def exchange_and_lose(fd: int) -> bool:
        exchanged: bool = real(fd)
        views.clear()
        return exchanged

    monkeypatch.setattr(mapping.attachment, "exchange", exchange_and_lose)
    granter.answers.append((grant({"id": 9}, memory, lease=3), os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert mapping.unmapped
    assert mappings.held() == []
    assert sorted(granter.owed) == [1, 3]


@pytest.mark.parametrize("wrong", [{"lease": float("inf")}, {"lease": None}, {"lease": True}, {"place": None}])
def test_an_answer_that_is_no_grant_changes_nothing(
    wrong: dict[str, Any], granter: Any, segment: Callable[..., int]
) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    borrow = on_disk(mappings, granter, disk)
    before = bytes(borrow.data)
    granter.answers.append(({**grant({"id": 9}, memory, lease=3), **wrong}, os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert (bytes(borrow.data), borrow.place) == (before, "disk")
    borrow.close()


def test_what_cannot_move_now_is_not_asked_for_until_it_can(granter: Any, segment: Callable[..., int]) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    borrow = on_disk(mappings, granter, disk)
    private = borrow.private_data()
    upgrades.upgrade(granter, mappings)
    assert (granter.asked, borrow.place) == ([], "disk")
    del private
    granter.answers.append((grant({"id": 9}, memory, lease=3), os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert borrow.place == "cpu"
    borrow.close()


def test_small_weights_are_not_asked_for(
    granter: Any, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "_WORTH_BYTES", 16 << 20)
    mappings, disk = MappedImages(), segment()
    borrow = on_disk(mappings, granter, disk)
    upgrades.upgrade(granter, mappings)
    assert granter.asked == []
    borrow.close()


def test_events_of_a_connection_that_has_ended_are_dropped(granter: Any, segment: Callable[..., int]) -> None:
    mappings, disk = MappedImages(), segment()
    borrow = on_disk(mappings, granter, disk)
    upgrades.upgrade(Granter(), mappings)  # type: ignore[arg-type]
    assert (granter.asked, list(mappings.upgrades)) == ([], [])
    borrow.close()


def test_moved_weights_share_no_mapping_with_one_that_lay_in_memory_before(
    granter: Any, segment: Callable[..., int]
) -> None:
    mappings, disk, memory = MappedImages(), segment(1), segment(2)
    moving = on_disk(mappings, granter, disk, 1)
    there = mappings.borrow(granter, grant({"id": 2}, memory, lease=2), os.dup(memory))
    granter.answers.append((grant({"id": 9}, memory, lease=3), os.dup(memory)))
    upgrades.upgrade(granter, mappings)
    assert moving.place == "cpu"
    assert len(mappings.held()) == 2
    again = mappings.borrow(granter, grant({"id": 4}, memory, lease=4), os.dup(memory))
    assert again.mapping is there.mapping
    for each in (moving, there, again):
        each.close()
    assert sorted(granter.owed) == [1, 2, 3, 4]
    assert mappings.held() == []


def test_short_memory_is_refused_by_name(granter: Any, segment: Callable[..., int]) -> None:
    mappings, disk = MappedImages(), segment()
    borrow, short = on_disk(mappings, granter, disk), os.memfd_create("short")
    with pytest.raises(ImageError, match="the segment has 0 bytes"):
        mappings.exchange(borrow.mapping, granter, grant({"id": 9}, disk, lease=3), short)
    os.close(short)
    assert list(granter.owed) == [3]
    borrow.close()
