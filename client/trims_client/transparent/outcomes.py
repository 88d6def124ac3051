"""Counts of loads that came from the store, and of those that did not, by reason."""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Report(NamedTuple):
    """Outcomes of the loads of this process.

    Attributes:
        shared: Loads from shared memory, by loader (`torch.load`).
        shared_bytes: Bytes of the files of these loads.
        stepped_aside: Loads that the original did alone, by loader and reason.
    """

    shared: dict[str, int]
    shared_bytes: int
    stepped_aside: dict[tuple[str, str], int]


class StepAsideError(Exception):
    """The original loads alone. Never leaves the adapters.

    Args:
        reason: Few words, which are counted.
        behind: What is asked of the store once the original is through, so that a later load finds the file in memory.
    """

    def __init__(self, reason: str, behind: Callable[[], object] | None = None) -> None:
        super().__init__(reason)
        self._behind = behind

    def load(self, loader: str, original: Callable[[], Any]) -> Any:
        """Count the load, and return what the original returns."""
        _stepped_aside[loader, str(self)] += 1
        try:
            return original()
        finally:
            if self._behind is not None:
                self._behind()


_shared: Counter[str] = Counter()
_stepped_aside: Counter[tuple[str, str]] = Counter()
_bytes = [0]


def note_shared(loader: str, nbytes: int) -> None:
    """Count a load from shared memory."""
    _shared[loader] += 1
    _bytes[0] += nbytes


def note_aside(loader: str, reason: str) -> None:
    """Count a load that the original did alone."""
    _stepped_aside[loader, reason] += 1


def report() -> Report:
    """Return what became of the loads of this process so far."""
    return Report(dict(_shared), _bytes[0], dict(_stepped_aside))


def report_at_end() -> None:
    """Have the process report on standard error when it ends."""
    atexit.register(_print)


def _print() -> None:
    found = report()
    lines = [f"trims: {loader}: {count} from shared memory\n" for loader, count in found.shared.items()]
    for (loader, reason), count in found.stepped_aside.items():
        lines.append(f"trims: {loader}: {count} by the framework alone: {reason}\n")
    sys.stderr.writelines(lines)
