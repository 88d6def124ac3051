"""Borrower of device memory that obeys commands: a process for contract tests, on the fake and on a real device.

Run as `python -m trims.testing.device_borrower KIND UUID DRIVER FD`; commands and answers are frames on the socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from trims.core.errors import LostPeerError, TrimsError, from_code
from trims.memory.cuda.connect import connect, connect_borrower
from trims.memory.cuda.drivers import Export, Opened, borrowed_memory
from trims.process.python import run_module
from trims.wire.frames import Decoder, Message, encode

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_MOST = 1 << 20


class Borrower:
    """The process, from outside. A context manager: it is gone after the block, however it ended.

    Args:
        kind: Argument of `trims.memory.cuda.connect.connect`.
        uuid: The device.
        driver: `vmm` or `ipc`.
        prefix: Words before the command, such as `unshare` with its options.
    """

    def __init__(self, kind: str, uuid: str, driver: str, prefix: tuple[str, ...] = ()) -> None:
        self._sock, theirs = socket.socketpair()
        with theirs:
            command = [*prefix, *run_module(__name__, kind, uuid, driver, str(theirs.fileno()))]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._decoder = Decoder()

    def open(self, export: Export) -> int:
        """Open what was exported; the export is closed. Return the nanoseconds it took."""
        fds = [export.fd] if export.fd >= 0 else []
        message = {
            "op": "open",
            "size_bytes": export.size_bytes,
            "handle": export.handle.hex(),
            "device": export.device,
        }
        socket.send_fds(self._sock, [encode(message)], fds)
        export.close()
        return int(self._answer()["taken_ns"])

    def context_ns(self) -> int:
        """Return the nanoseconds it took to reach the driver and make a context, before anything was opened."""
        return int(self._ask({"op": "context"})["taken_ns"])

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of what is open."""
        return bytes.fromhex(self._ask({"op": "read", "offset": offset, "nbytes": nbytes})["bytes"])

    def write(self, offset: int, data: bytes) -> None:
        """Try to change the memory. Raises LostPeerError if that was the end of the process."""
        self._ask({"op": "write", "offset": offset, "bytes": data.hex()})

    def fill(self, offset: int, value: int, nbytes: int) -> None:
        """Try to change the memory by a kernel. Raises LostPeerError if that was the end of the process."""
        self._ask({"op": "fill", "offset": offset, "value": value, "nbytes": nbytes})

    def close(self) -> None:
        """Close what is open."""
        self._ask({"op": "close"})

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()
        self.process.wait()

    def _ask(self, message: Message) -> Message:
        with contextlib.suppress(BrokenPipeError):  # then the answer is that it is gone
            self._sock.sendall(encode(message))
        return self._answer()

    def _answer(self) -> Message:
        try:
            data = self._sock.recv(3 * _MOST)
        except ConnectionResetError:
            data = b""
        if not data:
            raise LostPeerError(f"the borrower ended with status {self.process.wait()}")
        answers: list[Message] = self._decoder.feed(data)
        if "error" in answers[0]:
            raise from_code(answers[0]["error"], answers[0]["message"])
        return answers[0]


class _Memory:
    """The process, from inside."""

    def __init__(self, kind: str, uuid: str, driver: str) -> None:
        began = time.perf_counter_ns()
        self._cuda = connect_borrower(kind)
        device = self._cuda.retain(uuid)
        self._context_ns = time.perf_counter_ns() - began
        self._uuid = uuid
        self._driver = borrowed_memory(driver, self._cuda, device)
        with self._cuda.bound():
            self._stream = self._cuda.stream()
        self._opened: Opened | None = None

    def obey(self, message: dict[str, Any], fds: list[int]) -> Message:
        with self._cuda.bound():
            return self._obey(message, fds)

    def _obey(self, message: dict[str, Any], fds: list[int]) -> Message:
        if message["op"] == "open":
            handle = bytes.fromhex(message["handle"])
            fd = fds[0] if fds else -1
            export = Export(self._driver.name, message["device"], message["size_bytes"], handle, fd)
            began = time.perf_counter_ns()
            self._opened = self._driver.open(export)
            taken_ns = time.perf_counter_ns() - began
            export.close()
            return {"taken_ns": taken_ns}
        if message["op"] == "context":
            return {"taken_ns": self._context_ns}
        assert self._opened is not None, "open comes first"
        if message["op"] == "close":
            self._driver.close(self._opened)
            self._opened = None
            return {}
        address = self._opened.address + message["offset"]
        if message["op"] == "read":
            host = ctypes.create_string_buffer(message["nbytes"])
            self._cuda.copy_out(ctypes.addressof(host), address, len(host), self._stream)
            self._cuda.synchronize(self._stream)
            return {"bytes": host.raw.hex()}
        self._write(message, address)
        return {}

    def _write(self, message: dict[str, Any], address: int) -> None:
        """Write with the calls of an owner, which a borrower's driver has not."""
        owner = connect(self._cuda.kind)
        owner.use(self._uuid)
        stream = owner.stream()
        if message["op"] == "fill":
            owner.fill(address, message["value"], message["nbytes"], stream)
        else:
            data = ctypes.create_string_buffer(bytes.fromhex(message["bytes"]), len(message["bytes"]) // 2)
            owner.copy_in(address, ctypes.addressof(data), len(data), stream)
        owner.synchronize(stream)
        owner.end_stream(stream)
        owner.leave()


def _main(kind: str, uuid: str, driver: str, fd: str) -> None:
    memory = _Memory(kind, uuid, driver)
    decoder = Decoder()
    with socket.socket(fileno=int(fd)) as sock:
        while True:
            data, fds, _, _ = socket.recv_fds(sock, _MOST, 4)
            if not data:
                os._exit(0)  # as a process ends that cares for nothing
            for message in decoder.feed(data):
                try:
                    answer = memory.obey(message, fds)
                except TrimsError as error:
                    answer = {"error": error.code, "message": str(error)}
                sock.sendall(encode(answer))


if __name__ == "__main__":
    _main(*sys.argv[1:])
