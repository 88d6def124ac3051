"""Taking over what an earlier daemon left: replicas that check out and that somebody can still name."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from trims.core.events import Adopted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.core.place import Place
    from trims.core.residency import Residency
    from trims.store.catalog import Catalog
    from trims.tiers.base import Extent, Tier

log = logging.getLogger(__name__)


def adoptable(
    tier: Tier, catalog: Catalog, residency: Residency, keep_alive_for: Callable[[Place], float | None]
) -> Iterator[tuple[Adopted, Extent]]:
    """What the tier finds and residency may take in, one after the other; the rest is freed.

    The caller feeds each event before he asks for the next: room is counted as of then.
    """
    for extent in tier.scan():
        record = catalog.image(extent.key)
        taken = residency.room.takes(tier.place, extent.nbytes)
        if record is None or taken > residency.room.free_bytes(tier.place):
            why = "nothing is known of it" if record is None else "the tier has become too small for it"
            log.warning("replica %s at %s is freed: %s", extent.key[:16], tier.place, why)
            tier.free(extent)
            continue
        event = Adopted(
            at_s=time.monotonic(),
            key=extent.key,
            place=tier.place,
            nbytes=extent.nbytes,
            cost_s=record.cost_s,
            keep_alive_s=keep_alive_for(tier.place),
        )
        yield event, extent
