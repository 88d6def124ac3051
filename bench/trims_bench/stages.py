"""A stage timer small enough to run in any environment: which part of a cold start took how long."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stages:
    """Wall seconds by stage, in the order in which the stages began. A stage entered twice adds up.

    Attributes:
        seconds: Name -> seconds.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the `with` block, also if it raises."""
        self.seconds.setdefault(name, 0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began
