"""A daemon of one's own, in a process of its own, that leaves nothing behind but its disk images.

It runs in its own process group, so that Ctrl-C reaches only who started it, who then ends it properly.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.control import admin
from trims.core.errors import DaemonAwayError, TrimsError
from trims.daemon.main import shm_prefix
from trims.memory import shm
from trims.process.python import run_module
from trims.wire.address import ATTACH_SOCKET
from trims_bench.child import signals_wait
from trims_bench.raw import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from trims.control import Admin, Loading, Model, Replica

_START_S = 30.0
_END_S = 20.0
_POLL_S = 0.002
_LOG_TAIL_BYTES = 2000


class DaemonProcess:
    """`trims serve`, for the length of a `with` block.

    Args:
        state_dir: Kept; images in it serve the next daemon that gets it.
        program: Module that is run, and arguments before those of `trims`.
        settings: Flags of `trims serve`, without dashes: `cpu_capacity_bytes="1GiB"`.

    Attributes:
        runtime_dir: A new temporary folder; gone after the block.
        began_ns: When the process was started, on the monotonic clock.
    """

    def __init__(self, state_dir: Path, *, program: Sequence[str] = ("trims.cli.main",), **settings: object) -> None:
        self.state_dir = state_dir
        self._program = program
        self._settings = settings
        self._segments = Path(str(settings.get("segment_dir", shm.SHM_FOLDER)))
        self._process: subprocess.Popen[bytes] | None = None
        self._serving = False
        #: One of the processes has answered, so the state folder, and the names, belong to no other daemon.
        self._served = False

    def __enter__(self) -> Self:
        self.runtime_dir = Path(tempfile.mkdtemp(prefix="trims-run-"))
        try:
            self.begin()
            self.await_health()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Return the number of the daemon's process."""
        assert self._process is not None, "the block has begun"
        return self._process.pid

    @property
    def cpu_ns(self) -> int:
        """Processor time that the process has used, all its threads together."""
        # The clock of another process: see clock_getcpuclockid(3), which Python does not have.
        return time.clock_gettime_ns((~self.pid << 3) | 2)

    @property
    def log_bytes(self) -> int:
        """Length of what the daemon has logged: warnings and errors, or what the setting `log_level` says."""
        return self._log.stat().st_size

    def raw_client(self, timeout_s: float) -> RawClient:
        """A connection to the attach door. Raises OSError if nothing listens there."""
        return RawClient(str(self.runtime_dir / ATTACH_SOCKET), timeout_s)

    def left_behind(self) -> list[str]:
        """Whatever of this daemon is still there after the block: process, shared-memory names, sockets."""
        found = [f"shared memory {name}" for name in shm.names(shm_prefix(self.state_dir), self._segments)]
        found += [f"file {path}" for path in self.runtime_dir.glob("*")]
        if self._process is not None and self._process.poll() is None:
            found.append(f"process {self._process.pid}")
        return found

    # -- asking ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def door(self) -> Iterator[Admin]:
        """A client of the control door. DaemonAwayError carries what the daemon said last."""
        try:
            with admin(self.runtime_dir) as door:
                yield door
        except DaemonAwayError as error:
            status = None if self._process is None else self._process.poll()
            state = "runs" if status is None else f"ended with status {status}"
            words = self._last_words() or "nothing"
            raise DaemonAwayError(f"{error}; the daemon {state} ({error.__cause__}) and said last: {words}") from error

    def add(self, manifest: Path | Mapping[str, Any]) -> str:
        """Register a manifest and have its image made on disk. Returns the model's name."""
        name = self.register(manifest)
        self.load(name, place="disk")
        return name

    def register(self, manifest: Path | Mapping[str, Any]) -> str:
        """Register a manifest; nothing is converted. Returns the model's name."""
        with self.door() as door:
            return door.add(manifest, replace=True, lazy=True).name

    def load(
        self, name: str, *, place: str | None = None, on_progress: Callable[[Loading], None] | None = None
    ) -> Replica:
        """Have a model at a place."""
        with self.door() as door:
            return door.load(name, place, on_progress=on_progress)

    def describe(self, name: str) -> Model:
        """Return the daemon's description of a model."""
        with self.door() as door:
            return door.show(name)

    def location(self, name: str, place: str = "cpu") -> str:
        """Segment name or path of a model's replica."""
        return next(replica.location for replica in self.describe(name).replicas if replica.place == place)

    def evict(self, name: str) -> None:
        """Free a model's memory, once its last lease has closed and no copy is on its way; returns when it is free."""
        with self.door() as door:
            while "filling" in (states := {each.place: each.state for each in door.show(name).replicas}).get("cpu", ""):
                time.sleep(_POLL_S)
            if "cpu" in states:
                door.evict(name, drain=True)
            while any(replica.place == "cpu" for replica in door.show(name).replicas):
                time.sleep(_POLL_S)

    # -- beginning and end -----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process as a crash would: what it had in shared memory stays for the one that `begin` starts."""
        assert self._process is not None, "the block has begun"
        self._process.kill()
        self._process.wait()
        self._serving = False

    def begin(self) -> int:
        """Start a process and do not wait until it serves; returns `began_ns`."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        command = run_module(*self._program, "--runtime-dir", str(self.runtime_dir), "serve")
        command += ["--state-dir", str(self.state_dir), "--log-level=warning", "--endpoint=no", *flags]
        with self._log.open("ab") as log, signals_wait():
            self.began_ns = time.monotonic_ns()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self.began_ns

    @property
    def _log(self) -> Path:
        return self.runtime_dir / "log"

    def await_health(self) -> None:
        """Return once the control door answers. Raises DaemonAwayError."""
        assert self._process is not None, "it was just started"
        until = time.monotonic() + _START_S
        while not self._serving:
            try:
                with self.door() as door:
                    door.status()
                self._serving = self._served = True
            except DaemonAwayError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise DaemonAwayError(f"the daemon did not start: {error}") from error
                time.sleep(0.05)

    def _last_words(self) -> str:
        return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()

    def _end(self) -> None:
        """Ask, then insist; then remove whatever a daemon that had to be killed left."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                with self.door() as door:
                    door.shutdown(purge=True)
            except TrimsError:  # it does not answer yet, or any more
                process.terminate()
            _await_end(process)
        # Never started: its folder, and so the names, may be another daemon's.
        if process is not None and self._served and process.returncode != 0:
            for name in list(shm.names(shm_prefix(self.state_dir), self._segments)):
                shm.unlink(name, self._segments)
        shutil.rmtree(self.runtime_dir, ignore_errors=True)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    for insist in (process.terminate, process.kill):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        if process.returncode is None:
            insist()
    process.wait()
