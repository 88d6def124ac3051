"""Memory that a process has taken for one request is kept for the next ones.

Bodies, tensors and what a model computes in between are buffers of some hundred kilobytes to some megabytes, many for
each request. The C library's allocator gives such memory back to the kernel as soon as it is free, and the kernel
clears and maps each page again for the next request: 550 pages for a tensor of 600 kB over gRPC, and 1,400 for an image
through a ResNet-50, which takes longer than all that the endpoint does for a request.
"""

from __future__ import annotations

import ctypes
import os

#: Parameters of mallopt(3), as <malloc.h> of glibc numbers them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TUNABLES, _OF_MALLOC = "GLIBC_TUNABLES", "glibc.malloc."
#: Free bytes at the end of a heap that are kept.
KEPT_BYTES = 64 << 20
#: Bytes from which on an allocation is a mapping of its own, which is given back at once.
LARGE_BYTES = 16 << 20
#: Small enough to come from the heap, as the buffers of requests do.
_BLOCK_BYTES = 4 << 20


def keep_memory() -> bool:
    """Have the allocator of this process keep what is freed; returns whether it does.

    It does not if the environment sets the allocator already, or if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    chosen = any(name in os.environ for name in _VARIABLES) or _OF_MALLOC in os.environ.get(_TUNABLES, "")
    if mallopt is None or chosen:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))


def take_ahead(nbytes: int) -> None:
    """Have that much memory at hand for the first request, in pages that the kernel has cleared already.

    Of use only where `keep_memory` has it kept.
    """
    library = ctypes.CDLL(None)
    malloc, free = library.malloc, library.free
    malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    taken = [block for _ in range(nbytes // _BLOCK_BYTES) if (block := malloc(_BLOCK_BYTES))]
    for block in taken:
        ctypes.memset(block, 0, _BLOCK_BYTES)
    for block in taken:
        free(block)
