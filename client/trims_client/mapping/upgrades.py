"""Upgrades under readers: weights that are mapped from disk move to shared memory once their image lies there.

The daemon reports to a session that an image it reads lies at a better place, too. The watch thread leases the image
there, puts the new memory under the same addresses in one step, and gives the old lease back. Views and tensors
stay valid, and no reader waits. If anything is in the way, the weights stay where they are: both places have the same
bytes. Imported only when there is an upgrade.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from trims.core.errors import TrimsError
from trims_client.connection.connection import GRACE_S

if TYPE_CHECKING:
    from trims_client.connection.channel import Channel
    from trims_client.mapping.mapped_image import MappedImage
    from trims_client.mapping.mappings import MappedImages

log = logging.getLogger(__name__)
#: Number of looks, about one a second, for mappings: another thread may not have mapped its grant yet.
_LOOKS = 5


def upgrade(channel: Channel, mappings: MappedImages) -> None:
    """Carry out the upgrades that a connection's daemon has reported. Never raises."""
    for _ in range(len(mappings.upgrades)):
        told = mappings.upgrades.popleft()
        if told.channel is not channel or channel.broken:
            continue  # its leases have ended with its connection
        for mapping in mappings.of_image(channel, told.key):
            may_move = mapping.place != told.place and mapping.anywhere and mapping.attachment.can_exchange
            if may_move and mapping not in told.tried:
                told.tried.add(mapping)
                _move(channel, mappings, mapping, told.place)
        told.looks += 1
        if told.looks < _LOOKS:
            mappings.upgrades.append(told)


def _move(channel: Channel, mappings: MappedImages, mapping: MappedImage, place: str) -> None:
    before = mapping.place
    try:
        answer, fd = channel.request({"op": "resume", "key": mapping.key, "place": place}, GRACE_S)
    except TrimsError as error:  # it has left again, or the daemon is away
        log.debug("%s stays at %s: %s", mapping.key[:16], before, error)
        return
    try:
        moved = mappings.exchange(mapping, channel, answer, fd)
    except (TrimsError, OSError) as error:
        log.warning("%s stays at %s: %s", mapping.key[:16], before, error)
    else:
        log.info("%s %s from %s to %s", mapping.key[:16], "has moved" if moved else "cannot move", before, place)
    finally:
        if fd >= 0:
            os.close(fd)
