"""Put the store of a daemon together: the only place that wires its parts."""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.background.rate_limit import RateLimiter
from trims.core.place import CLOUD, FILE
from trims.core.residency.events import Event, Filled
from trims.core.residency.residency import Residency
from trims.store.adoption import Adoption
from trims.store.cloud_replicas import CloudReplicas
from trims.store.device_leases import DeviceLeases
from trims.store.fill.completion import Fills
from trims.store.fill.runner import Runner, converter_of
from trims.store.fill.workspace import Workspaces
from trims.store.model_changes import ModelChanges
from trims.store.opens import Opens
from trims.store.order_events import OrderEvents
from trims.store.pins import Pins
from trims.store.read_model import ReadModel
from trims.store.resolve.lookups import READERS
from trims.store.session_notices import SessionNotices
from trims.store.shell import Shell
from trims.store.store import Parts, Store
from trims.store.ticker import Ticker
from trims.store.watchers import Watchers
from trims.store.work import PoolsByMount, thread_pool
from trims.tiers.base import DeviceTier
from trims.tiers.cloud import CloudTier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.core.place import Place
    from trims.core.policy.eviction import Policy
    from trims.core.policy.quotas import Quota
    from trims.formats.base import Limits
    from trims.formats.conversion.conversion import Conversion
    from trims.store.catalog import Catalog
    from trims.store.fill.copying import HostBytes
    from trims.store.resolve.resolved import Resolved
    from trims.store.resolve.resolver import Resolver
    from trims.store.work import Pools
    from trims.tiers.base import Tier
    from trims.trace.context import SpanContext

#: Each start of a daemon numbers its leases in a range of its own, this long; the wire carries numbers below 2^53.
_LEASES_OF_A_LIFE = 1 << 32
_LIVES = 1 << 20
#: Descriptors kept in reserve: an image that is being freed still has one while the next is made.
_SPARE_IMAGES = 8


@dataclass(frozen=True)
class StoreSettings:
    """Settings of one store.

    Attributes:
        keep_alive_s: Seconds that an idle replica stays, for models whose manifest does not say.
        verify: Check every invariant after every event (`TRIMS_VERIFY=1`).
        workers: Copies that run at once.
        converters: Conversions that run at once.
        life: Range of lease numbers that this daemon uses; by chance if None.
        max_images: Images that may be open at once: each takes a descriptor.
        behind_bytes_per_s: Bandwidth of hashing and copying that no request waits for; None for no limit.
    """

    keep_alive_s: float | None = None
    verify: bool = False
    workers: int = 4
    converters: int = 2
    life: int | None = None
    max_images: int = sys.maxsize
    behind_bytes_per_s: float | None = None

    @property
    def most_images(self) -> int:
        """Images that the books may hold at once."""
        return max(1, self.max_images - _SPARE_IMAGES)

    @property
    def first_lease(self) -> int:
        """Number of the first lease of this life."""
        return (secrets.randbelow(_LIVES) if self.life is None else self.life % _LIVES) * _LEASES_OF_A_LIFE + 1


@dataclass(frozen=True)
class Surroundings:
    """The world outside a store: workers, bytes, conversions and time. Tests bring their own.

    Attributes:
        convert: Begins conversions; by default as the limits say.
        host: Bytes of the host; by default the real ones.
    """

    pools: Pools = thread_pool
    convert: Callable[[Resolved], Conversion] | None = None
    host: HostBytes | None = None
    clock: Callable[[], float] = time.monotonic


class _Feed:
    """Where events go that orders and the runner report: a fill is remembered before the books learn of it."""

    def __init__(self) -> None:
        self._takers: tuple[Fills, Shell] | None = None

    def connect(self, fills: Fills, shell: Shell) -> None:
        """Name the takers. The runner, which they need, has the feed before they are there."""
        self._takers = fills, shell

    def trace_of(self, key: str) -> SpanContext | None:
        """See `Shell.trace_of`."""
        return None if self._takers is None else self._takers[1].trace_of(key)

    def __call__(self, event: Event) -> None:
        """Handle one event."""
        assert self._takers is not None, "nothing happens before the store is put together"
        fills, shell = self._takers
        if isinstance(event, Filled) and event.place is not FILE:
            fills.remember(event)
        shell.feed(event)


def build_store(
    tiers: Sequence[Tier],
    policies: Mapping[Place, Policy],
    resolver: Resolver,
    catalog: Catalog,
    *,
    limits: Limits,
    settings: StoreSettings | None = None,
    surroundings: Surroundings | None = None,
    quotas: Mapping[str, Quota] | None = None,
) -> Store:
    """Return a store over these tiers that has adopted nothing yet.

    Args:
        tiers: The places there are; each bounded by its own capacity.
        policies: One instance for each place.
        resolver: Names to images.
        catalog: Keeps what is remembered between lives.
        settings: Settings of the store; the defaults of `StoreSettings` if None.
        quotas: What each tenant may hold, by its name.
    """
    settings, world = settings or StoreSettings(), surroundings or Surroundings()
    by_place = {tier.place: tier for tier in tiers}
    devices = [tier for tier in tiers if isinstance(tier, DeviceTier)]
    counters: Counter[str] = Counter()
    residency = _residency(by_place, devices, policies, settings, quotas)
    feed, ticker, watchers, model_changes = _Feed(), Ticker(), Watchers(counters), ModelChanges()
    rate_limiter = RateLimiter(settings.behind_bytes_per_s)
    readers = PoolsByMount(world.pools, "read", READERS)
    runner = Runner(
        by_place, world.convert or converter_of(limits), feed, workers=settings.workers,
        converters=settings.converters, pools=world.pools, host=world.host, clock=world.clock,
        max_images=settings.max_images, pace=rate_limiter, readers=readers,
        trace_of=feed.trace_of,
    )  # fmt: skip
    shell = Shell(residency, runner, watchers, SessionNotices(), counters, verify=settings.verify, clock=world.clock)
    orders = OrderEvents(feed, residency, shell, runner, catalog, clock=world.clock)
    pins, workspaces = Pins(catalog, resolver, by_place, orders.pin_changed), Workspaces(catalog)
    cloud = by_place.get(CLOUD)
    clouds = CloudReplicas(cloud, shell, runner, feed, world.clock) if isinstance(cloud, CloudTier) else None
    opens = Opens(
        shell, resolver, pins, workspaces, counters=counters, due_at=ticker.look_again,
        keep_alive_s=settings.keep_alive_s, pools=world.pools, pace=rate_limiter, readers=readers, clock=world.clock,
        know=None if clouds is None else clouds.know,
    )  # fmt: skip
    fills = Fills(
        residency, shell, runner, catalog, by_place, counters=counters, have=opens.have, retire=orders.retire_image
    )
    feed.connect(fills, shell)
    shell.connect(again=opens.again, filled=fills.follow)
    resolver.connect(superseded=fills.supersede, changed=model_changes.notify, is_on_host=shell.is_on_host)
    return Store(
        Parts(
            tiers=by_place, resolver=resolver, catalog=catalog, counters=counters, residency=residency, runner=runner,
            shell=shell, orders=orders, pins=pins, opens=opens, watchers=watchers,
            model_changes=model_changes, ticker=ticker, readers=readers,
            rate_limiter=rate_limiter, feed=feed, clock=world.clock, clouds=clouds,
            read=ReadModel(
                residency=residency, shell=shell, runner=runner, catalog=catalog, resolver=resolver,
                counters=counters, clock=world.clock,
            ),
            adoption=Adoption(
                residency, runner, catalog, counters, feed=feed, keep_alive_s=settings.keep_alive_s,
                clock=world.clock, max_images=settings.most_images,
            ),
            device_leases=DeviceLeases(
                devices, shell, residency, workspaces, counters=counters, have=opens.have, lease=opens.resume,
                clock=world.clock,
            ),
        )
    )  # fmt: skip


def _residency(
    tiers: Mapping[Place, Tier],
    devices: Sequence[DeviceTier],
    policies: Mapping[Place, Policy],
    settings: StoreSettings,
    quotas: Mapping[str, Quota] | None,
) -> Residency:
    return Residency(
        {place: tier.capacity_bytes for place, tier in tiers.items()},
        policies,
        reserves={tier.place: tier.reserve_bytes for tier in devices},
        units={tier.place: tier.unit_bytes for tier in devices},
        peers=[(one.place, other.place) for one in devices for other in devices if other.uuid in one.peers],
        max_images=settings.most_images,
        quotas=quotas,
        first_lease=settings.first_lease,
    )
