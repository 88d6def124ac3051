"""The GPU tier over a keeper of a fake device: what lies there, how it is found, checked and given back."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from served_keeper import KEY, OTHER_KEY, TOTAL, UUID, Refusing, Served, put_on

from trims.core.errors import CapacityError, DrainingError, ImageError, InternalError
from trims.core.place import CPU
from trims.keeper.client import KeeperConnection
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import make_devices
from trims.testing.tiers import an_image
from trims.tiers.base import DeviceTier, Extent
from trims.tiers.disk import DiskTier
from trims.tiers.gpu import GpuTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    make_devices(folder, [Device(UUID, "Fake", TOTAL)])
    made = Served(folder)
    yield made
    made.end()


@pytest.fixture
def tier(served: Served) -> Iterator[GpuTier]:
    made = GpuTier(0, served.find, TOTAL, reserve_bytes=7)
    yield made
    made.close()


@pytest.fixture
def put(folder: Path) -> Callable[..., Extent]:
    return lambda tier, key=KEY: put_on(tier, folder, key)


def test_a_sealed_image_lies_with_the_keeper_and_has_a_head_and_an_export(
    served: Served, tier: GpuTier, put: Callable[..., Extent]
) -> None:
    extent = put(tier)
    (held,) = served.keeper.held()
    assert (held.key, held.digest, held.nbytes) == (KEY, extent.digest, extent.nbytes)
    assert os.fstat(extent.fd).st_size == extent.nbytes
    assert extent.export is not None
    assert (extent.export.device, extent.named, extent.label.isdigit()) == (UUID, False, True)
    assert tier.examine(extent) == ("blake3", extent.digest, extent.digest), "it states no checksum"


def test_a_tier_tells_its_device_and_what_it_leaves_free(tier: GpuTier) -> None:
    assert isinstance(tier, DeviceTier)
    assert (str(tier.place), tier.uuid, tier.capacity_bytes, tier.reserve_bytes) == ("gpu:0", UUID, TOTAL, 7)
    assert not tier.ends_with_session, "a client cannot write through a vmm export"
    assert tier.describe().device == UUID


def test_a_draft_that_is_aborted_leaves_nothing_with_the_keeper(served: Served, tier: GpuTier) -> None:
    tier.abort(tier.create(KEY, 1, 4096, allocate=True))
    assert served.keeper.held() == []


def test_a_replica_is_copied_back_to_the_host_as_it_was(
    tier: GpuTier, put: Callable[..., Extent], folder: Path
) -> None:
    extent, host = put(tier), DiskTier(folder / "images", 1 << 20)
    draft = host.create(KEY, 2, extent.nbytes, allocate=True)
    done: list[int] = []
    tier.copy_out(extent, draft, done.append)
    assert os.pread(draft.fd, extent.nbytes, 0) == an_image()
    assert done[-1] == extent.nbytes
    host.abort(draft)


def test_a_replica_that_is_freed_twice_is_gone_once(served: Served, tier: GpuTier, put: Callable[..., Extent]) -> None:
    extent = put(tier)
    for _ in range(2):
        tier.free(extent)
    assert served.keeper.held() == []
    with pytest.raises(DrainingError, match="was given back"), extent.reader():
        pass


def test_what_is_left_alone_or_closed_stays_with_the_keeper(
    served: Served, tier: GpuTier, put: Callable[..., Extent]
) -> None:
    tier.leave(put(tier))
    put(tier, OTHER_KEY)
    tier.close()
    assert sorted(held.key for held in served.keeper.held()) == [KEY, OTHER_KEY]


def test_a_copy_from_a_replica_on_no_device_is_a_bug_that_is_told(tier: GpuTier) -> None:
    draft = tier.create(KEY, 1, 4096, allocate=True)
    with pytest.raises(InternalError, match=r"aaaaaaaa at cpu lies on no device"):
        tier.copy_across(draft, Extent(KEY, CPU, 4096, "", -1, "segment"))
    tier.abort(draft)


def test_what_a_keeper_holds_is_found_unhashed_and_can_be_verified(
    served: Served, tier: GpuTier, put: Callable[..., Extent]
) -> None:
    sealed = put(tier)
    second = GpuTier(0, served.find, TOTAL)
    (found,) = second.scan()
    assert (found.fresh, found.key, second.hash_on_adoption, second.skipped) == (False, KEY, False, 0)
    assert found.identity is not None
    paced: list[int] = []
    second.verify(found, threading.Event(), paced.append)
    assert found.fresh
    assert paced == [sealed.nbytes]
    second.close()


def test_verifying_finds_bytes_that_differ_on_the_device(tier: GpuTier, put: Callable[..., Extent]) -> None:
    extent = put(tier)
    extent.fresh, extent.digest = False, "0" * 64
    with pytest.raises(ImageError, match=r"aaaaaaaa at gpu:0: its bytes hash to .*, 0000000000000000\.\.\. was sealed"):
        tier.verify(extent)
    stop = threading.Event()
    stop.set()
    with pytest.raises(DrainingError):
        tier.verify(extent, stop)
    assert not extent.fresh


def test_what_a_keeper_cannot_hand_out_is_counted_as_skipped(
    served: Served, tier: GpuTier, put: Callable[..., Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tier)
    second = GpuTier(0, served.find, TOTAL)
    monkeypatch.setattr(KeeperConnection, "export", Refusing(tier.free, CapacityError("no descriptor left"), 1))
    assert list(second.scan()) == []
    assert second.skipped == 1
    assert len(served.keeper.held()) == 1
    second.close()
