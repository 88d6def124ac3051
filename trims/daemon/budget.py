"""The budget of descriptors: one for each session and one for each image that is open, within the process's limit.

A daemon without a descriptor can neither let a client in nor send it a refusal. So both are bounded before the limit is
reached, and the rest is left to what a daemon opens for a moment: files being filled, pipes of children, databases.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

#: Descriptors left for everything but sessions and images.
RESERVED = 192
#: Least number for each, whatever the limit: with fewer, nothing useful can be served.
_LEAST = 16


@dataclass(frozen=True, slots=True)
class Budget:
    """Numbers of descriptors by use.

    Attributes:
        limit: Files this process may have open at once.
        sessions: Clients that may be connected at once.
        images: Images that may be open at once, all tiers of the host together.
    """

    limit: int
    sessions: int
    images: int


def budget(max_sessions: int) -> Budget:
    """Divide the limit of open files: half for sessions, at most `max_sessions`, and the rest for images."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    shared = max(2 * _LEAST, limit - RESERVED)
    sessions = min(max_sessions, max(_LEAST, shared // 2))
    return Budget(limit, sessions, max(_LEAST, shared - sessions))


def raise_limit() -> None:
    """Take as many descriptors as this process may have without asking an administrator."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
