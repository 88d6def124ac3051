"""Check that a framework computes on the very bytes it was given: they are changed, and its answer must follow.

On the fake and on a real device alike. It takes memory that may be written: the tester's own, or `ipc`. Not covered:
how much memory a framework takes beside.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.memory.cuda.api import Cuda


def reads_in_place(cuda: Cuda, address: int, changed: bytes, answer: Callable[[], bytes]) -> bool:
    """Write other bytes over device memory, ask again, and put back what was there.

    Args:
        cuda: Driver in use, on the device of the memory.
        address: Address of bytes the answer depends on; no other thread may read them meanwhile.
        changed: Bytes that lead to another answer.
        answer: Computes, and returns when it is done.

    Returns:
        True if the answer followed the change, and came back with the old bytes.
    """
    stream = cuda.stream()
    kept, other = ctypes.create_string_buffer(len(changed)), ctypes.create_string_buffer(changed, len(changed))
    try:
        before = answer()
        cuda.copy_out(ctypes.addressof(kept), address, len(changed), stream)
        cuda.synchronize(stream)
        cuda.copy_in(address, ctypes.addressof(other), len(changed), stream)
        cuda.synchronize(stream)
        try:
            followed = answer()
        finally:
            cuda.copy_in(address, ctypes.addressof(kept), len(changed), stream)
            cuda.synchronize(stream)
        return before != followed and answer() == before
    finally:
        cuda.end_stream(stream)
