"""Limits of time for a registry of a plug-in, and errors that name it.

Each call runs in a thread of its own, at most eight at once, and its caller waits ten seconds for it. So a registry
that hangs holds up no worker for longer. A call that hangs is not begun again, so models whose manifests can be read
go on being served. Once eight different calls hang, further ones are refused at once. A thread that hangs is left to
itself; it ends with the process.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from trims.core.errors import DeadlineError, InternalError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.registry.base import Registry

log = logging.getLogger(__name__)
_CALLS = 8
_PATIENCE_S = 10.0
_Answer = TypeVar("_Answer")


def time_limited(registry: Registry, where: str, *, patience_s: float = _PATIENCE_S) -> Registry:
    """Return a registry whose every method may raise DeadlineError, and InternalError for an exception of its own.

    Args:
        where: The plug-in, to be named in errors.
        patience_s: Seconds that a caller waits for one call.
    """
    return cast("Registry", _TimeLimited(registry, where, patience_s))


class _TimeLimited:
    """Every method is that of the inner registry, called with a limit."""

    def __init__(self, inner: Registry, where: str, patience_s: float) -> None:
        self._inner = inner
        self._where = where
        self._patience_s = patience_s
        self._slots = threading.BoundedSemaphore(_CALLS)
        self._moved_s = time.monotonic()
        #: Calls that were given up and have not ended, by method and name.
        self._hanging: dict[tuple[str, str], None] = {}
        #: Asked once, when the registry was opened.
        self.changes_outside = bool(inner.changes_outside)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._limited, method)

    def _limited(self, method: str, *given: Any, **named: Any) -> Any:
        about = given[0].get("name") if given and isinstance(given[0], dict) else given[0] if given else None
        return self._call(method, lambda: getattr(self._inner, method)(*given, **named), about)

    def close(self) -> None:
        """See `Registry.close`. What goes wrong is logged: the daemon ends all the same."""
        try:
            self._call("close", self._inner.close)
        except TrimsError as error:
            log.warning("%s", error)

    def _call(self, method: str, function: Callable[[], _Answer], name: object = None) -> _Answer:
        about = method, str(name)
        if about in self._hanging:  # else a few names that hang would take all slots, and the other models with them
            raise DeadlineError(f"{self._where} has not ended `{method}` of {name!r} yet; it was not begun again")
        left_s = max(0.0, self._moved_s + self._patience_s - time.monotonic())
        if not self._slots.acquire(blocking=False) and not self._slots.acquire(timeout=left_s):
            raise DeadlineError(f"{self._where} has {_CALLS} calls under way that do not end; `{method}` was not begun")
        self._moved_s = time.monotonic()
        future: Future[_Answer] = Future()
        self._start(method, lambda: self._run(function, future))
        if not wait([future], self._patience_s).done:
            self._hanging[about] = None
            future.add_done_callback(lambda _: self._hanging.pop(about, None))
            raise DeadlineError(
                f"{self._where} did not answer `{method}` within {self._patience_s:g} s; what it does may still happen"
            )
        return self._answer(method, future)

    def _start(self, method: str, work: Callable[[], None]) -> None:
        try:
            threading.Thread(target=work, name=f"trims-registry-{method}", daemon=True).start()
        except BaseException:
            self._slots.release()
            raise

    def _run(self, function: Callable[[], _Answer], future: Future[_Answer]) -> None:
        try:
            answer = function()
        except BaseException as error:  # noqa: BLE001 - the caller gets it, whatever it is
            self._ended()
            future.set_exception(error)
        else:
            self._ended()
            future.set_result(answer)

    def _ended(self) -> None:
        self._moved_s = time.monotonic()
        self._slots.release()

    def _answer(self, method: str, future: Future[_Answer]) -> _Answer:
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, TrimsError):
            raise error
        log.error("%s failed in `%s`", self._where, method, exc_info=error)
        raise InternalError(
            f"{self._where} failed in `{method}`: {type(error).__name__}: {error}; its author must correct that"
        ) from error
