"""Reasons why the GPU tier is off, or what it has: every reason is a finding of its own, with its remedy.

`look` gathers facts and decides nothing; `explain` decides and looks at nothing. Neither makes a CUDA context. What is
said of MIG and of containers follows the vendor's documents; docs/operations.md says what a device has shown.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trims.cli.finding import Finding
from trims.core.errors import TrimsError
from trims.core.units import format_bytes
from trims.process.packages import install_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims.daemon.config import Config
    from trims.memory.cuda.api import Device
    from trims.memory.cuda.survey import Surveyed, Versions

_Found = TypeVar("_Found")
_LIBRARY = "libcuda.so.1"
#: Files that show a container: Docker's, Podman's.
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_DRIVER_FILES = ("nvidia0", "nvidiactl", "dxg")
_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_CUPY = "cupy"
_NO_TOOLKIT = "run it with the NVIDIA container toolkit: docker run --gpus all, or --device nvidia.com/gpu=all (CDI)"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that this process can see about GPUs.

    Attributes:
        library: The driver's library can be loaded.
        files: Names in /dev by which the kernel's driver is reached.
        container: Whether this looks like a container.
        variables: Environment variables that hide devices.
        packages: Distribution -> version, those that matter and are installed.
        versions: Versions of the driver; None if it does not say.
        surveyed: Devices that NVML lists; partitioned GPUs and their parts.
    """

    library: bool = True
    files: Sequence[str] = ()
    container: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    versions: Versions | None = None
    surveyed: Sequence[Surveyed] = ()
    no_survey: str = ""
    seen: Sequence[Device] = ()
    not_seen: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A daemon that runs: the UUIDs of its devices, what is wrong with them, and why it has none."""

    devices: Sequence[str] = ()
    troubles: Sequence[str] = ()
    off: str = ""


def gpu_findings(config: Config, runtime_dir: str | None) -> Iterator[Finding]:
    """Look, and explain."""
    yield from explain(look(config.cuda), config, running(runtime_dir))


# -- looking -------------------------------------------------------------------------------------------------------


def look(kind: str) -> Facts:
    """Return the facts of this machine; with a fake, of its folder."""
    from trims.memory.cuda.connect import connect
    from trims.memory.cuda.survey import driver_versions, survey_all

    surveyed, no_survey = _tried(lambda: survey_all(kind))
    seen, not_seen = _tried(lambda: connect(kind).devices())
    if kind.startswith("fake:"):
        fake = Facts(packages=_packages(), no_survey=no_survey, not_seen=not_seen)
        return replace(fake, surveyed=surveyed or (), seen=seen or ())
    return Facts(
        library=_loads(_LIBRARY),
        files=[name for name in _DRIVER_FILES if Path("/dev", name).exists()],
        container=any(Path(mark).exists() for mark in _CONTAINER_MARKS),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        packages=_packages(),
        versions=_tried(driver_versions)[0],
        surveyed=surveyed or (),
        no_survey=no_survey,
        seen=seen or (),
        not_seen=not_seen,
    )


def running(runtime_dir: str | None) -> Running | None:
    """Return what a daemon reports of its devices; None if none runs, or one that is too old to report them."""
    from trims.control import admin

    try:
        with admin(runtime_dir) as daemon:
            stats = daemon.status().stats
    except TrimsError:  # another examination says why it does not answer
        return None
    troubles = [f"{device.place}: {device.trouble}" for device in stats.devices if device.trouble]
    return Running([device.uuid for device in stats.devices], troubles, stats.gpu_off)


def _tried(ask: Callable[[], _Found]) -> tuple[_Found | None, str]:
    try:
        return ask(), ""
    except TrimsError as error:
        return None, str(error)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _packages() -> dict[str, str]:
    found = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name in ("nvidia-ml-py", "cuda-bindings") or name.startswith(_CUPY):
            found[name] = distribution.version
    return found


# -- explaining ----------------------------------------------------------------------------------------------------


def explain(facts: Facts, config: Config, daemon: Running | None) -> Iterator[Finding]:
    """Yield all reasons, each with its remedy; what is well, if nothing is wrong."""
    if config.gpus == "none":
        yield Finding("note", "the GPU tier is off: gpus is none", "trims serve --gpus auto")
        return
    if config.cuda == "driver":
        yield from _reach(facts)
    elif facts.no_survey:
        yield Finding("bad", f"the GPU tier is off: {facts.no_survey}", "look at the setting cuda")
    yield from _named(facts, config)
    for device in facts.surveyed:
        yield from _partitioned(facts, device) if device.partitioned else _device(facts, config, device, daemon)
    yield from _unknown(facts)
    if facts.seen:
        yield from _arrays(facts)
    yield from _daemon(facts, daemon)


def _reach(facts: Facts) -> Iterator[Finding]:
    """Yield what lacks on the way to the driver: library or device files (the first that lacks), packages, versions."""
    if not facts.library and not facts.files:
        what = f"the GPU tier is off: there is no NVIDIA driver here ({_LIBRARY} cannot be loaded, no /dev/nvidia*)"
        advice = _NO_TOOLKIT if facts.container else "models open at cpu; a machine with a GPU needs its driver"
        yield Finding("note", what, advice)
        return
    if not facts.library:
        what = f"the GPU tier is off: the device is here (/dev/{facts.files[0]}), {_LIBRARY} is not"
        advice = f"install the driver's user-space libraries, or name the folder of {_LIBRARY} in LD_LIBRARY_PATH"
        if facts.container:
            advice = f"{_NO_TOOLKIT}, with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield Finding("bad", what, advice)
        return
    if not facts.files and not facts.surveyed:
        hidden = facts.variables.get("NVIDIA_VISIBLE_DEVICES")
        told = f", NVIDIA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""
        where = "this container has no device" if facts.container else "the kernel shows no device"
        advice = _NO_TOOLKIT if facts.container or hidden is not None else "modprobe nvidia; then look at nvidia-smi"
        yield Finding("bad", f"the GPU tier is off: there is a driver, but {where} (no /dev/nvidia0{told})", advice)
        return
    yield from _software(facts)


def _software(facts: Facts) -> Iterator[Finding]:
    for package, why in (
        ("nvidia-ml-py", "gives UUIDs and free memory without a context"),
        ("cuda-bindings", "is what keepers and clients speak to the driver through"),
    ):
        if package not in facts.packages:
            what = f"the GPU tier is off: the package {package} is not installed, which {why}"
            yield Finding("bad", what, install_words("trims[gpu]"))
    if (versions := facts.versions) is not None:
        yield Finding("ok", f"NVIDIA driver {versions.driver}, for CUDA up to {versions.cuda}")
        bindings = facts.packages.get("cuda-bindings", "")
        if bindings and int(bindings.partition(".")[0]) > versions.cuda:
            what = f"cuda-bindings {bindings} are newer than driver {versions.driver}, which knows CUDA {versions.cuda}"
            yield Finding("bad", what, f"update the driver, or pip install 'cuda-bindings<{versions.cuda + 1}'")
    if facts.no_survey and "nvidia-ml-py" in facts.packages:
        yield Finding("bad", f"the GPU tier is off: {facts.no_survey}", _driver_advice(facts.no_survey))
    if facts.not_seen and "cuda-bindings" in facts.packages:
        yield Finding("bad", f"the GPU tier is off: {facts.not_seen}", _driver_advice(facts.not_seen))


def _driver_advice(said: str) -> str:
    if "mismatch" in said.lower():
        return "the kernel runs another version of the driver than the libraries: restart, or reload the kernel module"
    if "NO_DEVICE" in said:
        return "look at CUDA_VISIBLE_DEVICES and at the container's devices"
    return "look at nvidia-smi and the kernel's log (dmesg)"


def _named(facts: Facts, config: Config) -> Iterator[Finding]:
    """Yield devices that the configuration names and that this machine lacks."""
    usable = [device.uuid for device in facts.surveyed if not device.partitioned]
    named = [] if config.gpus == "auto" else [part.strip() for part in config.gpus.split(",") if part.strip()]
    for uuid in named if not facts.no_survey else ():
        if uuid not in usable:
            yield Finding("bad", f"gpus names {uuid}, which is not there", f"there are: {', '.join(usable) or 'none'}")


def _partitioned(facts: Facts, device: Surveyed) -> Iterator[Finding]:
    parts = [each.uuid for each in facts.surveyed if each.parent == device.uuid]
    what = f"{device.name} {device.uuid} is partitioned (MIG)"
    if not parts:
        yield Finding("bad", f"{what} and has no parts: CUDA cannot use it", "make some (nvidia-smi mig -cgi ... -C)")
        return
    advice = (
        f"serve one part: CUDA_VISIBLE_DEVICES={parts[0]} trims serve --gpus {parts[0]} --gpu-driver vmm; "
        "NVIDIA supports no CUDA IPC (gpu_driver ipc) on parts, and a process of CUDA sees one part only"
    )
    yield Finding("note", f"{what}, of which CUDA sees parts: {', '.join(parts)}", advice)


def _device(facts: Facts, config: Config, device: Surveyed, daemon: Running | None) -> Iterator[Finding]:
    free = f"{format_bytes(device.free_bytes)} free of {format_bytes(device.total_bytes)}"
    what = f"{device.name} {device.uuid}: {free}"
    if facts.not_seen:
        return  # said already
    seen = next((each for each in facts.seen if each.uuid == device.uuid), None)
    if seen is None:
        yield _hidden(facts, device, what)
        return
    way = "vmm" if seen.vmm else "ipc" if seen.ipc else ""
    if not way:
        advice = "models open at cpu; containers of some kinds and parts of GPUs have neither, whole GPUs mostly both"
        yield Finding("bad", f"{what}: it can share memory by neither vmm nor ipc", advice)
        return
    if config.gpu_driver != "auto" and not getattr(seen, config.gpu_driver):
        yield Finding(
            "bad", f"{what}: it cannot share memory by {config.gpu_driver}", f"trims serve --gpu-driver {way}"
        )
        return
    if daemon is not None and device.uuid in daemon.devices:
        yield Finding("ok", f"{what}, shared by {way}, a tier of the daemon that runs")
        return
    room = int(device.free_bytes * config.gpu_share) - config.gpu_reserve_bytes
    if room <= 0:
        kept = f"gpu_share {config.gpu_share:g} and gpu_reserve_bytes {format_bytes(config.gpu_reserve_bytes)}"
        advice = "lower gpu_reserve_bytes, raise gpu_share, or end what uses the device (nvidia-smi shows it)"
        yield Finding("bad", f"{what}: {kept} leave nothing for weights", advice)
        return
    yield Finding("ok", f"{what}, shared by {way}, up to {format_bytes(room)} for weights")


def _hidden(facts: Facts, device: Surveyed, what: str) -> Finding:
    visible = ", ".join(each.uuid for each in facts.seen) or "none"
    chosen = facts.variables.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        advice = f"CUDA_VISIBLE_DEVICES is {chosen!r}: unset it for the daemon, or trims serve --gpus {visible}"
    elif device.parent:
        advice = f"a process of CUDA sees one part: CUDA_VISIBLE_DEVICES={device.uuid} trims serve --gpus {device.uuid}"
    else:
        advice = "the container lets NVML see more devices than CUDA: give it the same ones (--gpus)"
    return Finding("bad", f"{what}, and CUDA does not see it; CUDA sees {visible}", advice)


def _unknown(facts: Facts) -> Iterator[Finding]:
    """Yield devices of CUDA whose UUID NVML does not know: the daemon, which asks NVML, finds none of them."""
    known = {device.uuid for device in facts.surveyed}
    for device in facts.seen if not facts.no_survey else ():
        if device.uuid not in known:
            what = (
                f"CUDA sees {device.name} {device.uuid}, NVML knows no such UUID: {', '.join(sorted(known)) or 'none'}"
            )
            yield Finding(
                "bad", what, "NVML and CUDA must come from one driver, with the same devices in the container"
            )


def _arrays(facts: Facts) -> Iterator[Finding]:
    known = facts.versions.cuda if facts.versions else 0
    wheel = f"{_CUPY}-cuda{known}x" if known else _CUPY
    wheels = [name for name in facts.packages if name.startswith(_CUPY)]
    for name in wheels:
        made_for = re.fullmatch(r"cupy-cuda(\d+)x", name)
        if made_for and known and int(made_for[1]) > known:
            what = f"{name} is for CUDA {made_for[1]}, which is newer than the driver's CUDA {known}"
            yield Finding("bad", what, f"update the driver, or pip install {wheel} instead")
    if not wheels:
        what = "cupy is not installed here; only programs that want cupy arrays over weights on a device need it"
        yield Finding("note", what, f"pip install {wheel}, if you use it")


def _daemon(facts: Facts, daemon: Running | None) -> Iterator[Finding]:
    if daemon is None:
        return
    for trouble in daemon.troubles:
        yield Finding("bad", f"the daemon's {trouble}", "its log and the keeper's, in the runtime folder, say more")
    usable = [device.uuid for device in facts.surveyed if not device.partitioned]
    if daemon.off and usable:
        what = f"the daemon that runs has no gpu tier, though {', '.join(usable)} is here: {daemon.off}"
        yield Finding("bad", what, "remove the cause and restart the daemon: it looks for devices when it starts")
    missing = [uuid for uuid in usable if uuid not in daemon.devices] if daemon.devices else []
    if missing and not daemon.troubles:
        what = f"the daemon that runs has no tier on {', '.join(missing)}"
        yield Finding("note", what, "its setting gpus names others, or they came after its start")
