"""One connection of the generator, over real sockets, with the kernel's events handed to it by hand."""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING

import pytest
from trims_bench.workloads.exchange import Connection, Request
from trims_bench.workloads.order import Server
from trims_bench.workloads.records import CLOSED, COLD, NEVER, NO_HTTP, UNKNOWN, WARM

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"cold": true}'


class Owner:
    """Notes what its connections report."""

    def __init__(self) -> None:
        self.writing = False
        self.found: list[tuple[int, int, bool]] = []

    def want(self, connection: Connection, *, writing: bool) -> None:
        self.writing = writing

    def over(self, connection: Connection, request: Request | None, status: int, cold: int, *, usable: bool) -> None:
        self.found.append((status, cold, usable))


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def ends(owner: Owner) -> Iterator[tuple[Connection, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(Server("127.0.0.1", server.getsockname()[1]), None, owner)
        there, _ = server.accept()
        with there:
            yield connection, there
        connection.close()


def answered(ends: tuple[Connection, socket.socket], *parts: bytes) -> Request:
    """Send a request, and have it answered in these parts."""
    connection, there = ends
    request = Request(1, 0, 0)
    connection.send(request, b"POST / HTTP/1.1\r\n\r\n")
    assert there.recv(1000).startswith(b"POST")
    for part in parts:
        there.sendall(part)
        select.select([connection.sock], [], [], 5)
        connection.readable()
    return request


def test_an_answer_in_parts_is_one_and_says_whether_it_was_cold(
    owner: Owner, ends: tuple[Connection, socket.socket]
) -> None:
    request = answered(ends, ANSWER[:10], ANSWER[10:50], ANSWER[50:])
    assert owner.found == [(200, COLD, True)]
    assert NEVER < request.sent <= request.first
    answered(ends, ANSWER.replace(b"true", b"fals").replace(b"14", b"14"))
    answered(ends, b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"cold":false}')
    assert owner.found[1:] == [(200, UNKNOWN, True), (200, WARM, True)]


def test_an_answer_before_the_answer_is_passed_over(owner: Owner, ends: tuple[Connection, socket.socket]) -> None:
    answered(ends, b"HTTP/1.1 100 Continue\r\n\r\n", ANSWER)
    assert owner.found == [(200, COLD, True)]


def test_chunks_are_one_answer(owner: Owner, ends: tuple[Connection, socket.socket]) -> None:
    answered(ends, b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{"cold\r\n7\r\n":true}\r\n0\r\n\r\n')
    assert owner.found == [(200, COLD, True)]


def test_a_connection_that_the_server_closes_is_used_for_no_other_request(
    owner: Owner, ends: tuple[Connection, socket.socket]
) -> None:
    answered(ends, ANSWER.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))
    assert owner.found == [(200, COLD, False)]


def test_bytes_that_were_not_asked_for_and_the_end_are_outcomes(
    owner: Owner, ends: tuple[Connection, socket.socket]
) -> None:
    connection, there = ends
    there.sendall(ANSWER)
    select.select([connection.sock], [], [], 5)
    connection.readable()
    there.close()
    select.select([connection.sock], [], [], 5)
    connection.readable()
    assert owner.found == [(NO_HTTP, UNKNOWN, False), (CLOSED, UNKNOWN, False)]


def test_a_request_that_the_kernel_does_not_take_at_once_goes_on_when_there_is_room(
    owner: Owner, ends: tuple[Connection, socket.socket]
) -> None:
    connection, there = ends
    body = b"x" * (32 << 20)
    connection.send(Request(1, 0, 0), body)
    assert owner.writing, "it waits for room"
    taken = 0
    while taken < len(body):
        taken += len(there.recv(1 << 20))
        connection.writable()
    assert not owner.writing


def test_a_connection_that_is_prepared_is_handed_over_once_it_is_made(
    owner: Owner, ends: tuple[Connection, socket.socket]
) -> None:
    connection, _ = ends
    connection.prepare()
    assert owner.writing
    connection.writable()
    assert (owner.writing, owner.found) == (False, [(0, UNKNOWN, True)])


def test_an_address_that_cannot_be_reached_at_all_raises(owner: Owner) -> None:
    with pytest.raises(OSError):
        Connection(Server("no address", 1), None, owner)
