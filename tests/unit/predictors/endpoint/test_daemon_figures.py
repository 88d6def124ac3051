"""The daemon's figures on the endpoint's page: one look, kept for a moment, that the page never waits long for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trims_predictors.endpoint import daemon_figures
from trims_predictors.endpoint.daemon_figures import DaemonFigures, figures

from trims.control import Stats, Tier
from trims.core.errors import DaemonAwayError

if TYPE_CHECKING:
    import pytest

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
        self.answers = asyncio.Event()
        self.answers.set()

    async def status(self) -> Any:
        self.asked += 1
        await self.answers.wait()
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


def test_many_pages_in_a_moment_are_one_look() -> None:
    async def run() -> None:
        daemon = Daemon()
        figures = DaemonFigures(daemon)  # type: ignore[arg-type]
        assert await asyncio.gather(*(figures.look() for _ in range(5))) == [STATS] * 5
        assert daemon.asked == 1
        figures._looked_s -= daemon_figures._FRESH_S
        daemon.away = True
        assert await figures.look() is None
        assert daemon.asked == 2
        await figures.close()

    asyncio.run(run())


def test_a_daemon_that_hangs_costs_a_page_its_figures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_figures, "_PATIENCE_S", 0.01)

    async def run() -> None:
        daemon = Daemon()
        daemon.answers.clear()
        figures = DaemonFigures(daemon)  # type: ignore[arg-type]
        assert await figures.look() is None
        assert await figures.look() is None
        assert daemon.asked == 1, "the first look is still under way"
        daemon.answers.set()
        monkeypatch.setattr(daemon_figures, "_PATIENCE_S", 30.0)
        assert await figures.look() == STATS
        await figures.close()
        daemon.answers.clear()
        late = DaemonFigures(daemon)  # type: ignore[arg-type]
        looking = asyncio.ensure_future(late.look())
        await asyncio.sleep(0)
        await late.close()
        assert await looking is None

    asyncio.run(run())
