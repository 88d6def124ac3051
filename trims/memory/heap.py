"""Memory of the C library's allocator that a long-lived process has no more use for.

The daemon reads files through buffers of up to 16 MiB. glibc gives the first one back to the kernel when it is freed,
and from then on keeps the like for the next: in a heap of each thread, which the daemon has dozens of. So its private
memory grew to some hundred megabytes, for good, though it reads few files at once.
"""

from __future__ import annotations

import ctypes
import os

#: Parameter of mallopt(3), as <malloc.h> of glibc numbers it.
_MMAP_THRESHOLD = -3
_VARIABLE = "MALLOC_MMAP_THRESHOLD_"
_TUNABLES, _OF_MALLOC = "GLIBC_TUNABLES", "glibc.malloc.mmap_threshold"
#: Size from which on a buffer is a mapping of its own, in bytes: to map it takes little beside filling it.
LARGE_BYTES = 1 << 20


def return_large_buffers() -> bool:
    """Have the allocator of this process give large buffers back as soon as they are free; returns whether it does.

    It does not if the environment sets that already, or if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    chosen = _VARIABLE in os.environ or _OF_MALLOC in os.environ.get(_TUNABLES, "")
    return mallopt is not None and not chosen and bool(mallopt(_MMAP_THRESHOLD, LARGE_BYTES))
