"""A session that asks one question at a time: answers and errors arrive, and the daemon's end is noticed."""

from __future__ import annotations

import _socket
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from looking import wait_until
from raw_door import GREETING, Peer
from raw_door import Door as Server

from trims.core.errors import BadMessageError, CapacityError, LostPeerError, NotSupportedError
from trims.programs.door import Door
from trims.wire.answers import PROTOCOL_VERSION, error_message
from trims.wire.frames import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT_S = 60.0


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    made.end()


def greets(script: Callable[[Peer], None]) -> Callable[[Peer], None]:
    """A daemon that answers the hello, and then does this."""

    def run(peer: Peer) -> None:
        assert peer.hear() == {"op": "hello", "protocol": PROTOCOL_VERSION, "agent": "trims exec"}
        peer.say(GREETING)
        script(peer)

    return run


def echo(peer: Peer) -> None:
    """Answer requests with what was asked."""
    try:
        while True:
            request = peer.hear()
            peer.say({"id": request["id"], "asked": request})
    except ConnectionError:
        return


def hear(peer: Peer) -> None:
    """Hear one request, and end."""
    peer.hear()


def test_each_request_has_a_number_of_its_own_and_an_answer(server: Server) -> None:
    server.serves(greets(echo))
    door = Door.open(server.path, WAIT_S)
    for number in (1, 2, 3):
        request = {"op": "templates", "id": number}
        assert door.ask({"op": "templates"}) == {"id": number, "asked": request}
    door.close()
    door.close()


def test_a_session_that_has_begun_is_not_begun_again(server: Server) -> None:
    server.serves(echo)
    sock = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(server.path)
    door = Door(sock, greeted=True, wait_s=WAIT_S)
    assert door.ask({"op": "forget"})["asked"] == {"op": "forget", "id": 1}
    door.close()


def test_an_answer_in_pieces_is_put_together(server: Server) -> None:
    def answer(peer: Peer) -> None:
        data = encode({"id": peer.hear()["id"], "text": "x" * 50_000})
        for begin in range(0, len(data), 20_000):
            peer.sock.sendall(data[begin : begin + 20_000])

    server.serves(greets(answer))
    door = Door.open(server.path, WAIT_S)
    assert door.ask({"op": "templates"})["text"] == "x" * 50_000
    door.close()


def test_an_error_is_raised_as_what_it_is_and_the_session_goes_on(server: Server) -> None:
    def refuse(peer: Peer) -> None:
        peer.say(error_message(CapacityError("full"), peer.hear()["id"]))
        echo(peer)

    server.serves(greets(refuse))
    door = Door.open(server.path, WAIT_S)
    with pytest.raises(CapacityError):
        door.ask({"op": "template"})
    assert door.ask({"op": "templates"})["id"] == 2
    door.close()


#: What a daemon does in the place of greeting, and how that ends.
BAD_GREETINGS: dict[str, tuple[Callable[[Peer], object], type[Exception]]] = {
    "it refuses": (lambda peer: peer.say(error_message(NotSupportedError("protocol"), None)), NotSupportedError),
    "it ends": (lambda peer: None, LostPeerError),
    "no frame": (lambda peer: peer.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), BadMessageError),
    "no JSON": (lambda peer: peer.sock.sendall(b"\0\0\0\1{"), BadMessageError),
    "an error that is none": (lambda peer: peer.say({"error": "no"}), BadMessageError),
}


@pytest.mark.parametrize("what", BAD_GREETINGS)
def test_a_session_that_does_not_begin_is_an_error(server: Server, what: str) -> None:
    answer, error = BAD_GREETINGS[what]

    def run(peer: Peer) -> None:
        peer.hear()
        answer(peer)

    server.serves(run)
    with pytest.raises(error):
        Door.open(server.path, WAIT_S)


def test_without_a_daemon_there_is_no_session(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Door.open(str(folder / "nothing"))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "left"))
    with pytest.raises(ConnectionRefusedError):
        Door.open(str(folder / "left"))


def test_a_daemon_that_does_not_answer_is_not_waited_for(server: Server) -> None:
    server.serves(greets(Peer.answer_nothing), Peer.answer_nothing)
    door = Door.open(server.path, WAIT_S)
    door._wait_s = 0.01
    with pytest.raises(TimeoutError):
        door.ask({"op": "templates"})
    door.close()
    with pytest.raises(TimeoutError):
        Door.open(server.path, 0.01)


def test_a_daemon_that_ends_in_place_of_an_answer_is_lost(server: Server) -> None:
    server.serves(greets(hear))
    door = Door.open(server.path, WAIT_S)
    with pytest.raises(LostPeerError):
        door.ask({"op": "templates"})
    assert door.has_ended()
    door.close()


def test_the_end_of_a_session_is_noticed_without_a_request(server: Server) -> None:
    server.serves(greets(hear))
    door = Door.open(server.path, WAIT_S)
    assert not door.has_ended()
    door.sock.settimeout(WAIT_S)
    door.sock.sendall(encode({"op": "templates", "id": 1}))
    wait_until(door.has_ended, "the end of the session is not noticed")
    door.close()
    assert door.has_ended()


def test_what_a_daemon_says_by_itself_is_no_end(server: Server) -> None:
    greeted = threading.Event()

    def talk(peer: Peer) -> None:
        assert greeted.wait(WAIT_S)
        peer.say({"event": "x"})
        echo(peer)

    server.serves(greets(talk))
    door = Door.open(server.path, WAIT_S)
    greeted.set()
    door.sock.recv(1, socket.MSG_PEEK)
    assert not door.has_ended()
    assert door.ask({"op": "templates"})["id"] == 1
    door.close()
