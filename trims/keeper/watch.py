"""Which keeper serves a device now, for as long as a daemon lives: its end is noticed, and another one is started.

A keeper that answers nobody for minutes, because it hangs in the driver or was stopped, is ended like one that died:
what it held is lost to those who come either way, and a next one serves. Not covered: starting keepers (`launch`).
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
#: A keeper that ends holds its lock for a second at most.
_QUICK_TRIES = 8
_TRY_AGAIN_S = 0.25
_LONGEST_PAUSE_S = 10.0
#: So often a keeper is asked whether it answers, so long it is waited for, and so often in a row it may fail to.
_ASK_EVERY_S = 10.0
_ANSWER_S = ANSWER_S
_MISSES = 3
#: A keeper that has served for less is not replaced at once: its device may be lost to the next one as well.
_SHORT_LIFE_S = 10.0
#: So long `end` waits for a search that runs.
_END_S = 5.0


class KeeperWatch:
    """The keeper of one device.

    Args:
        name: Of its place, for messages.
        find: Its socket; starts a keeper if none serves. Raises TrimsError or OSError if none can be had.

    Attributes:
        state: What the keeper that serves now said of itself when it was found; of its images, that is long ago.
    """

    def __init__(self, name: str, find: Callable[[], Path]) -> None:
        self._name = name
        self._find = find
        self._keeper, self._lifeline, self.state = self._found()
        self._asking: KeeperConnection | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        #: Why no other keeper has started; empty while one serves, or may soon.
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
        """A new connection to it, on which an answer must come within so many seconds.

        Raises DeviceLostError if it has ended, CapacityError without a descriptor for it.
        """
        try:
            return KeeperConnection(self._keeper, answer_s=answer_s)
        except DaemonAwayError as error:
            hope = f"and no other one starts yet: {self._why_away}" if self._why_away else f"another one comes: {error}"
            raise DeviceLostError(f"the keeper of {self._name} has ended, {hope}") from error

    def start(self, lost: Callable[[], None], back: Callable[[], None]) -> None:
        """Notice its end from now on. Both are called from a thread of ours.

        Args:
            lost: What it held is gone. Called once for each keeper that ends, within seconds.
            back: Another one serves. Called once after each `lost`.
        """
        self._thread = threading.Thread(target=self._watch, args=(lost, back), name=f"trims-{self._name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """From now on nothing is called any more. Idempotent."""
        with self._lock:
            self._ended.set()
            self._lifeline.interrupt()
            if self._asking is not None:
                self._asking.interrupt()
        if self._thread is not None:
            self._thread.join(_END_S)
            if self._thread.is_alive():
                log.warning("a keeper of %s is still looked for; that ends with this process", self._name)
                return
        self._lifeline.close()

    def _watch(self, lost: Callable[[], None], back: Callable[[], None]) -> None:
        short_lives = 0
        while True:
            since_s = time.monotonic()
            self._wait_for_its_end()
            if self._ended.is_set():
                return
            log.error("the keeper of %s has ended; what it held is loaded anew when it is asked for", self._name)
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
                log.error("the keeper of %s answers nobody: it is ended", self._name)
                try:
                    self._lifeline.kill()
                except OSError as error:
                    log.error("the keeper of %s cannot be ended: %s", self._name, error)  # noqa: TRY400

    def _answers(self) -> bool:
        try:
            with KeeperConnection(self._keeper, answer_s=_ANSWER_S) as connection:
                with self._lock:
                    if self._ended.is_set():
                        return True
                    self._asking = connection
                connection.hello()
        except CapacityError as error:  # this process lacks something, and not the keeper
            log.warning("the keeper of %s cannot be asked: %s", self._name, error)
        except DaemonAwayError as error:
            if isinstance(error.__cause__, (TimeoutError, BlockingIOError)):
                log.warning("the keeper of %s lets nobody in: %s", self._name, error)
                return False
            # It lives, or the lifeline had ended: somebody took the name of its socket away.
            log.error("nothing can be asked of the keeper of %s, whose readers read on: %s", self._name, error)  # noqa: TRY400
        except TrimsError as error:
            log.warning("the keeper of %s does not answer: %s", self._name, error)
            return False
        finally:
            with self._lock:
                self._asking = None
        return True

    def _start_another(self, lost: Callable[[], None], short_lives: int) -> None:
        """Until one serves or `end` is called: a device that is reset is away for longer than a moment.

        `lost` is called when one serves, so that what is asked for because of it finds one; but who reads what is
        gone does not wait for it longer than the first few tries, for which the one that ends may hold its lock. Nor
        if keepers end soon after they start, because none can use the device: then each next one is further away.
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
            log.error("%s is away: %s", self._name, error)  # noqa: TRY400 - the cause is all there is
            return False
        with self._lock:
            # `end` interrupts the lifeline that is there: one that comes later would never end.
            self._keeper, self._lifeline, self.state, self._why_away = keeper, connection, state, ""
            if self._ended.is_set():
                connection.close()
        return True


def _pause_s(times: int) -> float:
    """Before the next try after so many that were in vain, beyond those that are quick."""
    growth = 2.0 ** min(max(0, times), 20)  # a float does not hold what days would make of it
    return min(_TRY_AGAIN_S * growth, _LONGEST_PAUSE_S)
