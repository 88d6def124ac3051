"""Upgrades under readers: weights that are mapped from disk move to shared memory once their image lies there.

The daemon tells a session that the bytes of one of its leases lie at a better place. The watch thread asks for a lease
of them there, puts the new memory under the same addresses in one step, and gives the old lease back. Views and tensors
stay valid, and no reader waits. If anything is in the way, the weights stay where they are: both places have the same
bytes. Imported only when there is an upgrade.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from trims.core.errors import TrimsError
from trims_client.connection import GRACE_S

if TYPE_CHECKING:
    from trims_client.channel import Channel
    from trims_client.mappings import MappedImages

log = logging.getLogger(__name__)
#: How often, about once a second, a lease is looked for whose grant another thread has not mapped yet.
_LOOKS = 5


def upgrade(channel: Channel, mappings: MappedImages) -> None:
    """Carry out the upgrades that a connection's daemon has told. Never raises."""
    for _ in range(len(mappings.upgrades)):
        granter, number, place, looks = mappings.upgrades.popleft()
        if granter is not channel or channel.broken:
            continue  # the lease has ended with its connection
        if mappings.find(channel, number) is not None:
            _upgrade(channel, mappings, number, place)
        elif looks < _LOOKS and number not in channel.owed:
            mappings.upgrades.append((granter, number, place, looks + 1))


def _upgrade(channel: Channel, mappings: MappedImages, number: int, place: str) -> None:
    mapping = mappings.find(channel, number)
    if mapping is None or mapping.place == place or not mapping.anywhere:
        return
    try:
        answer, fd = channel.request({"op": "resume", "key": mapping.key, "place": place}, GRACE_S)
    except TrimsError as error:  # it has left again, or the daemon is away
        log.debug("%s stays at %s: %s", mapping.key[:16], mapping.place, error)
        return
    before = mapping.place
    try:
        moved = mappings.exchange(mapping, channel, answer, fd)
    except (TrimsError, OSError, KeyError, TypeError, ValueError) as error:
        log.warning("%s stays at %s: %s", mapping.key[:16], before, error)
    else:
        log.info("%s %s from %s to %s", mapping.key[:16], "has moved" if moved else "cannot move", before, place)
    finally:
        if fd >= 0:
            os.close(fd)
