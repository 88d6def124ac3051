"""A daemon that kills itself at one moment: `dying_daemon.py MOMENT RUNTIME_DIR STATE_DIR [SETTING=VALUE ...]`.

Not a test.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

#: moment -> (where, attribute, whether the real thing is done first)
MOMENTS: dict[str, tuple[str, str, bool]] = {
    "while looking into the name": ("trims.store.resolve.resolver:Resolver", "resolve", False),
    "while measuring": ("trims.formats.conversion.conversion:_LocalConversion", "plan", False),
    "when measured": ("trims.formats.conversion.conversion:_LocalConversion", "plan", True),
    "before memory is given": ("trims.tiers.cpu:CpuTier", "create", False),
    "when memory is given": ("trims.tiers.cpu:CpuTier", "create", True),
    "when the image is written": ("trims.formats.conversion.conversion:_LocalConversion", "write", True),
    "before sealing": ("trims.tiers.cpu:CpuTier", "seal", False),
    "between read-only and named": ("pathlib:Path", "rename", False),
    "when sealed, before it is reported": ("trims.tiers.cpu:CpuTier", "seal", True),
    "when sealed, not remembered": ("trims.store.catalog:Catalog", "remember_image", False),
    "when answered": ("trims.daemon.attach_door:AttachDoor", "_send_answers", True),
    "before freeing": ("trims.tiers.cpu:CpuTier", "free", False),
    "when freed, before it is reported": ("trims.tiers.cpu:CpuTier", "free", True),
    "before the disk image is named": ("trims.tiers.disk:os", "rename", False),
    "when the disk image is named": ("trims.tiers.disk:DiskTier", "seal", True),
}
#: Moments of death of a daemon with a device.
DEVICE_MOMENTS: dict[str, tuple[str, str, bool]] = {
    "before device memory is given": ("trims.tiers.gpu:GpuTier", "create", False),
    "when device memory is given": ("trims.tiers.gpu:GpuTier", "create", True),
    "when the device has the bytes": ("trims.tiers.gpu:GpuTier", "copy_in", True),
    "when sealed on the device, before it is reported": ("trims.tiers.gpu:GpuTier", "seal", True),
    "before freeing on the device": ("trims.tiers.gpu:GpuTier", "free", False),
    "when freed on the device, before it is reported": ("trims.tiers.gpu:GpuTier", "free", True),
    "before a copy down from the device": ("trims.tiers.gpu:GpuTier", "copy_out", False),
    "when copied down, not sealed": ("trims.tiers.gpu:GpuTier", "copy_out", True),
}

#: Moments of death of a daemon that fetches; at the others a test kills it by what a server has sent.
TRANSFER_MOMENTS: dict[str, tuple[str, str, bool]] = {
    "before it asks for a transfer": ("trims.sources.process.fetcher:Fetcher", "do", False),
    "when the files are named, not recorded": ("trims.sources.lock:LockFile", "put", False),
    "when the lock file is written, not named": ("trims.sources.lock:os", "fsync", True),
    "when the files are recorded": ("trims.sources.lock:LockFile", "put", True),
}
#: Moments of death of a daemon whose models have versions.
VERSION_MOMENTS: dict[str, tuple[str, str, bool]] = {
    "before a version is registered": ("trims.registry.sqlite:SqliteRegistry", "put", False),
    "when a version is registered, its rows not moved": ("trims.store.store:Store", "renamed", False),
    "when its rows are moved": ("trims.store.store:Store", "renamed", True),
    "before an alias is switched": ("trims.registry.sqlite:SqliteRegistry", "switch", False),
    "when an alias is switched, not answered": ("trims.registry.sqlite:SqliteRegistry", "switch", True),
    "when opens look up the alias": ("trims.store.store:Store", "alias_changed", True),
    "when a version is removed, its image not retired": ("trims.store.store:Store", "retire", False),
}


def die_at(moment: str) -> None:
    """Replace one function by one that ends this process the hard way."""
    where, name, after = {**MOMENTS, **DEVICE_MOMENTS, **TRANSFER_MOMENTS, **VERSION_MOMENTS}[moment]
    module, _, attribute = where.partition(":")
    owner = getattr(importlib.import_module(module), attribute)
    real = getattr(owner, name)

    def fatal(*args: Any, **kwargs: Any) -> Any:
        if name == "_send_answers" and not args[0]._answers:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    setattr(owner, name, fatal)


def main() -> None:
    from trims.daemon.config import build_config
    from trims.daemon.main import serve

    moment, runtime_dir, state_dir, *more = sys.argv[1:]
    if moment:
        die_at(moment)
    settings = {"runtime_dir": runtime_dir, "state_dir": state_dir, "cpu_capacity_bytes": 1 << 20, "verify": "1",
                "trust": "verified", "gpus": "none",
                "disk_capacity_bytes": 10 << 20, **dict(each.split("=") for each in more)}  # fmt: skip
    serve(build_config(settings, environment={}))


if __name__ == "__main__":
    main()
