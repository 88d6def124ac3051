"""The mappings of a session: an image is mapped once, and its lease ends with the last reader in the process."""

from __future__ import annotations

import mmap
import os
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from raw_door import grant
from trims_client.mapping.mapped_image import Lease
from trims_client.mapping.mappings import MappedImages

from trims.core.errors import ClosedError, ImageError
from trims.memory.pages import Pages
from trims.testing.descriptors import few_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Granter:
    """Part of a channel that mappings need: what is to be given back lies with the connection that granted it."""

    def __init__(self) -> None:
        self.owed: deque[int] = deque()


@pytest.fixture
def granter() -> Any:
    return Granter()


def test_an_image_is_mapped_once_and_kept_by_its_last_borrower(granter: Any, segment: Callable[..., int]) -> None:
    mappings, fd = MappedImages(), segment()
    request = {"id": 1}
    first = mappings.borrow(granter, grant(request, fd, lease=1), os.dup(fd))
    second = mappings.borrow(granter, grant(request, fd, lease=2), os.dup(fd))
    assert len(mappings.held()) == 1
    first.close()
    first.close()
    assert list(granter.owed) == [1]
    with pytest.raises(ClosedError):
        _ = first.data
    assert len(second.data)
    second.close()
    assert list(granter.owed) == [1, 2]
    assert mappings.held() == []


def test_a_view_keeps_the_lease_after_everything_is_closed(granter: Any, segment: Callable[..., int]) -> None:
    mappings, fd = MappedImages(), segment()
    borrow = mappings.borrow(granter, grant({"id": 1}, fd, lease=3), os.dup(fd))
    view = borrow.data[-10:]
    borrow.close()
    assert list(granter.owed) == []
    assert len(mappings.held()) == 1
    assert bytes(view) == b"\7" * 10
    del view
    assert list(granter.owed) == [3]
    assert mappings.held() == []


def test_leases_of_a_daemon_that_is_gone_are_not_given_to_the_next(granter: Any, segment: Callable[..., int]) -> None:
    mappings, fd = MappedImages(), segment()
    borrows = [mappings.borrow(granter, grant({"id": 1}, fd, lease=lease), os.dup(fd)) for lease in (1, 2)]
    mappings.lose_leases()
    following: Any = Granter()
    (mapping,) = mappings.to_take_up(following)
    assert mappings.to_take_up(following) == [], "each is asked for once"
    mapping.hold(Lease(following, 70))
    borrows[0].close()
    borrows[1].close()
    assert (list(granter.owed), list(following.owed)) == ([], [70])


def test_a_lease_whose_number_the_next_daemon_grants_again_is_not_given_back_for_it(
    granter: Any, segment: Callable[..., int]
) -> None:
    mappings, fd = MappedImages(), segment()
    borrows = [mappings.borrow(granter, grant({"id": 1}, fd, lease=lease), os.dup(fd)) for lease in (5, 6)]
    mappings.lose_leases()
    following: Any = Granter()
    (mapping,) = mappings.to_take_up(following)
    mapping.hold(Lease(following, 5))
    borrows[0].close()
    assert list(following.owed) == [], "the second borrower reads under this lease"
    borrows[1].close()
    assert (list(granter.owed), list(following.owed)) == ([], [5])


def test_a_late_grant_of_a_dead_daemon_does_not_replace_the_lease_that_is_held(
    granter: Any, segment: Callable[..., int]
) -> None:
    mappings, fd, following = MappedImages(), segment(), Granter()
    alive: Any = following
    held = mappings.borrow(alive, grant({"id": 1}, fd, lease=9), os.dup(fd))
    late = mappings.borrow(granter, grant({"id": 1}, fd, lease=5), os.dup(fd))
    held.close()
    assert list(following.owed) == [], "the late one is read under this lease: its own ended with its daemon"
    late.close()
    assert list(following.owed) == [9]


def test_a_loss_that_one_daemon_announced_is_not_the_next_ones(granter: Any, segment: Callable[..., int]) -> None:
    mappings, fd = MappedImages(), segment()
    following: Any = Granter()
    borrow = mappings.borrow(following, grant({"id": 1}, fd, lease=5), os.dup(fd))
    mappings.lose(granter, 5, "gone")
    assert borrow.lost is None
    mappings.lose(following, 5, "gone")
    assert borrow.lost == "gone"
    borrow.close()
    assert list(following.owed) == [], "a lease that is over is not closed"


def test_a_lease_that_comes_after_the_memory_is_unmapped_is_given_back(
    granter: Any, segment: Callable[..., int]
) -> None:
    mappings, fd = MappedImages(), segment()
    borrow = mappings.borrow(granter, grant({"id": 1}, fd, lease=5), os.dup(fd))
    mappings.lose_leases()
    following: Any = Granter()
    (mapping,) = mappings.to_take_up(following)
    borrow.close()  # while the daemon is asked
    mapping.hold(Lease(following, 8))
    assert list(following.owed) == [8]
    assert mappings.to_take_up(granter) == []


def test_two_daemons_that_count_alike_do_not_mix_up_their_borrowers(granter: Any, segment: Callable[..., int]) -> None:
    mappings, fd = MappedImages(), segment()
    before = mappings.borrow(granter, grant({"id": 1}, fd, lease=5), os.dup(fd))
    mappings.lose_leases()
    following: Any = Granter()
    (mapping,) = mappings.to_take_up(following)
    mapping.hold(Lease(following, 1))
    after = mappings.borrow(following, grant({"id": 1}, fd, lease=5), os.dup(fd))
    before.close()
    assert after.data[-1] == 7
    assert mapping.leases, "nothing is mapped without a lease"
    after.close()
    assert sorted(following.owed) == [1, 5]


def test_what_can_be_written_is_a_private_copy(granter: Any, segment: Callable[..., int]) -> None:
    mappings, fd = MappedImages(), segment()
    borrow = mappings.borrow(granter, grant({"id": 1}, fd), os.dup(fd))
    one, other = borrow.private_data(), borrow.private_data()
    one[-1] = 99
    assert (one[-1], other[-1], borrow.data[-1]) == (99, 7, 7)
    del one, other
    borrow.close()


@pytest.fixture
def in_place(segment: Callable[..., int], tmp_path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Descriptors of an image's head and of a file that lies behind it, and what a grant says of the two."""
    data = os.pread(segment(), 1 << 20, 0)
    begin = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    (tmp_path / "file").write_bytes(b"\5" * 100)
    fds = os.memfd_create("trims-test"), os.open(tmp_path / "file", os.O_RDONLY)
    os.write(fds[0], data)
    os.ftruncate(fds[0], begin + 100)
    yield *fds, {"place": "file", "nbytes": begin + 100, "files": 1, "pages": [[begin, 100, 0]]}
    for fd in fds:
        os.close(fd)


def given(file: int, more: dict[str, Any]) -> dict[str, Any]:
    """The grant as a channel hands it over: each part begins with a descriptor of its own."""
    return {**more, "pages": [(os.dup(file), *part) for part in more["pages"]]}


def test_pages_that_came_with_a_grant_are_mapped_once_and_their_descriptors_closed(
    granter: Any, in_place: tuple[int, int, dict[str, Any]]
) -> None:
    mappings, (head, file, more) = MappedImages(), in_place
    before = len(os.listdir("/proc/self/fd"))
    first = mappings.borrow(granter, grant({"id": 1}, head, lease=1, **given(file, more)), os.dup(head))
    second = mappings.borrow(granter, grant({"id": 2}, head, lease=2, **given(file, more)), os.dup(head))
    assert first.mapping is second.mapping
    assert bytes(first.data[-100:]) == b"\5" * 100
    first.close()
    second.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [({"files": 2}, "pages of 1 files were granted"), ({"nbytes": 1}, "announced|pages"), ({"cut": True}, "cut short")],
)
def test_pages_that_are_not_as_announced_are_refused_and_given_back(
    change: dict[str, Any], said: str, granter: Any, in_place: tuple[int, int, dict[str, Any]]
) -> None:
    mappings, (head, file, more) = MappedImages(), in_place
    if change.pop("cut", False):
        os.truncate(f"/proc/self/fd/{file}", 50)
    before = len(os.listdir("/proc/self/fd"))
    granted = grant({"id": 1}, head, lease=4, **{**given(file, more), **change})
    with pytest.raises(ImageError, match=f"^m cannot be mapped: .*({said}).*; open it again$"):
        mappings.borrow(granter, granted, os.dup(head), "m")
    assert list(granter.owed) == [4]
    assert len(os.listdir("/proc/self/fd")) == before


def test_pages_whose_descriptors_did_not_come_are_refused(
    granter: Any, in_place: tuple[int, int, dict[str, Any]]
) -> None:
    head, _, more = in_place
    granted = grant({"id": 1}, head, lease=4, **{**more, "pages": [(-1, *more["pages"][0])]})
    with pytest.raises(ImageError, match="cannot be mapped"):
        MappedImages().borrow(granter, granted, os.dup(head))
    assert list(granter.owed) == [4]


@pytest.mark.parametrize("how", ["with the grant", "asked for"])
def test_files_are_mapped_with_one_descriptor_at_hand_beside_those_that_stay(
    how: str, granter: Any, in_place: tuple[int, int, dict[str, Any]]
) -> None:
    mappings, (head, file, more), files = MappedImages(), in_place, 20
    begin = more["nbytes"] - 100
    os.ftruncate(head, begin + files * mmap.PAGESIZE)
    parts = [[begin + number * mmap.PAGESIZE, 100, 0] for number in range(files)]
    granted = grant({"id": 1}, head, lease=1, place="file", files=files)
    if how == "with the grant":
        granted = given(file, {**granted, "pages": parts})
    with few_descriptors(left=2 + files + (how == "asked for")):
        borrow = mappings.borrow(
            granter, granted, os.dup(head), pages=lambda _, number: Pages(os.dup(file), *parts[number])
        )
    assert bytes(borrow.data[begin + (files - 1) * mmap.PAGESIZE :][:100]) == b"\5" * 100
    borrow.close()


def test_a_lack_of_descriptors_is_no_fault_of_the_image(
    granter: Any, in_place: tuple[int, int, dict[str, Any]]
) -> None:
    mappings, (head, file, more) = MappedImages(), in_place
    before = len(os.listdir("/proc/self/fd"))
    granted, fd = grant({"id": 1}, head, lease=4, **given(file, more)), os.dup(head)
    with few_descriptors(left=1), pytest.raises(OSError, match="Too many open files"):
        mappings.borrow(granter, granted, fd)
    assert list(granter.owed) == [4]
    assert len(os.listdir("/proc/self/fd")) == before
