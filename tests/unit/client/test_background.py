"""Background threads at the end of the interpreter, which waits for their work and lets none begin after it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from trims_client import background

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon


@pytest.fixture
def the_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The end of the interpreter, with gates of this test alone."""
    monkeypatch.setattr(background, "_gates", background.weakref.WeakValueDictionary())
    monkeypatch.setattr(background, "_ended", threading.Event())
    return background._end


def test_after_the_end_no_thread_passes_its_gate(the_end: Callable[[], None]) -> None:
    before = background.gate()
    assert not before.locked()
    the_end()
    assert before.locked()
    assert background.gate().locked()


def test_the_end_waits_for_a_thread_at_work(the_end: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LIMIT_S", 60.0)
    gate, works, may_rest, rested = background.gate(), threading.Event(), threading.Event(), []

    def work() -> None:
        with gate:
            works.set()
            may_rest.wait(60)
            rested.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    assert works.wait(60)
    threading.Timer(0.05, may_rest.set).start()
    the_end()
    assert rested
    thread.join(60)


def test_the_end_does_not_wait_for_ever(the_end: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LIMIT_S", 0.01)
    gates = [background.gate(), background.gate()]
    with gates[0]:
        the_end()
        assert gates[1].locked(), "the gate behind one that is held is taken, too"


def test_the_interpreter_ends_after_the_work_of_a_watch_thread(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    program = """
import atexit, sys, threading, time

atexit.register(lambda: print(*did))  # the last that is called
begun, did = threading.Event(), []

import trims

def work(session):
    if threading.current_thread().name == "trims-watch":
        begun.set()
        time.sleep(0.1)
        did.append("whole")

weights = trims.open_file(sys.argv[1])
trims.Session._flush = work
begun.wait(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(checkpoint("m"))],
        capture_output=True, text=True, check=True, timeout=300,
        env={**os.environ, "TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir)},
    )  # fmt: skip
    assert done.stdout == "whole\n"
