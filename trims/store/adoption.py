"""Taking over what an earlier daemon left: replicas whose names say what they are.

A name states key and digest, so the name and the bytes are the proof; the catalog's record is a hint that saves
hashing. A replica is lent at once if a record vouches for it: its file has the identity it had when its bytes were last
known to be right. It is hashed again in the background. Any other replica is hashed in the background before it is
lent, and its bytes are charged until then. So a daemon answers at once, however many bytes it found.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from trims.core.place import CLOUD, DISK
from trims.core.residency.admission import STAYS
from trims.core.residency.events import Adopted

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from trims.core.place import Place
    from trims.core.residency.residency import Residency
    from trims.store.catalog import Catalog
    from trims.store.fill.runner import Runner
    from trims.tiers.base import Extent, Tier

log = logging.getLogger(__name__)


def seal_identity(extent: Extent) -> str | None:
    """Return the identity of sealed memory as the catalog keeps it."""
    return None if extent.identity is None else ":".join(map(str, extent.identity))


class Adoption:
    """Takes over what tiers find.

    Args:
        runner: Gets the memory, and verifies it.
        catalog: Vouches.
        counters: `adopted`, `adopted_unverified`, `adoption_skipped`.
        feed: Lets an event happen.
        keep_alive_s: Seconds that an idle image stays whose manifests do not say it; None until its room is needed.
        max_images: Images that may be open at once.
    """

    def __init__(
        self,
        residency: Residency,
        runner: Runner,
        catalog: Catalog,
        counters: Counter[str],
        *,
        feed: Callable[[Adopted], None],
        keep_alive_s: float | None,
        clock: Callable[[], float],
        max_images: int,
    ) -> None:
        self._residency = residency
        self._runner = runner
        self._catalog = catalog
        self._counters = counters
        self._feed = feed
        self._keep_alive_s = keep_alive_s
        self._clock = clock
        self._max_images = max_images
        #: Labels of all memory that was found, adopted or not.
        self._labels: set[str] = set()
        self._taken: list[Tier] = []

    def _keep_alive_of(self, key: str, place: Place) -> float | None:
        """Return what the manifests of an image's names said when they were last opened: the longest counts."""
        if place in (DISK, CLOUD):
            return STAYS.seconds
        stated = [json.loads(text)["residency"]["keep_alive_s"] for text in self._catalog.manifests_of(key)]
        longest = None if None in stated else max(stated, default=None)
        return longest if longest is not None else self._keep_alive_s

    def take_over(self, tier: Tier) -> None:
        """Adopt what fits; what does not is given back. Images beyond the limit of files are left where they are."""
        beyond = 0
        self._taken.append(tier)
        for extent in tier.scan():
            self._labels.add(extent.label)
            if len(self._residency.replicas) >= self._max_images:
                tier.leave(extent)
                beyond += 1
                continue
            books = self._residency.capacity.at[tier.place]
            if self._residency.find(extent.key, tier.place) is not None:
                self._give_back(tier, extent, "the same image lies there twice")
            elif books.takes(extent.nbytes) > books.free_bytes:
                self._give_back(tier, extent, "the tier has become too small for it")
            else:
                self._adopt(tier, extent)
        if beyond:
            log.warning(
                "%d images at %s are left alone: this daemon's limit of files allows %d in all; raise it (`ulimit -n`, "
                "LimitNOFILE=) and start again",
                beyond,
                tier.place,
                self._max_images,
            )
        self._counters["adoption_skipped"] += tier.skipped + beyond

    def forget_what_is_gone(self) -> None:
        """Once all tiers are taken over: the catalog vouches for what was found, and for nothing else.

        What could not be looked at has no label here and may be vouched for, so then everything is kept.
        """
        if not any(tier.skipped for tier in self._taken):
            self._catalog.forget_seals_except(self._labels)

    def _give_back(self, tier: Tier, extent: Extent, why: str) -> None:
        log.warning("replica %s at %s is freed: %s", extent.key[:16], tier.place, why)
        try:
            tier.free(extent)
        except Exception:  # one replica that cannot be removed must not keep a daemon from starting
            log.exception("%s cannot be removed, and is left where it is", extent.label)

    def _adopt(self, tier: Tier, extent: Extent) -> None:
        seals = tier.hash_on_adoption or tier.place == DISK  # a device's keeper vouches for what it holds
        vouched = self._catalog.seal_of(extent.label) if seals else None
        lent = not seals or (vouched is not None and vouched == seal_identity(extent))
        record = self._catalog.image(extent.key)
        event = Adopted(
            at_s=self._clock(),
            key=extent.key,
            place=tier.place,
            nbytes=extent.nbytes,
            cost_s=record.cost_s if record else 0.0,
            keep_alive_s=self._keep_alive_of(extent.key, tier.place),
            verified=lent,
            descriptors=int(extent.fd >= 0),
        )
        self._feed(event)
        replica = self._residency.find(event.key, event.place)
        assert replica is not None, "it was adopted a moment ago"
        self._counters["adopted" if lent else "adopted_unverified"] += 1
        if not lent:
            self._runner.verify(replica.id, extent)
            return
        self._runner.adopt(replica.id, extent)
        if tier.hash_on_adoption:
            self._runner.verify_behind(replica.id, extent)
