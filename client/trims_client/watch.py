"""The thread of a session that notices what nobody asked for: the daemon's end, and what it says on its own.

It wakes each second and costs nothing else: answers are read by who waits for them. Imported in that thread, so that a
cold start does not pay for it.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from trims.core.errors import ClosedError, LostPeerError

if TYPE_CHECKING:
    import weakref

    from trims_client.channel import Channel
    from trims_client.session import Session

_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0
_WAKE_MS = 1000


def watch(reference: weakref.ref[Session]) -> None:
    """Wait for the connection to end, then connect again for as long as the session lives."""
    retry_s = _FIRST_RETRY_S
    while True:
        session = reference()
        if session is None or session.closed:
            return
        channel = session._channel
        if channel is not None and not channel.broken:
            session._flush()
            del session
            wait_for_end(channel)
            retry_s = _FIRST_RETRY_S
            continue
        try:
            session._connected()
        except (LostPeerError, ClosedError):
            del session
            time.sleep(retry_s)
            retry_s = min(_LONGEST_RETRY_S, retry_s * 2)


def wait_for_end(channel: Channel) -> None:
    """Until the peer hangs up or we close; wakes to read what was said meanwhile, and to let a forgotten session go.

    Not woken by what arrives: those are answers, for which somebody waits already.
    """
    poller = select.poll()
    try:
        poller.register(channel.fileno(), select.POLLRDHUP)
        if poller.poll(_WAKE_MS):
            channel.read_to_end()
        else:
            channel.read_arrived()
    except (OSError, ValueError):  # closed here meanwhile
        return
