"""Work that is done again and again in a thread of its own, while something else is measured."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self


class Beside:
    """A context manager: the work begins with the block, and its last round is over at the block's end.

    Args:
        do: One round. It gets an event that is set once the rounds are to end, to wait on instead of sleeping.
        pause_s: Seconds between two rounds.
    """

    def __init__(self, do: Callable[[threading.Event], object], *, pause_s: float = 0.0) -> None:
        self._do = do
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-beside")
        self._failure: BaseException | None = None
        self.rounds = 0
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the thread, and raise its error unless the block has failed itself."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None and kind is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self._do(self._stop)
                self.rounds += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self._stop.wait(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that ends the block
            self._failure = error
