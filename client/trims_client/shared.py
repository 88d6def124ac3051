"""One session for the whole process: `trims.open_file`."""

from __future__ import annotations

import threading

from trims_client import forks
from trims_client.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Literal

    from trims_client.weights import Weights


class _Guard:
    """A lock, so that one thread makes the session. A forked child gets a new lock: the old one may be held."""

    def __init__(self) -> None:
        self.after_fork()
        forks.adapt_in_children(self)

    def after_fork(self) -> None:
        self.lock = threading.Lock()


_shared: Session | None = None
_guard = _Guard()


def shared_session(fallback: Literal["load"] | None = None, agent: str = "") -> Session:
    """One session for the whole process, for `trims.open_file`; a forked child makes one of its own.

    Args:
        agent: Name in `trims ps`, if this call makes the session.
    """
    global _shared  # noqa: PLW0603 - one for each process is the point
    with _guard.lock:
        if _shared is None or _shared.closed or _shared.inherited:
            _shared = Session(fallback=fallback, agent=agent)
            _shared._fallback = None  # each call states its own fallback
        return _shared


def open_file(
    path: str | os.PathLike[str],
    *,
    place: str | Sequence[str] | None = "auto",
    deadline_s: float | None = None,
    fallback: Literal["load"] | None = None,
) -> Weights:
    """Share a checkpoint by its path: `Session.open_file` on a session that the whole process shares.

    Example:
        with trims.open_file("/models/some.safetensors") as weights:
            print(weights.nbytes)
    """
    return shared_session(fallback).open_file(path, place=place, deadline_s=deadline_s, fallback=fallback)
