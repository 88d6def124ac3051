"""Messages with descriptors over sockets that keep them whole."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import BadMessageError, LostPeerError
from trims.process import messages

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


LONG = {"x": "y" * messages.MOST_BYTES}


def test_a_long_message_travels_in_a_file_beside_its_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    with open("/dev/null") as file:
        messages.send(one, LONG, [file.fileno()], long=True)
    received = messages.receive(other, long_bytes=messages.MOST_BYTES * 2)
    assert received is not None
    message, (fd,) = received
    assert message == LONG
    assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/null"
    os.close(fd)


@pytest.mark.parametrize("nbytes", [-1, 1.0, True, "7", None, 1 << 40])
def test_a_length_of_a_long_message_that_cannot_be_one_is_refused(
    ends: tuple[socket.socket, socket.socket], nbytes: object
) -> None:
    one, other = ends
    with open(os.memfd_create("long"), "wb") as file:
        messages.send(one, {"message_in_file": nbytes}, [file.fileno()])
        with pytest.raises(BadMessageError):
            messages.receive(other, long_bytes=1 << 20)


def test_a_file_that_may_block_is_not_read(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    for fd in (*os.pipe(), os.open(__file__, os.O_RDONLY)):
        messages.send(one, {"message_in_file": 7}, [fd])
        os.close(fd)
        with pytest.raises(BadMessageError, match="cannot be read"):
            messages.receive(other, long_bytes=1 << 20)


def test_a_receiver_that_expects_no_long_message_gets_the_packet(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    messages.send(one, {"message_in_file": 7})
    assert messages.receive(other) == ({"message_in_file": 7}, [])


def test_more_descriptors_than_are_expected_are_refused_and_closed(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    with open("/dev/null") as file:
        for most, fits in ((200, True), (4, False)):
            messages.send(one, {}, [file.fileno()] * 100)
            if fits:
                received = messages.receive(other, most_fds=most)
                assert received is not None
                assert len(received[1]) == 100
                messages.close_all(received[1])
            else:
                with pytest.raises(BadMessageError):
                    messages.receive(other, most_fds=most)
