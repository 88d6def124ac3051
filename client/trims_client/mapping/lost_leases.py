"""Handling of an open model's lost memory in a session. Imported only when the daemon sends an event.

The thread that reads the connection only queues events: it reads for all threads and must not wait for a lock. `hear`
records losses, and images that lie at a better place; `report` reports losses to the user, with no lock held.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from trims_client.mapping.mapped_image import Upgrade

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client.connection.channel import Channel
    from trims_client.mapping.mappings import MappedImages

log = logging.getLogger(__name__)


class Loss(NamedTuple):
    """The memory of an open model was lost.

    Example:
        def reload(loss: trims.Loss) -> None:
            print(f"{loss.name} at {loss.place}: {loss.message}")

        session = trims.connect(on_lost=reload)
        session.close()

    Attributes:
        message: Why, as `Weights.lost` says.
        name: Name by which the model was opened.
    """

    message: str
    name: str
    key: str
    place: str


def hear(channel: Channel, mappings: MappedImages) -> None:
    """Record the daemon's events. Events that this client does not understand are ignored."""
    while channel.events:
        try:
            event = channel.events.popleft()
        except IndexError:  # another thread was faster
            return
        lease, key, place = event.get("lease"), event.get("key"), event.get("place")
        if event["event"] == "lost" and type(lease) is int:
            mappings.lose(channel, lease, str(event.get("message", "")))
        elif event["event"] == "upgrade" and isinstance(key, str) and isinstance(place, str):
            mappings.upgrades.append(Upgrade(channel, key, place))


def report(mappings: MappedImages, on_lost: Callable[[Loss], None] | None) -> None:
    """Log each loss and call `on_lost`. Never raises."""
    while mappings.untold:
        try:
            mapping = mappings.untold.popleft()
        except IndexError:
            return
        for name in sorted(mapping.names):
            log.warning("the memory of %s at %s is lost: %s", name, mapping.place, mapping.lost)
            try:
                if on_lost is not None:
                    on_lost(Loss(str(mapping.lost), name, mapping.key, mapping.place))
            except Exception:
                log.exception("on_lost failed for %s", name)
