"""An eviction policy from outside trims: the largest idle replica goes first, of equal ones the least recently used."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trims.core.policy import RankedPolicy

if TYPE_CHECKING:
    from trims.core.policy import Usage


class LargestFirst(RankedPolicy):
    """Frees much memory by few evictions. `RankedPolicy` keeps the order; a policy only says what goes first."""

    name: ClassVar[str] = "largest"

    def rank(self, usage: Usage) -> tuple[float, ...]:
        """Smallest goes first."""
        return (-usage.nbytes, usage.last_used_s)
