"""A job of the process that moves bytes, as its thread and the one that stops it share it.

One job runs in one thread, and what it needs of the network is its own, so that stopping it closes its connections and
no others. Not covered: messages with the daemon (`child`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tenacity

from trims.core.errors import (
    ArtifactError,
    LostPeerError,
    SourceUnavailableError,
)
from trims.manifests.addresses import host_of
from trims.sources.downloads import Room
from trims.sources.http.client import STALL_S, Http
from trims.sources.schemes import source_of
from trims.sources.settings import SourceSettings
from trims.sources.transfer.transfer import Moved, Work, pause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trims.sources.base import Opened, Source
    from trims.sources.http.hosts import HostPolicy
    from trims.sources.transfer.limits import Limits

    #: Path of a file, and its checksums that were found.
    _Result = tuple[Path, dict[str, str]]

#: Looks at an address whose source says that it is busy.
_LOOKS = 5


@dataclass
class Surroundings:
    """Surroundings that all jobs of a process share.

    Attributes:
        limits: Bandwidth and connections.
        policy: Hosts that may be connected to.
        downloads: The daemon's folder of downloads.
        environment: Variables of the daemon.
        headers: File of headers for servers of `https:` addresses; empty for none.
        capacity_bytes: Most bytes of all downloads together; None for no bound.
    """

    limits: Limits
    policy: HostPolicy
    downloads: Path
    environment: Mapping[str, str]
    headers: str = ""
    capacity_bytes: int | None = None

    def __post_init__(self) -> None:
        self.room = Room(self.downloads, self.capacity_bytes)

    def http(self, policy: HostPolicy) -> Http:
        """Return a client for hosts that a policy allows."""
        return Http(policy, stall_s=min(STALL_S, self.limits.patience_s))

    def settings(self, http: Http) -> SourceSettings:
        """Return the settings that a source is made with."""
        return SourceSettings(http, self.environment, self.headers, self.limits.patience_s)


@dataclass
class Job:
    """One job, as its thread and the one that stops it share it.

    Attributes:
        fds: Descriptors that came with it.
    """

    order: Mapping[str, Any]
    around: Surroundings
    fds: Sequence[int] = ()
    work: Work = field(default_factory=lambda: Work(Moved()))
    _open: list[Opened] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def moved(self) -> dict[str, Any]:
        """Return how far it is, as a message says it."""
        moved = self.work.moved
        return {
            "moved": moved.done_bytes, "fetched": moved.fetched_bytes, "total": moved.total_bytes,
            "trouble": self.work.trouble,
        }  # fmt: skip

    def stop(self) -> None:
        """Have it end soon: its connections break off."""
        self.work.stop.set()
        self.close()

    def wanted(self) -> bool:
        """Return whether it was not stopped."""
        return not self.work.stop.is_set()

    def open(self, address: str) -> Opened:
        """Look at an address; what is opened is closed with the job."""
        policy = self.around.policy
        if self.order.get("named"):
            policy = policy.naming(host_of(address))
        http = self.around.http(policy)
        source = source_of(address, self.around.settings(http))
        try:
            opened = self._look(source, address)
        except BaseException:
            http.close()
            raise
        with self._lock:
            self._open.append(opened)
        if not self.wanted():
            raise LostPeerError("the transfer was stopped")
        return opened

    def _look(self, source: Source, address: str) -> Opened:
        """Look at an address; a source that says that it is busy is asked again, a few times."""
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_busy), wait=pause, stop=tenacity.stop_after_attempt(_LOOKS),
            sleep=self._sleep, reraise=True,
        ):  # fmt: skip
            with attempt:
                return source.open(address)
        raise AssertionError("the last attempt returns or raises")

    def read(self, address: str, most_bytes: int) -> bytes:
        """Return a small file. Raises ArtifactError for one that is larger, and as `Opened.fill`."""
        opened = self.open(address)
        file = opened.files[0]
        if len(opened.files) != 1 or file.nbytes > most_bytes:
            raise ArtifactError(f"{opened.pinned} is no small file: {len(opened.files)} files, {file.nbytes} bytes")
        room = bytearray(file.nbytes)
        for _ in opened.fill(file, [(0, memoryview(room))]):
            pass
        return bytes(room)

    def _sleep(self, seconds: float) -> None:
        if self.work.stop.wait(seconds):
            raise LostPeerError("the transfer was stopped")

    def close(self) -> None:
        """Close what was opened for it. Idempotent."""
        with self._lock:
            opened, self._open = self._open, []
        for each in opened:
            each.close()


def _is_busy(error: BaseException) -> bool:
    """Return whether a source says that it is busy. One that does not answer at all is not waited for."""
    return isinstance(error, SourceUnavailableError) and error.retry_after_s is not None
