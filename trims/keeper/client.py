"""The daemon's side of a keeper: one connection, on which orders are sent one after the other.

If the keeper dies, methods raise DeviceLostError. Not covered: starting keepers (`launch`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.errors import CapacityError, DaemonAwayError, DeviceLostError
from trims.keeper.messages import Verdict
from trims.memory.cuda.drivers import export_message, export_of
from trims.trace.spans import traceparent
from trims.wire.answers import raise_if_error
from trims.wire.frames import Decoder, Message, encode
from trims.wire.peer import Peer, PeerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from trims.memory.cuda.drivers import Export

#: Seconds within which a healthy keeper answers.
ANSWER_S = 30.0
_READ_BYTES = 64 << 10
_MOST_FDS = 4


@dataclass(frozen=True, slots=True)
class Kept:
    """A sealed image that a keeper holds."""

    image: int
    key: str
    digest: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class KeeperState:
    """A keeper's answer to `hello`.

    Attributes:
        awake: There is a context, which takes device memory: a mover runs, or the keeper shares by `ipc` and has one.
        peers: UUIDs of the devices that it can copy from.
        traces: Orders to it may name the span that they are a part of.
        verifies: Whether it knows the order `verify`.
    """

    pid: int
    device: str
    driver: str
    read_only: bool
    awake: bool
    peers: frozenset[str]
    images: list[Kept]
    traces: bool = False
    verifies: bool = False


class KeeperConnection:
    """A connection to a keeper. Not safe for several threads: make one for each thread. A context manager.

    Args:
        path: The keeper's socket. Raises DaemonAwayError if no keeper serves there, CapacityError if this process has
            no descriptor left.
        answer_s: Seconds to wait for an answer; after that the keeper counts as gone.
        progress_s: Seconds to wait for each progress message of a copy. Pinning the pages of a large file sends no
            progress, so this is long.
        traces: Whether orders may name a span: `KeeperState.traces`.
    """

    def __init__(
        self, path: Path, *, answer_s: float = ANSWER_S, progress_s: float = 300.0, traces: bool = False
    ) -> None:
        self._path = path
        self._answer_s = answer_s
        self._progress_s = progress_s
        self._traces = traces
        try:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise CapacityError(f"no descriptor to reach the keeper at {path}: {error.strerror or error}") from error
        self._decoder = Decoder()
        self._read_ahead: deque[Message] = deque()
        self._fds: list[int] = []
        self._sock.settimeout(answer_s)
        try:
            self._sock.connect(str(path))
        except OSError as error:
            self._sock.close()
            raise DaemonAwayError(f"no keeper serves at {path}: {error.strerror or error}") from error

    def hello(self) -> KeeperState:
        """Return the keeper's state and its sealed images."""
        first = self._order({"op": "hello"})
        images = [Kept(**self._next()) for _ in range(first["images"])]
        peers = frozenset(first["peers"])
        return KeeperState(
            first["pid"], first["device"], first["driver"], first["read_only"], first["awake"], peers, images,
            bool(first.get("traces")), bool(first.get("verifies")),
        )  # fmt: skip

    def room(self) -> tuple[int, int]:
        """Return free and total bytes of the device."""
        answer = self._order({"op": "room"})
        return answer["free_bytes"], answer["total_bytes"]

    def create(self, nbytes: int) -> int:
        """Allocate an image and return its number. Unless sealed, it ends with the connection. Raises CapacityError."""
        return int(self._order({"op": "create", "nbytes": nbytes})["image"])

    def fill(self, image: int, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Have the image copied from a file."""
        self._until("filled", {"op": "fill", "image": image}, [fd], on_progress)

    def copy(self, image: int, source: Export, head_fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Have the image copied from another device. The caller keeps `source` and `head_fd` and closes them."""
        fds = [head_fd] if source.fd < 0 else [head_fd, source.fd]
        order = {"op": "copy", "image": image, **export_message(source)}
        self._until("filled", order, fds, on_progress)

    def seal(self, image: int, key: str, digest: str) -> None:
        """Seal the image: it outlives this connection."""
        self._order({"op": "seal", "image": image, "key": key, "digest": digest})

    def export(self, image: int) -> tuple[Export, int]:
        """Return the handle that borrowers need, and the head's descriptor. The caller must close both."""
        answer = self._order({"op": "export", "image": image})
        taken = self._taken()
        if not taken:
            raise CapacityError("the descriptors of an image did not arrive: this process has too many open files")
        head_fd, *fds = taken
        return export_of(answer, fds[0] if fds else -1), head_fd

    def read(self, image: int, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Have the image copied into a file."""
        self._until("read", {"op": "read", "image": image}, [fd], on_progress)

    def digest(self, image: int) -> str:
        """Return blake3 of the image's bytes on the device, in hex."""
        return str(self._begin({"op": "digest", "image": image}, (), None)["digest"])

    def verify(self, image: int) -> Verdict:
        """Have the image's bytes on the device compared with what was sealed."""
        return Verdict(**self._begin({"op": "verify", "image": image}, (), None))

    def free(self, image: int) -> None:
        """Have the image freed. Idempotent."""
        self._order({"op": "free", "image": image})

    def end(self) -> None:
        """Have the keeper free everything and end."""
        self._order({"op": "end"})

    def wait_for_end(self, wait_s: float | None = None) -> bool:
        """Wait until the keeper ends or another thread calls `interrupt`. Return False after `wait_s` seconds.

        For a connection on which no orders are sent.
        """
        try:
            self._sock.settimeout(wait_s)
            self._sock.recv(1)
        except (TimeoutError, BlockingIOError):  # BlockingIOError if `wait_s` is 0
            return False
        except OSError:
            pass
        return True

    def kill(self) -> None:
        """Kill the keeper's process. Raises OSError if it belongs to another user or another PID namespace."""
        with PeerProcess(self._sock, Peer.of(self._sock)) as process:
            process_fd = process.take()
            try:
                signal.pidfd_send_signal(process_fd, signal.SIGKILL)
            finally:
                os.close(process_fd)

    def interrupt(self) -> None:
        """Wake a thread that waits on this connection, as if the keeper had closed it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, even if another process has a copy of its descriptor. Idempotent."""
        self.interrupt()
        self._sock.close()
        for fd in self._taken():
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _until(self, last: str, order: Message, fds: Sequence[int], on_progress: Callable[[int], None] | None) -> None:
        answer = self._begin(order, fds, self._progress_s)
        while last not in answer:
            if on_progress is not None:
                on_progress(answer["done_bytes"])
            answer = self._next()

    def _order(self, message: Message) -> Message:
        return self._begin(message, (), self._answer_s)

    def _begin(self, message: Message, fds: Sequence[int], wait_s: float | None) -> Message:
        """Send an order and return the first answer. `wait_s` limits the wait for each answer; None for no limit."""
        context = traceparent() if self._traces else None
        if context is not None:
            message = {**message, "traceparent": context}
        try:
            self._sock.settimeout(wait_s)
            socket.send_fds(self._sock, [encode(message)], fds)
        except OSError as error:
            raise self._lost(error) from error
        return self._next()

    def _next(self) -> Message:
        while not self._read_ahead:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _MOST_FDS)
            except OSError as error:
                raise self._lost(error) from error
            self._fds += fds
            if not data:
                raise self._lost(ConnectionResetError("it has closed the connection"))
            self._read_ahead += self._decoder.feed(data)
        return raise_if_error(self._read_ahead.popleft())

    def _taken(self) -> list[int]:
        fds, self._fds = self._fds, []
        return fds

    def _lost(self, error: OSError) -> DeviceLostError:
        if isinstance(error, TimeoutError):
            # Otherwise a late answer would be taken for that of the next order. The hang-up also makes a keeper that
            # recovers free this connection's drafts.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            return DeviceLostError(f"the keeper at {self._path} did not answer within {self._sock.gettimeout():g} s")
        return DeviceLostError(f"the keeper at {self._path} is gone: {error}")
