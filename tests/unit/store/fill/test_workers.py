"""Workers of a store: who does what, and that one that hangs holds up no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from store_parts import Workers as Pools

from trims.core.place import CPU, DISK, FILE
from trims.store.fill.workers import Workers
from trims.store.work import PoolsByMount

if TYPE_CHECKING:
    from trims.store.work import Pool


class Apart:
    """A tier whose workers are its own."""

    apart = True


@pytest.fixture
def pools() -> Pools:
    return Pools()


def name_of(pools: Pools, pool: Pool) -> str:
    pool.submit(lambda: None)
    return pools.waiting.pop()[0]


def test_a_tier_apart_copies_converts_and_frees_with_workers_of_its_own(pools: Pools) -> None:
    tiers: Any = {CPU: Apart(), DISK: object()}
    made = Workers(tiers, pools, 2, 2, None)
    assert (made.is_apart(CPU), made.is_apart(DISK), made.is_apart(FILE)) == (True, False, False)
    assert name_of(pools, made.copying(DISK)) == "copy"
    assert name_of(pools, made.copying(DISK, CPU)) == name_of(pools, made.copying(CPU)) == "copy-cpu"
    assert [name_of(pools, made.freeing(place)) for place in (CPU, DISK)] == ["free-cpu", "free"]
    assert [name_of(pools, made.converting(place)) for place in (CPU, DISK)] == ["convert-cpu", "convert"]


def test_each_mount_point_has_one_worker_for_what_no_request_waits_for(pools: Pools) -> None:
    made = Workers({}, pools, 2, 2, None)
    assert made.behind("/a") is made.behind("/a")
    assert made.behind("/a") is not made.behind("/b")


def test_readers_that_are_shared_go_on_to_headers(pools: Pools) -> None:
    shared = PoolsByMount(pools, "read", 2)
    assert Workers({}, pools, 2, 2, shared).readers is shared
    alone = Workers({}, pools, 2, 2, None)
    assert alone.readers is alone.planners


def test_after_the_end_of_fills_memory_is_still_given_back(pools: Pools) -> None:
    made = Workers({}, pools, 2, 2, None)
    behind = made.behind("")
    made.finish()
    fills = (made.converters, made.copiers, made.verifiers, behind)
    assert [pool.submit(lambda: None) for pool in fills] == [False] * 4
    assert made.freers.submit(lambda: None)
    made.stop()
    assert not made.freers.submit(lambda: None)


def test_workers_that_hang_are_left_behind_and_logged(pools: Pools, caplog: pytest.LogCaptureFixture) -> None:
    made = Workers({}, pools, 2, 2, None)
    for pool in (made.copiers, made.freers):
        pool.stop = lambda **_: False  # type: ignore[method-assign]
    made.finish()
    made.stop()
    assert len(caplog.records) == 2
