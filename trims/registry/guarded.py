"""A registry of a plug-in, kept from harming the daemon: slow calls, foreign exceptions and wrong answers.

Each call runs in a thread of its own, at most eight at once, and its caller waits ten seconds for it. So a registry
that hangs holds up no worker for longer. A call that hangs is not begun again, so models whose manifests can be read
go on being served. Once eight different calls hang, further ones are refused at once. A thread that hangs is left to
itself; it ends with the process.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from trims.core.errors import DeadlineError, InternalError, TrimsError
from trims.manifests.manifest import Manifest
from trims.manifests.references import name_of
from trims.registry.versions import Entry, Versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.registry.base import Registry

log = logging.getLogger(__name__)
_CALLS = 8
_PATIENCE_S = 10.0
#: Characters of a wrong answer that the error shows.
_TOLD = 80
_Answer = TypeVar("_Answer")


class Guarded:
    """See `Registry`.

    Args:
        inner: Of a plug-in.
        where: The plug-in, to be named in errors.
        patience_s: Seconds that a caller waits for one call.

    Every method may raise DeadlineError if the registry does not answer in time, and InternalError if it fails with an
    exception that is no TrimsError, or answers something of another type.
    """

    def __init__(self, inner: Registry, where: str, *, patience_s: float = _PATIENCE_S) -> None:
        self._inner = inner
        self._where = where
        self._patience_s = patience_s
        self._slots = threading.BoundedSemaphore(_CALLS)
        self._moved_s = time.monotonic()
        #: Calls that were given up and have not ended, by method and name.
        self._hanging: dict[tuple[str, str], None] = {}
        self._changes_outside = bool(inner.changes_outside)

    @property
    def changes_outside(self) -> bool:
        """See `Registry.changes_outside`. Asked once, when it was opened."""
        return self._changes_outside

    def put(self, raw: dict[str, Any], origin: str, *, replace: bool = False) -> Manifest:
        """See `Registry.put`."""
        found = self._call("put", lambda: self._inner.put(raw, origin, replace=replace), raw.get("name"))
        return self._manifest("put", found, raw.get("name"))

    def get(self, name: str) -> Manifest:
        """See `Registry.get`."""
        return self._manifest("get", self._call("get", lambda: self._inner.get(name), name), name)

    def raw(self, name: str) -> dict[str, Any]:
        """See `Registry.raw`."""
        found = self._call("raw", lambda: self._inner.raw(name), name)
        if not _is_json_mapping(found):
            raise self._wrong("raw", found, "a mapping that JSON can carry")
        return found

    def names(self) -> list[str]:
        """See `Registry.names`."""
        found = self._call("names", self._inner.names)
        if not _is_names(found):
            raise self._wrong("names", found, "a sorted list of different names")
        return list(found)

    def remove(self, name: str) -> None:
        """See `Registry.remove`."""
        self._call("remove", lambda: self._inner.remove(name), name)

    def find(self, reference: str) -> Entry:
        """See `Registry.find`."""
        found: object = self._call("find", lambda: self._inner.find(reference), reference)
        if not isinstance(found, Entry) or name_of(found.row) != name_of(reference):
            raise self._wrong("find", found, f"the Entry of {reference!r}")
        self._manifest("find", found.manifest, reference)
        return found

    def versions(self, name: str) -> Versions:
        """See `Registry.versions`."""
        return self._versions("versions", name, self._call("versions", lambda: self._inner.versions(name), name))

    def rows(self) -> list[str]:
        """See `Registry.rows`."""
        found: object = self._call("rows", self._inner.rows)
        if not isinstance(found, list) or not all(isinstance(row, str) for row in found):
            raise self._wrong("rows", found, "a list of names")
        return list(found)

    def switch(self, name: str, label: str, version: str) -> Versions:
        """See `Registry.switch`."""
        found = self._call("switch", lambda: self._inner.switch(name, label, version), name)
        return self._versions("switch", name, found)

    def remove_label(self, name: str, label: str) -> Versions:
        """See `Registry.remove_label`."""
        found = self._call("remove_label", lambda: self._inner.remove_label(name, label), name)
        return self._versions("remove_label", name, found)

    def remove_version(self, reference: str, *, every: bool = False) -> None:
        """See `Registry.remove_version`."""
        self._call("remove_version", lambda: self._inner.remove_version(reference, every=every), reference)

    def close(self) -> None:
        """See `Registry.close`. What goes wrong is logged: the daemon ends all the same."""
        try:
            self._call("close", self._inner.close)
        except TrimsError as error:
            log.warning("%s", error)

    def _versions(self, method: str, name: str, found: object) -> Versions:
        if not isinstance(found, Versions) or found.name != name:
            raise self._wrong(method, found, f"the Versions of {name!r}")
        return found

    def _manifest(self, method: str, found: object, reference: object) -> Manifest:
        name = name_of(reference) if isinstance(reference, str) else reference
        if not isinstance(found, Manifest) or found.name != name:
            raise self._wrong(method, found, f"the Manifest of {name!r}")
        return found

    def _wrong(self, method: str, found: object, expected: str) -> InternalError:
        try:
            told = repr(found)
        except Exception as error:  # noqa: BLE001 - its own code
            told = f"{type(found).__name__} whose repr fails: {type(error).__name__}"
        told = told if len(told) <= _TOLD else f"{told[:_TOLD]}..."
        return InternalError(
            f"{self._where} answered `{method}` with {told}, which is not {expected}; its author must correct that"
        )

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


def _is_names(found: object) -> bool:
    return (
        isinstance(found, list)
        and all(isinstance(name, str) for name in found)
        and found == sorted(dict.fromkeys(found))
    )


def _is_json_mapping(found: object) -> bool:
    if not isinstance(found, dict):
        return False
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
