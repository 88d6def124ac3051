"""Digests that need a file's bytes in order: a thread hashes what has come so far, right behind the transfer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trims.sources.transfer.checksums import hasher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.sources.transfer.partial import Partial


class InOrder(threading.Thread):
    """Hashes the bytes of a transfer in order, as far as they have come.

    Args:
        partial: Says which pieces are there, and has their bytes.
        names: Digests to compute.
    """

    def __init__(self, partial: Partial, names: Iterable[str]) -> None:
        super().__init__(name="trims-digest", daemon=True)
        self._partial = partial
        self._hashers = {name: hasher(name, partial.nbytes) for name in names}
        self._come = threading.Condition()
        self._stopped = False
        self._failed: BaseException | None = None

    def woken(self) -> None:
        """Go on: a piece has come."""
        with self._come:
            self._come.notify()

    def stop(self) -> None:
        """End before all has come. Returns once the thread reads no more."""
        with self._come:
            self._stopped = True
            self._come.notify()
        self.join()

    def digests(self) -> dict[str, str]:
        """Wait until all pieces, which are there, were hashed; return the digests in hex."""
        self.woken()
        self.join()
        if self._failed is not None:
            raise self._failed
        return {name: each.hexdigest() for name, each in self._hashers.items()}

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            for piece in range(self._partial.pieces):
                with self._come:
                    self._come.wait_for(lambda at=piece: self._stopped or self._partial.has(at))  # type: ignore[misc]
                    if self._stopped:
                        return
                with self._partial.room(piece) as data:
                    for each in self._hashers.values():
                        each.update(data)
        except BaseException as error:  # noqa: BLE001 - raised where the digests are asked for
            self._failed = error
