"""Arenas: what one side writes the other reads, and a peer that lies about it is found out."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from trims_predictors.ipc.shared_buffers import Receiver, Sender
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import BadMessageError, CapacityError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sides() -> Iterator[tuple[Sender, Receiver]]:
    sender, receiver = Sender(), Receiver()
    yield sender, receiver
    sender.close()
    receiver.close()


def test_tensors_arrive_and_the_arena_is_used_again(sides: tuple[Sender, Receiver]) -> None:
    sender, receiver = sides
    for turn, grows in ((1, True), (2, False), (3, False)):
        arrays = [np.full(3, turn, "u1"), np.full((2, 2), turn, "f8")]
        described, fd = sender.write([from_array(name, array) for name, array in zip("ab", arrays, strict=True)])
        assert (fd is not None) == grows
        if fd is not None:
            receiver.take(fd)
        found = receiver.read(described)
        assert [to_array(tensor).tolist() for tensor in found] == [array.tolist() for array in arrays]
        assert described[1]["begin"] % 64 == 0
        found.clear()


def test_an_arena_that_is_too_small_is_replaced_and_views_into_the_old_one_stay(
    sides: tuple[Sender, Receiver],
) -> None:
    sender, receiver = sides
    described, fd = sender.write([from_array("x", np.arange(3))])
    assert fd is not None
    receiver.take(fd)
    (old,) = map(to_array, receiver.read(described))
    described, fd = sender.write([from_array("x", np.zeros(1 << 18))])
    assert fd is not None
    receiver.take(fd)
    assert to_array(receiver.read(described)[0]).size == 1 << 18
    assert old.tolist() == [0, 1, 2]


def test_nothing_at_all_can_be_sent(sides: tuple[Sender, Receiver]) -> None:
    sender, receiver = sides
    described, fd = sender.write([])
    assert described == []
    assert fd is not None
    receiver.take(fd)
    assert receiver.read([]) == []


def test_memory_that_may_shrink_under_its_reader_is_refused(sides: tuple[Sender, Receiver]) -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(BadMessageError, match="may shrink"):
        sides[1].take(fd)
    with pytest.raises(BadMessageError, match="no arena"):
        sides[1].take(os.open("/dev/null", os.O_RDONLY))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"name": "x", "dtype": "U", "shape": [1], "begin": 0, "end": 1 << 40}, "lies at"),
        ({"name": "x", "dtype": "U", "shape": [1], "begin": 8, "end": 4}, "lies at"),
        ({"name": "x", "dtype": "U", "shape": [1], "begin": -8, "end": 4}, "lies at"),
        ({"name": "x"}, "described a tensor wrongly"),
        ({"name": "x", "dtype": "U", "shape": ["a"], "begin": 0, "end": 4}, "described a tensor wrongly"),
        ({"name": "x", "dtype": "U", "shape": None, "begin": 0, "end": 4}, "described a tensor wrongly"),
    ],
)
def test_a_tensor_outside_the_arena_is_refused(
    sides: tuple[Sender, Receiver], described: dict[str, object], message: str
) -> None:
    sender, receiver = sides
    _, fd = sender.write([])
    assert fd is not None
    receiver.take(fd)
    with pytest.raises(BadMessageError, match=message):
        receiver.read([described])


def test_an_arena_for_which_no_descriptor_is_left_is_no_nonsense_of_the_other_side(
    sides: tuple[Sender, Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = sides
    _, fd = sender.write([from_array("x", np.arange(3))])
    assert fd is not None

    def lack(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(mmap, "mmap", lack)
    with pytest.raises(CapacityError, match="what the other side sent cannot be mapped: no descriptor left"):
        receiver.take(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
