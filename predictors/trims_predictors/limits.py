"""Limits of one predictor's process, set in it before it loads a model."""

from __future__ import annotations

import resource

_STATUS, _DATA = "/proc/self/status", "VmData:"


def limit_memory(more_bytes: int) -> None:
    """Let this process take at most so much more memory of its own, and leave no core file.

    Counted are private mappings that can be written (`RLIMIT_DATA`): heaps, stacks, copies of weights. Weights that are
    mapped from the store are not, nor is what the process has from its template. An allocation beyond that fails as it
    does on a machine without memory.

    Args:
        more_bytes: Beyond what it has now.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most_bytes = _data_bytes() + more_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most_bytes = min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))


def _data_bytes() -> int:
    """What counts against the limit now."""
    with open(_STATUS) as file:
        return next(int(line.split()[1]) for line in file if line.startswith(_DATA)) << 10
