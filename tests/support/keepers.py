"""Parts that tests of keepers share: one fake device, its image files, and a keeper that serves in a thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from looking import wait_until

from trims.core.errors import (
    DaemonAwayError,
)
from trims.keeper.client import KeeperConnection
from trims.keeper.keeper import Keeper
from trims.keeper.server import KeeperServer

if TYPE_CHECKING:
    from pathlib import Path

    from trims.testing.fake_cuda import FakeCuda


UUID = "GPU-00000000-0000-0000-0000-000000000001"


TOTAL = 512 << 20


KEY, DIGEST = "a" * 64, "b" * 64


def put(keeper: Keeper, fd: int, nbytes: int) -> int:
    number = keeper.create(nbytes).number
    keeper.fill(number, fd)
    keeper.seal(number, KEY, DIGEST)
    return number


class Served:
    """A keeper that serves in a thread of this process."""

    def __init__(self, cuda: FakeCuda, path: Path) -> None:
        self.path = path
        self.keeper = Keeper(cuda, UUID, "vmm", idle_s=0.0)
        self.server = KeeperServer(self.keeper, path)
        #: Result of `serve`.
        self.freed: bool | None = None
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        wait_until(self._answers, "the keeper did not come up")

    def _serve(self) -> None:
        self.freed = self.server.serve()

    def _answers(self) -> bool:
        try:
            KeeperConnection(self.path).close()
        except DaemonAwayError:
            return False
        return True

    def end(self) -> None:
        """Have it end, and wait for that. Idempotent."""
        self.server.end()
        self.thread.join(60)
        assert not self.thread.is_alive()
