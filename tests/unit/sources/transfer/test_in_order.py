"""Digests right behind a transfer whose pieces come in any order."""

from __future__ import annotations

import hashlib
import os
import random

import pytest

from trims.sources.transfer.partial import PIECE_BYTES, Partial
from trims.sources.transfer.transfer import InOrder

DATA = random.Random(1).randbytes(3 * PIECE_BYTES + 7)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_the_digest_is_that_of_the_bytes_whatever_comes_first(order: tuple[int, ...]) -> None:
    fd = os.memfd_create("partial")
    os.ftruncate(fd, len(DATA))
    partial = Partial(fd, len(DATA))
    hashing = InOrder(partial, ["sha256"])
    hashing.start()
    for piece in order:
        with partial.room(piece) as room:
            room[:] = DATA[piece * PIECE_BYTES :][: len(room)]
        partial.filled(piece)
        hashing.woken()
    assert hashing.digests() == {"sha256": hashlib.sha256(DATA).hexdigest()}
    hashing.stop()
    partial.close()
    os.close(fd)


def test_it_ends_when_a_transfer_does_before_all_has_come() -> None:
    fd = os.memfd_create("partial")
    os.ftruncate(fd, len(DATA))
    partial = Partial(fd, len(DATA))
    hashing = InOrder(partial, ["sha256"])
    hashing.start()
    hashing.stop()
    assert not hashing.is_alive()
    partial.close()
    os.close(fd)


def test_an_unknown_digest_is_an_error_before_anything_runs() -> None:
    fd = os.memfd_create("partial")
    os.ftruncate(fd, 1)
    partial = Partial(fd, 1)
    with pytest.raises(ValueError, match="no-such"):
        InOrder(partial, ["no-such"])
    partial.close()
    os.close(fd)
