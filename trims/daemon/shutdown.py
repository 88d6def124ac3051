"""Wait until a process is asked to end, by a thread of it or by a signal, so that no signal is missed.

`threading.Event` is not enough. The interpreter runs a signal's handler in the main thread only, between two of its
instructions. A signal that comes just before the main thread begins to wait, or that the kernel gives to another
thread, does not end the wait, and the handler never runs. The interpreter also writes each signal's number to a file
of one's choice at once, in whatever thread (`signal.set_wakeup_fd`): here that file is what the main thread waits on.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Shutdown:
    """Request to end, which the main thread waits for. Everything but `on_signals` may be called by any thread."""

    def __init__(self) -> None:
        self._waiting, self._asking = socket.socketpair()
        self._asking.setblocking(False)
        self._has_signals = False
        self._asked = False
        self._haste: threading.Thread | None = None

    def on_signals(self, *numbers: signal.Signals) -> None:
        """Have the signals ask for the end. For the main thread, once in a process."""
        self._has_signals = True
        signal.set_wakeup_fd(self._asking.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)  # without a handler nothing is written

    def ask(self) -> None:
        """End the wait, and those to come. Safe in signal handlers too. Idempotent, also after `close`."""
        with contextlib.suppress(OSError):  # it is asked already, often, or it has ended
            self._asking.send(b"\0")

    def wait(self) -> None:
        """Wait until the end is asked for."""
        if not self._asked:
            self._waiting.recv(1)
            self._asked = True

    def on_haste(self, hasten: Callable[[], None]) -> None:
        """Have a thread call this once SIGINT or SIGTERM comes once more, until `close`. Once, after `wait`.

        A terminal that is closed sends SIGHUP more than once, so that counts as no haste.
        """

        def listen() -> None:
            while numbers := self._waiting.recv(64):
                if any(number in (signal.SIGINT, signal.SIGTERM) for number in numbers):
                    hasten()
                    return

        self._haste = threading.Thread(target=listen, name="trims-haste", daemon=True)
        self._haste.start()

    def close(self) -> None:
        """Give the descriptors back; by the main thread if there were signals, which then do nothing. Idempotent."""
        if self._has_signals:
            self._has_signals = False
            signal.set_wakeup_fd(-1)
        self._asking.close()
        if self._haste is not None:
            self._haste.join()
        self._waiting.close()
