"""A daemon's end of the attach door that follows a test's script, for tests of the client."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from trims.wire.frames import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from trims.wire.frames import Message

WAIT_S = 120.0
GREETING = {"protocol": 1, "boot": "b", "session": 1}


class Peer:
    """The daemon's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(WAIT_S)
        self.decoder = Decoder()
        self.inbox: list[Message] = []

    def hear(self) -> Message:
        """The next message."""
        while not self.inbox:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("the client hung up")
            self.inbox += self.decoder.feed(data)
        return self.inbox.pop(0)

    def say(self, message: Message, *fds: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        self.sock.sendmsg([encode(message)], rights)

    def listen_to_the_end(self, heard: list[Message]) -> None:
        """Whatever comes until the client hangs up; closes are confirmed."""
        try:
            while True:
                heard.append(self.hear())
                if "id" in heard[-1]:
                    self.say({"id": heard[-1]["id"], "closed": heard[-1].get("lease")})
        except ConnectionError:
            return

    def answer_nothing(self) -> None:
        """Hear messages and answer none, until the client hangs up."""
        try:
            while True:
                self.hear()
        except ConnectionError:
            return

    def greeted(self) -> Message:
        """Answer the hello that comes with the first request; returns the request."""
        assert self.hear()["op"] == "hello"
        self.say(GREETING)
        return self.hear()


class Door:
    """A daemon that follows one script for each connection."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "attach.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.scripts: Iterable[Callable[[Peer], None]] = []
        self.served = 0
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []
        self.accepting = threading.Thread(target=self._accept)

    def serves(self, *scripts: Callable[[Peer], None]) -> None:
        """Serve the first connection by the first script, the second by the second, ..."""
        self.scripts = list(scripts)
        self.accepting.start()

    def serves_each(self, script: Callable[[Peer], None]) -> None:
        """Serve every connection by the same script until the end of the test."""
        self.scripts = itertools.repeat(script)
        self.accepting.start()

    def _accept(self) -> None:
        for script in self.scripts:
            try:
                sock, _ = self.listener.accept()
            except OSError:  # `end` was called
                return
            self.served += 1
            self.threads.append(threading.Thread(target=self._run, args=(script, sock)))
            self.threads[-1].start()

    def _run(self, script: Callable[[Peer], None], sock: socket.socket) -> None:
        with sock:
            try:
                script(Peer(sock))
            except Exception as error:
                self.errors.append(error)

    def end(self) -> None:
        """Every script has run as it was written."""
        if isinstance(self.scripts, itertools.repeat):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.accepting.join(WAIT_S)
        for thread in (self.accepting, *self.threads):
            thread.join(WAIT_S)
            assert not thread.is_alive()
        self.listener.close()
        assert self.errors == []


def grant(request: Message, fd: int, lease: int = 1, **more: Any) -> Message:
    answer = {"id": request["id"], "lease": lease, "key": "k", "place": "cpu", "generation": 1, "digest": "d",
              "warm": True, "nbytes": os.fstat(fd).st_size if fd >= 0 else 100}  # fmt: skip
    return {**answer, **more}


def last_words(fd: int) -> Callable[[Peer], None]:
    """Answer one request and hang up in one go."""
    return lambda peer: peer.say(grant(peer.greeted(), fd, lease=3), fd)
