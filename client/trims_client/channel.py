"""One connection to an attach door: requests out, answers and descriptors in. Standard library only.

Several threads may ask at once. Whoever waits and finds nobody reading reads for all; so a thread that waits for a
cold load does not hold up another's warm open, and no thread of our own is needed. Not covered: reconnecting
(`session`).
"""

from __future__ import annotations

# The C module under `socket`: the wrapper's enums and selectors would be a quarter of what a cold start imports of us,
# and nothing of it is used here.
import _socket as socket
import itertools
import os
import struct
import threading
import time
from collections import deque

from trims.core.errors import BadMessageError, DaemonAwayError, DeadlineError, LostPeerError, TrimsError
from trims.wire.answers import PROTOCOL_VERSION, raise_if_error
from trims.wire.frames import Decoder, Message, encode

_READ_BYTES = 64 << 10
#: A warm open is answered within this; going to sleep and being woken would take longer on a virtual machine.
_LINGER_S = 200e-6
_MAX_FDS = 64
_UCRED = struct.Struct("3i")
_FD = struct.Struct("i")
_TIMEVAL = struct.Struct("ll")
_ANCILLARY = socket.CMSG_SPACE(_MAX_FDS * _FD.size)


class _Slot:
    """Where one request's answer will lie."""

    __slots__ = ("answer", "fd", "forgotten")

    def __init__(self) -> None:
        self.answer: Message | None = None
        self.fd = -1
        self.forgotten = False


class Channel:
    """A connected attach door.

    Args:
        path: The socket. Raises DaemonAwayError naming it if nobody listens.
        agent: How this client calls itself in `trims ps`.
    """

    def __init__(self, path: str, agent: str) -> None:
        self.path = path
        self._sock = _connect(path)
        self._decoder = Decoder()
        self._fds: deque[int] = deque()
        #: What the daemon said on its own, for whoever takes it out; filled by who reads, in the order it came.
        self.events: deque[Message] = deque()
        self._slots: dict[int, _Slot] = {}
        self._numbers = itertools.count(1)
        self._turn = threading.Condition()
        self._sending = threading.Lock()
        self._reading = False
        self._broken: Exception | None = None
        self._refusal: Message | None = None
        self._unsent_hello = encode({"op": "hello", "protocol": PROTOCOL_VERSION, "agent": agent})
        self.boot = ""

    @property
    def daemon_uid(self) -> int:
        """The user the daemon runs as, as the kernel tells it."""
        credentials = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(credentials)[1])

    @property
    def broken(self) -> bool:
        """True once the connection has ended."""
        return self._broken is not None

    def fileno(self) -> int:
        """The socket's descriptor, for whoever polls for its end."""
        return self._sock.fileno()

    def read_to_end(self) -> None:
        """Return when the channel is broken. For whoever knows that the peer has hung up: it waits for nothing else.

        What the peer said before may lie unread, so the end must be found by reading, in its turn: by who reads
        already, or by the caller, for all.
        """
        while self._broken is None:
            with self._turn:
                if self._reading:
                    self._turn.wait()
                    continue
                self._reading = True
            self._lead(None, None)

    def read_arrived(self) -> None:
        """Read what has come, if nobody reads: an event comes when nobody has asked for anything. Waits for nothing."""
        with self._turn:
            if self._reading or self._broken is not None:
                return
            self._reading = True
        try:
            self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (OSError, BadMessageError) as error:
            self._lost(error)
        finally:
            self._hand_over()

    def request(self, message: Message, timeout_s: float | None = None) -> tuple[Message, int]:
        """Ask and wait for the answer.

        Args:
            message: Without `id`.
            timeout_s: Seconds to wait; the daemon keeps deadlines itself, this guards against a daemon that hangs.

        Returns:
            The answer, and the descriptor that came with it (owned by the caller) or -1.

        Raises:
            TrimsError: The error the daemon answered with.
            LostPeerError: The connection ended.
            DeadlineError: No answer in time.
        """
        number, slot = next(self._numbers), _Slot()
        with self._turn:
            self._slots[number] = slot
        try:
            self._send({**message, "id": number})
            self._await(slot, timeout_s)
        except BaseException:
            self._forget(number, slot)
            raise
        assert slot.answer is not None, "_await returns with an answer"
        try:
            return raise_if_error(slot.answer), slot.fd
        except BaseException:
            _close(slot.fd)
            raise

    def tell(self, message: Message) -> None:
        """Send without waiting for an answer; a peer that has hung up is not noticed. Raises LostPeerError."""
        self._send(message)

    def close(self) -> None:
        """End the connection, and with it the session. Idempotent."""
        with self._turn:
            self._break(LostPeerError("the session was closed"))
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._sock.close()

    def _send(self, message: Message) -> None:
        data = encode(message)
        with self._sending:
            data, self._unsent_hello = self._unsent_hello + data, b""
            try:
                self._sock.sendall(data, socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                return  # it hung up, and what it said before may lie unread: the end is found by reading
            except OSError as error:
                raise self._lost(error) from error

    def _await(self, slot: _Slot, timeout_s: float | None) -> None:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._turn:
                if slot.answer is not None:
                    return
                if self._broken is not None:
                    self._raise_if_refused()
                    raise LostPeerError(str(self._broken))
                if self._reading:
                    self._turn.wait(_left(until_s))
                    lead = False
                else:
                    lead = self._reading = True
            if until_s is not None and time.monotonic() >= until_s and not lead:
                raise DeadlineError(f"the daemon at {self.path} did not answer within {timeout_s:.1f} s")
            if lead:
                self._lead(until_s, timeout_s)

    def _lead(self, until_s: float | None, timeout_s: float | None) -> None:
        """Read once, for everybody. What ends the connection is told to each by `_await`, after his answer."""
        try:
            if not self._read_soon():
                # Not the socket's own timeout: it would hold for what others send, and for the next look without sleep.
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(_left(until_s)))
                self._read()
        except BlockingIOError:
            raise DeadlineError(f"the daemon at {self.path} did not answer within {timeout_s or 0:.1f} s") from None
        except (OSError, BadMessageError) as error:
            self._lost(error)
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        """Let others read."""
        with self._turn:
            self._reading = False
            self._turn.notify_all()

    def _read_soon(self) -> bool:
        """Read what comes within the time of a warm answer, without going to sleep for it; False if nothing came."""
        until_s = time.perf_counter() + _LINGER_S
        while time.perf_counter() < until_s:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                os.sched_yield()
            else:
                return True
        return False

    def _read(self, how: int = 0) -> None:
        data, ancillary, flags, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC | how)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._fds.extend(fd for (fd,) in _FD.iter_unpack(payload[: len(payload) // _FD.size * _FD.size]))
        if flags & socket.MSG_CTRUNC:
            raise BadMessageError("descriptors were lost on the way: this process has too many open files")
        if not data:
            raise ConnectionResetError("the daemon closed the connection")
        for message in self._decoder.feed(data):
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        number = message.get("id")
        if number is None:
            self._about_the_session(message)
            return
        if type(number) is not int:
            raise BadMessageError(f"an answer has the id {number!r}"[:200])
        # Descriptors arrive in the order of the answers they belong to, never later than their frame.
        takes = "lease" in message or message.get("descriptor")
        fd = self._fds.popleft() if takes and self._fds else -1
        with self._turn:
            slot = self._slots.pop(number, None)
            if slot is not None and not slot.forgotten:
                slot.answer, slot.fd = message, fd
                self._turn.notify_all()
                return
        self._give_back(message, fd)

    def _give_back(self, message: Message, fd: int) -> None:
        """An answer nobody waits for any more."""
        _close(fd)
        if "lease" in message:
            try:
                self._send({"op": "close", "lease": message["lease"]})
            except LostPeerError:
                return  # the lease ends with the connection; what was read after its grant is dispatched yet

    def _about_the_session(self, message: Message) -> None:
        if "event" in message:  # those that this client does not know are for later ones
            self.events.append(message)
            return
        if "protocol" in message:
            self.boot = str(message.get("boot", ""))
            return
        try:
            raise_if_error(message)
        except BadMessageError:
            raise  # ours or theirs: nothing more can be understood
        except TrimsError as error:
            with self._turn:
                self._refusal = message
                self._break(error)

    def _raise_if_refused(self) -> None:
        """Tell everybody who waits what only the one who read it knows."""
        if self._refusal is not None:
            raise_if_error(self._refusal)

    def _forget(self, number: int, slot: _Slot) -> None:
        with self._turn:
            slot.forgotten = True
            if self._broken is not None:
                self._slots.pop(number, None)
        if slot.answer is not None:  # it came between the last look and now
            self._give_back(slot.answer, slot.fd)

    def _lost(self, error: Exception) -> LostPeerError:
        lost = LostPeerError(f"the connection to the daemon at {self.path} ended: {error}")
        with self._turn:
            self._break(lost)
        return lost

    def _break(self, error: Exception) -> None:
        self._broken = self._broken or error
        while self._fds:
            os.close(self._fds.popleft())
        self._turn.notify_all()


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise DaemonAwayError(
            f"no daemon answers at {path} ({error.strerror}); start one with `trims serve`, or point "
            f"TRIMS_RUNTIME_DIR at the folder of one that runs"
        ) from error
    return sock


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def _left(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.001, until_s - time.monotonic())


def _timeval(seconds: float | None) -> bytes:
    """For SO_RCVTIMEO, where zero means none."""
    return _TIMEVAL.pack(*divmod(int((seconds or 0) * 1e6), 1_000_000))
