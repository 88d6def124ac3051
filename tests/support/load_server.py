"""A small HTTP server in a process of its own that answers as an endpoint does, or misbehaves in a stated way."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_INPUTS = [{"name": "x", "datatype": "FP64", "shape": [-1]}]


class Answers(asyncio.Protocol):
    """Answers every request of a connection.

    Args:
        options: See `main`.
    """

    asked = 0
    #: Answers that are held back, and whether those that follow are.
    held: ClassVar[list[tuple[Answers, object]]] = []
    holds = False

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._read[:end])
            end += 4 + (int(found[1]) if found else 0)
            if len(self._read) < end:
                return
            request, self._read = self._read[:end], self._read[end:]
            if request.startswith(b"GET"):
                self._answer({"name": "m", "inputs": _INPUTS})
            else:
                self._infer(request.split(b" ", 2)[1].split(b"/")[3].decode())

    def _infer(self, model: str) -> None:
        options, number = self._options, Answers.asked
        Answers.asked += 1
        if options.hold_until and number == options.hold_from:
            Answers.holds = True
            asyncio.get_running_loop().call_later(options.hold_s, Answers.let_go)
        if options.hold_until and number == options.hold_until:
            Answers.let_go()
        if options.cut:
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            self._transport.close()
        elif options.status:
            self._answer({"error": "busy"}, f"{options.status} Busy", "Retry-After: 1\r\n")
        elif options.refuse_after and Answers.asked > options.refuse_after:
            os._exit(0)
        else:
            message = {"model_name": model, "parameters": {"cold": number < options.cold}, "outputs": []}
            if Answers.holds:
                Answers.held.append((self, message))
            elif options.delay_s:
                asyncio.get_running_loop().call_later(options.delay_s, self._answer, message)
            else:
                self._answer(message)

    @staticmethod
    def let_go() -> None:
        """Send the answers that were held back."""
        Answers.holds = False
        held, Answers.held = Answers.held, []
        for connection, message in held:
            connection._answer(message)

    def _answer(self, message: object, status: str = "200 OK", headers: str = "") -> None:
        body = json.dumps(message).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        if not self._transport.is_closing():
            self._transport.write(head.encode() + body)


def main() -> None:
    """Serve until SIGTERM, and print the port first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold-from", type=int, default=0, help="number of the request from which on none is answered")
    parser.add_argument("--hold-until", type=int, default=0, help="number of the request with which all are")
    parser.add_argument("--hold-s", type=float, default=60.0, help="seconds after which they are in any case")
    parser.add_argument("--cut", action="store_true", help="close each connection in the middle of the answer")
    parser.add_argument("--status", type=int, default=0, help="of all answers")
    parser.add_argument("--delay-s", type=float, default=0.0, help="of all answers")
    parser.add_argument("--cold", type=int, default=0, help="requests that are answered cold, the first ones")
    parser.add_argument("--refuse-after", type=int, default=0, help="requests after which the process ends")
    parser.add_argument("--pem", help="file with certificate and private key, for TLS")
    asyncio.run(_serve(parser.parse_args()))


async def _serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    tls = None
    if options.pem:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(options.pem)
    server = await loop.create_server(lambda: Answers(options), "127.0.0.1", 0, backlog=4096, ssl=tls)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


@contextmanager
def load_server(*arguments: str) -> Iterator[int]:
    """Run one for the length of a block. Yields its port."""
    with subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    main()
