"""Images that could not be made behind their readers: what was wrong, and when it is tried again.

An artifact that no converter can read is still served from its own file, and each open of it would begin the same
conversion. So a failure is remembered by image key, and the pause before the next attempt doubles each time. The key
changes with the artifact, its options and its builder, so a failure says nothing of what replaced them. What may pass
by itself (`retryable`, such as a lack of memory) is tried again soon, and remembered to explain why there is no copy.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import LostPeerError

if TYPE_CHECKING:
    from trims.core.errors import TrimsError

#: Pause, in seconds, after what may pass by itself.
RETRY_EARNED_S = 5.0
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 3600.0
#: Images remembered; beyond that, the one that failed longest ago is forgotten.
_REMEMBERED = 4096


class Failure(NamedTuple):
    """An image that could not be made.

    Attributes:
        error: Why, at the last attempt.
        times: Attempts that have failed for good.
        not_before_s: Clock time before which none is made behind readers.
        is_news: Whether it is of another kind than the attempt before, or there was none.
    """

    error: TrimsError
    times: int
    not_before_s: float
    is_news: bool


class Failures:
    """All failures since the daemon started, by image key."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Failure] = OrderedDict()

    def note(self, key: str, error: TrimsError, at_s: float) -> Failure | None:
        """Record a failed attempt and return its record; None if it was stopped, which says nothing of the image."""
        if isinstance(error, LostPeerError):
            return None
        before = self._by_key.pop(key, None)
        times = (before.times if before else 0) + (not error.retryable)
        pause_s = RETRY_EARNED_S if error.retryable else min(FIRST_PAUSE_S * 2.0 ** min(times - 1, 16), LONGEST_PAUSE_S)
        found = Failure(error, times, at_s + pause_s, before is None or before.error.code != error.code)
        self._by_key[key] = found
        if len(self._by_key) > _REMEMBERED:
            self._by_key.popitem(last=False)
        return found

    def forget(self, key: str) -> None:
        """Forget the failures of an image: it was made after all, or another manifest names it. Idempotent."""
        self._by_key.pop(key, None)

    def of(self, key: str) -> Failure | None:
        """Return the record of an image's failures; None if there is none."""
        return self._by_key.get(key)

    def hold_back(self, key: str, at_s: float) -> bool:
        """Return whether the image is not to be tried again yet."""
        failure = self._by_key.get(key)
        return failure is not None and at_s < failure.not_before_s
