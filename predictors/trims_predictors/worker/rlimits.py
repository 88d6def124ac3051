"""Limits of one predictor's process, set in it before it loads a model, and what to say of one that was met."""

from __future__ import annotations

import errno
import os
import resource

from trims.core.units import format_bytes
from trims.memory.shortage import group_limit, lacks_memory

_STATUS, _DATA = "/proc/self/status", "VmData:"


def limit_memory(more_bytes: int) -> None:
    """Let this process take at most so much more memory of its own, and leave no core file.

    Counted are private mappings that can be written (`RLIMIT_DATA`): heaps, stacks, copies of weights. Weights that are
    mapped from the store are not, nor is what the process has from its template. An allocation beyond that fails as it
    does on a machine without memory.

    Args:
        more_bytes: Bytes beyond what it has now.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most_bytes = _data_bytes() + more_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most_bytes = min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))


def memory_words(most_bytes: int | None) -> str:
    """Return which limit a predictor has met that found no memory, and what raises it.

    Args:
        most_bytes: Memory of its own that it may take (`--predictor-memory`); None for no limit of ours.
    """
    if most_bytes is not None:
        return f"it may take {format_bytes(most_bytes)} of memory of its own: raise --predictor-memory"
    return group_limit() or "this machine has no memory left for it: end other programs, or run fewer --predictors"


def words_of_limit(error: BaseException, most_bytes: int | None, scratch: str) -> str:
    """Return the limit of this process that an error of its code comes from, and what raises it; empty if from none.

    Args:
        error: Raised in this process.
        most_bytes: Bound, see `memory_words`.
        scratch: The folder of a size of its own that has all temporary files; empty if there is none.
    """
    if lacks_memory(error):
        return memory_words(most_bytes)
    if scratch and isinstance(error, OSError) and error.errno == errno.ENOSPC:
        found = os.statvfs(scratch)
        size = format_bytes(found.f_blocks * found.f_frsize)
        return (
            f"files of all predictors beside it may take {size} together: raise --predictor-memory, which bounds both"
        )
    return ""


def _data_bytes() -> int:
    """Return the bytes that count against the limit now."""
    with open(_STATUS) as file:
        return next(int(line.split()[1]) for line in file if line.startswith(_DATA)) << 10
