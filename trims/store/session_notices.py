"""Notices to sessions about leases that they hold, on the way from the store to the door at which the sessions are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.lease import Lease

log = logging.getLogger(__name__)


class SessionNotices:
    """Pass notices on to a door, once there is one. Called without the lock of the books."""

    def __init__(self) -> None:
        self._lost: Callable[[Lease, str], None] | None = None
        self._upgraded: Callable[[int, str], None] | None = None

    def subscribe_to_losses(self, tell: Callable[[Lease, str], None]) -> None:
        """Have `tell` called with each lease that ends because its memory is gone, and the reason."""
        self._lost = tell

    def subscribe_to_upgrades(self, tell: Callable[[int, str], None]) -> None:
        """Have `tell` called once for each session that reads an image from disk, when it lies in shared memory, too.

        Args:
            tell: Takes the session and the key of the image.
        """
        self._upgraded = tell

    def lost(self, lease: Lease, reason: str) -> None:
        """Report a lease that ended because its memory is gone."""
        if self._lost is not None:
            self._lost(lease, reason)
            return
        log.warning(
            "session %d has lost its lease %d, and there is no door to tell it: %s", lease.session, lease.number, reason
        )

    def upgraded(self, session: int, key: str) -> None:
        """Report that an image which a session reads from disk lies in shared memory. Its leases are good anyway."""
        if self._upgraded is not None:
            self._upgraded(session, key)
