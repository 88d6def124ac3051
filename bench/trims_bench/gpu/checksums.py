"""Figure (h): how fast a device sums up the checksum of an image, on its tensor cores and on the others.

Beside them its own copy of the same bytes, from device memory to device memory, whose bytes are counted once.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from trims.core.errors import InternalError, NotSupportedError
from trims.keeper.device_sums import DeviceSums
from trims.memory.row_sums import part
from trims.testing.device_memory import Owner
from trims_bench.child import call
from trims_bench.gpu.lines import Line, not_taken, taken
from trims_bench.measuring import Bar, Samples, faster, measure

if TYPE_CHECKING:
    from trims_bench.gpu.rig import Rig

_COPY = "copy"
_COUNT = 9
_BAR = 0.7
#: Bytes that the host writes there and sums up, too; the others repeat them.
_BLOCK_BYTES = 64 << 20
_NAMES = {"products": "tensor cores", "plain": "other cores"}


def checksums(rig: Rig) -> list[Line]:
    """Rates of both kernels over that of the device's own copy; the faster one has the bar."""
    found = call(measure_sums, {"kind": rig.kind, "driver": rig.drivers()[0], "nbytes": rig.sizes.large_bytes})
    if "unavailable" in found:
        return [not_taken("checksum / copy on the device", Bar(">=", _BAR), found["unavailable"])]
    copies = Samples("copy on the device", found.pop(_COPY))
    sums = {way: Samples(f"checksum, {_NAMES[way]}", times) for way, times in found.items()}
    best = min(sums, key=lambda way: sums[way].median)
    return [
        taken(
            faster(
                f"checksum / copy on the device, {_NAMES[way]}", ours, copies, Bar(">=", _BAR) if way == best else None
            )
        )
        for way, ours in sums.items()
    ]


def measure_sums(kind: str, driver: str, nbytes: int) -> dict[str, Any]:
    """Return nanoseconds for the bytes by each way, in turns, in a process of its own.

    Raises InternalError if a kernel's sum is not the host's.
    """
    owner = Owner(kind, driver)
    cuda, sums, stream = owner.cuda, DeviceSums(owner.cuda), owner.cuda.stream()
    made = [owner.memory.allocate(nbytes) for _ in range(2)]
    source, target = (owner.memory.reach(each, writable=True) for each in made)

    def copy() -> None:
        cuda.copy_device(target.address, source.address, nbytes, stream)
        cuda.synchronize(stream)

    try:
        _fill(owner, source.address, nbytes, stream)
        ways = sums.ways
        _check(sums, owner, source.address, min(nbytes, _BLOCK_BYTES) - 77, stream)
        found: dict[str, Any] = measure(
            {_COPY: copy, **{way: partial(sums.sum, source.address, nbytes, way=way) for way in ways}},
            _COUNT,
            warm_up=2,
        )
    except NotSupportedError as error:
        found = {"unavailable": str(error)}
    finally:
        sums.close()
        cuda.end_stream(stream)
        for opened, allocation in zip((source, target), made, strict=True):
            owner.memory.close(opened)
            owner.memory.free(allocation)
        owner.end()
    return found


def _fill(owner: Owner, target: int, nbytes: int, stream: int) -> None:
    block = os.urandom(min(nbytes, _BLOCK_BYTES))
    host = ctypes.create_string_buffer(block, len(block))
    for begin in range(0, nbytes, len(block)):
        owner.cuda.copy_in(target + begin, ctypes.addressof(host), min(len(block), nbytes - begin), stream)
    owner.cuda.synchronize(stream)


def _check(sums: DeviceSums, owner: Owner, source: int, nbytes: int, stream: int) -> None:
    host = ctypes.create_string_buffer(nbytes)
    owner.cuda.copy_out(ctypes.addressof(host), source, nbytes, stream)
    owner.cuda.synchronize(stream)
    expected = part(memoryview(host).cast("B"), 0)
    for way in sums.ways:
        found, _ = sums.sum(source, nbytes, way=way)
        if found != expected:
            raise InternalError(f"the sum of {nbytes} bytes is {found:#x} by {way}, and {expected:#x} by the host")
