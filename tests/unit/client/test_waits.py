"""A client that waits for a daemon which is just being started, or started again: as long as it was configured to."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from trims_client import connect

from trims.core.errors import CallerError, DaemonAwayError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

#: Nothing here takes so long.
LONG_S = 60.0


def soon(do: Callable[[], object]) -> threading.Timer:
    """Do it in another thread, after the caller has begun to wait."""
    timer = threading.Timer(0.3, do)
    timer.start()
    return timer


def test_connect_waits_for_a_daemon_that_is_being_started(
    serve: Callable[..., Daemon], folder: Path, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    timer = soon(serve)
    with connect(folder / "run", wait_s=LONG_S) as session, session.open_file(path) as weights:
        assert weights.shared
    timer.join()


def test_connect_says_that_no_daemon_is_there_once_it_has_waited(folder: Path) -> None:
    with pytest.raises(DaemonAwayError, match="no daemon"):
        connect(folder / "run", wait_s=0.1)
    with pytest.raises(CallerError):
        connect(folder / "run", wait_s=-1.0)


def test_an_open_with_a_deadline_waits_for_a_daemon_that_is_being_restarted(
    serve: Callable[..., Daemon], folder: Path, checkpoint: Callable[..., Path]
) -> None:
    path, daemon = checkpoint("m"), serve()
    with connect(folder / "run") as session:
        session.open_file(path).close()
        daemon.ask_to_end()
        daemon.stop()
        with pytest.raises(DaemonAwayError):
            session.open_file(path)
        with pytest.raises(DaemonAwayError):
            session.open_file(path, deadline_s=0.1)
        timer = soon(serve)
        with session.open_file(path, deadline_s=LONG_S) as weights:
            assert weights.warm, "the segment outlived its daemon"
        timer.join()
        with pytest.raises(ModelNotFoundError):
            session.open("nonsense", deadline_s=LONG_S)


def test_an_open_that_may_fall_back_does_not_wait_for_a_daemon(folder: Path, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m")
    with connect(folder / "run", fallback="load") as session, session.open_file(path, deadline_s=LONG_S) as weights:
        assert not weights.shared
