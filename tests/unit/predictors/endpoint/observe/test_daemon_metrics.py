"""The daemon's figures on the endpoint's page: one look, kept for a moment (`looks`)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from trims_predictors.endpoint.observe.daemon_metrics import DaemonFigures, figures

from trims.control import Stats, Tier
from trims.core.errors import DaemonAwayError

STATS = Stats(
    counters={"opens": 7, "fills.cpu": 2, "fills.gpu:0": 1, "evictions.cpu": 3, "refused.capacity": 1},
    tiers=(Tier("cpu", 100, 40, 2, "lru"), Tier("file", 0, 9, 1, "lru")),
    sessions=3, leases=4, uptime_s=5.5, devices=(), gpu_off="", unverified_bytes=0, max_files=1024, max_sessions=8,
    max_images=8, images=2,
)  # fmt: skip


class Daemon:
    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    async def status(self) -> Any:
        self.asked += 1
        if self.away:
            raise DaemonAwayError("no daemon")
        return SimpleNamespace(stats=STATS)


def told(stats: Stats | None) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for metric in figures(stats)
        for sample in metric.samples
    }


def test_counters_with_a_place_or_a_code_have_it_as_a_label() -> None:
    found = told(STATS)
    assert found["trims_daemon_opens_total", ()] == 7
    assert found["trims_daemon_fills_total", ("gpu:0",)] == 1
    assert found["trims_daemon_evictions_total", ("cpu",)] == 3
    assert found["trims_daemon_refused_total", ("capacity",)] == 1


def test_tiers_are_told_in_bytes_and_files_in_place_have_no_capacity() -> None:
    found = told(STATS)
    assert found["trims_daemon_resident_bytes", ("file",)] == 9
    assert found["trims_daemon_capacity_bytes", ("cpu",)] == 100
    assert ("trims_daemon_capacity_bytes", ("file",)) not in found


def test_a_daemon_that_is_away_has_one_figure() -> None:
    assert told(None) == {("trims_daemon_up", ()): 0.0}


def test_the_look_has_the_counters_or_nothing_if_the_daemon_is_away() -> None:
    async def run() -> None:
        daemon = Daemon()
        figures = DaemonFigures(daemon)  # type: ignore[arg-type]
        assert await asyncio.gather(*(figures.look() for _ in range(5))) == [STATS] * 5
        assert daemon.asked == 1
        figures._look.expire()
        daemon.away = True
        assert await figures.look() is None
        assert daemon.asked == 2
        await figures.close()

    asyncio.run(run())
