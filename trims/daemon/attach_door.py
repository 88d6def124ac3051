"""The attach door: a Unix socket on which clients open and close weights. The connection is the session.

One thread serves all sessions with epoll and never blocks: what takes time is the store's, whose answers come back
through a queue. A client can end its own session, never the daemon: whatever is wrong with what it sends, sends
too slowly or does not read becomes an error at most, and then its session ends. Not covered: what requests mean and
what is answered (`requests`), what waits to be sent (`clients`).
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, InternalError, NotSupportedError, TrimsError
from trims.daemon.clients import Session, Unsent
from trims.daemon.requests import Requests
from trims.wire.answers import PROTOCOL_VERSION, error_message
from trims.wire.frames import Message, encode
from trims.wire.messages import Hello, Request, parse_request
from trims.wire.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.core.lease import Lease
    from trims.store.asks import Outcome
    from trims.store.store import Store

log = logging.getLogger(__name__)
_READ_BYTES = 64 << 10
_BACKLOG = 512
#: Who has just been served often asks again at once, and on a virtual machine waking an idle processor takes longer
#: than an answer.
_LINGER_S = 100e-6
#: A client that has begun a frame must end it within this time.
FRAME_TIMEOUT_S = 10.0
#: Answers a client may leave unread before its session ends.
MAX_UNREAD = 256


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
        self._requests = Requests(store, self._send, self._answered)
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
        peer = Peer.of(sock)
        session = Session(self._store.begin_session(), sock, peer)
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

    def _handle(self, session: Session, request: Request) -> None:
        if isinstance(request, Hello):
            self._greet(session, request)
        elif not session.greeted:
            raise BadMessageError("the first message of a session must be hello")
        else:
            self._requests.handle(session, request)

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
            self._requests.answer(session, request_id, outcome)

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
        waits = not session.flush()
        if session.writing != waits:
            session.writing = waits
            self._epoll.modify(session.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if waits else 0))

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

    def _process_ended(self, process_fd: int) -> None:
        self._epoll.unregister(process_fd)
        self._forget(self._gone.pop(process_fd))

    def _forget(self, session: Session) -> None:
        session.unwatch_process()
        self._store.end_session(session.number)

    def _wake(self) -> None:
        with self._waking:
            if self._wake_fd >= 0:  # an answer may come after the end; its descriptor may be another's by then
                os.eventfd_write(self._wake_fd, 1)
