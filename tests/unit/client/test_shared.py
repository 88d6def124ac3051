"""One session for the whole process: made once, by the first call, and again after it was closed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from trims_client import shared

import trims
from trims.core.errors import DaemonAwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_client.session import Session

    from trims.daemon.main import Daemon


@pytest.fixture(autouse=True)
def runtime_dir(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A daemon in the test's folder is this process's; the session that a test leaves is closed."""
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.setattr(shared, "_shared", None)
    yield
    if shared._shared is not None:
        shared._shared.close()


@pytest.mark.usefixtures("daemon")
def test_threads_that_ask_at_once_get_one_session() -> None:
    together, found = threading.Barrier(8), list["Session"]()

    def ask() -> None:
        together.wait()
        found.append(shared.shared_session())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


@pytest.mark.usefixtures("daemon")
def test_a_session_that_was_closed_is_replaced() -> None:
    first = shared.shared_session()
    assert shared.shared_session() is first
    first.close()
    second = shared.shared_session()
    assert second is not first
    assert not second.closed


def test_a_file_that_is_opened_twice_is_one_image_of_one_session(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    with shared.open_file(path) as one, shared.open_file(path) as other:
        assert one.shared
        assert one["step"].tobytes() == other["step"].tobytes()
        with trims.admin(daemon.config.runtime_dir) as admin:
            assert admin.status().stats.sessions == 1
        assert daemon.store.counters["fills.cpu"] == 1


def test_without_a_daemon_no_session_is_kept_and_the_next_call_tries_again(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    with pytest.raises(DaemonAwayError, match="no daemon answers"):
        shared.open_file(path)
    assert shared._shared is None
    serve()
    with shared.open_file(path) as weights:
        assert weights.shared


def test_a_fallback_holds_for_the_call_that_asked_for_it(checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m")
    with shared.open_file(path, fallback="load") as weights:
        assert not weights.shared
    with pytest.raises(DaemonAwayError, match="no daemon answers"):
        shared.open_file(path)
