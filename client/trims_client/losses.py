"""What a session does when the daemon says that the memory of an open model is lost. Imported when it says so.

The reader of the connection only keeps what was said: whoever waits for an answer may hold the session's lock, and
who reads for him must not wait for it. `hear` puts it into the books, `tell` says it to the user, with no lock held.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client.channel import Channel
    from trims_client.mappings import Mappings

log = logging.getLogger(__name__)


def hear(channel: Channel, mappings: Mappings) -> None:
    """Take note of what the daemon said on its own."""
    while channel.events:
        try:
            event = channel.events.popleft()
        except IndexError:  # another thread was faster
            return
        lease = event.get("lease")
        if event["event"] == "lost" and type(lease) is int:
            mappings.lose(lease, str(event.get("message", "")))


def tell(mappings: Mappings, on_lost: Callable[[str, str, str], None] | None) -> None:
    """Log what was lost and call who wants to know. Never raises."""
    while mappings.untold:
        try:
            mapping = mappings.untold.popleft()
        except IndexError:
            return
        for name in sorted(mapping.names):
            log.warning("the memory of %s at %s is lost: %s", name, mapping.place, mapping.lost)
            try:
                if on_lost is not None:
                    on_lost(str(mapping.lost), name, mapping.key)
            except Exception:
                log.exception("on_lost failed for %s", name)
