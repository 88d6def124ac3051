"""Looks at what other programs may change below a running daemon: memory limits, folders, sockets."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

#: Seconds for a look that runs while the thread is to end.
_END_S = 10.0


class Watch:
    """A thread that looks at one thing after the other. A look may block: it holds up no session.

    Args:
        looks: Each look, with the seconds between two of its calls.
    """

    def __init__(self, looks: Mapping[Callable[[], None], float]) -> None:
        self._looks = dict(looks)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trims-watch", daemon=True)

    def start(self) -> None:
        """Begin to look; the first time after each look's own seconds."""
        self._thread.start()

    def stop(self) -> None:
        """End once a look that runs has ended, or hangs as at a lost mount. Idempotent, also before `start`."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        due = {look: time.monotonic() + pause_s for look, pause_s in self._looks.items()}
        while due and not self._ending.wait(max(0.0, min(due.values()) - time.monotonic())):
            look = min(due, key=lambda each: due[each])
            try:
                look()
            except Exception:  # the others are looked at all the same
                log.exception("a look at what lies below the daemon failed")
            due[look] = time.monotonic() + self._looks[look]
