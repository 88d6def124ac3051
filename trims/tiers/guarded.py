"""A tier of a plug-in: foreign exceptions and wrong answers become errors that name it.

What a tier hands out goes to sessions, so it is looked at before: a descriptor that can be written would let any
session change the weights of all others. The store has workers apart for such a tier (`apart`), so one that hangs holds
up no fill of another place.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from typing import TYPE_CHECKING, TypeVar

from trims.core.errors import ConfigError, InternalError, TrimsError
from trims.tiers.base import Draft, Extent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.core.place import Place
    from trims.tiers.base import Tier

log = logging.getLogger(__name__)
#: Seconds that the end of a daemon waits for a tier of a plug-in to close.
CLOSE_S = 10.0
_Answer = TypeVar("_Answer")


class GuardedTier:
    """See `Tier`.

    Args:
        inner: Of a plug-in.
        where: The plug-in, to be named in errors.

    Every method may raise InternalError if the tier fails with an exception that is neither a TrimsError nor an
    OSError, or answers something else than it should.
    """

    def __init__(self, inner: Tier, where: str) -> None:
        self._inner = inner
        self._where = where
        self.place: Place = inner.place
        self.capacity_bytes: int = inner.capacity_bytes
        self.hash_on_adoption: bool = bool(inner.hash_on_adoption)
        #: Whether its work is done by workers of its own.
        self.apart = True

    @property
    def skipped(self) -> int:
        """See `Tier.skipped`."""
        return self._call("skipped", lambda: int(self._inner.skipped))

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`."""
        found = self._call("create", lambda: self._inner.create(key, generation, nbytes, allocate=allocate))
        wrong = _wrong_draft(found, nbytes)
        if wrong:
            with contextlib.suppress(BaseException):
                self._inner.abort(found)
            raise self._refusal("create", wrong)
        return found

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`."""
        nbytes = draft.nbytes
        found = self._call("seal", lambda: self._inner.seal(draft, key, digest))
        wrong = self._wrong_extent(found) or _other_image(found, key, digest, nbytes)
        if wrong:
            with contextlib.suppress(BaseException):
                self._inner.free(found)
            raise self._refusal("seal", wrong)
        return found

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`."""
        self._call("abort", lambda: self._inner.abort(draft))

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier.explain`."""
        found: object = self._call("explain", lambda: self._inner.explain(error, nbytes))
        return found if isinstance(found, Exception) else error

    def free(self, extent: Extent) -> None:
        """See `Tier.free`."""
        self._call("free", lambda: self._inner.free(extent))

    def scan(self) -> Iterator[Extent]:
        """See `Tier.scan`. Raises ConfigError if the tier cannot be looked through at all."""
        try:
            yield from self._scan()
        except OSError as error:
            raise ConfigError(f"{self._where} cannot be scanned: {error}") from error

    def _scan(self) -> Iterator[Extent]:
        found = self._call("scan", lambda: iter(self._inner.scan()))
        while (extent := self._call("scan", lambda: next(found, None))) is not None:
            wrong = self._wrong_extent(extent)
            if wrong:
                raise self._refusal("scan", wrong)
            yield extent

    def leave(self, extent: Extent) -> None:
        """See `Tier.leave`."""
        self._call("leave", lambda: self._inner.leave(extent))

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """See `Tier.verify`."""
        self._call("verify", lambda: self._inner.verify(extent, cancelled, pace))

    def close(self) -> None:
        """See `Tier.close`. What goes wrong is logged: the daemon ends all the same."""
        closing = threading.Thread(target=self._close, name="trims-tier-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            log.error("%s has not closed within %g s, and is left to itself", self._where, CLOSE_S)

    def _close(self) -> None:
        try:
            self._call("close", self._inner.close)
        except (TrimsError, OSError) as error:
            log.warning("%s could not be closed: %s", self._where, error)

    def _wrong_extent(self, found: object) -> str:
        if not isinstance(found, Extent):
            return f"{type(found).__name__}, which is no Extent"
        if found.place is not self.place:
            return f"an extent at {found.place}"
        if not found.label or not found.key or not found.digest:
            return "an extent without a label, key or digest"
        return _wrong_descriptor(found.fd, found.nbytes) or ("" if _is_read_only(found.fd) else "a writable descriptor")

    def _refusal(self, method: str, wrong: str) -> InternalError:
        return InternalError(f"{self._where} answered `{method}` with {wrong}; its author must correct that")

    def _call(self, method: str, function: Callable[[], _Answer]) -> _Answer:
        try:
            return function()
        except (TrimsError, OSError):
            raise
        except BaseException as error:  # a cancellation, an exit, a panic of a library: none may end a worker
            log.exception("%s failed in `%s`", self._where, method)
            raise InternalError(
                f"{self._where} failed in `{method}`: {type(error).__name__}: {error}; its author must correct that"
            ) from error


def _wrong_draft(found: object, nbytes: int) -> str:
    if not isinstance(found, Draft):
        return f"{type(found).__name__}, which is no Draft"
    return _wrong_descriptor(found.fd, nbytes)


def _other_image(found: Extent, key: str, digest: str, nbytes: int) -> str:
    same = (found.key, found.digest, found.nbytes) == (key, digest, nbytes)
    return "" if same else f"an extent of another image, {found.label}"


def _wrong_descriptor(fd: int, nbytes: int) -> str:
    try:
        found = os.fstat(fd).st_size
    except (OSError, TypeError) as error:
        return f"no descriptor that is open ({error})"
    return "" if found == nbytes else f"{found} bytes where {nbytes} are meant"


def _is_read_only(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
