"""Counts, bytes and seconds of loads that came from the store, and of those that did not, by reason."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType


class Report(NamedTuple):
    """Outcomes of the loads of this process.

    Attributes:
        shared: Loads from shared memory, by loader (`torch.load`).
        shared_bytes: Bytes of the files of these loads.
        stepped_aside: Loads that the original did alone, by loader and reason.
        bytes_of: `shared_bytes` by loader.
        seconds_of: Seconds that loads took, by loader, and reason if the original did them alone (`""`: it did not).
    """

    shared: dict[str, int]
    shared_bytes: int
    stepped_aside: dict[tuple[str, str], int]
    bytes_of: dict[str, int]
    seconds_of: dict[tuple[str, str], float]


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
        reason = str(self)
        self.__traceback__ = None  # it has the frame that keeps this error: a cycle, with all that was given to load
        _stepped_aside[loader, reason] += 1
        _begun.since_s = None
        since_s = time.perf_counter()
        try:
            return original()
        finally:
            _seconds[loader, reason] += time.perf_counter() - since_s
            if self._behind is not None:
                self._behind()


_shared: Counter[str] = Counter()
_stepped_aside: Counter[tuple[str, str]] = Counter()
#: Counts of adapters that were not put in place.
_standing: Counter[tuple[str, str]] = Counter()
_bytes: Counter[str] = Counter()
_seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
_begun = threading.local()


def note_begin() -> None:
    """Note that a load of this thread begins."""
    _begun.since_s = time.perf_counter()


def note_shared(loader: str, nbytes: int) -> None:
    """Count a load from shared memory."""
    _shared[loader] += 1
    _bytes[loader] += nbytes
    since_s, _begun.since_s = getattr(_begun, "since_s", None), None
    if since_s is not None:
        _seconds[loader, ""] += time.perf_counter() - since_s


def note_aside(loader: str, reason: str) -> None:
    """Count a load that the original did alone."""
    _begun.since_s = None
    _stepped_aside[loader, reason] += 1


def is_proven(loader: str, framework: ModuleType, proven: Sequence[str]) -> bool:
    """Return whether a framework's release is one that an adapter was proven with; count a reason if it is not.

    Args:
        proven: Releases, such as `2.13` for each of 2.13's.
    """
    if f"{framework.__version__.partition('+')[0]}.".startswith(tuple(f"{each}." for each in proven)):
        return True
    note_aside(loader, f"{framework.__name__} {framework.__version__} is not known")
    return False


def report() -> Report:
    """Return what became of the loads of this process so far."""
    return Report(dict(_shared), _bytes.total(), dict(_stepped_aside), dict(_bytes), dict(_seconds))


@contextlib.contextmanager
def note_adapter(name: str) -> Iterator[None]:
    """Put an adapter in place: what it counts meanwhile, or that it failed, counts in forked children, too.

    The import of a framework must not fail by an adapter.
    """
    before = _stepped_aside.copy()
    try:
        yield
    except Exception as error:  # noqa: BLE001 - those of other packages may do anything
        note_aside(name, f"its adapter failed: {type(error).__name__}: {error}")
    _standing.update(_stepped_aside - before)


def clear() -> None:
    """Count from zero again, as each forked child does."""
    for each in (_shared, _stepped_aside, _bytes, _seconds):
        each.clear()
    _stepped_aside.update(_standing)


def report_at_end() -> None:
    """Have the process report on standard error when it ends. Idempotent."""
    atexit.unregister(_print)
    atexit.register(_print)


def _print() -> None:
    from trims.core.units import format_bytes, format_seconds

    found = report()
    rows = [
        (loader, count, "from shared memory", f"{format_bytes(found.bytes_of[loader])} in {{}}", (loader, ""))
        for loader, count in found.shared.items()
    ]
    rows += [
        (loader, count, f"by the framework alone: {reason}", "{}", (loader, reason))
        for (loader, reason), count in found.stepped_aside.items()
    ]
    widths = [max((len(str(row[column])) for row in rows), default=0) for column in range(2)]
    for loader, count, what, measure, key in rows:
        took = f" ({measure.format(format_seconds(found.seconds_of[key]))})" if key in found.seconds_of else ""
        sys.stderr.write(f"trims: {loader + ':':{widths[0] + 1}} {count:{widths[1]}} {what}{took}\n")


os.register_at_fork(after_in_child=clear)
