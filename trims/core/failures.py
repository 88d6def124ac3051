"""Images that could not be made behind their readers: what was wrong, and when it is tried again.

An artifact that no converter can read is still served from its own file, and each open of it would begin the same
conversion. So a failure is remembered by image key, and the pause before the next attempt doubles each time. The key
changes with the artifact, its options and its builder, so a failure says nothing of what replaced them. Errors that
may pass by themselves (`retryable`) are not remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trims.core.errors import TrimsError

FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 3600.0
#: Images remembered; beyond that, the one that failed longest ago is forgotten.
_REMEMBERED = 4096


class Failure(NamedTuple):
    """An image that could not be made.

    Attributes:
        error: Why, at the last attempt.
        times: Attempts that have failed.
        not_before_s: Clock time before which none is made behind readers.
    """

    error: TrimsError
    times: int
    not_before_s: float


class Failures:
    """All failures since the daemon started, by image key."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Failure] = OrderedDict()

    def note(self, key: str, error: TrimsError, at_s: float) -> Failure | None:
        """An attempt has failed. Returns the record of it; None if the error may pass by itself."""
        if error.retryable:
            return None
        before = self._by_key.pop(key, None)
        times = before.times + 1 if before else 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(times - 1, 16), LONGEST_PAUSE_S)
        self._by_key[key] = Failure(error, times, at_s + pause_s)
        if len(self._by_key) > _REMEMBERED:
            self._by_key.popitem(last=False)
        return self._by_key[key]

    def forget(self, key: str) -> None:
        """It was made after all, or another manifest names it. Idempotent."""
        self._by_key.pop(key, None)

    def of(self, key: str) -> Failure | None:
        """What is remembered of an image."""
        return self._by_key.get(key)

    def hold_back(self, key: str, at_s: float) -> bool:
        """True while the image is not to be tried again."""
        failure = self._by_key.get(key)
        return failure is not None and at_s < failure.not_before_s
