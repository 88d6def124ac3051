"""Knowledge of the daemon about its GPUs: also of one whose keeper or driver does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from on_device import TOTAL_BYTES, UUID

import trims.daemon.devices as module
from trims.core.errors import DeviceLostError, NotSupportedError, TrimsError
from trims.core.place import GPU
from trims.daemon.devices import Devices
from trims.keeper.client import KeeperState
from trims.store.read_model import TierView

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.memory.cuda.survey import Surveyed
    from trims.wire import trims_pb2 as pb


class Tier:
    """A tier whose keeper answers or does not, as the test says."""

    place, capacity_bytes, reserve_bytes = GPU, 77, 7
    trouble: TrimsError | None = None

    def describe(self) -> KeeperState:
        if self.trouble is not None:
            raise self.trouble
        return KeeperState(4711, UUID, "vmm", read_only=True, awake=True, peers=frozenset(), images=[])


@pytest.fixture
def tier() -> Tier:
    return Tier()


@pytest.fixture
def look(tier: Tier, cuda: str) -> Callable[[], pb.Device]:
    given: Any = [tier]
    devices = Devices(given, cuda, "")
    view = TierView(GPU, 77, 60, 2, 1, "lru")

    def look() -> pb.Device:
        (told,) = devices.look([view])
        return told

    return look


def test_a_device_is_told_as_driver_keeper_and_books_see_it(look: Callable[[], pb.Device]) -> None:
    told = look()
    assert (told.place, told.uuid, told.driver, told.keeper_pid, told.keeper_awake) == (
        "gpu:0",
        UUID,
        "vmm",
        4711,
        True,
    )
    assert (told.name, told.total_bytes, told.trouble) == ("Fake", TOTAL_BYTES, "")
    assert 0 < told.free_bytes <= TOTAL_BYTES
    assert (told.capacity_bytes, told.reserve_bytes, told.weights_bytes, told.leases) == (77, 7, 60, 1)


def test_a_device_whose_keeper_is_gone_keeps_its_name_and_tells_the_trouble(
    tier: Tier, look: Callable[[], pb.Device]
) -> None:
    look()
    tier.trouble = DeviceLostError("the keeper of gpu:0 has ended")
    told = look()
    assert (told.trouble, told.uuid, told.name) == ("the keeper of gpu:0 has ended", UUID, "Fake")
    assert (told.keeper_pid, told.weights_bytes) == (0, 60)


def test_a_device_whose_keeper_never_answered_has_no_name_yet(tier: Tier, look: Callable[[], pb.Device]) -> None:
    tier.trouble = DeviceLostError("the keeper of gpu:0 has ended")
    assert (look().uuid, look().name) == ("", "")


def test_a_driver_that_is_away_leaves_only_its_own_figures_out(
    look: Callable[[], pb.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> list[Surveyed]:
        raise NotSupportedError("the driver is being replaced")

    monkeypatch.setattr(module, "survey", away)
    told = look()
    assert (told.uuid, told.name, told.free_bytes, told.weights_bytes) == (UUID, "", 0, 60)


def test_a_daemon_without_a_gpu_tier_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_: str) -> list[Surveyed]:
        raise AssertionError("the driver was asked")

    monkeypatch.setattr(module, "survey", asked)
    devices = Devices([], "driver", "gpus is none")
    assert (devices.look([]), devices.off) == ([], "gpus is none")
