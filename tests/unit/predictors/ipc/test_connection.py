"""The supervisor's end of a socket: reports messages and the end, once, and never waits."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from nursing import until
from trims_predictors.ipc.connection import Peer

from trims.core.errors import LostPeerError
from trims.process import messages

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable


def converse(work: Callable[[Peer, socket.socket, list[Any], list[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        ours, theirs = messages.pair()
        heard: list[Any] = []
        lost: list[str] = []

        def hear(message: Any, fds: list[int]) -> None:
            heard.append(message)
            messages.close_all(fds)

        with theirs:
            peer = Peer(ours, hear, lost.append)
            await work(peer, theirs, heard, lost)
            peer.close()
            peer.close()

    asyncio.run(run())


def test_messages_are_told_with_their_descriptors() -> None:
    async def work(peer: Peer, theirs: socket.socket, heard: list[Any], lost: list[str]) -> None:
        with open("/dev/null") as file:
            messages.send(theirs, {"a": 1}, [file.fileno()])
        await until(lambda: heard == [{"a": 1}])
        peer.send({"b": 2})
        assert messages.receive(theirs) == ({"b": 2}, [])
        assert not lost

    converse(work)


def test_the_end_is_told_once_and_sending_is_refused_afterwards() -> None:
    async def work(peer: Peer, theirs: socket.socket, heard: list[Any], lost: list[str]) -> None:
        theirs.close()
        await until(lambda: lost)
        await asyncio.sleep(0.01)
        assert lost == ["it closed its socket"]
        with pytest.raises(LostPeerError):
            peer.send({})

    converse(work)


def test_a_peer_that_sends_nonsense_is_lost() -> None:
    async def work(peer: Peer, theirs: socket.socket, heard: list[Any], lost: list[str]) -> None:
        theirs.send(b"nonsense")
        await until(lambda: lost)
        assert "not JSON" in lost[0]

    converse(work)


def test_a_peer_that_does_not_read_is_given_up_and_not_waited_for() -> None:
    async def work(peer: Peer, theirs: socket.socket, heard: list[Any], lost: list[str]) -> None:
        def flood() -> None:
            for _ in range(10_000):
                peer.send({"a": "x" * 1000})

        with pytest.raises(LostPeerError, match="does not read"):
            flood()

    converse(work)


def test_nothing_is_told_after_a_close() -> None:
    async def work(peer: Peer, theirs: socket.socket, heard: list[Any], lost: list[str]) -> None:
        messages.send(theirs, {})
        peer.close()
        await asyncio.sleep(0.01)
        assert (heard, lost) == ([], [])
        assert os.getpid()

    converse(work)
