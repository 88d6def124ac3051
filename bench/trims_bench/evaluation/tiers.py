"""The tier that a start begins from: brought about by orders to the daemon, and verified by looking."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, InUseError, ModelNotFoundError, NotSupportedError, TrimsError
from trims.formats.plugins import converter
from trims.manifests.manifest import parse_manifest
from trims_bench.evaluation import page_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.control import AsyncAdmin, Model

TIERS = ("cloud", "file", "disk", "cpu", "gpu")
#: Part of a file's bytes that may be in memory for a start that counts as one from disk.
_MOST_CACHED = 0.01
#: Tries of an eviction, and seconds between two: a copy behind the last reader may be under way, which takes a large
#: model half a minute, as it leaves the processors to others.
_TRIES, _PAUSE_S = 1200, 0.1


class Unreachable(Exception):  # noqa: N818 - no failure of the evaluation: the tier is left out
    """A tier cannot be brought about here; the message says why."""


async def bring(daemon: AsyncAdmin, model: str, tier: str, artifact: Sequence[str], *, alone: bool = False) -> None:
    """Bring a model into the state that a start from a tier finds.

    Args:
        tier: One of `TIERS`. `cloud`: the image is at an address, and no image is on this machine; `file`: no image is
            anywhere else, and the artifact's bytes are not in memory; `disk`: the image is on disk and not in memory;
            `cpu` and `gpu`: it is there.
        artifact: Files of its artifact: see `artifact_files`, which may read them and is not asked here.
        alone: Whether the framework starts alone, and reads the artifact: `file`: it is not in memory; `cpu`: it is.

    Raises:
        Unreachable: The machine cannot have that state.
        TrimsError: The daemon refuses an order.
    """
    if alone:
        await _bring_files(artifact, cached=tier != "file")
        return
    if tier == "gpu":
        place = await _gpu(daemon)
        await daemon.load(model, place)
        return
    if tier == "cpu":
        await daemon.load(model, "cpu")
        return
    await _evict(daemon, model, "cpu")
    if tier == "disk":
        await daemon.load(model, "disk")
        await _evict(daemon, model, "cpu")
    else:
        await _evict(daemon, model, "disk")
    await _evict(daemon, model, "file")
    shown = await daemon.show(model)
    for replica in shown.replicas:
        if replica.place.startswith("gpu"):
            await _evict(daemon, model, replica.place)
    if tier == "cloud":
        if not any((each.place, each.state) == ("cloud", "sealed") for each in shown.replicas):
            raise Unreachable("no image of it is in the cloud; `trims push` writes one")
        return
    await _bring_files(artifact if tier == "file" else _on_disk(shown), cached=False)


async def _bring_files(files: Sequence[str], *, cached: bool) -> None:
    if not files or not all(os.path.isfile(each) for each in files):
        raise Unreachable("it has no files there")
    try:
        await asyncio.to_thread(page_cache.fill if cached else page_cache.drop, files)
    except OSError as error:
        raise Unreachable(f"the file system's cache cannot be {'filled' if cached else 'dropped'}: {error}") from error


async def verify(daemon: AsyncAdmin, model: str, tier: str, artifact: Sequence[str], *, alone: bool = False) -> str:
    """Return what is not as a start from a tier needs it; empty if everything is."""
    shown = await daemon.show(model)
    if alone:
        share = await asyncio.to_thread(page_cache.cached_share, artifact)
        right = share <= _MOST_CACHED if tier == "file" else share >= 1 - _MOST_CACHED
        return "" if right else f"{share:.0%} of its file is in memory"
    there = {each.place.partition(":")[0] for each in shown.replicas if each.state == "sealed" and each.place != "file"}
    if tier == "cloud":
        return "" if there == {"cloud"} else f"its image is at {', '.join(sorted(there)) or 'no place'}"
    there.discard("cloud")
    wanted: dict[str, set[str]] = {"file": set(), "disk": {"disk"}, "cpu": {"cpu"}, "gpu": {"gpu"}}
    if tier in ("file", "disk"):
        if there != wanted[tier]:
            return f"its image is at {', '.join(sorted(there)) or 'no place'}"
        files = artifact if tier == "file" else _on_disk(shown)
        share = await asyncio.to_thread(page_cache.cached_share, files)
        return "" if share <= _MOST_CACHED else f"{share:.0%} of its file is in memory"
    return "" if wanted[tier] <= there else f"its image is at {', '.join(sorted(there)) or 'no place'}"


def _on_disk(shown: Model) -> list[str]:
    return [each.location for each in shown.replicas if each.place == "disk"]


def artifact_files(shown: Model) -> list[str]:
    """Return all files of a model's artifact, the main one first; empty if it was never looked into. Reads them."""
    if not shown.files:
        return []
    options = parse_manifest(shown.manifest, shown.origin).artifact.options
    try:
        return [str(each) for each in converter(shown.format).files(Path(shown.files[0]), options)]
    except TrimsError:
        return list(shown.files)


async def _gpu(daemon: AsyncAdmin) -> str:
    devices = (await daemon.status()).stats.devices
    if not devices:
        raise Unreachable("this machine has no GPU that the daemon uses")
    return str(devices[0].place)


async def _evict(daemon: AsyncAdmin, model: str, place: str) -> None:
    """Free an image at a place that nothing reads: a drained one would refuse its other readers later."""
    for left in range(_TRIES, 0, -1):
        try:
            await daemon.evict(model, place)
        except InUseError as error:
            if left == 1:
                raise Unreachable(
                    f"its image is read by others ({error}); `trims ps` shows whose leases these are: end them, those "
                    "of an endpoint by `trims unload`"
                ) from error
            await asyncio.sleep(_PAUSE_S)
        except (ModelNotFoundError, NotSupportedError, CallerError):
            return  # there is none, or none can be
        else:
            return
