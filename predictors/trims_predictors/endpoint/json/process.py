"""The endpoint's half of the process that reads and writes large JSON: start it, give it a job, and outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import CallerError, CapacityError
from trims.process.child_environment import child_environment
from trims.process.lifeline import Lifeline
from trims.process.python import run_code
from trims_predictors.endpoint.json.child import DONE, FRAME, REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Data = Sequence[bytes | memoryview]

#: Program of the child. The child imports from the same folders as this process, and from nowhere else.
_BOOTSTRAP = """
import json
sys.path[:] = json.loads(sys.argv.pop())
from trims_predictors.endpoint.json.child import main
main()
"""
_MADE = fcntl.F_SEAL_SHRINK  # what is mapped here stays
#: Written by the event loop itself.
_FEW_BYTES = 1 << 20
#: A process that had more to do is not kept: it holds memory that was in use all over.
_KEPT_BYTES = 32 << 20


class TooMuchWorkError(Exception):
    """A job needs more memory or time than it may take. Not of trims's tree: it never crosses a door."""


class Done(NamedTuple):
    """Result of a job.

    Attributes:
        head: Facts that the job reports.
        data: Bytes that it has made; the memory goes with the last view of it.
    """

    head: dict[str, Any]
    data: memoryview


class JsonProcess:
    """One process, started when it is first needed, that does one job after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lifeline: Lifeline | None = None
        #: Killed and not buried yet.
        self._ended: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int | None:
        """Return the number of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    async def do(self, what: int, head: dict[str, Any], data: Data, limit_s: float) -> Done:
        """Have a job done.

        Args:
            what: One of READ, WRITE, COUNT of `large_json`.
            limit_s: Seconds after which it is given up.

        Raises:
            CallerError: The request is wrong.
            TooMuchWorkError: The job takes too much memory, or too long.
            CapacityError: The process ended, or could not be started.

        The process is killed unless it has answered, also if the wait is cancelled.
        """
        total, fine = sum(memoryview(each).nbytes for each in data), False
        try:
            done = await self._do(what, json.dumps(head).encode(), data, total, limit_s)
        except CallerError:
            fine = True
            raise
        except OSError as error:
            raise CapacityError(f"no process can be started for large JSON: {error}; send binary tensors") from error
        else:
            fine = True
            return done
        finally:
            if not fine or total > _KEPT_BYTES:
                self._end()

    async def _do(self, what: int, head: bytes, data: Data, total: int, limit_s: float) -> Done:
        with _memory() as given, _memory() as made:
            if total > _FEW_BYTES:
                await _whole(asyncio.to_thread(_fill, given, (head, *data)))
            else:
                _fill(given, (head, *data))
            sock = self._start()
            socket.send_fds(sock, [FRAME.pack(what, len(head))], [given, made])
            how, head_bytes = await self._answer(sock, limit_s)
            if how not in (DONE, REFUSED):
                raise TooMuchWorkError
            view = memoryview(b"")
            if nbytes := os.fstat(made).st_size:
                view = memoryview(mmap.mmap(made, nbytes, prot=mmap.PROT_READ))
            text = view[:head_bytes].tobytes()
            if how == REFUSED:
                raise CallerError(text.decode())
            return Done(json.loads(text), view[head_bytes:])

    async def _answer(self, sock: socket.socket, limit_s: float) -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        loop.add_reader(sock, came.set)
        try:
            await asyncio.wait_for(came.wait(), limit_s)
            message = sock.recv(FRAME.size)
        except asyncio.TimeoutError as error:
            raise TooMuchWorkError from error
        except ConnectionResetError:
            message = b""
        finally:
            loop.remove_reader(sock)
        if not message:
            raise CapacityError("the process that reads and writes large JSON has ended; send binary tensors")
        how, head_bytes = FRAME.unpack(message)
        return how, head_bytes

    def _start(self) -> socket.socket:
        """The socket to the process, which is started if there is none."""
        self._ended = [each for each in self._ended if each.poll() is None]
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self._end()
        self._lifeline = Lifeline()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fds = [theirs.fileno(), self._lifeline.fileno()]
            path = json.dumps([os.path.abspath(each) for each in sys.path if each])
            self._process = subprocess.Popen(
                run_code(_BOOTSTRAP, *map(str, fds), path),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=child_environment(more={"OPENBLAS_NUM_THREADS": "1"}),
                start_new_session=True,
            )
        self._lifeline.given()
        return self._socket

    def _end(self) -> None:
        """Kill the process, if there is one. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            self._ended.append(process)
        for each in (self._socket, self._lifeline):
            if each is not None:
                each.close()
        self._socket = self._lifeline = None

    async def close(self) -> None:
        """End the process, and wait for that. Idempotent; not while it does a job."""
        self._end()
        for each in self._ended:
            await asyncio.to_thread(each.wait)
        self._ended = []


@contextlib.contextmanager
def _memory() -> Iterator[int]:
    """Memory for both processes, which grows as it is written."""
    fd = os.memfd_create("trims-json", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _MADE)
        yield fd
    finally:
        os.close(fd)


def _fill(fd: int, parts: Data) -> None:
    with open(fd, "wb", buffering=0, closefd=False) as file:
        for part in parts:
            view = memoryview(part).cast("B")
            while len(view):
                view = view[file.write(view) :]


async def _whole(work: Any) -> None:
    """Await work to its end, also when the wait for it is cancelled: it uses what goes with the wait."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
