"""Segments of shared memory: closed once, and full memory distinguished from other failures."""

from __future__ import annotations

import errno
import os

import pytest

from trims.memory.segments import Segment, is_full


def test_a_segment_is_closed_once_and_then_has_no_descriptor() -> None:
    segment = Segment("name", 1, os.memfd_create("segment"))
    taken = segment.fd
    segment.close()
    assert segment.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken)
    again = os.memfd_create("another")  # it has the same number: closing twice would close it
    try:
        segment.close()
        os.fstat(again)
    finally:
        os.close(again)


@pytest.mark.parametrize(
    ("code", "full"),
    [
        (errno.ENOSPC, True),
        (errno.ENOMEM, True),
        (errno.EFAULT, True),
        (errno.EFBIG, True),
        (errno.EIO, False),
        (errno.EACCES, False),
        (errno.EMFILE, False),
    ],
)
def test_only_a_lack_of_memory_is_full_memory(code: int, full: bool) -> None:
    assert is_full(OSError(code, os.strerror(code))) is full
