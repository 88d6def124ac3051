"""The second session of a model with packed weights: made behind the first answers, then used in their place."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client.weights import Weights

_log = logging.getLogger("trims")
Stage = Literal["plain", "first", "packing", "packed", "private"]


class Packing:
    """Makes a session once, in a thread.

    Args:
        name: Model's name, for the log.
        why_private: Why it packs weights of its own, instead of those that all processes share; None if it does not.

    Attributes:
        session: The session once it is made; None before, and if it could not be made.
        why_plain: Why it could not be made.
    """

    def __init__(self, name: str, make: Callable[[], Any], why_private: str | None = None) -> None:
        self._name = name
        self.why_private = why_private
        self._make: Callable[[], Any] | None = make
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.session: Any = None
        self.stage: Stage = "first"
        self.why_plain: str | None = None

    def begin(self) -> None:
        """Start the thread. Idempotent, and cheap from the second call on."""
        if self.stage != "first":
            return
        with self._lock:
            if self.stage != "first":
                return
            self.stage = "packing"
            # No daemon thread: the interpreter must not end in the middle of ONNX Runtime's code.
            self._thread = threading.Thread(target=self._work, name=f"trims-pack-{self._name}")
            self._thread.start()

    def wait(self) -> None:
        """Wait until the thread has ended, if it was started."""
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        make, self._make = self._make, None
        assert make is not None, "the thread runs once"
        try:
            self.session = make()
            self.stage = "packed" if self.why_private is None else "private"
        except Exception as error:  # noqa: BLE001 - ONNX Runtime has many; the first session goes on serving
            self.why_plain = f"{type(error).__name__}: {error}"
            self.stage = "plain"
            _log.warning("%s: its packed weights cannot be used, runs stay slower: %s", self._name, self.why_plain)


def file_behind(weights: Weights) -> str | None:
    """Path of the file whose bytes are mapped as these weights, from its first byte on; None if no path leads there.

    The path is the kernel's. In another mount namespace, or if the file was removed or replaced, it leads elsewhere.
    """
    import numpy as np

    with weights.data() as data:
        address = np.frombuffer(data, dtype=np.uint8).__array_interface__["data"][0]
    found = _mapped_file(address)
    if found is None:
        return None
    path, inode, offset = found
    try:
        there = os.stat(path)
    except OSError:
        return None
    same = there.st_ino == inode and os.path.realpath(path) == path and os.access(path, os.R_OK)
    return path if same and offset == weights.view.data_start else None


def _mapped_file(address: int) -> tuple[str, int, int] | None:
    """Path and inode of what is mapped at an address, and the offset of the address in that file."""
    with open("/proc/self/maps") as file:
        for line in file:
            span, _, offset, _, inode, *path = line.split(maxsplit=5)
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= address < end:
                name = path[0].rstrip("\n") if path else ""
                return (name, int(inode), int(offset, 16) + address - begin) if name.startswith("/") else None
    return None
