"""The watch thread of a session: notices the daemon's end, and events that the daemon sends without a request.

It wakes once a second; answers are read by the threads that wait for them. Imported in that thread, so that a cold
start does not pay for it.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Protocol

from trims.core.errors import TrimsError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from trims_client.connection.channel import Channel
    from trims_client.connection.connection import Connection
    from trims_client.mapping.mappings import MappedImages

_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0
_WAKE_MS = 1000


class Watched(Protocol):
    """Interface of a session that the thread needs."""

    _connection: Connection

    @property
    def _channel(self) -> Channel | None:
        """Return the present connection."""
        ...

    @property
    def closed(self) -> bool:
        """Return whether the session was closed: the thread then ends."""
        ...

    def _flush(self) -> None:
        """Give back what finalisers left."""
        ...

    def _take_up(self) -> None:
        """Take up leases that the daemon could not grant yet."""
        ...

    def _upgrade(self) -> None:
        """Move weights to better places."""
        ...


def watch(reference: Callable[[], Watched | None], gate: threading.Lock) -> None:
    """Wait for the connection to end, then connect again, for as long as the session lives.

    While the daemon is away, or ends each connection before its greeting, the pauses between tries grow from
    `_FIRST_RETRY_S` to `_LONGEST_RETRY_S`.

    Args:
        reference: Gives the session, or None when it is gone.
        gate: Held while this thread works; see `trims_client.background`.
    """
    retry_s = _FIRST_RETRY_S
    while True:
        with gate:
            session = reference()
            if session is None or session.closed:
                return
            channel = session._channel
            waits = channel is not None and not channel.broken
            if waits:
                session._flush()
                session._take_up()
                session._upgrade()
            elif _connects(session):
                continue
            session = None
        if channel is not None and waits:
            wait_for_end(channel, gate)
            if not channel.broken or channel.boot:
                retry_s = _FIRST_RETRY_S
                continue
        time.sleep(retry_s)
        retry_s = min(_LONGEST_RETRY_S, retry_s * 2)


def outlive(mappings: MappedImages, connection: Connection, gate: threading.Lock) -> None:
    """Serve a session that was dropped without a close: give back leases as its weights and arrays go, then end it.

    Returns at once if the session was closed. If the connection ends, its leases have ended with it.
    """
    while True:
        with gate:
            channel = connection.channel
            if channel is None or channel.broken:
                return
            mappings.close_dropped()
            connection.flush()
            if not mappings.held():
                connection.close()
                return
            del channel
        time.sleep(_LONGEST_RETRY_S)


def _connects(session: Watched) -> bool:
    try:
        session._connection.live_channel()
    except TrimsError:
        return False
    return True


def wait_for_end(channel: Channel, gate: threading.Lock) -> None:
    """Wait until the peer hangs up or the channel is closed, for `_WAKE_MS` at most; read events that have arrived.

    Returning regularly lets a session without references end. Arriving data does not wake this thread: data is mostly
    answers, and other threads wait for those already.
    """
    poller = select.poll()
    try:
        poller.register(channel.fileno(), select.POLLRDHUP)
        ended = poller.poll(_WAKE_MS)
        with gate:
            if ended:
                channel.read_to_end()
            else:
                channel.read_arrived()
    except (OSError, ValueError):  # closed here meanwhile
        return
