"""A keeper of a fake device that serves from a thread of the test's process, for tests of the GPU tier."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import blake3

from trims.core.errors import DaemonAwayError, TrimsError
from trims.keeper.client import KeeperConnection
from trims.keeper.keeper import Keeper
from trims.keeper.server import KeeperServer
from trims.testing.fake_cuda import FakeCuda
from trims.testing.tiers import an_image
from trims.tiers.base import Extent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.tiers.gpu import GpuTier

UUID = "GPU-00000000-0000-0000-0000-000000000001"
TOTAL = 256 << 20
KEY, OTHER_KEY = "a" * 64, "b" * 64


class Served:
    """A keeper, its server, and the thread it serves in."""

    def __init__(self, folder: Path, driver: str = "vmm") -> None:
        self.path = folder / "keeper.sock"
        self.keeper = Keeper(FakeCuda(str(folder)), UUID, driver, idle_s=0.0)
        self.server = KeeperServer(self.keeper, self.path)
        self._thread = threading.Thread(target=self.server.serve)
        self._thread.start()
        while not self._serves():
            assert self._thread.is_alive()

    def _serves(self) -> bool:
        try:
            KeeperConnection(self.path).close()
        except DaemonAwayError:
            return False
        return True

    def find(self) -> Path:
        """Find the keeper as a tier looks for it."""
        with KeeperConnection(self.path) as connection:
            connection.hello()
        return self.path

    def end(self) -> None:
        """Idempotent. What a process would give up by ending is freed."""
        self.server.end()
        self._thread.join()
        self.keeper.close()


class Refusing:
    """Stands for a method: fails so many times, then does what the method does."""

    def __init__(self, method: Callable[..., object], error: Exception, times: int) -> None:
        self._method, self._error, self._left = method, error, times

    def __call__(self, *given: object) -> object:
        if self._left:
            self._left -= 1
            raise self._error
        return self._method(*given)


def put_on(tier: GpuTier, folder: Path, key: str = KEY) -> Extent:
    """Have the keeper copy an image from a file of that folder, and seal it."""
    data = an_image()
    path = folder / "image"
    path.write_bytes(data)
    draft = tier.create(key, 1, len(data), allocate=True)
    try:
        with path.open("rb") as file:
            tier.copy_in(draft, Extent(key, tier.place, len(data), "", file.fileno(), "source"))
    except TrimsError:
        tier.abort(draft)
        raise
    return tier.seal(draft, key, blake3.blake3(data).hexdigest())
