"""Pushes that were begun and not ended, kept over restarts: a store keeps their parts, which no listing shows."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "pushes"


class UnfinishedPushes:
    """Objects whose parts may lie in a store, one address a file. Safe to use from several threads.

    Args:
        folder: Folder of the records; made with the first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._running: set[str] = set()

    def begin(self, address: str) -> None:
        """Keep that an object is being written. Raises OSError."""
        with self._lock:
            self._running.add(address)
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / _name_of(address)).open("w") as file:
                json.dump({"address": address}, file)
                file.flush()
                os.fsync(file.fileno())

    def end(self, address: str, *, whole: bool) -> None:
        """Keep that an object is not being written any more; with `whole` nothing of it is left behind."""
        with self._lock:
            self._running.discard(address)
            if whole:
                (self._folder / _name_of(address)).unlink(missing_ok=True)

    def left(self) -> list[str]:
        """Return the addresses of objects whose parts may have been left behind; of no push that runs."""
        with self._lock:
            found = set()
            for path in self._folder.glob("*.json"):
                try:
                    found.add(str(json.loads(path.read_text())["address"]))
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # half-written, before the first part was sent
            return sorted(found - self._running)


def _name_of(address: str) -> str:
    return f"{hashlib.sha256(address.encode()).hexdigest()[:32]}.json"
