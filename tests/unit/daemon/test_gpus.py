"""Which GPU tiers a daemon has: devices that are named, devices that are there, and what is left for weights."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from on_device import OTHER_UUID, TOTAL_BYTES, UUID

import trims.daemon.gpus as module
from trims.core.errors import ConfigError, DeviceLostError
from trims.daemon.config import Config, build_config
from trims.daemon.gpus import gpu_tiers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.memory.cuda.survey import Surveyed
    from trims.tiers.gpu import GpuTier


@pytest.fixture
def config(folder: Path, cuda: str) -> Callable[..., Config]:
    (folder / "run").mkdir()

    def build(**more: object) -> Config:
        settings: dict[str, object] = {
            "runtime_dir": folder / "run",
            "state_dir": folder / "state",
            "cuda": cuda,
            "gpu_share": 0.5,
            "gpu_reserve_bytes": "48MiB",
        }
        return build_config({**settings, **more}, environment={})

    return build


@contextlib.contextmanager
def tiers_of(config: Config) -> Iterator[tuple[list[GpuTier], str]]:
    """The tiers, which are closed and whose keepers end after the block."""
    tiers, why = gpu_tiers(config)
    yield tiers, why
    for tier in tiers:
        tier.close()
        tier.end_keeper()


def test_a_daemon_that_is_told_to_have_no_gpu_asks_no_driver(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module, "survey")
    assert gpu_tiers(config(gpus="none")) == ([], "gpus is none")


@pytest.mark.parametrize("gpus", ["auto", UUID, f" {UUID} ,"])
def test_a_device_gets_a_keeper_and_its_share_of_what_is_free(config: Callable[..., Config], gpus: str) -> None:
    with tiers_of(config(gpus=gpus)) as (tiers, why):
        (tier,) = tiers
        assert (str(tier.place), tier.uuid, tier.reserve_bytes, why) == ("gpu:0", UUID, 48 << 20, "")
        assert 0 < tier.capacity_bytes <= TOTAL_BYTES // 2 - (48 << 20)


def test_a_named_device_that_is_not_there_is_named_with_those_that_are(config: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=rf"gpus is {OTHER_UUID}: there is no GPU {OTHER_UUID}; there are {UUID}"):
        gpu_tiers(config(gpus=OTHER_UUID))


@pytest.mark.parametrize("gpus", ["auto", UUID])
def test_a_device_without_room_for_weights_is_no_tier_and_says_why(config: Callable[..., Config], gpus: str) -> None:
    too_much = config(gpus=gpus, gpu_reserve_bytes=TOTAL_BYTES)
    if gpus == "auto":
        tiers, why = gpu_tiers(too_much)
        assert tiers == []
        assert "leave nothing for weights; lower gpu_reserve_bytes" in why
    else:
        with pytest.raises(ConfigError, match=f"gpus is {UUID}: Fake .* leave nothing for weights"):
            gpu_tiers(too_much)
    with tiers_of(config(gpus="auto")):
        pass  # the keeper that was started is found, and ends


def test_a_driver_that_fails_costs_the_gpu_tier_and_not_the_daemon(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(_: str) -> list[Surveyed]:
        raise DeviceLostError("the device has fallen off the bus")

    monkeypatch.setattr(module, "survey", lost)
    assert gpu_tiers(config(gpus="auto")) == ([], "the device has fallen off the bus")
    assert "there is no gpu tier: the device has fallen off the bus" in caplog.text
    monkeypatch.setattr(module, "survey", lambda _: [])
    assert gpu_tiers(config(gpus="auto")) == ([], "the driver knows no device that CUDA can use")
