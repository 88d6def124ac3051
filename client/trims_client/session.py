"""A session with the daemon of this machine: open models, prefetch them, share files. Standard library only.

The connection is the session: its leases end with the connection, and so with the process, however the process ends.
If the daemon restarts, the session keeps its mappings, connects again and takes its leases up again. Not covered: the
wire (`channel`), mappings (`mappings`).
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
import weakref

from trims.core.errors import (
    CallerError,
    CapacityError,
    DaemonAwayError,
    DeviceLostError,
    InUseError,
    LostPeerError,
    NotSupportedError,
)
from trims.trace.levels import Level
from trims.trace.spans import configure_from_environment, is_recording, span, traceparent
from trims.wire.address import ATTACH_SOCKET, default_runtime_dir
from trims_client import background
from trims_client.connection.channel import ends_session
from trims_client.connection.connection import GRACE_S, Connection, Deadline, log
from trims_client.connection.sockets import explained, lacks_descriptors
from trims_client.mapping.mappings import MappedImages
from trims_client.weights import Weights, warn_unclosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Literal, NoReturn

    from typing_extensions import Self

    from trims.memory.cuda.drivers import Export
    from trims.memory.pages import Pages
    from trims.wire.frames import Message
    from trims_client.connection.channel import Channel
    from trims_client.mapping.lost_leases import Loss
    from trims_client.mapping.mappings import Borrow

#: Errors after which the next place in order of preference is tried: this one cannot serve, at all or now.
_CANNOT_SERVE = (NotSupportedError, CapacityError, DeviceLostError, InUseError)
_FALLBACKS = (None, "load")
#: Most letters of a model's name or a file's path.
_MOST_LETTERS = 4096
#: Seconds between two tries to reach a daemon that is worth waiting for.
_RETRY_S = 0.02


class Session:
    """A connection to the daemon. A context manager; safe to use from several threads, not after a fork.

    Example:
        with trims.connect(agent="indexer") as session:
            session.prefetch("bert")  # the daemon loads while this process does something else
            with session.open("bert", deadline_s=60) as weights:
                print(weights.place, weights.nbytes)

    A child of `os.fork` can read what its parent has mapped, and must connect for itself to open more. The leases
    belong to the parent and end with it. A fork in C code, below Python, cannot be detected: such a child keeps its
    copy of the connection open, and with it the leases, until the child ends or executes another program.

    Args:
        runtime_dir: Folder of the daemon's sockets; None for `$TRIMS_RUNTIME_DIR` or the default of this user.
        fallback: `"load"` loads a private copy in this process when no daemon answers. Then `Weights.shared` is False
            and a warning is logged. None, the default, raises DaemonAwayError.
        agent: The name of this client in `trims ps`.
        on_lost: Called with a `Loss` when the memory of an open model was lost, see `Weights.lost`. Called once for
            each name, either in the session's watch thread, within about a second, or in a thread that makes a
            request. What it raises is logged.
        wait_s: Seconds to wait for a daemon that is just being started.
        upgrade: Whether weights that were opened without a place, and are mapped from an image on disk, move to shared
            memory when the image is brought there: about a second later, at the same addresses, under running readers.
            `Weights.place` says so then. False keeps them where they were granted.
    """

    def __reduce__(self) -> NoReturn:
        """Raise NotSupportedError, for `pickle` and `copy`."""
        raise NotSupportedError("a session belongs to its process; call trims.connect() in the other process")

    def __init__(
        self,
        runtime_dir: str | os.PathLike[str] | None = None,
        *,
        fallback: Literal["load"] | None = None,
        agent: str = "",
        on_lost: Callable[[Loss], None] | None = None,
        wait_s: float = 0.0,
        upgrade: bool = True,
    ) -> None:
        if fallback not in _FALLBACKS:
            raise CallerError(f"fallback is {fallback!r}; it must be None or 'load'")
        folder = default_runtime_dir() if runtime_dir is None else os.fspath(runtime_dir)
        self._path = f"{folder}/{ATTACH_SOCKET}"
        self._fallback = fallback
        self._on_lost = on_lost
        self._upgrades = upgrade
        self._mappings = MappedImages()
        configure_from_environment("client")
        agent = agent or f"python {os.path.basename(sys.argv[0]) or '-'}"
        self._connection = Connection(self._path, agent, self._mappings)
        self._watched = False
        self._begin(Deadline(wait_s))

    def _begin(self, deadline: Deadline) -> None:
        while True:
            try:
                self._connection.begin()
            except DaemonAwayError:
                if deadline.left_s:
                    time.sleep(min(_RETRY_S, deadline.left_s))
                    continue
                if self._fallback is None:
                    raise
            return

    # -- asking ----------------------------------------------------------------------------------------------------

    def open(
        self,
        name: str,
        *,
        place: str | Sequence[str] | None = "auto",
        deadline_s: float | None = None,
        fallback: Literal["load"] | None = None,
    ) -> Weights:
        """Attach to a registered model; loads it if it is not resident.

        Args:
            place: `auto` or None for the manifest's place; without one, wherever on the host the bytes are now: in
                shared memory, in an image on disk, or in the artifact's own file. `cpu`, `disk`, `file`, `gpu` or
                `gpu:N` for that place only. Several places are tried in order: the next one if the daemon or this
                process cannot serve the model at a place (NotSupportedError, CapacityError, DeviceLostError,
                InUseError). Then `Weights.fell_back` has the reason, and a warning is logged. With a single place
                nothing falls back.
            deadline_s: Seconds to wait for the load and for room, for all places together, and for a daemon that is
                being restarted. None waits for a load as long as it takes, but not for the leases of other sessions to
                end, nor for a daemon.
            fallback: Overrides the session's setting, for this call.

        Returns:
            The weights; close them, or use them in a `with` block.

        Raises:
            ModelNotFoundError, CapacityError, DeadlineError, BrokenWeightsError, DaemonAwayError. With several places,
            the error of the last one.
        """
        return self._open({"op": "open", "model": name}, name, place, deadline_s, fallback)

    def open_file(
        self,
        path: str | os.PathLike[str],
        *,
        place: str | Sequence[str] | None = "auto",
        deadline_s: float | None = None,
        fallback: Literal["load"] | None = None,
    ) -> Weights:
        """Attach to a checkpoint by its path, without a manifest: all processes that open it share one copy.

        Works for every format that needs no options: safetensors (single or `.index.json`), PyTorch state dicts, ONNX,
        MXNet, npz, npy.
        Raises as `open`, and PermissionDeniedError if the daemon runs as another user.
        """
        absolute = os.path.abspath(path)
        return self._open({"op": "open", "path": _in_utf8(absolute)}, absolute, place, deadline_s, fallback)

    def prefetch(self, name: str, *, place: str | None = "auto") -> None:
        """Ask the daemon to load a model, and return at once. A failure of the load is raised by the next open.

        It is loaded at the manifest's place; without one, into shared memory. An artifact that was not converted yet,
        and can be served from its own files, is only made ready for that: its pages are read ahead.

        Call it before importing a framework: the daemon loads while Python imports.
        """
        _check_name(name)
        self._request(_with_place({"op": "prefetch", "model": name}, place), Deadline(answer_s=GRACE_S))

    def open_soon(self, name: str, place: str, *, deadline_s: float, grace_s: float) -> Weights:
        """Attach to a model as `open` does, for a caller that has another way to load it.

        Args:
            place: One place.
            deadline_s: Seconds to wait for the load.
            grace_s: Seconds to wait, behind them, for a daemon that does not answer.

        Raises as `open`; DeadlineError also for a daemon that hangs.
        """
        _check_name(name)
        message = _with_place({"op": "open", "model": name}, place)
        return self._open_at(message, name, place, Deadline(deadline_s, grace_s=grace_s), None)

    def _open(
        self,
        message: Message,
        name: str,
        place: str | Sequence[str] | None,
        deadline_s: float | None,
        fallback: Literal["load"] | None,
    ) -> Weights:
        if fallback not in _FALLBACKS:
            raise CallerError(f"fallback is {fallback!r}; it must be None or 'load'")
        _check_name(name)
        deadline = Deadline(deadline_s)
        if place is None or isinstance(place, str):
            return self._open_at(message, name, place, deadline, fallback)
        if not place:
            raise CallerError("an empty list of places; name one, or None for what the manifest says")
        refused: list[str] = []
        for wanted in place:
            try:
                weights = self._open_at(message, name, wanted, deadline, fallback)
            except _CANNOT_SERVE as error:
                if len(refused) + 1 == len(place) or ends_session(error):
                    raise
                # As text: a log record that keeps the exception would keep the objects in its traceback alive.
                log().warning("%s is not opened at %s but at the next place: %s", name, wanted, str(error))
                refused.append(f"{wanted}: {error}")
                message = {**message, "instead_of": wanted}
            else:
                break
        weights.fell_back = "; ".join(refused) or None
        return weights

    def _open_at(
        self, message: Message, name: str, place: str | None, deadline: Deadline, fallback: Literal["load"] | None
    ) -> Weights:
        if not is_recording():
            return self._open_here_or_there(message, name, place, deadline, fallback)
        with span("open", Level.APPLICATION, model=name) as opening:
            weights = self._open_here_or_there(message, name, place, deadline, fallback)
            opening.set(place=weights.place, warm=weights.warm, image_bytes=weights.nbytes)
            return weights

    def _open_here_or_there(
        self, message: Message, name: str, place: str | None, deadline: Deadline, fallback: Literal["load"] | None
    ) -> Weights:
        waits = (fallback or self._fallback) is None
        try:
            answer, borrow, own = self._borrowed(_with_place(message, place), name, deadline, waits=waits)
        except DaemonAwayError as error:
            if waits:
                raise
            return self._load_here(name, error)
        except (OSError, CapacityError) as error:
            if not lacks_descriptors(error):
                raise
            raise explained(error, f"{name} cannot be mapped") from error
        weights = Weights(
            name,
            borrow,
            place=str(answer["place"]),
            warm=bool(answer.get("warm")),
            trusted=own and not answer.get("foreign"),
            foreign=str(answer.get("foreign", "")),
            on_close=self._settle,
            on_report=None if borrow.region is None else lambda nbytes: self._report_workspace(borrow, nbytes),
        )
        self._watch()
        return weights

    def _borrowed(
        self, message: Message, name: str, deadline: Deadline, *, waits: bool
    ) -> tuple[Message, Borrow, bool]:
        """Have an image granted and map it. Return the grant, too, and whether the daemon is this user's or root's.

        If the daemon or the device's keeper ends between a grant and what it takes to map it, both are asked once more.
        """
        again = True
        while True:
            with span("ask"):
                channel, (answer, fd) = self._request(_with_trace(message), deadline, waits=waits)
            try:
                with span("map"):
                    borrow = self._borrow(channel, answer, fd, name)
            except LostPeerError as error:
                ended = isinstance(error, DeviceLostError) or ("files" in answer and channel.broken)
                if not (again and ended):
                    raise
                again = False
                if isinstance(error, DeviceLostError) and message["op"] == "open":  # for any device, another may serve
                    message = {**message, "instead_of": str(answer["place"])}
            else:
                return answer, borrow, channel.daemon_uid in (0, os.geteuid())

    def _borrow(self, channel: Channel, answer: Message, fd: int, name: str) -> Borrow:
        """Map the granted image. If the session has a new channel since, take the lease up there."""
        borrowed = self._mappings.borrow(
            channel,
            answer,
            fd,
            name,
            export=lambda lease: self._export(channel, lease),
            pages=lambda lease, file: self._pages(channel, lease, file),
        )
        if channel is not self._connection.channel or channel.broken:
            self._connection.take_up(borrowed.mapping)
        return borrowed

    def _export(self, channel: Channel, lease: int) -> Export:
        from trims.memory.cuda.drivers import export_of

        answer, fd = channel.request({"op": "attach", "lease": lease}, GRACE_S)
        return export_of(answer, fd)

    def _pages(self, channel: Channel, lease: int, file: int) -> Pages:
        from trims.memory.pages import Pages

        answer, fd = channel.request({"op": "attach", "lease": lease, "file": file}, GRACE_S)
        return Pages(fd, int(answer["begin"]), int(answer["nbytes"]), int(answer["offset"]))

    def _report_workspace(self, borrow: Borrow, nbytes: int) -> None:
        channel = self._connection.live_channel()
        lease = borrow.mapping.lease_of(channel)
        if lease is None:
            raise LostPeerError(f"these weights have no lease any more: {borrow.lost or 'the daemon has restarted'}")
        channel.request({"op": "workspace", "lease": lease.number, "nbytes": nbytes}, GRACE_S)

    def _request(
        self, message: Message, deadline: Deadline, *, waits: bool = False
    ) -> tuple[Channel, tuple[Message, int]]:
        """Send a request; if the connection turns out to have ended, connect again and send it once more.

        Returns the channel that answered, the answer, and its descriptor or -1.

        Args:
            waits: Try again until the deadline, if there is one: the daemon may be just being restarted.
        """
        sent_before = False
        while True:
            channel: Channel | None = None
            try:
                channel = self._connection.live_channel(deadline)
                self._flush()
                return channel, self._ask(channel, message, deadline)
            except LostPeerError as error:
                if self.closed or (channel is not None and (not channel.broken or channel.refused)):
                    raise
                if waits and deadline.left_s:
                    time.sleep(min(_RETRY_S, deadline.left_s))
                elif channel is None or sent_before:
                    raise
                if channel is not None:  # else nothing was sent: it is only waited for
                    sent_before = True
                    log().info("a request is sent again after: %s", error)

    def _ask(self, channel: Channel, message: Message, deadline: Deadline) -> tuple[Message, int]:
        left_s = deadline.left_s
        if left_s is not None:
            message = {**message, "deadline_s": left_s}
        return channel.request(message, deadline.timeout_s, said=deadline.said)

    def _load_here(self, name: str, why: DaemonAwayError) -> Weights:
        from trims_client.fallback import load_here

        log().warning("%s is loaded privately, nothing is shared: %s", name, why)
        return load_here(name)

    # -- the connection --------------------------------------------------------------------------------------------

    @property
    def _channel(self) -> Channel | None:
        return self._connection.channel

    def _watch(self) -> None:
        """Start the watch thread, which notices the daemon's end even if this process makes no more requests."""
        with self._mappings.lock:
            if not self._watched:
                self._watched = True
                gate = background.gate()
                given = (weakref.ref(self), self._mappings, self._connection, gate)
                watcher = threading.Thread(target=_watch_connection, args=given, name="trims-watch", daemon=True)
                # In another thread, because `start` waits until the new thread runs: a third of a first open.
                _thread.start_new_thread(_start, (watcher, gate))

    def _flush(self) -> None:
        """Process the daemon's events and send the closes of given-up leases, without waiting. Never raises.

        Called before each request and every second.
        """
        if (channel := self._channel) is not None:
            self._connection.hear(channel)
        self._mappings.close_dropped()
        if self._mappings.untold:
            from trims_client.mapping import lost_leases

            lost_leases.report(self._mappings, self._on_lost)
        if self._mappings.collect is not None:
            self._mappings.collect()
        self._connection.flush()

    def _take_up(self) -> None:
        """Ask again for leases that the daemon could not grant yet. For the watch thread: it asks. Never raises."""
        self._connection.take_up_postponed()

    def _upgrade(self) -> None:
        """Move weights whose bytes lie at a better place now. For the watch thread: it asks. Never raises."""
        channel = self._channel
        if channel is not None and self._mappings.upgrades:
            if self._upgrades:
                from trims_client.mapping import upgrades

                upgrades.upgrade(channel, self._mappings)
            else:
                self._mappings.upgrades.clear()

    def _settle(self) -> None:
        """Wait until the daemon has processed the close, so that an immediate evict succeeds. Never raises."""
        if self._mappings.collect is not None:
            self._mappings.collect()
        self._connection.settle()

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def share_from(self) -> int:
        """Return the bytes from which on sharing a file pays on this host; 0 if that is not known (yet)."""
        return 0 if self._channel is None else self._channel.share_from

    @property
    def closed(self) -> bool:
        """Return whether `close` was called."""
        return self._connection.closed

    @property
    def inherited(self) -> bool:
        """Return whether this is a forked child: the session is the parent's, and every request raises ClosedError."""
        return self._connection.inherited

    def close(self) -> None:
        """End the session, and with it all its leases. Views that are still referenced stay readable. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Warn only, do not close: views of its weights may be in use, and keep their leases by the connection.
        connection = getattr(self, "_connection", None)
        if connection is not None and connection.channel is not None and not (self.closed or self.inherited):
            warn_unclosed(f"the session at {self._path} was never closed; use `with` or call close()", self)

    def __repr__(self) -> str:
        return f"<Session at {self._path}: {'closed' if self.closed else 'open'}>"


def _start(watcher: threading.Thread, gate: threading.Lock) -> None:
    with gate:
        try:
            watcher.start()
        except RuntimeError:  # the interpreter is ending, and the connection with it
            return


def _watch_connection(
    reference: weakref.ref[Session], mappings: MappedImages, connection: Connection, gate: threading.Lock
) -> None:
    with gate:
        from trims_client.connection.watch import outlive, watch

    watch(reference, gate)
    outlive(mappings, connection, gate)


def _with_place(message: Message, place: str | None) -> Message:
    return message if place in (None, "auto") else {**message, "place": place}


def _with_trace(message: Message) -> Message:
    context = traceparent()
    return message if context is None else {**message, "traceparent": context}


def _check_name(name: object) -> None:
    """Raise CallerError here for a name for which the daemon would end the whole session."""
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_LETTERS or "\0" in name:
        raise CallerError(
            f"{name!r:.100} is no name of a model or file: that is text of 1 to {_MOST_LETTERS} characters, none NUL"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise CallerError(f"{name!r:.100} holds half of a surrogate pair, which is no text") from error


def _in_utf8(path: str) -> str:
    """Return a path as a daemon reads it, whatever the encoding of this process's locale."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def connect(
    runtime_dir: str | os.PathLike[str] | None = None,
    *,
    fallback: Literal["load"] | None = None,
    agent: str = "",
    on_lost: Callable[[Loss], None] | None = None,
    wait_s: float = 0.0,
    upgrade: bool = True,
) -> Session:
    """Connect to the daemon of this machine; see `Session`.

    Example:
        with trims.connect(wait_s=10) as session, session.open("bert") as weights:
            print(sorted(weights))
    """
    return Session(runtime_dir, fallback=fallback, agent=agent, on_lost=on_lost, wait_s=wait_s, upgrade=upgrade)
