"""Messages between a daemon and its copier arrive as they were sent."""

from __future__ import annotations

import os

import pytest

from trims.background.messages import MOST_FDS, check, failure, read_order, send_order
from trims.background.task import Order, Part, SourceFailedError, Task
from trims.process import messages


def test_an_order_arrives_with_all_of_its_parts_and_descriptors_in_order() -> None:
    ours, theirs = messages.pair()
    parts = [Part(number * 64, 10, number % 2, 1 << 40) for number in range(100_000)]
    fds = [os.memfd_create(str(number)) for number in range(3)]
    for number, fd in enumerate(fds):
        os.write(fd, bytes([number]))
    task = Task(6_400_000, parts, ("sha256",), large_pages=True)
    for order in (Order(task, fds[:2], fds[2]), Order(task, fds[1:])):
        send_order(ours, order)
        received = messages.receive(theirs, most_fds=MOST_FDS)
        assert received is not None
        message, got = received
        found = read_order(message, got)
        assert found.task == task
        for sent, arrived in ((order.files, found.files), ([order.target or 0], [found.target or 0])):
            assert [os.fstat(fd).st_ino for fd in sent] == [os.fstat(fd).st_ino for fd in arrived]
        for fd in got:
            os.close(fd)
    for fd in fds:
        os.close(fd)
    ours.close()
    theirs.close()


def test_a_failure_is_raised_at_the_other_side_as_what_it_was() -> None:
    with pytest.raises(SourceFailedError, match="ends at 7 bytes"):
        check(failure(SourceFailedError(1, 7, None)))
    with pytest.raises(OSError, match="full") as failed:
        check(failure(OSError(28, "full")))
    assert failed.value.errno == 28
    assert check({"done": 3}) == {"done": 3}
