"""Counts of the daemon for the endpoint's page of metrics: read over the control socket, and kept for a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from trims.core.errors import TrimsError
from trims_predictors.endpoint.single_flight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from trims.control import AsyncAdmin, Stats

#: Two looks are at least so far apart, however many programs ask for the page.
_FRESH_S = 2.0
#: A daemon that does not answer within this counts as away, and the page has no figures of it.
_PATIENCE_S = 1.0
#: Counter of the daemon -> label of what follows the dot in its name, such as `fills.cpu`.
_LABELS = {"fills": "place", "evictions": "place", "frees": "place", "filled_bytes": "place", "refused": "code",
           "transfers": "kind", "transfer_failures": "code"}  # fmt: skip


class DaemonFigures:
    """Looks at the daemon now and then."""

    def __init__(self, daemon: AsyncAdmin) -> None:
        self._daemon = daemon
        self._look = SingleFlight(self._ask, fresh_s=_FRESH_S, patience_s=_PATIENCE_S)

    async def look(self) -> Stats | None:
        """The daemon's counters, at most some seconds old; None if it does not answer soon."""
        return await self._look.look()

    async def _ask(self) -> Stats | None:
        try:
            return (await self._daemon.status()).stats
        except TrimsError:
            return None

    async def close(self) -> None:
        """Give up a look that is under way."""
        await self._look.close()


def figures(stats: Stats | None) -> Iterator[Metric]:
    """The daemon's figures as metrics; only `trims_daemon_up` if it does not answer."""
    yield GaugeMetricFamily("trims_daemon_up", "Whether the daemon answers.", value=float(stats is not None))
    if stats is None:
        return
    used = GaugeMetricFamily("trims_daemon_resident_bytes", "Bytes of weights by place.", labels=("place",))
    room = GaugeMetricFamily("trims_daemon_capacity_bytes", "Bytes that a place may hold.", labels=("place",))
    replicas = GaugeMetricFamily("trims_daemon_replicas", "Images by place.", labels=("place",))
    for tier in stats.tiers:
        used.add_metric((tier.place,), tier.charged_bytes)
        replicas.add_metric((tier.place,), tier.replicas)
        if tier.place not in ("file", "cloud"):  # what is served in place, or kept elsewhere, has no limit of ours
            room.add_metric((tier.place,), tier.capacity_bytes)
    yield from (used, room, replicas)
    yield GaugeMetricFamily("trims_daemon_sessions", "Connected clients.", value=stats.sessions)
    yield GaugeMetricFamily("trims_daemon_leases", "Images that clients hold open.", value=stats.leases)
    yield GaugeMetricFamily("trims_daemon_uptime_seconds", "Since the daemon's start.", value=stats.uptime_s)
    yield from _counted(stats)


def _counted(stats: Stats) -> Iterator[Metric]:
    families = {
        name: CounterMetricFamily(f"trims_daemon_{name}", f"The daemon's counter `{name}`.", labels=(label,))
        for name, label in _LABELS.items()
    }
    for counter, value in sorted(stats.counters.items()):
        name, _, detail = counter.partition(".")
        if name in families:
            families[name].add_metric((detail,), value)
        else:
            family = CounterMetricFamily(f"trims_daemon_{name}", f"The daemon's counter `{name}`.")
            family.add_metric((), value)
            yield family
    yield from families.values()
