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
    CapacityError,
    ClosedError,
    DaemonAwayError,
    DeadlineError,
    DeviceLostError,
    InUseError,
    LostPeerError,
    NotSupportedError,
    TrimsError,
)
from trims.wire.address import ATTACH_SOCKET, default_runtime_dir
from trims_client.channel import Channel
from trims_client.mappings import Mappings
from trims_client.weights import Weights

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from trims.memory.cuda.drivers import Export
    from trims.wire.frames import Message
    from trims_client.mappings import Borrow, Mapping

#: How much later than the daemon a client decides that a deadline has passed.
_GRACE_S = 5.0
#: For these the next place in order of preference is tried: it cannot serve, whoever asks, or not now.
_CANNOT_SERVE = (NotSupportedError, CapacityError, DeviceLostError, InUseError)
_FALLBACKS = (None, "load")


class Session:
    """A connection to the daemon. A context manager; safe to use from several threads, not after a fork.

    Args:
        runtime_dir: Folder of the daemon's sockets; None for `$TRIMS_RUNTIME_DIR` or the default of this user.
        fallback: `"load"` loads privately in this process when no daemon answers, and says so (`Weights.shared` is
            False and a warning is logged). None, the default, raises DaemonAwayError.
        agent: How this client calls itself in `trims ps`.
        on_lost: Called with a message, the model's name and its image key when the memory of an open model was lost at
            its owner: see `Weights.lost`. Once for each name, in whichever thread hears of it: the session's own
            within about a second, or one that asks for something. What it raises is logged.
    """

    def __init__(
        self,
        runtime_dir: str | os.PathLike[str] | None = None,
        *,
        fallback: str | None = None,
        agent: str = "",
        on_lost: Callable[[str, str, str], None] | None = None,
    ) -> None:
        if fallback not in _FALLBACKS:
            raise CallerError(f"fallback is {fallback!r}; it must be None or 'load'")
        folder = default_runtime_dir() if runtime_dir is None else os.fspath(runtime_dir)
        self._path = f"{folder}/{ATTACH_SOCKET}"
        self._agent = agent or f"python {os.path.basename(sys.argv[0]) or '-'}"
        self._fallback = fallback
        self._on_lost = on_lost
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
        place: str | Sequence[str] | None = None,
        deadline_s: float | None = None,
        fallback: str | None = None,
    ) -> Weights:
        """Attach to a registered model; loads it if it is not resident.

        Args:
            name: As registered.
            place: `cpu`, `gpu`, `gpu:N`, or None for what the manifest says. Several are tried in this order: the
                next one if the daemon or this process cannot serve it there (NotSupportedError, CapacityError,
                DeviceLostError). `Weights.fell_back` has the reason then, and a warning is logged. With one place
                nothing falls back.
            deadline_s: Seconds to wait for the load and for room, at all places together. None waits for a load as
                long as it takes, but not for other people's leases to end.
            fallback: As for the session, for this call.

        Returns:
            The weights; close them, or use them in a `with` block.

        Raises:
            ModelNotFoundError, CapacityError, DeadlineError, BrokenWeightsError, DaemonAwayError; of several places
            what the last one raised.
        """
        return self._open({"op": "open", "model": name}, name, place, deadline_s, fallback)

    def open_file(
        self,
        path: str | os.PathLike[str],
        *,
        place: str | Sequence[str] | None = None,
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
        self,
        message: Message,
        name: str,
        place: str | Sequence[str] | None,
        deadline_s: float | None,
        fallback: str | None,
    ) -> Weights:
        if fallback not in _FALLBACKS:
            raise CallerError(f"fallback is {fallback!r}; it must be None or 'load'")
        if place is None or isinstance(place, str):
            return self._open_at(message, name, place, deadline_s, fallback)
        if not place:
            raise CallerError("an empty list of places; name one, or None for what the manifest says")
        until_s = None if deadline_s is None else time.monotonic() + deadline_s
        refused: list[str] = []
        for wanted in place:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                weights = self._open_at(message, name, wanted, left_s, fallback)
            except _CANNOT_SERVE as error:
                if len(refused) + 1 == len(place):
                    raise
                # As text: a log that keeps the error would keep what it was raised over.
                _log().warning("%s is not opened at %s but at the next place: %s", name, wanted, str(error))
                refused.append(f"{wanted}: {error}")
                message = {**message, "instead_of": wanted}
            else:
                break
        weights.fell_back = "; ".join(refused) or None
        return weights

    def _open_at(
        self, message: Message, name: str, place: str | None, deadline_s: float | None, fallback: str | None
    ) -> Weights:
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
        borrow = self._borrow(channel, answer, fd, name)
        weights = Weights(
            name,
            borrow,
            place=str(answer["place"]),
            warm=bool(answer.get("warm")),
            trusted=self._trusted,
            on_close=self._settle,
            on_report=None if borrow.region is None else lambda nbytes: self._report_working(borrow, nbytes),
        )
        self._watch()
        return weights

    def _borrow(self, channel: Channel, answer: Message, fd: int, name: str) -> Borrow:
        """Map what was granted on this channel; if the daemon has restarted since, take its lease up again."""
        with self._lock:
            current = self._channel
            void = channel is not current
            borrowed = self._mappings.borrow(
                answer, fd, name, void=void, export=lambda lease: self._export(channel, lease)
            )
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

    def _report_working(self, borrow: Borrow, nbytes: int) -> None:
        channel = self._connected()
        lease = next(iter(borrow.mapping.leases), None)
        if lease is None:
            raise LostPeerError(f"these weights have no lease any more: {borrow.lost or 'the daemon has restarted'}")
        channel.request({"op": "working", "lease": lease, "nbytes": nbytes}, _GRACE_S)

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
            if self._channel.events:
                from trims_client import losses

                losses.hear(self._channel, self._mappings)  # its numbers mean nothing to the next
        for mapping in self._mappings.lose_leases():
            if mapping.lost is None:
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
        """Give back the leases that were given up meanwhile, without waiting for an answer. Never raises.

        And hear what the daemon has said meanwhile: this is called before each request and every second.
        """
        if ((heard := self._channel) is not None and heard.events) or self._mappings.untold:
            from trims_client import losses

            if heard is not None:
                losses.hear(heard, self._mappings)
            losses.tell(self._mappings, self._on_lost)
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
    from trims_client.watch import watch

    watch(reference)


def connect(
    runtime_dir: str | os.PathLike[str] | None = None,
    *,
    fallback: str | None = None,
    agent: str = "",
    on_lost: Callable[[str, str, str], None] | None = None,
) -> Session:
    """Connect to the daemon of this machine; see `Session`."""
    return Session(runtime_dir, fallback=fallback, agent=agent, on_lost=on_lost)
