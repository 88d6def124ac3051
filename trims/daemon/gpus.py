"""GPU tiers of a daemon: devices from the survey, a keeper for each, and a capacity of what is free."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError, NotSupportedError, TrimsError
from trims.core.units import align_up
from trims.keeper.client import KeeperConnection
from trims.keeper.launch import find_keeper
from trims.memory.cuda.survey import survey
from trims.tiers.gpu import UNIT_BYTES, GpuTier

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.config import Config
    from trims.memory.cuda.survey import Surveyed

log = logging.getLogger(__name__)


def gpu_tiers(config: Config) -> tuple[list[GpuTier], str]:
    """Return the tiers `config.gpus` asks for, each with a keeper that serves; and why there is none, else empty text.

    `auto` takes what there is, none included, and logs why; devices that are named must be there.

    Raises:
        ConfigError: A named device cannot be had; the message says why.
    """
    if config.gpus == "none":
        return [], "gpus is none"
    named = () if config.gpus == "auto" else tuple(part.strip() for part in config.gpus.split(",") if part.strip())
    tiers: list[GpuTier] = []
    try:
        for number, device in enumerate(_chosen(survey(config.cuda), named)):
            tiers.append(_tier(config, number, device))
    except TrimsError as error:  # a device that is lost just now, too
        for tier in tiers:
            tier.close()
        if named:
            raise ConfigError(f"gpus is {config.gpus}: {error}") from error
        log.warning("there is no gpu tier: %s", error)
        return [], str(error)
    return tiers, "" if tiers else "the driver knows no device that CUDA can use"


def _chosen(found: list[Surveyed], named: tuple[str, ...]) -> list[Surveyed]:
    by_uuid = {device.uuid: device for device in found}
    for uuid in named:
        if uuid not in by_uuid:
            raise ConfigError(f"there is no GPU {uuid}; there are {', '.join(by_uuid) or 'none'}")
    return [by_uuid[uuid] for uuid in named] if named else found


def _tier(config: Config, number: int, device: Surveyed) -> GpuTier:
    def find() -> Path:
        return find_keeper(
            config.runtime_dir, device.uuid, cuda=config.cuda, driver=config.gpu_driver, idle_s=config.gpu_rest_s,
            verify_fills=config.gpu_verify,
        )  # fmt: skip

    with KeeperConnection(find()) as connection:
        held = sum(align_up(kept.nbytes, UNIT_BYTES) for kept in connection.hello().images)
    available = device.free_bytes + held
    # What is there stays: a session may read it, and that session's work may make the device look fuller than it was.
    capacity = max(held, int(available * config.gpu_share) - config.gpu_reserve_bytes)
    if capacity <= 0:
        raise NotSupportedError(
            f"{device.name} ({device.uuid}) has {available} bytes free, of which {config.gpu_share:.0%} less "
            f"{config.gpu_reserve_bytes} leave nothing for weights; lower gpu_reserve_bytes"
        )
    log.info("gpu:%d is %s (%s), %d bytes for weights", number, device.name, device.uuid, capacity)
    return GpuTier(number, find, capacity, config.gpu_reserve_bytes)
