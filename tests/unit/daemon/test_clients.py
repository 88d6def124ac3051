"""Connections of the attach door: what is unsent, the descriptors that go with it, and the process behind."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from trims.daemon.clients import Connection, Unsent
from trims.wire.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection of the door, which does not block, and the client's end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(20)
    made = Connection(1, ours, Peer.of(ours))
    yield made, theirs
    while made.unsent:
        made.unsent.popleft().let_go()
    made.unwatch_process()
    ours.close()
    theirs.close()


def test_a_message_leaves_with_its_descriptor_which_stays_the_stores(
    ends: tuple[Connection, socket.socket], tmp_path: Path
) -> None:
    connection, client = ends
    (tmp_path / "image").write_bytes(b"weights")
    with (tmp_path / "image").open("rb") as file:
        connection.unsent.append(Unsent(b"message", [file.fileno()]))
        assert connection.flush()
        data, (received,), _, _ = socket.recv_fds(client, 100, 4)
        assert (data, os.pread(received, 10, 0), os.pread(file.fileno(), 10, 0)) == (b"message", b"weights", b"weights")
        os.close(received)
    assert not connection.unsent


def test_what_a_client_does_not_read_stays_unsent_and_arrives_whole_and_in_order(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, client = ends
    sent = [bytes([number]) * 300_000 for number in range(4)]
    connection.unsent.extend(Unsent(data) for data in sent)
    assert not connection.flush()
    received = b""
    while len(received) < 1_200_000:
        received += client.recv(1 << 20)
        connection.flush()
    assert received == b"".join(sent)
    assert connection.flush()


def test_a_descriptor_goes_with_the_first_byte_and_once(ends: tuple[Connection, socket.socket]) -> None:
    connection, client = ends
    fd = os.memfd_create("trims-test")
    connection.unsent.append(Unsent(b"x" * 3_000_000, [fd]))
    assert not connection.flush()
    assert not connection.unsent[0].fds
    os.close(fd)
    received, fds = 0, list[int]()
    while received < 3_000_000:
        data, more, _, _ = socket.recv_fds(client, 1 << 20, 4)
        received, fds = received + len(data), fds + more
        connection.flush()
    assert len(fds) == 1
    os.close(fds[0])


def test_a_message_that_waits_keeps_a_descriptor_of_its_own(tmp_path: Path) -> None:
    folders = [tmp_path, tmp_path.parent]
    fds = [os.open(folder, os.O_RDONLY) for folder in folders]
    unsent = Unsent(b"message", fds)
    unsent.keep()
    kept = list(unsent.fds)
    unsent.keep()
    assert unsent.own == kept == list(unsent.fds)
    assert not set(kept) & set(fds)
    for fd in fds:
        os.close(fd)
    assert [os.fstat(fd).st_ino for fd in kept] == [folder.stat().st_ino for folder in folders]
    unsent.let_go()
    unsent.let_go()
    for fd in kept:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


def test_a_message_without_a_descriptor_keeps_none() -> None:
    unsent = Unsent(b"message")
    unsent.keep()
    unsent.let_go()
    assert (unsent.fds, unsent.own) == ((), [])


def test_a_client_that_is_gone_is_an_error_of_the_flush(ends: tuple[Connection, socket.socket]) -> None:
    connection, client = ends
    client.close()
    connection.unsent.append(Unsent(b"message"))
    with pytest.raises(BrokenPipeError):
        connection.flush()


def test_a_process_is_watched_by_one_descriptor_until_that_is_given_back(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, _ = ends
    assert connection.watch_process()
    watched = connection.process_fd
    assert connection.watch_process()
    assert connection.process_fd == watched
    for _ in range(2):
        connection.unwatch_process()
    assert connection.process_fd == -1


def test_a_process_that_cannot_be_seen_is_not_watched(
    ends: tuple[Connection, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection(2, ends[0].sock, Peer(0, 0, 0))
    assert not connection.watch_process()
    assert "process 0 cannot be watched" in caplog.text
