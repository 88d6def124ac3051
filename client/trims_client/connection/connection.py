"""A session's connection to the daemon: the current channel, and a new one after it has broken.

On a new channel the leases of all images that are still mapped are taken up before any other request: an open might
evict what this process reads. The daemon may hang meanwhile, so no lock is held that a close needs. A lease that it
cannot grant yet is asked for again later (`take_up_postponed`), so that no other request waits for that.
"""

from __future__ import annotations

import os
import threading
import time

from trims.core.errors import CallerError, ClosedError, DeadlineError, InUseError, LostPeerError, TrimsError
from trims_client import forks
from trims_client.connection.channel import Channel
from trims_client.mapping.mapped_image import Lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging

    from trims.wire.frames import Message
    from trims_client.mapping.mapped_image import MappedImage
    from trims_client.mapping.mappings import MappedImages

#: Seconds that the daemon may take for a request that it normally answers at once. The client also waits by them longer
#: than a deadline, which the daemon enforces.
GRACE_S = 5.0
#: Most seconds that a close waits for the daemon's confirmation.
SETTLE_S = 1.0
#: The longest deadline in seconds; daemons refuse more.
_LONGEST_S = 1e6


class Deadline:
    """The seconds that a user gives one call, for all its requests. Raises CallerError if they are out of range.

    Args:
        given_s: Seconds for the daemon's work; None for no limit.
        grace_s: Seconds that the daemon may take for its answer, once they are over; None for `GRACE_S`.
        answer_s: Seconds that it may take if there is no limit: for requests that are answered at once.
    """

    def __init__(
        self, given_s: float | None = None, *, grace_s: float | None = None, answer_s: float | None = None
    ) -> None:
        if given_s is not None and not 0 <= given_s <= _LONGEST_S:
            raise CallerError(f"deadline_s is {given_s!r}; it must be a number of seconds from 0 to {_LONGEST_S:,.0f}")
        self._until_s = None if given_s is None else time.monotonic() + given_s
        self._given_s = given_s
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._answer_s = answer_s

    def said(self) -> str:
        """Return the end of the error message that begins with "the daemon did not answer"."""
        if self._given_s is None:
            return f"within {self._answer_s or 0:g} s"
        return f"within the deadline of {self._given_s:g} s, nor in the {self._grace_s:g} s after it"

    @property
    def left_s(self) -> float | None:
        """Return the seconds left, to the millisecond; None if there is no deadline."""
        return None if self._until_s is None else round(max(0.0, self._until_s - time.monotonic()), 3)

    @property
    def timeout_s(self) -> float | None:
        """Return the seconds to wait for the daemon, which enforces the deadline itself; None for no limit."""
        left_s = self.left_s
        return self._answer_s if left_s is None else left_s + self._grace_s


class Connection:
    """Connects, reconnects, and gives leases back.

    Args:
        agent: The name of this client in `trims ps`.
        mappings: The images mapped here; its lock also guards the attributes of this object.

    Attributes:
        channel: The last channel that was ready for requests; None before the first, and after `close`.
    """

    def __init__(self, path: str, agent: str, mappings: MappedImages) -> None:
        self._path = path
        self._agent = agent
        self._mappings = mappings
        self._process = os.getpid()
        #: Lock of reconnecting: other threads with requests wait for it. A close needs only `mappings.lock`.
        self._connecting = threading.RLock()
        self._coming: Channel | None = None
        self.channel: Channel | None = None
        self.closed = False
        forks.adapt_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock in a forked child: the thread that held the lock does not exist there."""
        self._connecting = threading.RLock()

    @property
    def inherited(self) -> bool:
        """Return whether this is a forked child: the connection is the parent's."""
        return self._process != os.getpid()

    def begin(self) -> None:
        """Connect for the first time. Raises DaemonAwayError."""
        self.channel = Channel(self._path, self._agent)

    def live_channel(self, deadline: Deadline | None = None) -> Channel:
        """Return a channel for requests; make a new one if the old one broke.

        Args:
            deadline: Limits the wait for another thread that is reconnecting.

        Raises:
            ClosedError: The session was closed, or belongs to the parent of this process.
            DaemonAwayError, LostPeerError: The daemon is away, hangs or ends the connection.
            DeadlineError: The deadline passed.
            TrimsError: The error by which the daemon refuses the session, for example CapacityError.
        """
        channel = self._unbroken()
        if channel is not None:
            return channel
        try:
            return self._connect_in_turn(deadline)
        except BaseException:
            self._let_go()  # an exception of a signal handler may come anywhere, also in a `finally`
            raise

    def _connect_in_turn(self, deadline: Deadline | None) -> Channel:
        timeout_s = None if deadline is None else deadline.timeout_s
        try:
            if not self._connecting.acquire(timeout=-1 if timeout_s is None else timeout_s):
                raise DeadlineError(f"the daemon at {self._path} did not answer {deadline.said() if deadline else ''}")
            return self._unbroken() or self._connect_again()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Give up what this thread has taken, if it has."""
        while self._connecting._is_owned():  # type: ignore[attr-defined]
            self._connecting.release()

    def _unbroken(self) -> Channel | None:
        if self.inherited:
            raise ClosedError(
                f"this session belongs to process {self._process}, which forked; connect again in process {os.getpid()}"
            )
        with self._mappings.lock:
            if self.closed:
                raise ClosedError("this session is closed; connect again")
            return None if self.channel is None or self.channel.broken else self.channel

    def _connect_again(self) -> Channel:
        channel = Channel(self._path, self._agent)
        try:
            self._replace(channel)
            while batch := self._next_to_take_up(channel):
                for mapping in batch:
                    self._resume(channel, mapping)
        except BaseException:
            channel.close()
            raise
        finally:
            self._coming = None
        return channel

    def _replace(self, channel: Channel) -> None:
        """Forget the old connection's leases, which have ended. From now on `close` ends the new connection, too."""
        with self._mappings.lock:
            self._coming = channel
            if self.channel is not None:
                self.channel.close()
                self.hear(self.channel)  # its events name leases, so before those are forgotten
            self._mappings.lose_leases()

    def _next_to_take_up(self, channel: Channel) -> list[MappedImage]:
        """Return mappings without a lease on this channel. If there is none left, let all threads use the channel.

        Called in a loop, because another thread may map a late grant of the old connection meanwhile.
        """
        with self._mappings.lock:
            if self.closed:
                raise ClosedError("this session is closed; connect again")
            batch = self._mappings.to_take_up(channel)
            if not batch:
                self.channel = channel
            return batch

    def take_up(self, mapping: MappedImage) -> None:
        """Lease an image that was just mapped, if the connection that granted it has been replaced since."""
        with self._mappings.lock:
            channel = self.channel
            if channel is None or channel.broken or not mapping.ask_once(channel):
                return
        try:
            self._resume(channel, mapping)
        except TrimsError as error:  # the next connection takes it up
            log().info("a lease is not taken up yet: %s", error)

    def take_up_postponed(self) -> None:
        """Ask once more for the leases that could not be granted yet. Never raises."""
        for _ in range(len(self._mappings.postponed)):
            channel, mapping = self._mappings.postponed.popleft()
            if channel is not self.channel or channel.broken or not mapping.lacks_lease(channel):
                continue  # the next connection takes it up; or it was closed
            try:
                self._resume(channel, mapping, again=True)
            except TrimsError as error:
                log().info("a lease is not taken up yet: %s", error)

    def _resume(self, channel: Channel, mapping: MappedImage, *, again: bool = False) -> None:
        try:
            answer, fd = channel.request({"op": "resume", "key": mapping.key, "place": mapping.place}, GRACE_S)
        except DeadlineError as error:  # this daemon hangs; a new connection may reach one that does not
            channel.close()
            raise LostPeerError(str(error)) from error
        except InUseError as error:  # a new daemon does not know yet whether the bytes are right
            if not again:
                log().info("a lease is taken up later: %s", error)
            self._mappings.postponed.append((channel, mapping))
            return
        except TrimsError as error:
            if channel.broken:
                raise
            log().warning("the weights stay mapped, but without a lease: %s", error)
            return
        _keep(channel, mapping, answer, fd)

    def hear(self, channel: Channel) -> None:
        """Process the events that the daemon has sent without a request."""
        if channel.events:
            from trims_client.mapping import lost_leases

            lost_leases.hear(channel, self._mappings)

    def flush(self) -> None:
        """Send the closes of leases that were given up meanwhile, without waiting. Never raises."""
        channel = self.channel
        if channel is not None and not self.inherited:
            _give_back_owed(channel)

    def settle(self) -> None:
        """Send the closes, and wait up to about a second until the daemon has processed them. Never raises."""
        channel = self.channel
        if channel is None or channel.broken or self.inherited or not channel.owed:
            return
        try:
            _settle(channel)
        except TrimsError as error:
            log().debug("a lease ends with its session instead: %s", error)

    def close(self) -> None:
        """End the connection, and a new one that is being made. Idempotent."""
        with self._mappings.lock:
            self.closed = True
            ended, self.channel = [self.channel, self._coming], None
        for channel in ended:
            if channel is not None and not self.inherited:
                channel.close()


def _keep(channel: Channel, mapping: MappedImage, answer: Message, fd: int) -> None:
    """Hold the granted lease if it is for the memory that is mapped; otherwise give it back."""
    same = False
    if fd >= 0:
        status = os.fstat(fd)
        os.close(fd)
        same = (status.st_dev, status.st_ino) == mapping.identity
    if type(answer.get("lease")) is not int:
        return
    lease = Lease(channel, answer["lease"])
    if same:
        mapping.hold(lease)
    else:  # the same image in new memory: the store does not own the mapped memory any more
        lease.give_back()


def _give_back_owed(channel: Channel, until_s: float = 0.0) -> bool:
    """Send closes for the leases that are to be given back, without asking for answers.

    Args:
        channel: The connection that granted the leases.
        until_s: Until when to wait for room in the socket, in seconds of the monotonic clock. A time in the past means
            not to wait.

    Returns:
        False if some could not be sent by then; they stay in `owed` for the next call.
    """
    while channel.owed and not channel.broken:
        try:
            number = channel.owed.popleft()
        except IndexError:  # another thread was faster
            break
        if not channel.notify({"op": "close", "lease": number}, until_s):
            channel.owed.appendleft(number)
            return False
    return True


def _settle(channel: Channel) -> None:
    """Send the closes, and wait until the daemon has processed them, so that an immediate evict succeeds.

    Waits for `SETTLE_S` at most. After a wait without an answer, later calls do not wait until the daemon has sent
    something again: a stopped daemon would otherwise delay each of a thousand closes.

    Raises LostPeerError.
    """
    if channel.silent:
        channel.read_arrived()
    if channel.silent:
        _give_back_owed(channel)
        return
    try:
        last = channel.owed.pop()
    except IndexError:
        return
    heard, until_s = channel.heard, time.monotonic() + SETTLE_S
    asked = channel.ask({"op": "close", "lease": last}, until_s) if _give_back_owed(channel, until_s) else None
    if asked is None:
        channel.owed.append(last)  # it was not sent
    if asked is None or not channel.answered(asked, until_s):
        channel.silent_since = heard


def log() -> logging.Logger:
    """Return the logger. `logging` is imported on first use, to keep a cold start short."""
    import logging

    return logging.getLogger("trims_client.session")
