"""One session for the whole process: `trims.open_file`."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from trims_client.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_client.weights import Weights

_shared: Session | None = None
_shared_lock = threading.Lock()


def shared_session(fallback: str | None = None) -> Session:
    """One session for the whole process, for `trims.open_file`; made anew after a fork."""
    global _shared  # noqa: PLW0603 - one a process is the point
    with _shared_lock:
        if _shared is None or _shared.closed or _shared._pid != os.getpid():
            _shared = Session(fallback=fallback)
            _shared._fallback = None  # who may do without a daemon is said call by call
        return _shared


def open_file(
    path: str | os.PathLike[str],
    *,
    place: str | Sequence[str] | None = None,
    deadline_s: float | None = None,
    fallback: str | None = None,
) -> Weights:
    """Share any checkpoint by its path: `Session.open_file` on a session of the process."""
    return shared_session(fallback).open_file(path, place=place, deadline_s=deadline_s, fallback=fallback)
