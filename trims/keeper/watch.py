"""Watches the keeper of one device for as long as the daemon lives: notices its end, and starts another keeper.

A keeper that does not answer for minutes, because it hangs in the driver or was stopped, is killed and replaced like
one that died: no new request could reach its images either way. Not covered: starting keepers (`launch`).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING

from trims.core.errors import CapacityError, DaemonAwayError, DeviceLostError, TrimsError
from trims.keeper.client import ANSWER_S, KeeperConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.keeper.client import KeeperState

log = logging.getLogger(__name__)
#: Tries before pauses grow. A keeper that is ending holds its lock for a second at most; these tries cover that.
_QUICK_TRIES = 8
_TRY_AGAIN_S = 0.25
_LONGEST_PAUSE_S = 10.0
#: Health check: seconds between checks, seconds to wait for an answer, and consecutive failures before the kill.
_ASK_EVERY_S = 10.0
_ANSWER_S = ANSWER_S
_MISSES = 3
#: A keeper that served for less than this is replaced after a pause: its device may be lost to the next one, too.
_SHORT_LIFE_S = 10.0
#: Most seconds that `end` waits for a search for a keeper.
_END_S = 5.0


class KeeperWatch:
    """The keeper of one device.

    Args:
        name: Name of the place, for messages.
        find: Returns the keeper's socket; starts a keeper if none serves. Raises TrimsError or OSError if it cannot.

    Attributes:
        state: The state of the present keeper when it was found. Its list of images is not updated.
    """

    def __init__(self, name: str, find: Callable[[], Path]) -> None:
        self._name = name
        self._find = find
        self._keeper, self._lifeline, self.state = self._found()
        self._asking: KeeperConnection | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        #: Reason why no other keeper has started; empty while one serves, and before the first failed try.
        self._why_away = ""
        self._lock = threading.Lock()

    def _found(self) -> tuple[Path, KeeperConnection, KeeperState]:
        keeper = self._find()
        connection = KeeperConnection(keeper)
        try:
            return keeper, connection, connection.hello()
        except BaseException:
            connection.close()
            raise

    def connect(self, answer_s: float = ANSWER_S) -> KeeperConnection:
        """Return a new connection to the keeper, on which each answer must come within `answer_s` seconds.

        Raises DeviceLostError if the keeper has ended, CapacityError if this process has no descriptor left.
        """
        try:
            return KeeperConnection(self._keeper, answer_s=answer_s, traces=self.state.traces)
        except DaemonAwayError as error:
            hope = f"no other keeper starts: {self._why_away}" if self._why_away else f"another one is started: {error}"
            raise DeviceLostError(f"the keeper of {self._name} has ended, and {hope}") from error

    def start(self, lost: Callable[[], None], back: Callable[[], None]) -> None:
        """Watch the keeper from now on. Both callbacks run in the watch thread.

        Args:
            lost: Called once for each keeper that ends, within seconds: its images are gone.
            back: Called once after each `lost`, when another keeper serves.
        """
        self._thread = threading.Thread(target=self._watch, args=(lost, back), name=f"trims-{self._name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching: no callback is called any more. Idempotent."""
        with self._lock:
            self._ended.set()
            self._lifeline.interrupt()
            if self._asking is not None:
                self._asking.interrupt()
        if self._thread is not None:
            self._thread.join(_END_S)
            if self._thread.is_alive():
                log.warning("the search for a keeper of %s still runs; it ends with this process", self._name)
                return
        self._lifeline.close()

    def _watch(self, lost: Callable[[], None], back: Callable[[], None]) -> None:
        short_lives = 0
        while True:
            since_s = time.monotonic()
            self._wait_for_its_end()
            if self._ended.is_set():
                return
            log.error("the keeper of %s has ended; its images are loaded again when they are opened", self._name)
            self._lifeline.close()
            short_lives = short_lives + 1 if time.monotonic() - since_s < _SHORT_LIFE_S else 0
            self._start_another(lost, short_lives)
            if self._ended.is_set():
                return
            back()

    def _wait_for_its_end(self) -> None:
        misses = 0
        while not self._lifeline.wait_for_end(_ASK_EVERY_S):
            misses = 0 if self._answers() else misses + 1
            if misses >= _MISSES and not self._ended.is_set():
                log.error("the keeper of %s does not answer: it is killed", self._name)
                try:
                    self._lifeline.kill()
                except OSError as error:
                    log.error("the keeper of %s cannot be killed: %s", self._name, error)  # noqa: TRY400

    def _answers(self) -> bool:
        try:
            with KeeperConnection(self._keeper, answer_s=_ANSWER_S) as connection:
                with self._lock:
                    if self._ended.is_set():
                        return True
                    self._asking = connection
                connection.hello()
        except CapacityError as error:  # this process lacks a descriptor; the keeper is not the cause
            log.warning("the keeper of %s cannot be asked: %s", self._name, error)
        except DaemonAwayError as error:
            if isinstance(error.__cause__, (TimeoutError, BlockingIOError)):
                log.warning("the keeper of %s accepts no connection: %s", self._name, error)
                return False
            # The keeper lives, or else the lifeline would have ended: the file of its socket was removed.
            log.error("the keeper of %s cannot be reached; its readers read on: %s", self._name, error)  # noqa: TRY400
        except TrimsError as error:
            log.warning("the keeper of %s does not answer: %s", self._name, error)
            return False
        finally:
            with self._lock:
                self._asking = None
        return True

    def _start_another(self, lost: Callable[[], None], short_lives: int) -> None:
        """Try until a keeper serves or `end` is called: a device that is reset may be away for minutes.

        When `lost` is called:

        1. Normally when the next keeper serves, so that requests that follow from `lost` find one.
        2. After `_QUICK_TRIES` failed tries at the latest, because readers of lost memory must hear of it soon. During
           these tries the keeper that is ending may still hold its lock.
        3. At once, if the last two keepers or more ended soon after they started, because none could use the device.
           Then the pause before the next keeper grows with each of them.
        """
        told = short_lives > 1
        if told:
            lost()
            self._ended.wait(_pause_s(short_lives))
        for tries in itertools.count(1):
            if self._ended.is_set():
                return
            found = self._try_another()
            if not told and (found or tries == _QUICK_TRIES) and not self._ended.is_set():
                told = True
                lost()
            if found:
                log.info("%s is back", self._name)
                return
            self._ended.wait(_pause_s(tries - _QUICK_TRIES))

    def _try_another(self) -> bool:
        try:
            keeper, connection, state = self._found()
        except (TrimsError, OSError) as error:
            self._why_away = str(error)
            log.error("%s is away: %s", self._name, error)  # noqa: TRY400 - the traceback says no more
            return False
        with self._lock:
            # `end` interrupts the present lifeline; a lifeline that is set later would never be interrupted.
            self._keeper, self._lifeline, self.state, self._why_away = keeper, connection, state, ""
            if self._ended.is_set():
                connection.close()
        return True


def _pause_s(times: int) -> float:
    """Return the seconds before the next try, after `times` failed tries beyond the quick ones."""
    growth = 2.0 ** min(max(0, times), 20)  # the bound keeps the power within a float's range
    return min(_TRY_AGAIN_S * growth, _LONGEST_PAUSE_S)
