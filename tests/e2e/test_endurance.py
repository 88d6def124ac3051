"""Long runs: tens of thousands of opens leave both processes as they were, and a crowd gets declared errors only."""

# fault (capacity): 200 sessions, room for a third of the models -> declared errors only; true bytes

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import rested, wait_until
from repository import SUPPORT

import trims
from trims.core.errors import CapacityError, DeadlineError
from trims.daemon.check import check_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_client import Session

    from trims.daemon.main import Daemon

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
DAEMON = SUPPORT / "dying_daemon.py"
WARM_UP, CYCLES = 2_000, 50_000
#: Bytes that 50,000 cycles may add: less than 170 each.
GROWTH_BYTES = 8 << 20


class Process:
    """Process and what the kernel says that it holds."""

    def __init__(self, pid: int) -> None:
        self.folder = Path(f"/proc/{pid}")

    def counts(self) -> tuple[int, int]:
        """Descriptors and threads."""
        return len(list((self.folder / "fd").iterdir())), len(list((self.folder / "task").iterdir()))

    def resident_bytes(self) -> int:
        """Anonymous memory; mapped files and segments are not the process's own."""
        for line in (self.folder / "status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        raise AssertionError("the kernel does not say RssAnon")


@pytest.fixture
def daemon_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of its own, which checks no books: that would be most of what it does."""
    settings = {**os.environ, "TRIMS_VERIFY": "0"}
    command = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(folder / "run")]
    flags = ["--state-dir", str(folder / "state"), "--cpu-capacity-bytes", "1MiB", "--log-level", "warning"]
    flags += ["--trust", "verified"]  # it is memory that is opened and evicted here
    process = subprocess.Popen([*command, "serve", *flags], env=settings)
    wait_until(lambda: (folder / "run" / "control.sock").exists() or process.poll() is not None, "it did not come up")
    yield process
    subprocess.run([*command, "shutdown", "--purge"], check=True, capture_output=True)
    assert process.wait(60) == 0


def cycle(session: Session, path: Path, times: int) -> None:
    for _ in range(times):
        with session.open_file(path) as weights:
            weights.raw("weight")


# fault (capacity): 50,000 opens and closes -> no more descriptors, threads or memory than before
def test_fifty_thousand_opens_leave_both_processes_as_they_were(
    folder: Path, daemon_process: subprocess.Popen[bytes], checkpoint: Callable[..., Path]
) -> None:
    path = rested(checkpoint("m"))
    processes = [Process(os.getpid()), Process(daemon_process.pid)]
    with trims.connect(folder / "run") as session:
        cycle(session, path, WARM_UP)
        gc.collect()
        before = [(process.counts(), process.resident_bytes()) for process in processes]
        cycle(session, path, CYCLES)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        for process, (counts, resident_bytes) in zip(processes, before, strict=True):
            assert process.counts() <= counts, "an idle thread may have ended"
            assert process.resident_bytes() - resident_bytes < GROWTH_BYTES


def test_two_thousand_sessions_one_after_the_other_leave_the_daemon_as_it_was(
    folder: Path, daemon_process: subprocess.Popen[bytes], checkpoint: Callable[..., Path]
) -> None:
    path, process = rested(checkpoint("m")), Process(daemon_process.pid)

    def come_and_go(times: int) -> None:
        for _ in range(times):
            session = trims.connect(folder / "run")
            weights = session.open_file(path)
            session.close()
            weights.close()

    come_and_go(200)
    counts, resident_bytes = process.counts(), process.resident_bytes()
    come_and_go(2_000)
    wait_until(lambda: process.counts() <= counts, "sessions leave something behind")
    assert process.resident_bytes() - resident_bytes < GROWTH_BYTES


# -- a crowd -------------------------------------------------------------------------------------------------------

MODELS, SESSIONS, THREADS, TURNS = 30, 200, 8, 100
MODEL_BYTES = 20_000


def expected(number: int) -> np.ndarray:
    return np.full(MODEL_BYTES // 8, number, np.float64)


class Crowd:
    """Sessions in one thread that open, hold and close models at random."""

    def __init__(self, runtime_dir: Path, paths: list[Path], seed: int) -> None:
        self.dice = random.Random(seed)
        self.paths = paths
        self.sessions = [trims.connect(runtime_dir) for _ in range(SESSIONS // THREADS)]
        self.held: list[tuple[int, trims.Weights]] = []
        self.outcomes: list[str] = []

    def run(self) -> list[str]:
        """Return what became of each open. Raises whatever is not declared."""
        try:
            for _ in range(TURNS):
                self.turn()
        finally:
            self.dice.shuffle(self.sessions)
            for session in self.sessions:
                session.close()
            self.let_go(len(self.held))  # mappings outlive their sessions
        return self.outcomes

    def turn(self) -> None:
        number = self.dice.randrange(MODELS)
        session, deadline_s = self.dice.choice(self.sessions), self.dice.choice([None, None, 0.0, 0.05, 1.0])
        try:
            self.held.append((number, session.open_file(self.paths[number], deadline_s=deadline_s)))
        except (CapacityError, DeadlineError) as error:
            self.outcomes.append(error.code)
            self.let_go(len(self.held))  # or all would wait for each other
        else:
            self.outcomes.append("granted")
            self.let_go(self.dice.choice([0, 1, 1]))

    def let_go(self, count: int) -> None:
        for _ in range(count):
            number, weights = self.held.pop(self.dice.randrange(len(self.held)))
            np.testing.assert_array_equal(weights["weight"], expected(number))
            weights.close()


def test_two_hundred_sessions_at_random_get_true_bytes_or_a_declared_error(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=MODELS // 3 * (MODEL_BYTES + 2_000))
    paths = [checkpoint(f"m{number}", {"weight": expected(number)}) for number in range(MODELS)]
    with ThreadPoolExecutor(THREADS) as pool:
        crowds = [pool.submit(Crowd(daemon.config.runtime_dir, paths, seed).run) for seed in range(THREADS)]
    outcomes = [outcome for crowd in crowds for outcome in crowd.result()]
    assert len(outcomes) == THREADS * TURNS
    assert outcomes.count("granted") > len(outcomes) // 4
    assert set(outcomes) <= {"granted", "capacity", "deadline"}
    wait_until(lambda: not daemon.attach.connections(), "a session lives on")
    wait_until(lambda: daemon.store.read.whole().leases == 0, "a lease lives on")
    assert daemon.store.counters["evictions.cpu"] > 0
    assert check_store(daemon.store, verify=True).findings == []
    daemon.store.residency.validate()
