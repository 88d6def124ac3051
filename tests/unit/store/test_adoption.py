"""Adoption: what an earlier daemon left is lent at once, read first, given back, or left alone."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from store_parts import Workers

from trims.core.place import CPU, DISK, Place
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import State
from trims.core.residency.events import Adopted, Event, Filled
from trims.core.residency.residency import Residency
from trims.memory.shm import PosixShm
from trims.store.adoption import Adoption, seal_identity
from trims.store.catalog import Catalog, ImageRecord
from trims.store.fill.runner import Runner
from trims.testing.tiers import an_image, put
from trims.tiers.base import Extent, identity_of
from trims.tiers.cpu import CpuTier
from trims.tiers.disk import DiskTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.store.resolve.resolved import Resolved
    from trims.tiers.base import Tier


KEYS = [f"{number}" * 64 for number in range(4)]


class Bench:
    """The next daemon on a folder of images: real books and tiers; workers run when the test says so."""

    def __init__(self, folder: Path, catalog: Catalog, *, capacity_bytes: int = 100_000, max_images: int = 99) -> None:
        self.tiers: dict[Place, Tier] = {
            CPU: CpuTier(PosixShm("trims-adoption", folder), capacity_bytes),
            DISK: DiskTier(folder / "images", capacity_bytes),
        }
        places = dict.fromkeys(self.tiers, capacity_bytes)
        self.residency = Residency(places, {place: LeastRecentlyUsed() for place in places})
        self.workers, self.counters = Workers(), Counter[str]()
        self.reported: list[Event] = []
        self.runner = Runner(self.tiers, _convert, self.reported.append, pools=self.workers)
        self.adoption = Adoption(
            self.residency,
            self.runner,
            catalog,
            self.counters,
            feed=self._feed,
            keep_alive_s=5.0,
            clock=lambda: 1.0,
            max_images=max_images,
        )

    def _feed(self, event: Adopted) -> None:
        self.residency.handle(event)
        self.residency.validate()

    def states(self, place: Place = DISK) -> list[tuple[str, State]]:
        return [(it.key, it.state) for it in self.residency.replicas.values() if it.place == place]

    def end(self) -> None:
        self.runner.stop()


def _convert(resolved: Resolved) -> Any:
    raise AssertionError("nothing is converted here")


@pytest.fixture
def bench(folder: Path, catalog: Catalog) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**more: int) -> Bench:
        made.append(Bench(folder, catalog, **more))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def left(folder: Path, catalog: Catalog) -> Callable[..., str]:
    """Leave an image, as a daemon before: its label. The catalog vouches for it unless the test says otherwise."""

    def leave(key: str = KEYS[0], place: Place = DISK, *, vouched: bool = True, data: bytes | None = None) -> str:
        tier: Tier = DiskTier(folder / "images", 1 << 20)
        if place == CPU:
            tier = CpuTier(PosixShm("trims-adoption", folder), 1 << 20)
        extent = put(tier, data or an_image(), key=key)
        extent.identity = identity_of(extent.fd)
        if vouched:
            catalog.remember_seal(extent.label, seal_identity(extent))
        tier.close()
        return extent.label

    return leave


def test_an_image_on_disk_that_the_catalog_vouches_for_is_lent_at_once(
    bench: Callable[..., Bench], left: Callable[..., str], catalog: Catalog
) -> None:
    label = left()
    catalog.remember_image(ImageRecord(KEYS[0], "m", {}, 7, 2.5))
    made = bench()
    made.adoption.take_over(made.tiers[DISK])
    (replica,) = made.residency.replicas.values()
    assert (replica.state, replica.cost_s, replica.keep_alive_s) == (State.SEALED, 2.5, None)
    extent = made.runner.sealed.get(replica.id)
    assert extent is not None
    assert extent.label == label
    assert (made.counters["adopted"], made.counters["adopted_unverified"], made.workers.names) == (1, 0, [])


@pytest.mark.parametrize("why", ["no record", "touched"])
def test_an_image_that_the_catalog_does_not_vouch_for_is_read_before_it_is_lent(
    why: str, bench: Callable[..., Bench], left: Callable[..., str]
) -> None:
    label = left(vouched=why == "touched")
    if why == "touched":
        os.utime(label, ns=(1, 1))
    made = bench()
    made.adoption.take_over(made.tiers[DISK])
    assert made.states() == [(KEYS[0], State.FILLING)]
    assert made.counters["adopted_unverified"] == 1
    assert made.runner.unverified_bytes == len(an_image())
    made.workers.run()
    (event,) = made.reported
    assert isinstance(event, Filled)
    assert made.runner.unverified_bytes == 0


def test_an_image_in_memory_is_lent_if_it_is_vouched_for_and_read_again_behind(
    bench: Callable[..., Bench], left: Callable[..., str]
) -> None:
    left(place=CPU)
    made = bench()
    made.adoption.take_over(made.tiers[CPU])
    (replica,) = made.residency.replicas.values()
    assert (replica.state, replica.keep_alive_s) == (State.SEALED, 5.0)
    extent = made.runner.sealed.get(replica.id)
    assert extent is not None
    assert (extent.fresh, made.workers.names) == (False, ["verify"])
    made.workers.run()
    assert (extent.fresh, made.reported) == (True, [])
    made.tiers[CPU].free(extent)


def test_a_tier_that_became_too_small_keeps_what_fits_and_gives_the_rest_back(
    bench: Callable[..., Bench], left: Callable[..., str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for key in KEYS[:2]:
        left(key)
    made = bench(capacity_bytes=len(an_image()))
    made.adoption.take_over(made.tiers[DISK])
    assert made.states() == [(KEYS[0], State.SEALED)]
    assert len(os.listdir(folder / "images")) == 1
    assert f"replica {KEYS[1][:16]} at disk is freed: the tier has become too small" in caplog.text


def test_the_same_image_found_twice_is_kept_once(
    bench: Callable[..., Bench], left: Callable[..., str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for nbytes in (100, 200):
        left(data=an_image(nbytes))
    made = bench()
    made.adoption.take_over(made.tiers[DISK])
    assert made.states() == [(KEYS[0], State.SEALED)]
    assert len(os.listdir(folder / "images")) == 1
    assert "the same image lies there twice" in caplog.text


def test_an_image_that_cannot_be_removed_stops_no_daemon(
    bench: Callable[..., Bench],
    left: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    left()
    made = bench(capacity_bytes=10)

    def fails(extent: Extent) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(made.tiers[DISK], "free", fails)
    made.adoption.take_over(made.tiers[DISK])
    assert made.states() == []
    assert "cannot be removed, and is left where it is" in caplog.text


def test_images_beyond_the_limit_of_files_are_left_where_they_are(
    bench: Callable[..., Bench], left: Callable[..., str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for key in KEYS:
        left(key)
    made = bench(max_images=1)
    made.adoption.take_over(made.tiers[DISK])
    assert len(made.states()) == 1
    assert len(os.listdir(folder / "images")) == 4
    assert made.counters["adoption_skipped"] == 3
    assert "3 images at disk are left alone" in caplog.text
    assert "raise it (`ulimit -n`, LimitNOFILE=)" in caplog.text


def test_the_catalog_forgets_seals_of_gone_images_unless_a_scan_skipped_some(
    bench: Callable[..., Bench], left: Callable[..., str], catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes = left(KEYS[0]), left(KEYS[1])
    catalog._write_behind()
    os.unlink(goes)
    with monkeypatch.context() as patched:
        patched.setattr(DiskTier, "skipped", 1)
        skipping = bench()
        skipping.adoption.take_over(skipping.tiers[DISK])
        skipping.adoption.forget_what_is_gone()
        assert catalog.seal_of(goes) is not None, "it may be the one that could not be looked at"
    made = bench()
    made.adoption.take_over(made.tiers[DISK])
    made.adoption.forget_what_is_gone()
    assert (catalog.seal_of(goes), catalog.seal_of(stays) is not None) == (None, True)
