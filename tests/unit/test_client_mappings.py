"""The mappings of a session: an image is mapped once, and its lease ends with the last who can reach it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from raw_door import grant
from trims_client.mappings import Mappings

from trims.core.errors import (
    ClosedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_an_image_is_mapped_once_and_kept_by_its_last_borrower(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    request = {"id": 1}
    first = mappings.borrow(grant(request, fd, lease=1), os.dup(fd))
    second = mappings.borrow(grant(request, fd, lease=2), os.dup(fd))
    assert len(mappings.held()) == 1
    first.close()
    first.close()
    assert list(mappings.given_up) == [1]
    with pytest.raises(ClosedError):
        _ = first.data
    assert len(second.data)
    second.close()
    assert list(mappings.given_up) == [1, 2]
    assert mappings.held() == []


def test_a_view_keeps_the_lease_after_everything_is_closed(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    borrow = mappings.borrow(grant({"id": 1}, fd, lease=3), os.dup(fd))
    view = borrow.data[-10:]
    borrow.close()
    assert list(mappings.given_up) == []
    assert len(mappings.held()) == 1
    assert bytes(view) == b"\7" * 10
    del view
    assert list(mappings.given_up) == [3]
    assert mappings.held() == []


def test_leases_of_a_daemon_that_is_gone_are_not_given_to_the_next(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    borrows = [mappings.borrow(grant({"id": 1}, fd, lease=lease), os.dup(fd)) for lease in (1, 2)]
    (mapping,) = mappings.lose_leases()
    mapping.leases.add(70)
    borrows[0].close()
    assert list(mappings.given_up) == []
    borrows[1].close()
    assert list(mappings.given_up) == [70]


def test_two_daemons_that_count_alike_do_not_mix_up_who_borrows(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    before = mappings.borrow(grant({"id": 1}, fd, lease=5), os.dup(fd))
    (mapping,) = mappings.lose_leases()
    mapping.leases.add(1)
    after = mappings.borrow(grant({"id": 1}, fd, lease=5), os.dup(fd))
    before.close()
    assert after.data[-1] == 7
    assert mapping.leases, "nothing is mapped without a lease"
    after.close()
    assert sorted(mappings.given_up) == [1, 5]


def test_what_can_be_written_is_a_copy_of_ones_own(segment: Callable[..., int]) -> None:
    mappings, fd = Mappings(threading.RLock()), segment()
    borrow = mappings.borrow(grant({"id": 1}, fd), os.dup(fd))
    one, other = borrow.private_data(), borrow.private_data()
    one[-1] = 99
    assert (one[-1], other[-1], borrow.data[-1]) == (99, 7, 7)
    del one, other
    borrow.close()
