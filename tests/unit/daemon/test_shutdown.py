"""A process that is asked to end does: whoever asks, at any moment, in whatever thread a signal arrives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from trims.daemon.shutdown import Shutdown

#: The main thread waits, and another one gets the signal: the main thread is not interrupted.
_ELSEWHERE = """
import signal, threading, time
from trims.daemon.shutdown import Shutdown
ending = Shutdown()
ending.on_signals(signal.SIGTERM, signal.SIGINT)
threading.Timer({after_s}, lambda: signal.pthread_kill(threading.get_ident(), signal.{name})).start()
time.sleep({sleep_s})
ending.wait()
ending.wait()
ending.close()
print("ended")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(("after_s", "sleep_s"), [(0.3, 0.0), (0.0, 0.3)], ids=["while it waits", "before it waits"])
def test_a_signal_that_another_thread_gets_ends_the_wait(name: str, after_s: float, sleep_s: float) -> None:
    code = _ELSEWHERE.format(name=name, after_s=after_s, sleep_s=sleep_s)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_a_thread_that_asks_ends_the_wait() -> None:
    ending = Shutdown()
    threading.Timer(0.05, ending.ask).start()
    ending.wait()
    ending.close()


def test_it_may_be_asked_often_and_after_its_end() -> None:
    ending = Shutdown()
    for _ in range(100_000):
        ending.ask()
    ending.wait()
    ending.close()
    ending.ask()
    ending.close()


def test_its_signals_do_nothing_after_its_end() -> None:
    code = (
        "import os, signal; from trims.daemon.shutdown import Shutdown; e = Shutdown(); e.on_signals(signal.SIGTERM); "
        "e.close(); os.kill(os.getpid(), signal.SIGTERM); print('still here')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("still here\n", "")


def test_nothing_of_it_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    Shutdown().close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_without_signals_those_of_the_process_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    Shutdown().close()
    assert signal.getsignal(signal.SIGTERM) is before
