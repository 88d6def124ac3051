"""Policies: which replica goes first, what fits, who may hold how much. Pure decisions, also by plug-ins.

Doors: `capacity`, `quotas`, and the names below for eviction policies of other packages.
"""

from trims.core.policy.eviction import (
    FirstInFirstOut,
    GreedyDualSizeFrequency,
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    Policy,
    RankedPolicy,
    Usage,
)

__all__ = [
    "FirstInFirstOut",
    "GreedyDualSizeFrequency",
    "LeastFrequentlyUsed",
    "LeastRecentlyUsed",
    "Policy",
    "RankedPolicy",
    "Usage",
]
