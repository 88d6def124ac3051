"""Features of this host's processor that an optimized program may depend on.

ONNX Runtime lays convolution weights out for the vector width it finds: such an image gives wrong answers,
not only slow ones, on a processor of another width. Covered: Linux on x86-64 and AArch64; elsewhere the
machine's name is all that counts.
"""

from __future__ import annotations

import os
from functools import lru_cache

#: Features by which the kernel libraries of the supported frameworks choose a weight layout.
_LAYOUT_FEATURES = frozenset((
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2",
))  # fmt: skip
_FLAG_LINES = (b"flags", b"Features")


@lru_cache(maxsize=1)
def cpu_features() -> tuple[str, ...]:
    """Return the machine's name, then its features that weight layouts depend on, sorted. Read once a process."""
    return (os.uname().machine, *sorted(_LAYOUT_FEATURES.intersection(_flags(_first_processor()))))


def _first_processor() -> bytes:
    """Return the first 8 KiB of /proc/cpuinfo: all of it costs milliseconds on a host of hundreds of processors."""
    try:
        fd = os.open("/proc/cpuinfo", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.read(fd, 8192)
    finally:
        os.close(fd)


def _flags(cpuinfo: bytes) -> list[str]:
    for line in cpuinfo.splitlines():
        key, _, text = line.partition(b":")
        if key.strip() in _FLAG_LINES:
            return text.decode("ascii", "replace").split()
    return []
