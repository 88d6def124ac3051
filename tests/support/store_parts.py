"""Parts of a store that follow a test's orders: conversions, workers, names that were looked into."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import blake3
from msgspec import structs

from trims.formats.base import Artifact
from trims.manifests.manifest import parse_manifest
from trims.store.resolve.resolved import Resolved

if TYPE_CHECKING:
    from collections.abc import Callable


class Conversion:
    """A conversion without a child; counts what is open.

    Args:
        nbytes: Length that `plan` returns.
        data: What `write` writes; nothing if None.
        error: Raised by `plan`, if any.

    Attributes:
        is_carriable: Whether it may be put together by another process, which this one only pretends to.
        interrupt: Called in the midst of that; then a request has come to wait.
        while_planning: Called in the midst of `plan`.
    """

    open = 0
    is_carriable = False
    interrupt: Callable[[], object] | None = None
    while_planning: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, nbytes: int, data: bytes | None = None, error: Exception | None = None) -> None:
        self.nbytes = nbytes
        self.data = data
        self.error = error
        self.written: list[int] = []
        self.stopped = ""
        self.closed = False
        self.gives_way = False
        Conversion.open += 1

    def give_way(self, *, yes: bool) -> None:
        self.gives_way = yes

    def plan(self) -> int:
        self.while_planning()
        if self.error is not None:
            raise self.error
        return self.nbytes

    def write(self, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        self.written.append(fd)
        if self.data is not None:
            os.pwrite(fd, self.data, 0)
        if on_progress is not None:
            on_progress(self.nbytes)

    def carry(self, by: object, fd: int, *, large_pages: bool) -> str | None:
        data = self.data or b""
        if self.interrupt is not None:
            os.pwrite(fd, data[: len(data) // 2], 0)
            self.interrupt()
            return None
        os.pwrite(fd, data, 0)
        return str(blake3.blake3(data).hexdigest())

    def cancel(self, why: str = "") -> None:
        self.stopped = why

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            Conversion.open -= 1


#: Steps of work, more than any test leads to.
_MOST_WORK = 10_000


class Workers:
    """Pools whose work is done when the test says so, in the test's thread; each takes work until it is stopped."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[str, Callable[[], object]]] = deque()

    def __call__(self, name: str, threads: int, *, niceness: int = 0) -> _Pool:
        """See `trims.store.work.Pools`."""
        return _Pool(self, name)

    @property
    def names(self) -> list[str]:
        """The pools whose work waits, in the order in which it was given."""
        return [name for name, _ in self.waiting]

    def run_one(self) -> None:
        """Do the work that waits longest."""
        self.waiting.popleft()[1]()

    def run(self) -> None:
        """Do all work that waits, and what it leads to."""
        for _ in range(_MOST_WORK):
            if not self.waiting:
                return
            self.run_one()
        raise AssertionError("work leads to work without end")


class _Pool:
    def __init__(self, workers: Workers, name: str) -> None:
        self._workers = workers
        self._name = name
        self._stopped = False

    def submit(self, work: Callable[[], object], tenant: str | None = None) -> bool:
        del tenant
        if not self._stopped:
            self._workers.waiting.append((self._name, work))
        return not self._stopped

    def stop(self, *, drop: bool = False, timeout_s: float | None = None) -> bool:
        self._stopped = True
        mine = [it for it in self._workers.waiting if it[0] == self._name]
        for it in mine:
            self._workers.waiting.remove(it)
            if not drop:
                it[1]()
        return True


def resolved(name: str = "m", key: str = "a" * 64, *, converted: bool = False, **residency: object) -> Resolved:
    """Return the result of a look into a registered name; the residency of its manifest as said."""
    manifest = parse_manifest({"name": "m", "artifact": {"path": "/m.npz"}, "residency": residency})
    return Resolved(
        name=name,
        key=key,
        manifest=structs.replace(manifest, name=name),
        artifact=Artifact("npz", (Path("/m.npz"),), {}),
        recipe={"format": "npz"},
        python=None,
        identities=(),
        checked_at_s=0.0,
        converted=converted,
    )
