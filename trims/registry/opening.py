"""Registries that are available, and opening the one that the setting `registry` names."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from trims.core.errors import CallerError, DeadlineError, InternalError, ManifestError, NotSupportedError, TrimsError
from trims.manifests.references import name_of, split_reference
from trims.plugins import Kind
from trims.registry.base import ManifestRegistry, Registry, RegistrySettings
from trims.registry.sqlite import file_of, open_sqlite
from trims.registry.versions import PLAIN, Alias, Entry, Versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.manifests.manifest import Manifest
    from trims.plugins import Choice
    from trims.registry.base import ManifestRegistry


# Limits of time for a registry of a plug-in, and errors that name it.
#
# Each call runs in a thread of its own, at most eight at once, and its caller waits ten seconds for it. So a registry
# that hangs holds up no worker for longer. A call that hangs is not begun again, so models whose manifests can be read
# go on being served. Once eight different calls hang, further ones are refused at once. A thread that hangs is left to
# itself; it ends with the process.

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


# A registry of a plug-in that keeps one manifest for each name, as a registry of versions: each model has one.


class OneVersion:
    """See `Registry`. Another version of a model is refused unless it replaces the one that is there.

    Args:
        inner: Keeps the manifests.
        where: Names the registry in errors.
    """

    def __init__(self, inner: ManifestRegistry, where: str) -> None:
        self._inner = inner
        self._where = where
        self.put, self.names, self.close = inner.put, inner.names, inner.close

    @property
    def changes_outside(self) -> bool:
        """See `Registry.changes_outside`."""
        return self._inner.changes_outside

    def get(self, reference: str) -> Manifest:
        """See `Registry.get`."""
        name, text = split_reference(reference)
        manifest = self._inner.get(name)
        if text:
            _versions_of(manifest).version_of(text)
        return manifest

    def raw(self, reference: str) -> dict[str, Any]:
        """See `Registry.raw`."""
        if "@" in reference:
            self.get(reference)
        return self._inner.raw(name_of(reference))

    def find(self, reference: str) -> Entry:
        """See `Registry.find`."""
        manifest = self.get(reference)
        return Entry(manifest.name, manifest)

    def versions(self, name: str) -> Versions:
        """See `Registry.versions`."""
        try:
            return _versions_of(self._inner.get(name))
        except ManifestError:  # a manifest that cannot be read can be removed all the same
            return Versions(name, ("",), {PLAIN: Alias("")})

    def rows(self) -> list[str]:
        """See `Registry.rows`."""
        return self._inner.names()

    def switch(self, name: str, label: str, version: str) -> Versions:
        """See `Registry.switch`. Raises NotSupportedError: nothing can be switched to."""
        del label, version
        raise self._refused(name)

    def remove_label(self, name: str, label: str) -> Versions:
        """See `Registry.remove_label`."""
        return self.versions(name).without_label(label)

    def remove(self, reference: str) -> None:
        """See `Registry.remove`."""
        self.remove_version(reference)

    def remove_version(self, reference: str, *, every: bool = False) -> None:
        """See `Registry.remove_version`."""
        name, text = split_reference(reference)
        if text and every:
            raise CallerError(f"{reference!r} names a version; all are removed by the plain name")
        if text:
            self.get(reference)
        self._inner.remove(name)

    def _refused(self, name: str) -> NotSupportedError:
        return NotSupportedError(f"{name!r} has one version: {self._where} keeps one of each model, and no labels")


def _versions_of(manifest: Manifest) -> Versions:
    return Versions(manifest.name, (manifest.version,), {PLAIN: Alias(manifest.version)})


#: Members of a `ManifestRegistry`; a registry that lacks others of `Registry` keeps one version of each model.
_MEMBERS = ("put", "get", "raw", "names", "remove", "close", "changes_outside")


def open_registry(choice: Choice, state_dir: Path) -> Registry:
    """Open the registry of a daemon, or of a command that does without. Calls of a plug-in's have a time limit.

    Raises ConfigError, also with the plug-in's name and the cause if that cannot be opened.
    """
    opened = KIND.open(choice, RegistrySettings(state_dir, choice.argument))
    part = opened.part
    registry = part if isinstance(part, Registry) else OneVersion(part, opened.where or str(choice))
    return time_limited(registry, opened.where) if opened.where else registry


def file_of_registry(choice: Choice, state_dir: Path) -> Path | None:
    """Return the registry's database; None for a registry of a plug-in. Raises ConfigError."""
    return file_of(RegistrySettings(state_dir, choice.argument)) if choice.name == "sqlite" else None


def find_plugin(choice: Choice) -> str:
    """Return the module and function of a plug-in's registry; nothing is imported.

    Raises ConfigError if there is none.
    """
    return KIND.find(choice).value


def _wrong(part: object, settings: RegistrySettings) -> str:
    del settings
    lacking = [name for name in _MEMBERS if not hasattr(part, name)]
    return f"returned no Registry: {type(part).__name__} has no {', '.join(lacking)}" if lacking else ""


GROUP = "trims.registries"
KIND: Kind[RegistrySettings, ManifestRegistry] = Kind(GROUP, "registry", {"sqlite": open_sqlite}, _wrong)
