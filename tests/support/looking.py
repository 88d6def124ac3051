"""Looks at a daemon in the tests' own process: its books, as the control door shows them, and the facts."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import TrimsError
from trims.core.place import CPU, DISK, Place
from trims.daemon.check import check_store
from trims.daemon.main import shm_prefix
from trims.store.pending_requests import Granted, Pending
from trims.store.resolve.file_digests import rest_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon
    from trims.store.read_model import ReplicaView
    from trims.tiers.base import Extent

#: Nothing here takes so long; only a failing test waits it out.
WAIT_S = 120.0


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Wait for what another thread or process does; looks in longer steps the longer it takes, as a look costs it."""
    begun = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - begun
        assert waited_s < WAIT_S, what
        time.sleep(min(0.002 + waited_s / 20, 0.02))


def rested(path: Path) -> Path:
    """The file once it has rested: the daemon reads it once, and starts no thread to read it again later."""
    wait_until(lambda: rest_of(path) <= 0, f"{path} is written all the time")
    return path


class Asker:
    """A session of the store, without a socket; several may ask at once without a thread each."""

    def __init__(self, daemon: Daemon) -> None:
        self.store = daemon.store
        self.session = self.store.begin_session()

    def ask(self, name: Path | str, place: Place | None = CPU, deadline_s: float | None = None) -> Pending:
        """Ask for a lease, without waiting."""
        pending = Pending()
        known = name if isinstance(name, str) else f"file:{name}"
        self.store.open(known, pending.set, session=self.session, place=place, deadline_s=deadline_s)
        return pending

    def open(self, name: Path | str, place: Place | None = CPU) -> Granted:
        """Ask for a lease and wait for it."""
        granted = self.ask(name, place).result(WAIT_S)
        assert isinstance(granted, Granted)
        return granted

    def end(self) -> None:
        """End the session as if the client were gone."""
        self.store.end_session(self.session)


def error_of(pending: Pending) -> TrimsError:
    """The error an ask ends in."""
    with pytest.raises(TrimsError) as caught:
        pending.result(WAIT_S)
    return caught.value


def replicas(daemon: Daemon) -> dict[str, ReplicaView]:
    """Return the replicas by place; for tests with one image."""
    return {str(view.id.place): view for view in daemon.store.read.replicas()}


def states(daemon: Daemon) -> dict[str, str]:
    """Place -> state; for tests with one image."""
    return {place: view.state.value for place, view in replicas(daemon).items()}


def leases(daemon: Daemon) -> int:
    """Return how many leases there are."""
    return daemon.store.read.whole().leases


def charged(daemon: Daemon, place: Place) -> int:
    """Bytes the books charge to a place."""
    (tier,) = [tier for tier in daemon.store.read.whole().tiers if tier.place == place]
    return tier.charged_bytes


def extent_at(daemon: Daemon, place: Place) -> Extent:
    """The memory of the one replica at a place."""
    (found,) = [extent for job, extent in daemon.store.runner.extents().items() if job.place == place]
    return found


def put_on_disk(daemon: Daemon, path: Path) -> Extent:
    """The image on disk, not in memory."""
    daemon.store.load(f"file:{path}", DISK).result(WAIT_S)
    return extent_at(daemon, DISK)


def restart(daemon: Daemon, serve: Callable[..., Daemon], **settings: object) -> Daemon:
    """The next daemon on the same folders."""
    daemon.ask_to_end()
    daemon.stop()
    return serve(**settings)


def nothing_is_left(daemon: Daemon) -> None:
    """Wait until all work is done; check for unfinished memory, stray charges, and that books and facts agree."""
    settled = {"sealed", "draining"}
    wait_until(lambda: {view.state.value for view in daemon.store.read.replicas()} <= settled, "work goes on for ever")
    prefix = shm_prefix(daemon.config.state_dir)
    segments = {name for name in os.listdir("/dev/shm") if name.startswith(prefix)}
    images = daemon.config.state_dir / "images"
    files = set(os.listdir(images)) if images.exists() else set()
    extents = daemon.store.runner.extents()
    assert segments == {extent.label for job, extent in extents.items() if job.place == CPU}
    assert files == {os.path.basename(extent.label) for job, extent in extents.items() if job.place == DISK}
    for place in (CPU, DISK):
        assert charged(daemon, place) == sum(e.nbytes for job, e in extents.items() if job.place == place)
    assert check_store(daemon.store, verify=True).findings == []
