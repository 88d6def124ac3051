"""A session with the daemon of this machine: open models, prefetch them, share files. Standard library only.

The connection is the session: leases end with it, so with the process, however it ends. If the daemon restarts,
the session keeps its mappings, connects again and takes its leases up again. Not covered: wire (`channel`), mappings.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING

from trims.core.errors import (
    CallerError,
    ClosedError,
    DaemonAwayError,
    DeadlineError,
    LostPeerError,
    TrimsError,
)
from trims.wire.address import ATTACH_SOCKET, default_runtime_dir
from trims_client.channel import Channel
from trims_client.mappings import Mappings
from trims_client.weights import Weights

if TYPE_CHECKING:
    import logging
    from types import TracebackType

    from typing_extensions import Self

    from trims.memory.cuda.drivers import Export
    from trims.wire.frames import Message
    from trims_client.mappings import Borrow, Mapping

#: How much later than the daemon a client decides that a deadline has passed.
_GRACE_S = 5.0
_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0
_FALLBACKS = (None, "load")


class Session:
    """A connection to the daemon. A context manager; safe to use from several threads, not after a fork.

    Args:
        runtime_dir: Folder of the daemon's sockets; None for `$TRIMS_RUNTIME_DIR` or the default of this user.
        fallback: `"load"` loads privately in this process when no daemon answers, and says so (`Weights.shared` is
            False and a warning is logged). None, the default, raises DaemonAwayError.
        agent: How this client calls itself in `trims ps`.
    """

    def __init__(
        self,
        runtime_dir: str | os.PathLike[str] | None = None,
        *,
        fallback: str | None = None,
        agent: str = "",
    ) -> None:
        if fallback not in _FALLBACKS:
            raise CallerError(f"fallback is {fallback!r}; it must be None or 'load'")
        folder = default_runtime_dir() if runtime_dir is None else os.fspath(runtime_dir)
        self._path = f"{folder}/{ATTACH_SOCKET}"
        self._agent = agent or f"python {os.path.basename(sys.argv[0]) or '-'}"
        self._fallback = fallback
        self._lock = threading.RLock()
        self._mappings = Mappings(self._lock)
        self._pid = os.getpid()
        self._closed = False
        self._watched = False
        self._channel: Channel | None = None
        try:
            self._channel = Channel(self._path, self._agent)
        except DaemonAwayError:
            if fallback is None:
                raise

    # -- asking ----------------------------------------------------------------------------------------------------

    def open(
        self,
        name: str,
        *,
        place: str | None = None,
        deadline_s: float | None = None,
        fallback: str | None = None,
    ) -> Weights:
        """Attach to a registered model; loads it if it is not resident.

        Args:
            name: As registered.
            place: `cpu`, or None for what the manifest says.
            deadline_s: Seconds to wait for the load and for room. None waits for a load as long as it takes, but
                not for other people's leases to end.
            fallback: As for the session, for this call.

        Returns:
            The weights; close them, or use them in a `with` block.

        Raises:
            ModelNotFoundError, CapacityError, DeadlineError, BrokenWeightsError, DaemonAwayError.
        """
        return self._open({"op": "open", "model": name}, name, place, deadline_s, fallback)

    def open_file(
        self,
        path: str | os.PathLike[str],
        *,
        place: str | None = None,
        deadline_s: float | None = None,
        fallback: str | None = None,
    ) -> Weights:
        """Attach to a checkpoint by its path, without a manifest: everybody who opens it shares one copy.

        Any format that needs no options: safetensors (single or `.index.json`), PyTorch state dicts, ONNX, MXNet, npz.
        Raises as `open`, and PermissionDeniedError if the daemon runs as another user.
        """
        absolute = os.path.abspath(path)
        return self._open({"op": "open", "path": absolute}, absolute, place, deadline_s, fallback)

    def prefetch(self, name: str, *, place: str | None = None) -> None:
        """Ask the daemon to load a model and return at once; a failure shows in the open that follows.

        Call it before importing a framework: the load then happens meanwhile.
        """
        message: Message = {"op": "prefetch", "model": name}
        if place is not None:
            message["place"] = place
        self._request(message, None)

    def _open(
        self, message: Message, name: str, place: str | None, deadline_s: float | None, fallback: str | None
    ) -> Weights:
        if fallback not in _FALLBACKS:
            raise CallerError(f"fallback is {fallback!r}; it must be None or 'load'")
        if place is not None:
            message["place"] = place
        if deadline_s is not None:
            message["deadline_s"] = deadline_s
        try:
            channel, (answer, fd) = self._request(message, deadline_s)
        except DaemonAwayError as error:
            if (fallback or self._fallback) is None:
                raise
            return self._load_here(name, error)
        weights = Weights(
            name,
            self._borrow(channel, answer, fd),
            place=str(answer["place"]),
            warm=bool(answer.get("warm")),
            trusted=self._trusted,
            on_close=self._settle,
        )
        self._watch()
        return weights

    def _borrow(self, channel: Channel, answer: Message, fd: int) -> Borrow:
        """Map what was granted on this channel; if the daemon has restarted since, take its lease up again."""
        with self._lock:
            current = self._channel
            void = channel is not current
            borrowed = self._mappings.borrow(answer, fd, void=void, export=lambda lease: self._export(channel, lease))
            if void and current is not None and not borrowed.mapping.leases:
                try:
                    self._resume(current, borrowed.mapping)
                except LostPeerError as error:  # whoever connects again takes it up
                    _log().info("not taken up yet: %s", error)
            return borrowed

    def _export(self, channel: Channel, lease: int) -> Export:
        from trims.memory.cuda.drivers import export_of

        answer, fd = channel.request({"op": "attach", "lease": lease}, _GRACE_S)
        return export_of(answer, fd)

    def _request(self, message: Message, deadline_s: float | None) -> tuple[Channel, tuple[Message, int]]:
        """Ask; if the daemon has restarted since, connect again and ask once more. Tells which channel answered."""
        timeout_s = None if deadline_s is None else deadline_s + _GRACE_S
        channel = self._connected()
        self._flush()
        try:
            return channel, channel.request(message, timeout_s)
        except LostPeerError as error:
            if not channel.broken or self._closed:
                raise
            _log().info("asking again after: %s", error)
            channel = self._connected()
            return channel, channel.request(message, timeout_s)

    def _load_here(self, name: str, why: DaemonAwayError) -> Weights:
        from trims_client.fallback import load_here

        _log().warning("%s is loaded privately, nothing is shared: %s", name, why)
        return load_here(name)

    # -- the connection --------------------------------------------------------------------------------------------

    def _connected(self) -> Channel:
        """A working channel; makes a new one if the old one broke."""
        if self._pid != os.getpid():
            raise ClosedError(
                f"this session belongs to process {self._pid}, which forked; connect again in process {os.getpid()}"
            )
        with self._lock:
            if self._closed:
                raise ClosedError("this session is closed; connect again")
            if self._channel is None or self._channel.broken:
                self._channel = self._connect_again()
            return self._channel

    def _connect_again(self) -> Channel:
        """Under the lock: connect, and take up again the leases of everything that is still mapped."""
        channel = Channel(self._path, self._agent)
        if self._channel is not None:
            self._channel.close()
        for mapping in self._mappings.lose_leases():
            self._resume(channel, mapping)
        return channel

    def _resume(self, channel: Channel, mapping: Mapping) -> None:
        try:
            answer, fd = channel.request({"op": "resume", "key": mapping.key, "place": mapping.place}, _GRACE_S)
        except DeadlineError as error:  # it hangs, and we hold the lock: who closes must not wait for it
            channel.close()
            raise LostPeerError(str(error)) from error
        except TrimsError as error:
            _log().warning("the weights stay mapped, but without a lease: %s", error)
            return
        lease, same = answer.get("lease"), False
        if fd >= 0:
            status = os.fstat(fd)
            os.close(fd)
            same = (status.st_dev, status.st_ino) == mapping.identity
        if same and type(lease) is int:
            mapping.leases.add(lease)
        else:  # the same image in new memory: ours is not the store's any more
            channel.tell({"op": "close", "lease": lease})

    @property
    def _trusted(self) -> bool:
        channel = self._channel
        return channel is not None and channel.daemon_uid in (0, os.geteuid())

    def _watch(self) -> None:
        """Have somebody notice the daemon's end even if this process asks for nothing more."""
        with self._lock:
            if not self._watched:
                self._watched = True
                watcher = threading.Thread(
                    target=_watch_connection, args=(weakref.ref(self),), name="trims-watch", daemon=True
                )
                # From a thread of its own, as `start` waits until the thread runs: a third of a first open.
                _thread.start_new_thread(_start, (watcher,))

    def _flush(self) -> None:
        """Give back the leases that were given up meanwhile, without waiting for an answer. Never raises."""
        given_up, collect = self._mappings.given_up, self._mappings.collect
        if collect is not None:
            collect()
        while given_up:
            channel = self._channel
            if channel is None or channel.broken or self._pid != os.getpid():
                return
            try:
                channel.tell({"op": "close", "lease": given_up.popleft()})
            except (LostPeerError, IndexError):
                return

    def _settle(self) -> None:
        """The same, and return when the daemon has it in its books: who closes may evict right afterwards."""
        if self._mappings.collect is not None:
            self._mappings.collect()
        channel = self._channel
        if not self._mappings.given_up or channel is None or channel.broken or self._pid != os.getpid():
            return
        try:
            last = self._mappings.given_up.pop()
            self._flush()
            channel.request({"op": "close", "lease": last}, _GRACE_S)
        except (LostPeerError, DeadlineError, IndexError) as error:
            _log().debug("a lease ends with its session instead: %s", error)

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def close(self) -> None:
        """End the session and with it all its leases. Views that are alive stay readable. Idempotent."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None and self._pid == os.getpid():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session at {self._path}: {'closed' if self._closed else 'open'}>"


def _log() -> logging.Logger:
    """Logging is imported when there is something to say."""
    import logging

    return logging.getLogger(__name__)


def _start(watcher: threading.Thread) -> None:
    try:
        watcher.start()
    except RuntimeError:  # the interpreter is ending, and with it the connection
        return


def _watch_connection(reference: weakref.ref[Session]) -> None:
    """Wait for the connection to end, then connect again for as long as the session lives."""
    retry_s = _FIRST_RETRY_S
    while True:
        session = reference()
        if session is None or session.closed:
            return
        channel = session._channel
        if channel is not None and not channel.broken:
            session._flush()
            del session
            _wait_for_end(channel)
            retry_s = _FIRST_RETRY_S
            continue
        try:
            session._connected()
        except (LostPeerError, ClosedError):
            del session
            time.sleep(retry_s)
            retry_s = min(_LONGEST_RETRY_S, retry_s * 2)


def _wait_for_end(channel: Channel) -> None:
    """Until the peer hangs up or we close; wakes now and then to let a forgotten session go."""
    import select

    poller = select.poll()
    try:
        poller.register(channel.fileno(), select.POLLRDHUP)
        if poller.poll(1000):
            channel.read_to_end()
    except (OSError, ValueError):  # closed here meanwhile
        return


def connect(
    runtime_dir: str | os.PathLike[str] | None = None, *, fallback: str | None = None, agent: str = ""
) -> Session:
    """Connect to the daemon of this machine; see `Session`."""
    return Session(runtime_dir, fallback=fallback, agent=agent)


_shared: Session | None = None
_shared_lock = threading.Lock()


def shared_session(fallback: str | None = None) -> Session:
    """One session for the whole process, for `trims.open_file`; made anew after a fork."""
    global _shared  # noqa: PLW0603 - one a process is the point
    with _shared_lock:
        if _shared is None or _shared.closed or _shared._pid != os.getpid():
            _shared = Session(fallback=fallback)
            _shared._fallback = None  # who may do without a daemon is said call by call
        return _shared


def open_file(path: str | os.PathLike[str], *, deadline_s: float | None = None, fallback: str | None = None) -> Weights:
    """Share any checkpoint by its path: `Session.open_file` on a session of the process."""
    return shared_session(fallback).open_file(path, deadline_s=deadline_s, fallback=fallback)
