"""Environments whose templates cannot be forked: a library there starts a thread or opens a device when it is imported.

Each new template would find that out again, for seconds of imports. So it is remembered for a while, and predictors are
programs of their own meanwhile; the warm pool keeps some of them imported and ready, as it does with forks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_predictors.children.launcher import Environment

#: Seconds until a template is tried again: the cause may have been of the moment, or a package was replaced.
_AGAIN_S = 600.0


class Unforkable:
    """Environments whose templates cannot fork for now. Used in the warm pool's event loop.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s: dict[Environment, float] = {}

    def note(self, environment: Environment) -> None:
        """A template was spoilt as soon as it had imported what it must."""
        self._until_s[environment] = self._clock() + _AGAIN_S

    def __contains__(self, environment: Environment) -> bool:
        return self._clock() < self._until_s.get(environment, 0.0)
