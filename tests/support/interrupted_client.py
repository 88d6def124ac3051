"""A client whose opens and closes are interrupted by signals: `interrupted_client.py RUNTIME_DIR FILE again|once`.

Not a test itself: it has a process of its own, because an interrupt may cost a descriptor and a mapping. The last line
it prints is JSON: at how many places a signal met the client, and how many descriptors were lost.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trims_client
from trims_client import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from trims_client import Session

CLIENT = str(Path(trims_client.__file__).parent)
WAIT_S = 120.0
#: Signals sent, each a few microseconds later than the one before: together they meet an open and two closes anywhere.
SIGNALS, LATER_S = 500, 4e-6


class InterruptError(BaseException):
    """Error that the signal handler raises."""


class Interrupter:
    """Has a signal interrupt this thread after so many seconds. Its handler raises, wherever that is in the client."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self.where = ""

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Within the block."""
        signal.signal(signal.SIGALRM, self._interrupted)
        signal.setitimer(signal.ITIMER_REAL, self._after_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        del number
        while frame is not None and not frame.f_code.co_filename.startswith(CLIENT):
            frame = frame.f_back
        if frame is not None:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            raise InterruptError


def within(seconds: float, what: Callable[[], object]) -> bool:
    """Do it in another thread; False if that takes longer, or fails."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(what()), daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(done)


def goes_on(session: Session, path: str) -> bool:
    """Another thread of the program uses the session, and ends it."""
    with session.open_file(path) as weights:
        read = weights["weight"].size
    session.close()
    return bool(read)


def descriptors() -> int:
    """Return how many images this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("/dev/shm/")
    return found


def main(runtime_dir: str, path: str, how: str) -> None:
    places: set[str] = set()
    for number in range(SIGNALS):
        session = connect(runtime_dir)
        held, interrupter = session.open_file(path), Interrupter((number + 1) * LATER_S)
        if how == "again":
            assert session._channel is not None
            session._channel.close()  # as if the daemon had been restarted
        with suppress(InterruptError), interrupter.armed():
            session.open_file(path).close()
            held.close()
        places.add(interrupter.where)
        if not within(WAIT_S, lambda session=session: goes_on(session, path)):
            sys.exit(f"wedged by a signal at {interrupter.where}")
        del session, held
    gc.collect()
    sys.stdout.write(json.dumps({"places": sorted(places), "lost": descriptors()}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
