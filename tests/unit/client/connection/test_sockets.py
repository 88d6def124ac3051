"""Calls on the attach door's socket: each ends by its own time, and no descriptor is kept by accident."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import pytest
from trims_client.connection import sockets
from trims_client.connection.channel import Channel

from trims.core.errors import CapacityError, DaemonAwayError
from trims.testing.descriptors import few_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.timeout(300)
def test_connecting_to_a_daemon_that_accepts_nothing_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trims_client.connection.sockets._CONNECT_S", 0.1, raising=False)
    path = str(folder / "attach.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        made = [Channel(path, "test") for _ in range(2)]
        with pytest.raises(DaemonAwayError, match=r"accepted no connection within 0\.1 s; it is stopped or hangs"):
            Channel(path, "test")
        for each in made:
            each.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_where_no_daemon_listens_the_socket_is_closed_and_the_remedy_said(folder: Path) -> None:
    made = socket.socket(socket.AF_UNIX)
    with pytest.raises(
        DaemonAwayError, match=rf"no daemon answers at {folder}/attach.sock \(No such file.*trims serve"
    ):
        sockets.connect(made, str(folder / "attach.sock"))
    assert made.fileno() == -1


def test_the_listening_process_is_known_by_its_user(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as made:
        listener.bind(str(folder / "attach.sock"))
        listener.listen()
        sockets.connect(made, str(folder / "attach.sock"))
        assert sockets.peer_uid(made) == os.geteuid()


def fill(sock: socket.socket) -> int:
    """Send until there is no room; returns how many bytes."""
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += sock.send(b"x" * 4096, socket.MSG_DONTWAIT)
    return sent


def test_a_message_that_finds_no_room_is_not_sent_and_may_be_sent_later(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    sent = fill(ours)
    for until_s in (0.0, time.monotonic() + 0.02):
        assert sockets.send(ours, b"message", until_s) is False
    while sent:
        sent -= len(theirs.recv(min(sent, 65536)))
    assert sockets.send(ours, b"message", 0.0) is True
    assert theirs.recv(100) == b"message"


def test_a_message_without_a_limit_waits_for_room(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    left = fill(ours)
    done: list[bool] = []
    sending = threading.Thread(target=lambda: done.append(sockets.send(ours, b"message", None)))
    sending.start()
    while left:
        left -= len(theirs.recv(min(left, 65536)))
    sending.join(60)
    assert done == [True]
    assert theirs.recv(100) == b"message"


def test_reading_ends_by_its_own_time_and_leaves_no_limit_for_the_next_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    for how, until_s in ((socket.MSG_DONTWAIT, None), (0, 0.0)):
        with pytest.raises(BlockingIOError):
            sockets.receive(ours, deque(), how, until_s)
    got: list[bytes] = []
    reading = threading.Thread(target=lambda: got.append(sockets.receive(ours, deque(), 0, None)))
    reading.start()
    theirs.sendall(b"abc")
    reading.join(60)
    assert got == [b"abc"]
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError, match="the daemon closed the connection"):
        sockets.receive(ours, deque(), 0, None)


def test_descriptors_arrive_with_their_data_and_are_not_inherited(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    socket.send_fds(theirs, [b"x"], [0, 1, 2])
    fds: deque[int] = deque()
    assert sockets.receive(ours, fds, 0, None) == b"x"
    assert len(fds) == 3
    assert not any(map(os.get_inheritable, fds))
    for fd in fds:
        os.close(fd)


def test_descriptors_for_which_there_is_no_room_leave_a_mark(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    socket.send_fds(theirs, [b"x"], [0, 1])
    fds: deque[int] = deque()
    with few_descriptors(left=1):
        assert sockets.receive(ours, fds, 0, None) == b"x"
    assert (len(fds), fds[1]) == (2, sockets.LOST)
    os.close(fds[0])


@pytest.mark.parametrize(("code", "whose"), [(errno.EMFILE, "this process may have"), (errno.ENFILE, "this machine")])
def test_a_lack_of_descriptors_is_told_by_whose_limit_it_is(code: int, whose: str) -> None:
    behind = CapacityError("no descriptor left")
    behind.__cause__ = OSError(code, "too many")
    for error in (OSError(code, "too many"), behind):
        assert sockets.lacks_descriptors(error)
        assert str(sockets.explained(error, "m cannot be mapped")).startswith(
            f"m cannot be mapped: no descriptor left: {whose}"
        )


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOMEM, "no memory"), CapacityError("no room at cpu"), ValueError("x")]
)
def test_other_errors_are_no_lack_of_descriptors(error: Exception) -> None:
    assert not sockets.lacks_descriptors(error)


def test_no_limit_never_passes_and_one_that_passed_still_leaves_a_moment() -> None:
    assert (sockets.passed(None), sockets.left(None)) == (False, None)
    assert sockets.passed(0.0)
    assert sockets.left(0.0) == 0.001
    assert not sockets.passed(time.monotonic() + 1000)


def test_a_tenant_that_the_daemon_does_not_know_is_told_from_a_daemon_that_is_away(folder: Path) -> None:
    away = rf"no daemon answers at {folder}/tenants/blue/attach.sock"
    unknown = rf"the daemon in {folder} knows no tenant 'blue'; name it in the file of `trims serve --tenants`"
    for there, told in ((False, away), (True, unknown)):
        if there:
            (folder / "attach.sock").touch()
        with pytest.raises(DaemonAwayError, match=told):
            sockets.connect(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), f"{folder}/tenants/blue/attach.sock")
    (folder / "tenants" / "blue").mkdir(parents=True)
    (folder / "tenants" / "blue" / "attach.sock").touch()  # it is there, and no daemon listens
    with pytest.raises(DaemonAwayError, match=away):
        sockets.connect(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), f"{folder}/tenants/blue/attach.sock")
