"""Giving memory back: tried again where a tier fails, and given up in the end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest
from store_parts import Workers as Pools

from trims.core.place import CPU
from trims.core.replica import ReplicaId
from trims.memory.shm import PosixShm
from trims.store.fill.freeing import FREE_PAUSE_S, FREE_TRIES, Freeing
from trims.store.fill.sealed_replicas import SealedReplicas
from trims.store.fill.workers import Workers
from trims.testing.tiers import an_image, put
from trims.testing.wrapped_tiers import WrappedTier
from trims.tiers.cpu import CpuTier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.tiers.base import Extent, Tier

REPLICA = ReplicaId("a" * 64, CPU, 1)


class Unfreeable(WrappedTier):
    """A tier that cannot give memory back, once."""

    fails = False

    def free(self, extent: Extent) -> None:
        if self.fails:
            self.fails = False
            raise OSError(5, "Input/output error")
        super().free(extent)


class Bench:
    """One sealed replica in shared memory, and workers that work when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.tier, self.pools, self.now = Unfreeable(CpuTier(PosixShm("trims-free", folder), 1 << 20)), Pools(), 100.0
        self.memory, self.stopping, self.freed = SealedReplicas(9), threading.Event(), 0
        self.extent = put(self.tier.inner, an_image(1000), key=REPLICA.key)
        self.memory.add(REPLICA, self.extent)
        tiers = {CPU: cast("Tier", self.tier)}
        workers = Workers(tiers, self.pools, 1, 1, None)
        self.freeing = Freeing(tiers, self.memory, workers, clock=lambda: self.now, stopping=self.stopping)

    def begin(self) -> None:
        self.freeing.begin(REPLICA, self._count)
        self.pools.run()

    def _count(self) -> None:
        self.freed += 1

    def fails(self) -> None:
        self.tier.fails = True


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    made = Bench(folder)
    yield made
    if REPLICA in made.memory.by_replica:
        made.tier.inner.free(made.extent)


def test_memory_that_was_given_back_is_reported_and_gone(bench: Bench, folder: Path) -> None:
    bench.begin()
    assert (bench.freed, bench.memory.extents(), bench.freeing.next_due_s()) == (1, {}, None)
    assert not (folder / bench.extent.label).exists()


def test_memory_that_cannot_be_given_back_is_given_up_after_some_tries(
    bench: Bench, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fails()
    bench.begin()
    for _ in range(FREE_TRIES):
        assert (bench.freed, bench.freeing.next_due_s()) == (0, bench.now + FREE_PAUSE_S)
        bench.freeing.try_again(bench.now)
        assert bench.pools.names == [], "its pause is not over"
        bench.now += FREE_PAUSE_S
        bench.fails()
        bench.freeing.try_again(bench.now)
        bench.pools.run()
    assert f"{bench.extent.label} is left where it is and counts no more" in caplog.text
    assert (bench.freed, bench.freeing.next_due_s(), bench.memory.extents()) == (1, None, {})
    bench.tier.inner.free(bench.extent)


def test_at_the_end_nothing_is_tried_again(bench: Bench, folder: Path) -> None:
    bench.fails()
    bench.stopping.set()
    bench.begin()
    assert (bench.freed, bench.freeing.next_due_s()) == (1, None)
    bench.tier.inner.free(bench.extent)


def test_a_removal_that_fails_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fails()
    bench.freeing.remove(REPLICA, bench.extent)
    assert f"{bench.extent.label} cannot be removed, and is left where it is" in caplog.text
