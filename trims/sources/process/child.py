"""The process that moves bytes for a daemon: it looks at addresses and fetches, one thread a job.

What it does may hang in a name's lookup, or fall over in a library's native code: then it is this process that does,
and a daemon goes on. It ends when the daemon does, or when it had nothing to do for a while; what it has fetched by
then is kept and found again. Credentials come with the environment, and stay here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    BadMessageError,
    InternalError,
    LostPeerError,
    NoSpaceError,
    TrimsError,
    is_system_error,
)
from trims.image.descriptors import explain_descriptors
from trims.process import messages
from trims.process.lifeline import depend_on
from trims.sources.files import is_full
from trims.sources.http.hosts import HostPolicy
from trims.sources.process import jobs
from trims.sources.process.job import Job, Surroundings
from trims.sources.transfer.limits import Limits
from trims.trace.children import Reporter
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)
#: Without a job for so long, the memory of a process is worth more than its start.
IDLE_S = 60.0
#: Bytes of an order about all files of an address, at most.
_MOST_MESSAGE_BYTES = 16 << 20
#: Seconds between two reports of progress of one job.
_REPORT_S = 0.1


class Fetching:
    """All jobs of one process."""

    def __init__(self, connection: socket.socket, around: Surroundings) -> None:
        self._connection = connection
        self._around = around
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._jobs: dict[int, Job] = {}
        #: Progress of each job as it was reported last.
        self._reported: dict[int, dict[str, Any]] = {}
        self._reporter = Reporter()

    def serve(self) -> None:
        """Do jobs until the daemon is gone, or none was asked for in a while."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        with contextlib.suppress(EOFError, LostPeerError, OSError, BadMessageError):
            while True:
                busy = bool(self._jobs)
                if not poll.poll((_REPORT_S if busy else IDLE_S) * 1e3):
                    if not busy:
                        break
                    self._report()
                    continue
                received = messages.receive(self._connection, long_bytes=_MOST_MESSAGE_BYTES)
                if received is None:
                    break
                self._begin(*received)
        for job in list(self._jobs.values()):
            job.stop()

    def _begin(self, order: Mapping[str, Any], fds: Sequence[int]) -> None:
        number = order["id"]
        if order["do"] == "stop":
            with self._lock:
                job = self._jobs.get(number)
            if job is not None:
                threading.Thread(target=job.stop, name="trims-stop", daemon=True).start()
            return
        job = Job(order, self._around, fds)
        with self._lock:
            self._jobs[number] = job
        threading.Thread(target=self._run, args=(number, job), name=f"trims-job-{number}", daemon=True).start()

    def _report(self) -> None:
        """Send how far each job is that has moved since the last report."""
        with self._lock:
            jobs = list(self._jobs.items())
        for number, job in jobs:
            if (moved := job.moved()) != self._reported.get(number):
                self._reported[number] = moved
                self._send({"id": number, **moved})

    def _run(self, number: int, job: Job) -> None:
        answer: dict[str, Any]
        try:
            with self._reporter.recorded(job.order), span(f"source.{job.order['do']}", address=job.order["shown"]):
                answer = {"done": jobs.run(job)}
        except BaseException as error:  # noqa: BLE001 - every failure is an answer
            answer = {"error": _as_json(error)}
        finally:
            for fd in job.fds:
                os.close(fd)
        answer = self._reporter.add(job.order, answer)
        with self._lock:
            del self._jobs[number]
            self._reported.pop(number, None)
        self._send({"id": number, **job.moved(), **answer})

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._sending, contextlib.suppress(LostPeerError, OSError):
            messages.send(self._connection, dict(message), long=True)


def _as_json(error: BaseException) -> dict[str, Any]:
    if is_system_error(error):
        error = explain_descriptors(error)
    if is_system_error(error) and is_full(error):
        where = error.filename or "where downloads are kept"
        error = NoSpaceError(f"the disk is full: {where} cannot be written; make room, or keep downloads elsewhere")
    if not isinstance(error, TrimsError):
        log.error("a job failed", exc_info=error)
        error = InternalError(f"{type(error).__name__}: {error}")
    return {"code": error.code, "message": str(error), "room_bytes": getattr(error, "room_bytes", None)}


def main() -> None:
    """Entry of the process. Arguments: those of its ties, then its settings as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    depend_on(int(sys.argv[4]))
    settings = json.loads(sys.argv[5])
    around = Surroundings(
        Limits(settings["connections"], settings["each"], settings["bytes_per_s"], settings["patience_s"]),
        HostPolicy.parse(settings["allow_hosts"]),
        Path(settings["downloads"]),
        dict(os.environ),
        settings["headers"],
        settings["capacity_bytes"],
    )
    with socket.socket(fileno=int(sys.argv[2])) as connection:
        Fetching(connection, around).serve()
