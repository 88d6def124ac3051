"""The parent's half of a converter child: start it, talk to it, and outlive whatever it does.

The child is trusted with nothing. It runs in its own session with limits; what it says is parsed as bounded JSON; how
it dies is found out from the kernel and reported in one sentence. When the parent dies, a pipe that only the parent
held hangs up and the kernel kills the child's whole process group: no thread and no cooperation needed. Temporary
files it makes lie in a folder that the parent removes, or the next daemon's sweep (`scratch`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import trims
from trims.core.errors import (
    ArtifactError,
    CapacityError,
    ConversionError,
    ImageError,
    NotSupportedError,
    TrimsError,
)
from trims.core.units import format_bytes
from trims.environments.environment_store import hold
from trims.formats.conversion.scratch import Scratch
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.memory.shortage import killed_words, tells_of_memory
from trims.process.lifeline import Lifeline
from trims.process.python import run_code
from trims.process.scheduling_class import CHANGE_PAUSE_S, GIVES_WAY, weigh

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trims.formats.base import Limits

log = logging.getLogger(__name__)
FRAME = struct.Struct("<I")
#: Largest frame, in bytes, that is parsed in this process, where other threads must not be held up.
MAX_FRAME_BYTES = 256 << 10
_TAIL_BYTES = 4096
#: Seconds from a hang-up of the socket to the end of the process: the time that a dying process takes.
_BURIAL_S = 5.0
#: The package is loaded from its own folder, whatever else lies beside it, so that a child in another environment sees
#: trims and that environment's packages, never ours.
_BOOTSTRAP = """
import importlib.util
spec = importlib.util.spec_from_file_location("trims", sys.argv[1] + "/__init__.py",
                                              submodule_search_locations=[sys.argv[1]])
sys.modules["trims"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["trims"])
from trims.formats.conversion.child import main
main()
"""
_REPLIES: dict[str, type[TrimsError]] = {
    cls.code: cls for cls in (ArtifactError, CapacityError, ConversionError, ImageError, NotSupportedError)
}


class LimitedChild:
    """One child process that carries out requests, one at a time.

    Args:
        what: What it works on, named in every error: the model's file, or the builder.
        python: Interpreter of the environment to run in; None for this one.
        limits: Memory and time; time counts only while a request runs.
        free_bytes: Memory beside the limit: the size of the files the child may map.
        extra_paths: Folders put in front of the child's `sys.path`.
        lent: Names of our packages that the child may import if its environment lacks them: what holds a builder.

    Raises CapacityError if this process has no descriptor left, NotSupportedError if the interpreter cannot be started
    or its environment is being removed.
    """

    def __init__(
        self,
        what: str,
        *,
        python: Path | None,
        limits: Limits,
        free_bytes: int = 0,
        extra_paths: Sequence[Path] = (),
        lent: Sequence[str] = (),
    ) -> None:
        self.what = what
        self._limits = limits
        self._left_s = limits.time_s
        self._stderr_tail = b""
        self._stderr_open = True
        self._unread = b""
        self._why_stopped: str | None = None
        self._gives_way, self._told = False, False
        self._lock = threading.Lock()
        config = {
            "memory_bytes": limits.memory_bytes + free_bytes,
            "paths": [os.fspath(path) for path in extra_paths],
            "lent": dict(filter(None, map(_origin, lent))),
        }
        try:
            self._begin(python, config)
        except OSError as error:
            raise explain_descriptors(error) from error

    def _begin(self, python: Path | None, config: dict[str, Any]) -> None:
        """Start the process with all that ties it to this one; nothing is left if a step fails."""
        with contextlib.ExitStack() as undo:
            self._scratch = Scratch()
            undo.callback(self._scratch.remove)
            self._socket, theirs = socket.socketpair()
            undo.callback(self._socket.close)
            undo.enter_context(theirs)
            self._hold = hold(python)
            undo.callback(self._let_go)
            self._lifeline = Lifeline()
            undo.callback(self._lifeline.close)
            self._process = self._start(python, [theirs.fileno(), self._lifeline.fileno()], config)
            undo.callback(self._end)
            self._pidfd = os.pidfd_open(self._process.pid)
            undo.pop_all()
        self._lifeline.given()
        theirs.close()

    def _start(self, python: Path | None, fds: list[int], config: dict[str, Any]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TMPDIR": self._scratch.path}
        if python is not None and os.fspath(python) != sys.executable:
            for ours in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
                environment.pop(ours, None)
        package = os.path.dirname(os.path.abspath(trims.__file__))
        command = run_code(_BOOTSTRAP, package, *map(str, fds), json.dumps(config), python=python or "")
        try:
            return subprocess.Popen(
                command,
                pass_fds=fds,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            if lacks_descriptors(error):
                raise
            raise NotSupportedError(f"{self.what}: no converter can be started with {command[0]}: {error}") from error

    def request(
        self,
        message: dict[str, Any],
        fds: Sequence[int] = (),
        on_progress: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Args:
            message: JSON values.
            fds: Descriptors to send along.
            on_progress: Called with each number the child reports meanwhile.

        Raises:
            ConversionError: The child died, was stopped, broke a limit or sent garbage. It is killed then.
            TrimsError: The child refused, with its own words.
        """
        began = time.monotonic()
        try:
            self._send(message, fds)
            return self._answer(began + self._left_s, on_progress)
        except BaseException:
            self.kill()
            raise
        finally:
            self._left_s -= time.monotonic() - began

    def _send(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        text = json.dumps(message).encode()
        data = FRAME.pack(len(text)) + text
        try:
            sent = socket.send_fds(self._socket, [data], list(fds))
            self._socket.sendall(data[sent:])
        except OSError:
            raise self._post_mortem() from None

    def _answer(self, deadline: float, on_progress: Callable[[int], None] | None) -> dict[str, Any]:
        while True:
            frame = self._receive(deadline)
            if "progress" in frame and on_progress is not None:
                on_progress(self.size_of(frame, "progress"))
            elif "error" in frame:
                raise self._refusal(frame)
            elif "progress" not in frame:
                return frame

    def _receive(self, deadline: float) -> dict[str, Any]:
        """Return the next frame."""
        while True:
            frame = self._take_frame()
            if frame is not None:
                return frame
            ready = self._poll(deadline)
            if self._socket.fileno() in ready:
                data = self._read_socket()
                if not data:
                    raise self._post_mortem()
                self._unread += data
            elif self._pidfd in ready:
                raise self._post_mortem()

    def _poll(self, deadline: float) -> set[int]:
        assert self._process.stderr is not None
        stderr = self._process.stderr.fileno()
        poll = select.poll()
        for fd in (self._socket.fileno(), self._pidfd, *([stderr] if self._stderr_open else [])):
            poll.register(fd, select.POLLIN)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            limit = f"{self._limits.time_s:g} s{_raised_by(self._limits.time_setting)}"
            raise ConversionError(f"{self.what}: not done within the time limit of {limit}")
        if self._told != self._gives_way:
            self._tell_kernel()
        changes = self._told or self._gives_way
        ready = {fd for fd, _ in poll.poll(min(left_s, CHANGE_PAUSE_S if changes else 3600.0) * 1000)}
        if stderr in ready:
            self._drain_stderr()
        return ready

    def _read_socket(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def _take_frame(self) -> dict[str, Any] | None:
        if len(self._unread) < FRAME.size:
            return None
        (length,) = FRAME.unpack_from(self._unread)
        if length > MAX_FRAME_BYTES:
            raise self._garbage(f"a message of {length} bytes")
        if len(self._unread) < FRAME.size + length:
            return None
        text, self._unread = self._unread[FRAME.size : FRAME.size + length], self._unread[FRAME.size + length :]
        try:
            frame = json.loads(text)
        except (ValueError, RecursionError):
            raise self._garbage("a message that is not JSON") from None
        if not isinstance(frame, dict):
            raise self._garbage("a message that is not a JSON object")
        return frame

    def size_of(self, frame: dict[str, Any], field: str) -> int:
        """Return a size out of a frame. Raises ConversionError if it cannot be one."""
        size = frame.get(field)
        if type(size) is not int or not 0 <= size < 1 << 50:
            raise self._garbage(f"{field} = {size!r}"[:200])
        return size

    def _garbage(self, what: str) -> ConversionError:
        return ConversionError(f"{self.what}: the child process sent {what}; something else writes to its socket?")

    def _refusal(self, frame: dict[str, Any]) -> TrimsError:
        message = str(frame.get("message"))[:20_000]
        if frame.get("memory") or tells_of_memory(message):
            return self._memory_error(message)
        return _REPLIES.get(str(frame["error"]), ConversionError)(message)

    def _memory_error(self, detail: str) -> ConversionError:
        limit = f"{format_bytes(self._limits.memory_bytes)}{_raised_by(self._limits.memory_setting)}"
        return ConversionError(f"{self.what}: the child process exceeded its memory limit of {limit}: {detail}")

    def _post_mortem(self) -> ConversionError:
        """Return how the child died, in one sentence and its last words."""
        if self._why_stopped is not None:
            return ConversionError(f"{self.what}: its conversion was stopped: {self._why_stopped}")
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        alive = not poll.poll(_BURIAL_S * 1000)
        self.kill()
        self._drain_stderr()
        tail = self._stderr_tail.decode(errors="replace").strip()
        words = f"; its last words: {tail}" if tail else ""
        if alive:
            return ConversionError(f"{self.what}: the child process hung up without an answer{words}")
        if tells_of_memory(tail):
            return self._memory_error(tail)
        return ConversionError(f"{self.what}: the child process {_death(self._exit_status())}{words}")

    def _exit_status(self) -> int:
        """Return the exit code, or minus the signal. Leaves the zombie, which keeps the process group's number ours."""
        found = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        assert found is not None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _drain_stderr(self) -> None:
        assert self._process.stderr is not None
        fd = self._process.stderr.fileno()
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 1 << 16):
                self._stderr_tail = (self._stderr_tail + data)[-_TAIL_BYTES:]
            self._stderr_open = False

    def give_way(self, *, yes: bool) -> None:
        """Have the child, and what it starts, take a tenth of a processor that other programs want, or as much again.

        From any thread, returns at once. See `trims.process.scheduling_class`.
        """
        self._gives_way = yes
        self._tell_kernel()

    def _tell_kernel(self) -> None:
        """Set the weight of the child's session. What the kernel puts off is done while its answer is waited for."""
        wanted = self._gives_way
        with self._lock:
            if self._process.returncode is None:  # else the number may be another process's
                try:
                    weigh(self._process.pid, GIVES_WAY if wanted else 0)
                except BlockingIOError:
                    return
                except OSError as error:
                    log.debug("%s: its child cannot give way: %s", self.what, error)
            self._told = wanted

    def cancel(self, why: str) -> None:
        """Kill the child; a request that waits in another thread raises ConversionError, which says why."""
        self._why_stopped = self._why_stopped or why
        self.kill()

    def kill(self) -> None:
        """Kill the child and all it started. Idempotent, from any thread."""
        with self._lock:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill and reap the child and remove what it left. Not while a request runs; idempotent."""
        if self._pidfd >= 0:
            self._end()
            os.close(self._pidfd)
            self._pidfd = -1
            self._lifeline.close()
            self._socket.close()
            self._scratch.remove()
            self._let_go()

    def _let_go(self) -> None:
        """Release the environment, which may be removed from now on."""
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None

    def _end(self) -> None:
        self.kill()
        with self._lock:
            self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()


def _origin(name: str) -> tuple[str, str] | None:
    """Return a top-level package or module and its file, as this process would import it; None if it would not."""
    spec = importlib.util.find_spec(name)
    return (name, spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _raised_by(setting: str) -> str:
    return f" (raise the setting {setting})" if setting else ""


def _death(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status} and without an answer"
    return f"was killed by {signal.Signals(-status).name}{killed_words() if -status == signal.SIGKILL else ''}"
