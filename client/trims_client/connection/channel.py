"""One connection to an attach door: requests out, answers and descriptors in. Standard library only.

Several threads may send requests at once. One of the threads that wait for an answer reads the socket for all of them.
So a thread that waits for a cold load does not delay another thread's warm open, and the client needs no extra thread
to read. Not covered: reconnecting (`connection`).
"""

from __future__ import annotations

# The C module under `socket`. The wrapper's enums and selectors would be a quarter of what a cold start imports for
# this package, and nothing in them is used here.
import _socket as socket
import itertools
import os
import threading
import time
from collections import deque

from trims.core.errors import BadMessageError, DeadlineError, LostPeerError, TrimsError
from trims.wire.answers import PROTOCOL_VERSION, raise_if_error
from trims.wire.frames import Decoder, Message, encode
from trims_client import forks
from trims_client.connection.sockets import (
    LOST,
    connect,
    explained,
    left,
    no_descriptors,
    passed,
    peer_uid,
    receive,
    send,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Seconds to poll for an answer before the thread sleeps. A warm open is answered within this time; on a virtual
#: machine sleeping and waking would take longer.
_BUSY_POLL_S = 200e-6
#: Numbers of a grant for each of its pages: offset in the image, length in bytes, offset in the file.
_NUMBERS_OF_PAGES = 3
#: Marks an answer whose descriptors were lost.
_UNUSABLE = "unusable"


class _Slot:
    """Receives the answer to one request."""

    __slots__ = ("answer", "fd", "forgotten", "number")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.answer: Message | None = None
        self.fd = -1
        self.forgotten = False


class Channel:
    """A connected attach door.

    A child of `os.fork` closes its copy of the socket at once, so that the daemon notices the end of the parent. In the
    child the channel is broken. A fork in C code, below Python, cannot be detected: such a child keeps the connection
    open, and with it the leases, until the child ends.

    Args:
        path: The socket. Raises DaemonAwayError naming it if no daemon listens, CapacityError if this process has no
            descriptor left.
        agent: The name of this client in `trims ps`.

    Attributes:
        boot: Identifies one run of the daemon; empty before its greeting.
        daemon_uid: The user that the daemon runs as, as the kernel reports it.
        events: Messages that the daemon sent without a request, in order of arrival. The reading thread appends, the
            session takes them out.
        owed: Numbers of leases of this connection that are to be given back. Finalisers append to it, and a finaliser
            must not take a lock.
        heard: Number of reads that brought data.
        silent_since: Value of `heard` when the daemon last failed to confirm a close in time.
        refused: Whether the daemon ended the session by an error.
    """

    def __init__(self, path: str, agent: str) -> None:
        self.path = path
        self._make_locks()
        self._broken: Exception | None = None
        self._fds: deque[int] = deque()
        try:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise explained(error, f"the daemon at {path} cannot be asked") from error
        forks.adapt_in_children(self)
        connect(self._sock, path)
        self.daemon_uid = peer_uid(self._sock)
        self._decoder = Decoder()
        self.events: deque[Message] = deque()
        self.owed: deque[int] = deque()
        self._slots: dict[int, _Slot] = {}
        self._numbers = itertools.count(1)
        #: Id of the thread that reads for all threads; 0 if none does.
        self._reading = 0
        self._refusal: Message | None = None
        self._unsent_hello = encode({"op": "hello", "protocol": PROTOCOL_VERSION, "agent": agent})
        self.boot = ""
        #: Bytes from which on sharing a file pays on this host; 0 if the daemon has not said.
        self.share_from = 0
        self.heard = 0
        self.silent_since = -1

    def _make_locks(self) -> None:
        """Make locks that a signal handler may interrupt anywhere: its exception must leave none of them taken.

        `with` takes `_lock` in one step; the methods of a Condition and `acquire` do not, so what they took is found
        by its owner.
        """
        self._lock = threading.RLock()
        self._turn = threading.Condition(self._lock)
        self._sending = threading.RLock()

    @property
    def broken(self) -> bool:
        """Return whether the connection has ended."""
        return self._broken is not None

    @property
    def refused(self) -> bool:
        """Return whether the daemon has ended this session by an error."""
        return self._refusal is not None

    @property
    def silent(self) -> bool:
        """Return whether the daemon failed to confirm a close in time and has sent nothing since."""
        return self.silent_since == self.heard

    def fileno(self) -> int:
        """Return the socket's descriptor, to poll for a hang-up."""
        return self._sock.fileno()

    def read_to_end(self) -> None:
        """Return when the channel is broken. For a thread that knows that the peer has hung up.

        Messages that the peer sent before may still be unread, so the channel must not be declared broken before they
        are read. They are read by the thread that is reading already, or else by the caller, for all threads.
        """
        while self._broken is None:
            with self._lock:
                if self._reading:
                    self._turn.wait()
                    continue
            self._lead(None)

    def read_arrived(self) -> None:
        """Read data that has arrived, unless another thread is reading: it may contain events. Never waits."""
        with self._lock:
            if self._reading or self._broken is not None:
                return
        self._lead(None, socket.MSG_DONTWAIT)

    def request(
        self, message: Message, timeout_s: float | None = None, *, said: Callable[[], str] | None = None
    ) -> tuple[Message, int]:
        """Ask and wait for the answer.

        Args:
            message: The request, without `id`.
            timeout_s: Seconds to wait. The daemon enforces deadlines itself; this guards against a daemon that hangs.
            said: Returns the end of the error message that begins with "the daemon did not answer".

        Returns:
            The answer, and the descriptor that came with it (owned by the caller) or -1. In a grant with `pages`, these
            are tuples that begin with a descriptor each, owned by the caller, too.

        Raises:
            TrimsError: The error the daemon answered with.
            CapacityError: This process has no room for the descriptors of the answer; a lease in it is given back.
            LostPeerError: The connection ended.
            DeadlineError: No answer in time.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        slot = self.ask(message, until_s)
        if slot is None or not self.answered(slot, until_s):
            late = f"within {timeout_s or 0:g} s" if said is None else said()
            raise DeadlineError(f"the daemon at {self.path} did not answer {late}")
        assert slot.answer is not None, "`answered` says so"
        if slot.answer.get(_UNUSABLE):
            error = no_descriptors()
            raise explained(error, f"an answer of the daemon at {self.path} was lost") from error
        try:
            return raise_if_error(slot.answer), slot.fd
        except BaseException:
            _close(slot.fd)
            raise

    def ask(self, message: Message, until_s: float | None) -> _Slot | None:
        """Send a request. Return None if the socket had no room for it before `until_s` (monotonic clock)."""
        slot = _Slot(next(self._numbers))
        with self._lock:
            self._slots[slot.number] = slot
        try:
            if self._send({**message, "id": slot.number}, until_s):
                return slot
        except BaseException:
            self._let_go()
            self._forget(slot)
            raise
        self._forget(slot, sent=False)
        return None

    def answered(self, slot: _Slot, until_s: float | None) -> bool:
        """Wait for the answer. Return False if it is late; a late grant is given back. Raises LostPeerError."""
        try:
            if self._await(slot, until_s):
                return True
        except BaseException:
            self._let_go()
            self._forget(slot)
            raise
        self._forget(slot)
        return False

    def notify(self, message: Message, until_s: float | None = None) -> bool:
        """Send a message that gets no answer. Return False if the socket had no room before `until_s`: nothing is sent.

        A hang-up of the peer is not noticed here.
        """
        try:
            return self._send(message, until_s)
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Give up what this thread has taken. For an exception of a signal handler that came in a `finally`."""
        while self._sending._is_owned():  # type: ignore[attr-defined]
            self._sending.release()
        if self._reading == threading.get_ident():
            self._hand_over()

    def close(self) -> None:
        """End the connection, and with it the session. Idempotent."""
        with self._lock:
            self._break(LostPeerError("the session was closed"))
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._sock.close()

    def after_fork(self) -> None:
        """Close this copy of the socket in a forked child, without sending anything. The connection is the parent's."""
        self._make_locks()
        self._sock.close()
        self._break(LostPeerError(f"the connection to the daemon at {self.path} belongs to the process that forked"))

    def _send(self, message: Message, until_s: float | None) -> bool:
        """Send a message.

        Return False if there was no room before `until_s`. Only reading notices the connection's end.
        """
        data = encode(message)
        if self._sending._is_owned():  # type: ignore[attr-defined] # a finaliser, or a signal handler, in this thread's own send
            return False
        try:
            if not self._sending.acquire(timeout=-1 if until_s is None else max(0.0, until_s - time.monotonic())):
                return False
            if not send(self._sock, self._unsent_hello + data, until_s):
                return False
            self._unsent_hello = b""
        except (BrokenPipeError, ConnectionResetError):
            return True  # the daemon hung up, but messages that it sent before may still be unread
        except OSError as error:
            self._lost(error)
        except BaseException as error:  # from a signal handler: whether the message was sent is not known
            self._lost(error)
            raise
        finally:
            if self._sending._is_owned():  # type: ignore[attr-defined]
                self._sending.release()
        return True

    def _await(self, slot: _Slot, until_s: float | None) -> bool:
        while True:
            with self._lock:
                if slot.answer is not None:
                    return True
                if self._broken is not None:
                    self._raise_if_refused()
                    raise LostPeerError(str(self._broken))
                if passed(until_s):
                    return False
                if self._reading:
                    self._turn.wait(left(until_s))
                    continue
            self._lead(until_s)

    def _lead(self, until_s: float | None, how: int = 0) -> None:
        """Read once, for all threads, unless another thread has begun to.

        If the connection ends, `_await` raises that in each thread without an answer. An exception from a signal
        handler ends the connection, too: what was being read may be lost with it.
        """
        own = threading.get_ident()
        try:
            with self._lock:
                if self._reading:
                    return
                self._reading = own
            if how or not self._read_soon():
                self._read(how, until_s)
        except BlockingIOError:
            return  # `until_s` has passed, or nothing has arrived
        except (OSError, BadMessageError) as error:
            self._lost(error)
        except BaseException as error:
            self._lost(error)
            raise
        finally:
            if self._reading == own:
                self._hand_over()

    def _hand_over(self) -> None:
        """Let another thread read."""
        with self._lock:
            self._reading = 0
            self._turn.notify_all()

    def _read_soon(self) -> bool:
        """Poll for the time of a warm answer instead of sleeping, and read what arrives.

        Return whether anything did.
        """
        until_s = time.perf_counter() + _BUSY_POLL_S
        while time.perf_counter() < until_s:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                os.sched_yield()
            else:
                return True
        return False

    def _read(self, how: int, until_s: float | None = None) -> None:
        data = receive(self._sock, self._fds, how, until_s)
        self.heard += 1
        for message in self._decoder.feed(data):
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        number = message.get("id")
        if number is None:
            self._about_the_session(message)
            return
        if type(number) is not int:
            raise BadMessageError(f"an answer has the id {number!r}"[:200])
        pages = _checked_pages(message)
        # Descriptors arrive in the order of the answers they belong to, never later than their frame.
        fd = self._next_fd() if "lease" in message or message.get("descriptor") else -1
        if pages:
            message["pages"] = [(self._next_fd(), *part) for part in pages]
        if self._lost_some(message, fd):
            self._give_back(message, fd)
            message, fd = {_UNUSABLE: True}, -1
        with self._lock:
            slot = self._slots.pop(number, None)
            if slot is not None and not slot.forgotten:
                slot.answer, slot.fd = message, fd
                self._turn.notify_all()
                return
        self._give_back(message, fd)

    def _next_fd(self) -> int:
        return self._fds.popleft() if self._fds and self._fds[0] != LOST else -1

    def _lost_some(self, message: Message, fd: int) -> bool:
        """Return whether descriptors of this answer were lost on the way; remove the mark of that."""
        wanted = "lease" in message or message.get("descriptor")
        lacks = wanted and (fd < 0 or any(part[0] < 0 for part in message.get("pages", ())))
        if not lacks or not self._fds:
            return False
        self._fds.popleft()
        return True

    def _give_back(self, message: Message, fd: int) -> None:
        """Undo an answer that no thread waits for. A close that cannot be sent at once goes with the next one."""
        _close(fd)
        for part in message.get("pages", ()):
            _close(part[0])
        lease = message.get("lease")
        if type(lease) is not int:
            return
        # If the connection has ended, so has the lease: no error, as later messages must still be dispatched.
        if not self._send({"op": "close", "lease": lease}, 0.0):
            self.owed.append(lease)

    def _about_the_session(self, message: Message) -> None:
        if "event" in message:  # `losses` ignores the kinds that this version does not know
            self.events.append(message)
            return
        if "protocol" in message:
            self.boot = str(message.get("boot", ""))
            if type(message.get("share_from")) is int:
                self.share_from = message["share_from"]
            return
        try:
            raise_if_error(message)
        except BadMessageError:
            raise  # one side broke the protocol: nothing that follows can be understood
        except TrimsError as error:
            with self._lock:
                self._refusal = message
                self._break(error)

    def _raise_if_refused(self) -> None:
        """Raise the error that ended the session in every waiting thread, not only in the one that read it."""
        if self._refusal is None:
            return
        try:
            raise_if_error(self._refusal)
        except TrimsError as error:
            error.ends_session = True  # type: ignore[attr-defined]
            raise

    def _forget(self, slot: _Slot, *, sent: bool = True) -> None:
        with self._lock:
            slot.forgotten = True
            if self._broken is not None or not sent:
                self._slots.pop(slot.number, None)
        if slot.answer is not None:  # it came after the last check
            self._give_back(slot.answer, slot.fd)

    def _lost(self, error: BaseException) -> None:
        with self._lock:
            self._break(
                LostPeerError(
                    f"the connection to the daemon at {self.path} ended: {str(error) or type(error).__name__}"
                )
            )

    def _break(self, error: Exception) -> None:
        self._broken = self._broken or error
        while self._fds:
            _close(self._fds.popleft())
        with self._lock:
            self._turn.notify_all()


def ends_session(error: TrimsError) -> bool:
    """Return whether the daemon ended the session by this error. Then the error is not about the request."""
    return getattr(error, "ends_session", False)


def _checked_pages(message: Message) -> list[list[int]]:
    """Return the pages of files in a grant. Raises BadMessageError if they are not described by three numbers each."""
    found: Any = message.get("pages", [])
    described = isinstance(found, list) and all(
        isinstance(part, list) and len(part) == _NUMBERS_OF_PAGES and all(type(each) is int for each in part)
        for part in found
    )
    if not described:
        raise BadMessageError(f"the daemon granted pages that it describes as {found!r}"[:200])
    pages: list[list[int]] = found
    return pages


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
