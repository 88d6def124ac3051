"""The attach door: a Unix socket on which clients open and close weights. The connection is the session.

One thread serves all sessions with epoll and never blocks: what takes time is the store's, whose answers come back
through a queue. A client can end its own session, never the daemon: whatever is wrong with what it sends, sends
too slowly or does not read becomes an error at most, and then its session ends.
"""

from __future__ import annotations

import array
import logging
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from trims.core.errors import (
    BadMessageError,
    DeviceLostError,
    InternalError,
    NotSupportedError,
    PermissionDeniedError,
    TrimsError,
)
from trims.core.place import Place
from trims.daemon.clients import Peer, Session, Unsent, file_name, grant_message
from trims.memory.cuda.drivers import export_message
from trims.store.asks import Granted, Outcome
from trims.wire.answers import PROTOCOL_VERSION, error_message
from trims.wire.frames import Message, encode
from trims.wire.messages import Attach, Close, Hello, Open, Request, Resume, Working, parse_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.core.lease import Lease
    from trims.store.store import Store

log = logging.getLogger(__name__)
_READ_BYTES = 64 << 10
_BACKLOG = 512
#: Who has just been served often asks again at once, and on a virtual machine waking an idle processor takes longer
#: than an answer.
_LINGER_S = 100e-6
#: A client that has begun a frame must end it within this time.
FRAME_TIMEOUT_S = 10.0
#: Answers a client may leave unread, and requests it may have open, before its session ends.
MAX_UNREAD = 256
MAX_PENDING = 256
_UCRED = struct.Struct("3i")


class AttachDoor:
    """Serves the attach door of one daemon.

    Args:
        store: Answers.
        path: Where the socket is made; an old one there is replaced (the daemon's lock says nobody serves it).
        mode: Permissions of the socket: who may connect at all.
        boot: Identifies this life of the daemon.
        max_sessions: One more is refused.
    """

    def __init__(
        self, store: Store, path: Path, *, mode: int = 0o600, boot: str = "", max_sessions: int = 4096
    ) -> None:
        self._store = store
        self._path = path
        self._mode = mode
        self._boot = boot
        self._max_sessions = max_sessions
        self._sessions: dict[int, Session] = {}
        self._by_fd: dict[int, Session] = {}
        #: Sessions whose socket has closed and whose process may still read, by the process's descriptor.
        self._gone: dict[int, Session] = {}
        self._partial: set[Session] = set()
        self._answers: deque[tuple[Session, int, Outcome]] = deque()
        self._works: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._wake_fd = -1
        self._waking = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="trims-attach-door", daemon=True)
        store.device_leases.tell_losses_to(self._lost)

    def start(self) -> None:
        """Bind and begin to serve."""
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(self._path))
        self._path.chmod(self._mode)
        self._listener.listen(_BACKLOG)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._thread.start()

    def stop(self) -> None:
        """End every session and remove the socket."""
        self._stopping = True
        self._wake()
        self._thread.join()
        with self._waking:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def run(self, work: Callable[[], None]) -> None:
        """Do something in the door's own thread, soon.

        Whatever ends a lease belongs there: so none ends between its grant and the moment its descriptor has left.
        """
        self._works.append(work)
        self._wake()

    def sessions(self) -> list[Session]:
        """Who is connected now."""
        return list(self._sessions.values())

    # -- the loop --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._stopping:
            for fd, events in self._next_events():
                if session := self._by_fd.get(fd):
                    self._serve_session(session, events)
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd == self._wake_fd:
                    os.eventfd_read(fd)
                elif fd in self._gone:
                    self._process_ended(fd)
            self._do_works()
            self._send_answers()
            self._end_slow()
        for session in list(self._sessions.values()):
            self._end(session, "the daemon is shutting down")
        for session in self._gone.values():
            self._forget(session)
        self._epoll.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _do_works(self) -> None:
        while self._works:
            try:
                self._works.popleft()()
            except Exception:
                log.exception("what was to be done in the door's thread failed")  # the door stays open

    def _next_events(self) -> list[tuple[int, int]]:
        until_s = time.perf_counter() + _LINGER_S
        while time.perf_counter() < until_s:
            if events := self._epoll.poll(0):
                return events
        return self._epoll.poll(min(1.0, FRAME_TIMEOUT_S / 2))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: those who are in stay in
                log.error("a client cannot be let in: %s", error)  # noqa: TRY400 - the cause is all there is
                return
            if len(self._sessions) >= self._max_sessions:
                log.warning("a client is turned away: %d sessions are the limit", self._max_sessions)
                sock.close()
                continue
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        session = Session(self._store.begin_session(), sock, Peer(*_UCRED.unpack(credentials)))
        self._sessions[session.number] = session
        self._by_fd[sock.fileno()] = session
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _serve_session(self, session: Session, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self._flush(session)
            if events & ~select.EPOLLOUT and not session.over:  # a hang-up is read as the end
                self._read(session)
        except BadMessageError as error:
            self._end_with_error(session, error)
        except OSError as error:
            self._end(session, str(error))
        except Exception:
            # Whatever one client provoked must not reach the others.
            log.exception("serving session %d failed", session.number)
            self._end_with_error(session, InternalError("the daemon failed on this session; see its log"))

    def _read(self, session: Session) -> None:
        try:
            data = session.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._end(session, "closed by the client")
            return
        for message in session.decoder.feed(data):
            self._handle(session, parse_request(message))
            if session.over:
                return
        self._send_answers()
        if not session.decoder.partial:
            self._partial.discard(session)
        elif session not in self._partial and not session.over:
            self._partial.add(session)
            session.partial_since_s = time.monotonic()

    def _end_slow(self) -> None:
        for session in list(self._partial):
            if time.monotonic() - session.partial_since_s > FRAME_TIMEOUT_S:
                error = BadMessageError(f"a frame was begun and not ended within {FRAME_TIMEOUT_S:.0f} s")
                self._end_with_error(session, error)

    # -- requests --------------------------------------------------------------------------------------------------

    def _handle(self, session: Session, request: Request) -> None:
        if isinstance(request, Hello):
            self._greet(session, request)
        elif not session.greeted:
            raise BadMessageError("the first message of a session must be hello")
        elif isinstance(request, Close):
            self._store.close(session.number, request.lease)
            if request.id is not None:
                self._send(session, {"id": request.id, "closed": request.lease})
        elif isinstance(request, Attach):
            self._export(session, request)
        elif isinstance(request, Working):
            self._report_working(session, request)
        else:
            self._ask(session, request)

    def _greet(self, session: Session, hello: Hello) -> None:
        if session.greeted:
            raise BadMessageError("hello comes once")
        if hello.protocol != PROTOCOL_VERSION:
            error = NotSupportedError(
                f"the client speaks protocol {hello.protocol}, this daemon {PROTOCOL_VERSION}; install the same trims"
            )
            self._end_with_error(session, error)
            return
        session.greeted, session.agent = True, hello.agent
        self._send(session, {"protocol": PROTOCOL_VERSION, "boot": self._boot, "session": session.number})

    def _export(self, session: Session, request: Attach) -> None:
        try:
            export = self._store.device_leases.export_of(session.number, request.lease)
        except TrimsError as error:
            self._send(session, error_message(error, request.id))
            return
        self._send(session, {"id": request.id, "descriptor": export.fd >= 0, **export_message(export)}, export.fd)

    def _report_working(self, session: Session, request: Working) -> None:
        try:
            if session.peer.uid not in (0, os.geteuid()):
                raise PermissionDeniedError(
                    f"user {session.peer.uid} may not tell this daemon what models need; it runs as user {os.geteuid()}"
                )
            counted = self._store.device_leases.report_working(session.number, request.lease, request.nbytes)
        except TrimsError as error:
            self._send(session, error_message(error, request.id))
        else:
            self._send(session, {"id": request.id, "working_bytes": counted})

    def _ask(self, session: Session, request: Open | Resume) -> None:
        if session.pending >= MAX_PENDING:
            raise BadMessageError(f"more than {MAX_PENDING} requests are waiting for an answer")
        session.pending += 1
        try:
            self._pass_on(session, request)
        except TrimsError as error:
            self._answered(session, request.id, error)

    def _pass_on(self, session: Session, request: Open | Resume) -> None:
        def answer(outcome: Outcome) -> None:
            self._answered(session, request.id, outcome)

        if isinstance(request, Resume):
            self._store.resume(session.number, request.key, Place.parse(request.place), answer)
            return
        name = request.model if request.model is not None else file_name(session.peer, request.path or "")
        place = Place.parse(request.place) if request.place is not None else None
        if request.instead_of is not None:
            self._store.counters["fallbacks"] += 1
        if request.prefetch:
            session.pending -= 1
            self._send(session, {"id": request.id, "accepted": True})
            self._store.open(name, _log_prefetch(name), place=place, deadline_s=request.deadline_s, lease=False)
        else:
            self._store.open(name, answer, session=session.number, place=place, deadline_s=request.deadline_s)

    # -- answers ---------------------------------------------------------------------------------------------------

    def _answered(self, session: Session, request_id: int, outcome: Outcome) -> None:
        """Called from any thread; answers leave from the door's own, so that no lease ends between grant and send."""
        self._answers.append((session, request_id, outcome))
        if threading.current_thread() is not self._thread:
            self._wake()

    def _send_answers(self) -> None:
        while self._answers:
            session, request_id, outcome = self._answers.popleft()
            if session.over:
                continue  # its leases have been closed with it
            session.pending -= 1
            try:
                if isinstance(outcome, TrimsError):
                    raise outcome
                if isinstance(outcome, Granted):
                    if outcome.export is not None:
                        self._check_device_grant(session, outcome)
                    self._send(session, grant_message(request_id, outcome), outcome.fd)
            except TrimsError as error:
                self._send(session, error_message(error, request_id))

    def _check_device_grant(self, session: Session, granted: Granted) -> None:
        """Raises if what was granted is gone already, or cannot be granted to this process after all."""
        leases = self._store.device_leases
        if not leases.has(session.number, granted.lease):
            raise DeviceLostError(f"the memory at {granted.place} was lost at this moment; open again")
        if leases.must_outlive(granted.place) and not self._watch_process(session):
            leases.take_back(session.number, granted.lease)
            raise NotSupportedError(
                f"process {session.peer.pid} cannot be seen from here, and memory at {granted.place} must not be freed "
                "before it has ended: share process ids (containers: --pid=host), or have the daemon use vmm"
            )

    def _lost(self, lease: Lease, reason: str) -> None:
        """A lease has ended under its session."""
        if threading.current_thread() is not self._thread:
            self.run(lambda: self._lost(lease, reason))
            return
        if session := self._sessions.get(lease.session):
            self._send(session, {"event": "lost", "lease": lease.number, "message": reason})

    def _send(self, session: Session, message: Message, fd: int = -1) -> None:
        unsent = Unsent(encode(message), fd)
        session.unsent.append(unsent)
        if len(session.unsent) > MAX_UNREAD:
            self._end(session, f"more than {MAX_UNREAD} answers unread")
            return
        try:
            if len(session.unsent) == 1:
                self._flush(session)
            unsent.keep()
        except OSError as error:
            self._end(session, str(error))

    def _flush(self, session: Session) -> None:
        while session.unsent:
            first = session.unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [first.fd]))] if first.fd >= 0 else []
            try:
                sent = session.sock.sendmsg([first.data], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._want_write(session, wanted=True)
                return
            first.let_go()  # it left with the first byte
            first.data = first.data[sent:]
            if not first.data:
                session.unsent.popleft()
        self._want_write(session, wanted=False)

    def _want_write(self, session: Session, *, wanted: bool) -> None:
        if session.writing != wanted:
            session.writing = wanted
            self._epoll.modify(session.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def _end_with_error(self, session: Session, error: TrimsError) -> None:
        """Tell the client, if it listens, and end."""
        try:
            session.sock.send(encode(error_message(error, None)), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            log.debug("session %d did not hear of its error", session.number)
        self._end(session, str(error))

    def _end(self, session: Session, why: str) -> None:
        if session.over:
            return
        session.over = True
        del self._sessions[session.number]
        self._partial.discard(session)
        while session.unsent:
            session.unsent.popleft().let_go()
        del self._by_fd[session.sock.fileno()]
        self._epoll.unregister(session.sock.fileno())
        session.sock.close()
        log.debug("session %d of process %d ended: %s", session.number, session.peer.pid, why)
        if session.process_fd >= 0 and not self._stopping:
            self._gone[session.process_fd] = session
            self._epoll.register(session.process_fd, select.EPOLLIN)
        else:
            self._forget(session)

    def _watch_process(self, session: Session) -> bool:
        """From now on the session counts until its process is gone: closing the socket does not close its mappings.

        False if the process cannot be watched: it is in another namespace (and shows as 0), or has ended.
        """
        if session.process_fd < 0:
            try:
                session.process_fd = os.pidfd_open(session.peer.pid)
            except OSError as error:
                log.warning("process %d cannot be watched: %s", session.peer.pid, error)
        return session.process_fd >= 0

    def _process_ended(self, process_fd: int) -> None:
        self._epoll.unregister(process_fd)
        self._forget(self._gone.pop(process_fd))

    def _forget(self, session: Session) -> None:
        if session.process_fd >= 0:
            os.close(session.process_fd)
            session.process_fd = -1
        self._store.end_session(session.number)

    def _wake(self) -> None:
        with self._waking:
            if self._wake_fd >= 0:  # an answer may come after the end; its descriptor may be another's by then
                os.eventfd_write(self._wake_fd, 1)


def _log_prefetch(name: str) -> Callable[[Outcome], None]:
    def tell(outcome: Outcome) -> None:
        if isinstance(outcome, TrimsError):
            log.warning("a prefetch of %s failed: %s", name, outcome)

    return tell
