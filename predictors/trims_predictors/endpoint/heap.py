"""Memory of the endpoint's own process: what requests give back is kept for the next ones.

Bodies and tensors are buffers of a megabyte or less, several for each request. The C library's allocator gives such
memory back to the kernel as soon as it is free, and the kernel clears and maps each page again for the next request,
which takes longer than all that the endpoint does with a tensor of half a megabyte.
"""

from __future__ import annotations

import ctypes
import os

#: Parameters of mallopt(3), as <malloc.h> of glibc numbers them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Free bytes at the end of a heap that are kept; and the size from which an allocation is a mapping of its own.
KEPT_BYTES, LARGE_BYTES = 32 << 20, 8 << 20
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TUNABLES, _OF_MALLOC = "GLIBC_TUNABLES", "glibc.malloc."


def keep_memory() -> bool:
    """Have the allocator of this process keep what is freed; returns whether it does.

    It does not if the environment sets the allocator already, or if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    chosen = any(name in os.environ for name in _VARIABLES) or _OF_MALLOC in os.environ.get(_TUNABLES, "")
    if mallopt is None or chosen:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
