"""The attach door: a Unix socket on which clients open and close weights. The connection is the session.

One thread serves all connections with epoll and never blocks: what takes time is the store's, whose answers come back
through a queue. Connections take turns: each has a few messages handled before the next one has, however many it sent.
A client can end its own session, never the daemon: whatever is wrong with what it sends, sends too slowly or does not
read becomes an error at most, and then its session ends. If the thread dies all the same, the daemon ends: a door that
is not served must not look open. Not covered: what requests mean and what is answered (`requests`), what waits to be
sent (`clients`).
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING

from trims.core.errors import (
    BadMessageError,
    CapacityError,
    InternalError,
    NotSupportedError,
    QuotaError,
    TrimsError,
    is_system_error,
)
from trims.core.place import CPU
from trims.daemon.clients import Connection, Unsent
from trims.daemon.listeners import Listener, listeners
from trims.daemon.requests import Requests
from trims.daemon.templates import ProgramTemplates
from trims.tenants import Tenants
from trims.wire.answers import PROTOCOL_VERSION, error_message, shortened
from trims.wire.frames import Message, encode
from trims.wire.messages import Forget, Hello, Program, Request, Template, Templates, parse_request
from trims.wire.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.core.lease import Lease
    from trims.daemon.budget import Budget
    from trims.store.pending_requests import Outcome
    from trims.store.store import Store
    from trims.tenants import Tenant

log = logging.getLogger(__name__)
_READ_BYTES = 8 << 10
#: Messages of one connection that are handled before the next connection has its turn.
_TURN = 2
#: Messages of a connection with a backlog that are handled in each round among such connections.
_ROUND = 4
#: Seconds from one such round to the next, if there are several such connections. Answers wake their processes; without
#: pauses those keep all processors busy, and clients that ask for one thing at a time wait for a processor.
_ROUND_S = 1e-3
#: Sockets looked at, and answers sent, before the rest of the loop has its turn.
_MOST_AT_ONCE = 64
#: Seconds for which the door polls busily after an answer: a client that was answered often asks again at once, and on
#: a virtual machine waking an idle processor takes longer than an answer.
_BUSY_POLL_S = 100e-6
#: Seconds until the door looks again for a descriptor, when it has none left to accept a client with.
_ACCEPT_PAUSE_S = 0.1
#: Seconds within which a client that has begun a frame must end it.
FRAME_TIMEOUT_S = 10.0
#: Answers a client may leave unread before its session ends.
MAX_UNREAD = 256


class AttachDoor:
    """Serves the attach door of one daemon.

    Args:
        path: Where the socket is made; an old one there is replaced (the daemon's lock says nothing serves it).
        mode: Permissions of the socket: which users may connect at all.
        boot: Identifies this life of the daemon.
        budget: One client more than its sessions is refused.
        tenants: Tenants that share the daemon; by default none.
        on_death: Called if the door's thread dies.
        template_bytes: Memory that the templates of programs may take.
        loaders: Whether programs of templates get the loaders that read through the store.

    Attributes:
        clients: How many clients each tenant has.
    """

    #: Bytes from which on sharing a file pays here, which sessions are greeted with; None if that is not known.
    _share_from: int | None = None

    def __init__(
        self,
        store: Store,
        path: Path,
        *,
        budget: Budget,
        mode: int = 0o600,
        boot: str = "",
        tenants: Tenants | None = None,
        on_death: Callable[[BaseException], None] = lambda _: None,
        template_bytes: int = 0,
        loaders: bool = True,
    ) -> None:
        self._store = store
        self._templates = ProgramTemplates(template_bytes, self._end_session, loaders=loaders)
        self._requests = Requests(store, self._send, self._answered)
        self.tenants = tenants or Tenants()
        self._path, self._mode, self._boot = path, mode, boot
        self._listeners: dict[int, Listener] = {}
        self.clients: Counter[str] = Counter()
        self._budget, self._on_death = budget, on_death
        self._connections: dict[int, Connection] = {}
        self._by_fd: dict[int, Connection] = {}
        #: Connections whose socket has closed and whose process may still read, by the process's descriptor.
        self._gone: dict[int, Connection] = {}
        self._partial: set[Connection] = set()
        #: Connections with messages in their inbox, in the order of their turns.
        self._waiting: deque[Connection] = deque()
        self._answers: deque[tuple[Connection, int, Outcome]] = deque()
        self._works: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._wake_fd = self._spare_fd = -1
        self._accept_at_s: float | None = None
        #: Time at which the next round among connections with a backlog may begin.
        self._round_at_s = 0.0
        self._waking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="trims-attach-door", daemon=True)
        store.device_leases.subscribe_to_losses(self._lost)
        store.subscribe_to_upgrades(self._upgraded)

    def start(self) -> None:
        """Bind and begin to serve."""
        for listener in listeners(self._path, self._mode, self.tenants.by_name.values()):
            listener.open()
            self._listeners[listener.sock.fileno()] = listener
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._spare_fd = _spare()
        self._epoll = select.epoll()
        for fd in self._listeners:
            self._epoll.register(fd, select.EPOLLIN)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._thread.start()

    def publish_again(self) -> list[str]:
        """Bind a new socket for each that has lost its name; return those names. Sessions go on.

        Not to be called in the door's own thread.
        """
        lost = [listener for listener in list(self._listeners.values()) if not listener.name.is_there()]
        for listener in lost:
            listener.bind_again()
            self.run(partial(self._replace, listener))
        return [str(listener.name.path) for listener in lost]

    def _replace(self, listener: Listener) -> None:
        """Serve a listener's new socket in place of its old one, once those that connected to that are let in."""
        self._accept(listener)
        self._epoll.unregister(listener.sock.fileno())
        del self._listeners[listener.sock.fileno()]
        listener.take_new()
        self._listeners[listener.sock.fileno()] = listener
        self._epoll.register(listener.sock.fileno(), select.EPOLLIN)

    def stop(self) -> None:
        """End every session and remove the socket."""
        self._stopping = True
        self._wake()
        self._thread.join()
        with self._waking:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` in the door's own thread, soon.

        What ends a lease belongs there: so none ends between its grant and the moment its descriptor has left.
        """
        self._works.append(work)
        self._wake()

    def renew_tenants(self, found: Tenants) -> None:
        """Take over who belongs to which tenant, and what each may open. Called in the door's own thread."""
        self.tenants = self.tenants.renewed(found)
        holders: list[Listener | Connection] = [*self._listeners.values(), *self._connections.values()]
        for each in holders:
            if each.tenant is not None:
                each.tenant = self.tenants.by_name[each.tenant.name]

    def renew_share_from(self, nbytes: int | None) -> None:
        """Greet sessions from now on with the bytes from which on sharing a file pays. In the door's own thread."""
        self._share_from = nbytes

    def connections(self) -> list[Connection]:
        """Return the clients that are connected now."""
        return list(self._connections.values())

    # -- the loop --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            log.critical("the attach door has died; the daemon ends", exc_info=error)
            self._on_death(error)
        finally:
            self._close()

    def _serve(self) -> None:
        while not self._stopping:
            for fd, events in self._next_events():
                if connection := self._by_fd.get(fd):
                    self._guarded(connection, partial(self._serve_socket, events=events))
                elif fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif fd == self._wake_fd:
                    os.eventfd_read(fd)
                elif fd in self._gone:
                    self._process_ended(fd)
            self._serve_backlogs()
            self._do_works()
            self._send_answers()
            self._end_slow()
            self._accept_again()

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            self._end(connection, "the daemon is shutting down")
        for connection in self._gone.values():
            self._forget(connection)
        self._epoll.close()
        for listener in self._listeners.values():
            listener.close()
        if self._spare_fd >= 0:
            os.close(self._spare_fd)

    def _guarded(self, connection: Connection, serve: Callable[[Connection], None]) -> None:
        """Serve one connection: whatever its client provokes ends its session at most and must not reach the others."""
        try:
            serve(connection)
        except BadMessageError as error:
            self._end_with_error(connection, error)
        except Exception as error:
            if is_system_error(error):
                return self._end(connection, str(error))
            log.exception("serving session %d failed", connection.number)
            self._end_with_error(connection, InternalError("the daemon failed on this session; see its log"))

    def _do_works(self) -> None:
        while self._works:
            try:
                self._works.popleft()()
            except Exception:
                log.exception("what was to be done in the door's thread failed")  # the door stays open

    def _next_events(self) -> list[tuple[int, int]]:
        if self._answers or self._works:
            return self._epoll.poll(0, _MOST_AT_ONCE)
        if self._waiting:
            return self._epoll.poll(max(0.0, self._round_at_s - time.perf_counter()), _MOST_AT_ONCE)
        until_s = time.perf_counter() + _BUSY_POLL_S
        while time.perf_counter() < until_s:
            if events := self._epoll.poll(0, _MOST_AT_ONCE):
                return events
        return self._epoll.poll(_ACCEPT_PAUSE_S if self._accept_at_s else 1.0, _MOST_AT_ONCE)

    # -- clients come ----------------------------------------------------------------------------------------------

    def _accept(self, listener: Listener) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                sock, _ = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._accept_without_descriptor(listener, error)
                return
            if len(self._connections) >= self._budget.sessions:
                limits = f"{self._budget.sessions} sessions at once with {self._budget.limit} open files"
                self._turn_away(sock, _no_more_sessions(f"this daemon serves {limits}, and all are taken"))
            else:
                self._begin(sock, listener)

    def _begin(self, sock: socket.socket, listener: Listener) -> None:
        sock.setblocking(False)
        try:
            peer = Peer.of(sock)
            tenant = self.tenants.of_user(peer.uid) if listener.tenant is None else listener.tenant
            if listener.tenant is not None:
                self.tenants.check_user(listener.tenant, peer.uid)
            self._count(tenant)
        except OSError as error:
            if isinstance(error, TrimsError):
                self._turn_away(sock, error)
                return
            log.debug("a client went away while it connected: %s", error)
            sock.close()
            return
        except TrimsError as error:
            self._turn_away(sock, error)
            return
        connection = Connection(self._store.begin_session(), sock, peer, tenant)
        self._connections[connection.number] = connection
        connection.partial_since_s = time.monotonic()
        self._partial.add(connection)  # until it has said hello
        self._by_fd[sock.fileno()] = connection
        connection.interest = select.EPOLLIN
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _count(self, tenant: Tenant | None) -> None:
        """Count a new client. Raises QuotaError if its tenant has as many as it may."""
        if tenant is None:
            return
        share = self._budget.sessions // (len(self.tenants.by_name) + 1)
        most = share if tenant.sessions is None else tenant.sessions
        if self.clients[tenant.name] >= most:
            raise QuotaError(
                f"tenant {tenant.name!r} has {most} sessions, as many as it may; close some, or set its `sessions` in "
                f"the daemon's tenants file"
            )
        self.clients[tenant.name] += 1

    def _accept_without_descriptor(self, listener: Listener, error: OSError) -> None:
        """Let one client in by the spare descriptor, only to report why it cannot stay; then pause.

        The client that cannot be let in stays in the listener's queue, which is therefore not polled for a while: it
        would be ready all the time.
        """
        log.warning("a client cannot be let in: %s", error)
        if error.errno in (errno.EMFILE, errno.ENFILE) and self._spare_fd >= 0:
            os.close(self._spare_fd)
            self._spare_fd = -1
            try:
                why = f"this daemon has no descriptor left ({error.strerror})"
                self._turn_away(listener.sock.accept()[0], _no_more_sessions(why))
            except OSError as again:
                log.warning("nor could a client be told so: %s", again)
            self._spare_fd = _spare()
        for fd in self._listeners:
            self._epoll.modify(fd, 0)
        self._accept_at_s = time.monotonic() + _ACCEPT_PAUSE_S

    def _accept_again(self) -> None:
        if self._accept_at_s is not None and time.monotonic() >= self._accept_at_s:
            self._accept_at_s = None
            if self._spare_fd < 0:
                self._spare_fd = _spare()
            for fd in self._listeners:
                self._epoll.modify(fd, select.EPOLLIN)

    def _turn_away(self, sock: socket.socket, error: TrimsError) -> None:
        self._store.counters["sessions_refused"] += 1
        with sock:
            _send_last(sock, error_message(error, None))

    # -- clients ask -----------------------------------------------------------------------------------------------

    def _serve_socket(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(connection)
        if events & ~select.EPOLLOUT and not connection.over:  # a hang-up is read as the end
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._end(connection, "closed by the client")
            return
        connection.inbox.extend(connection.decoder.feed(data))
        self._note_partial(connection)
        self._take_turn(connection)

    def _note_partial(self, connection: Connection) -> None:
        if not connection.decoder.partial:
            if connection.greeted:
                self._partial.discard(connection)
        elif connection not in self._partial:
            self._partial.add(connection)
            connection.partial_since_s = time.monotonic()

    def _serve_backlogs(self) -> None:
        """Serve a round among the connections that have sent more than was handled: a turn for each."""
        if not self._waiting or (now_s := time.perf_counter()) < self._round_at_s:
            return
        self._round_at_s = now_s + _ROUND_S if len(self._waiting) > 1 else 0.0
        for _ in range(min(len(self._waiting), _MOST_AT_ONCE)):
            connection = self._waiting.popleft()
            connection.queued = False
            if not connection.over:
                self._guarded(connection, partial(self._take_turn, most=_ROUND))

    def _take_turn(self, connection: Connection, most: int = _TURN) -> None:
        """Handle a few messages. A connection that has more waits for the next round, and is not read meanwhile."""
        for _ in range(min(most, len(connection.inbox))):
            self._handle(connection, parse_request(connection.inbox.popleft()))
            if connection.over:
                return
        self._send_answers()
        if connection.over:
            return
        if connection.inbox and not connection.queued:
            connection.queued = True
            self._waiting.append(connection)
        self._poll_for(connection)

    def _poll_for(self, connection: Connection) -> None:
        """Poll a socket for what it can be served: more to read once its inbox is empty, room for what is unsent."""
        interest = 0 if connection.inbox else select.EPOLLIN
        if connection.unsent:
            interest |= select.EPOLLOUT
        if interest != connection.interest:
            connection.interest = interest
            self._epoll.modify(connection.sock.fileno(), interest)

    def _end_slow(self) -> None:
        now_s = time.monotonic()
        for connection in list(self._partial):
            if connection.inbox:  # it has a backlog, and is not read: the rest may have come
                connection.partial_since_s = now_s
            elif now_s - connection.partial_since_s > FRAME_TIMEOUT_S:
                what = "a frame was begun and not ended" if connection.greeted else "hello was not said"
                error = BadMessageError(f"{what} within {FRAME_TIMEOUT_S:.0f} s")
                self._end_with_error(connection, error)

    def _handle(self, connection: Connection, request: Request) -> None:
        if isinstance(request, Hello):
            self._greet(connection, request)
        elif not connection.greeted:
            raise BadMessageError("the first message of a session must be hello")
        elif isinstance(request, Program | Template | Templates | Forget):
            self._send(connection, self._templates.answer(connection, request))
        else:
            self._requests.handle(connection, request)

    def _greet(self, connection: Connection, hello: Hello) -> None:
        if connection.greeted:
            raise BadMessageError("hello comes once")
        if hello.protocol != PROTOCOL_VERSION:
            error = NotSupportedError(
                f"the client speaks protocol {hello.protocol}, this daemon {PROTOCOL_VERSION}; install the same trims"
            )
            self._end_with_error(connection, error)
            return
        connection.greeted, connection.agent = True, hello.agent
        if not connection.decoder.partial:
            self._partial.discard(connection)
        greeting = {"protocol": PROTOCOL_VERSION, "boot": self._boot, "session": connection.number}
        self._send(connection, greeting if self._share_from is None else {**greeting, "share_from": self._share_from})

    # -- answers ---------------------------------------------------------------------------------------------------

    def _answered(self, connection: Connection, request_id: int, outcome: Outcome) -> None:
        """Queue an answer, from any thread; the door's own sends it, so that no lease ends between grant and send."""
        self._answers.append((connection, request_id, outcome))
        if threading.current_thread() is not self._thread:
            self._wake()

    def _send_answers(self) -> None:
        for _ in range(min(len(self._answers), _MOST_AT_ONCE)):
            connection, request_id, outcome = self._answers.popleft()
            if not connection.over:  # else its leases have been closed with it
                self._guarded(connection, partial(self._requests.answer, request_id=request_id, outcome=outcome))

    def _lost(self, lease: Lease, reason: str) -> None:
        """Notify a session that a lease of its has ended."""
        if threading.current_thread() is not self._thread:
            self.run(lambda: self._lost(lease, reason))
            return
        if connection := self._connections.get(lease.session):
            self._send(connection, {"event": "lost", "lease": lease.number, "message": shortened(reason)})

    def _upgraded(self, session: int, key: str) -> None:
        """Notify a session that an image it reads from disk lies in shared memory, too."""
        if threading.current_thread() is not self._thread:
            self.run(lambda: self._upgraded(session, key))
            return
        if connection := self._connections.get(session):
            self._send(connection, {"event": "upgrade", "key": key, "place": str(CPU)})

    def _send(self, connection: Connection, message: Message, *fds: int) -> None:
        unsent = Unsent(encode(message), fds)
        connection.unsent.append(unsent)
        if len(connection.unsent) > MAX_UNREAD:
            self._end(connection, f"more than {MAX_UNREAD} answers unread")
            return
        try:
            if len(connection.unsent) == 1:
                self._flush(connection)
            unsent.keep()
        except OSError as error:
            self._end(connection, str(error))

    def _flush(self, connection: Connection) -> None:
        connection.flush()
        self._poll_for(connection)

    def _end_with_error(self, connection: Connection, error: TrimsError) -> None:
        """Send the client the error, if it listens, and end its session."""
        if not connection.over:
            _send_last(connection.sock, error_message(error, None))
            self._end(connection, str(error))

    def _end(self, connection: Connection, why: str) -> None:
        if connection.over:
            return
        connection.over = True
        if connection.tenant is not None:
            self.clients[connection.tenant.name] -= 1
        del self._connections[connection.number]
        self._templates.session_ended(connection.number)
        self._partial.discard(connection)
        connection.inbox.clear()
        while connection.unsent:
            connection.unsent.popleft().let_go()
        del self._by_fd[connection.sock.fileno()]
        self._epoll.unregister(connection.sock.fileno())
        connection.sock.close()
        log.debug("session %d of process %d ended: %s", connection.number, connection.peer.pid, why)
        if connection.process_fd >= 0 and not self._stopping:
            self._gone[connection.process_fd] = connection
            self._epoll.register(connection.process_fd, select.EPOLLIN)
        else:
            self._forget(connection)

    def _end_session(self, number: int, why: str) -> None:
        if connection := self._connections.get(number):
            self._end(connection, why)

    def _process_ended(self, process_fd: int) -> None:
        self._epoll.unregister(process_fd)
        self._forget(self._gone.pop(process_fd))

    def _forget(self, connection: Connection) -> None:
        connection.unwatch_process()
        self._store.end_session(connection.number)

    def _wake(self) -> None:
        with self._waking:
            if self._wake_fd >= 0:  # an answer may come after the end; its descriptor may be another's by then
                os.eventfd_write(self._wake_fd, 1)


def _no_more_sessions(why: str) -> CapacityError:
    remedy = "close sessions, or raise max_sessions and the daemon's limit of files (`ulimit -n`, LimitNOFILE=)"
    return CapacityError(f"{why}; {remedy}")


def _spare() -> int:
    """Return a descriptor to let go of when there is no other; -1 if there is none even for that."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _send_last(sock: socket.socket, message: Message) -> None:
    """Send a message that ends a session, if the client takes it at once."""
    try:
        sock.send(encode(message), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except OSError as error:
        log.debug("a client did not hear why its session ends: %s", error)
