"""The one place where errors become HTTP status."""

from __future__ import annotations

from trims.core.errors import (
    BrokenWeightsError,
    CallerError,
    CapacityError,
    DeadlineError,
    InUseError,
    LostPeerError,
    ModelExistsError,
    ModelNotFoundError,
    NotOfferedError,
    NotSupportedError,
    PermissionDeniedError,
    QuotaError,
    TrimsError,
)

#: First match wins, so special classes come before general ones.
_STATUS: tuple[tuple[type[TrimsError], int], ...] = (
    (ModelNotFoundError, 404),
    (ModelExistsError, 409),
    (PermissionDeniedError, 403),
    (NotOfferedError, 400),
    (NotSupportedError, 501),
    (CallerError, 400),
    (InUseError, 409),
    (QuotaError, 429),
    (CapacityError, 503),
    (DeadlineError, 504),
    (LostPeerError, 503),
    (BrokenWeightsError, 500),
    (TrimsError, 500),
)
#: Seconds in the Retry-After of a 503: a run is over by then, more often than not.
RETRY_AFTER_S = 1


def status_of(error: TrimsError) -> int:
    """HTTP's status for an error."""
    return next(status for cls, status in _STATUS if isinstance(error, cls))
