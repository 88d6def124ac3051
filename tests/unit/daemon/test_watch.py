"""The thread that looks at what lies below a daemon: a look that fails keeps none from being looked at."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trims.daemon.watch import Watch

if TYPE_CHECKING:
    import pytest

WAIT_S = 60


def test_each_look_is_called_again_also_after_one_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    counted, often = threading.Semaphore(0), threading.Event()

    def fails() -> None:
        counted.release()
        raise OSError("no such limit")

    watch = Watch({fails: 0.001, often.set: 0.002})
    watch.start()
    assert all(counted.acquire(timeout=WAIT_S) for _ in range(3))
    assert often.wait(WAIT_S)
    watch.stop()
    watch.stop()
    assert "a look at what lies below the daemon failed" in caplog.text


def test_a_watch_without_looks_or_before_its_start_ends_at_once() -> None:
    Watch({}).stop()
    watch = Watch({})
    watch.start()
    watch.stop()
