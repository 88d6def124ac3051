"""Messages with descriptors over sockets that keep them whole."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from trims_predictors.ipc import messages

from trims.core.errors import BadMessageError, LostPeerError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = messages.pair()
    with one, other:
        yield one, other


def test_messages_arrive_whole_and_in_order_with_their_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    with open("/dev/null") as file:
        messages.send(one, {"a": 1}, [file.fileno()])
    messages.send(one, {"b": "x" * 50_000})
    received = messages.receive(other)
    assert received is not None
    message, (fd,) = received
    assert message == {"a": 1}
    assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/null"
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert messages.receive(other) == ({"b": "x" * 50_000}, [])


def test_the_end_of_the_other_side_is_told(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    one.close()
    assert messages.receive(other) is None
    with pytest.raises(LostPeerError):
        messages.send(other, {})


def test_a_message_that_is_too_long_is_not_sent(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(BadMessageError, match="too long"):
        messages.send(ends[0], {"a": "x" * messages.MOST_BYTES})


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b'"text"', b"[" * 90_000, b"x" * (messages.MOST_BYTES + 1)])
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(
    ends: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    one, other = ends
    with open("/dev/null") as file:
        socket.send_fds(one, [data], [file.fileno()])
    with pytest.raises(BadMessageError):
        messages.receive(other)
