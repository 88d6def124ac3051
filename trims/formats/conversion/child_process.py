"""The parent's half of a converter child: start it, talk to it, and outlive whatever it does.

The child is trusted with nothing. It runs in its own session with limits; what it says is parsed as bounded JSON; how
it dies is found out from the kernel and reported in one sentence. When the parent dies, the kernel kills the child's
whole process group (see `trims.process.child`). Temporary files it makes lie in a folder that the parent removes, or
the next daemon's sweep (`scratch`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    ArtifactError,
    BadMessageError,
    CapacityError,
    ConversionError,
    ImageError,
    LostPeerError,
    NotSupportedError,
    TrimsError,
)
from trims.core.units import format_bytes
from trims.environments.environment_store import hold
from trims.formats.conversion.scratch import Scratch
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.memory.shortage import killed_words, names_memory
from trims.process import messages
from trims.process.child import Child, Ties, exit_words
from trims.process.child_environment import FRAMEWORKS, child_environment
from trims.process.python import run_ours
from trims.process.scheduling_class import CHANGE_PAUSE_S, GIVES_WAY
from trims.trace.children import ask_for_spans, take_spans
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trims.formats.base import Limits

log = logging.getLogger(__name__)
#: Largest message, in bytes, that is parsed in this process, where other threads must not be held up.
MAX_MESSAGE_BYTES = 256 << 10
_TAIL_BYTES = 4096
#: Seconds from a hang-up of the socket to the end of the process: the time that a dying process takes.
_BURIAL_S = 5.0
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
        self._why_stopped: str | None = None
        self._gives_way, self._has_weight = False, False
        self._weighing = threading.Lock()
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
            self._hold = hold(python)
            undo.callback(self._let_go)
            with span("convert start"):
                self._child = self._start(python, Ties(), config)
            undo.callback(self._child.close)
            self._pidfd = self._child.watch()
            undo.pop_all()

    def _start(self, python: Path | None, ties: Ties, config: dict[str, Any]) -> Child:
        other = "" if python is None or os.fspath(python) == sys.executable else python
        # Sets of names are pickled in the order of their hashes, and one artifact makes one image, everywhere.
        own = {"TMPDIR": self._scratch.path, "PYTHONHASHSEED": "0"}
        environment = child_environment(FRAMEWORKS, python=other, more=own)
        module = "trims.formats.conversion.child"
        command = run_ours(module, *ties.arguments, json.dumps(config), python=python or "")
        try:
            return Child(command, ties, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
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
            fds: Descriptors to send along.
            on_progress: Called with each number the child reports meanwhile.

        Raises:
            ConversionError: The child died, was stopped, broke a limit or sent garbage. It is killed then.
            TrimsError: The child refused, with its own words.
        """
        began = time.monotonic()
        try:
            self._send(ask_for_spans(message), fds)
            answer = self._answer(began + self._left_s, on_progress)
        except BaseException:
            self.kill()
            raise
        finally:
            self._left_s -= time.monotonic() - began
        take_spans(answer, self._child.pid, "converter")
        return answer

    def _send(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        try:
            messages.send(self._child.socket, message, fds, long=True)
        except LostPeerError:
            raise self._post_mortem() from None
        except OSError as error:
            raise explain_descriptors(error) from error

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
        """Return the next message."""
        while True:
            ready = self._poll(deadline)
            if self._child.socket.fileno() in ready:
                return self._read()
            if self._pidfd in ready:
                raise self._post_mortem()

    def _poll(self, deadline: float) -> set[int]:
        assert self._child.stderr is not None
        stderr = self._child.stderr.fileno()
        poll = select.poll()
        for fd in (self._child.socket.fileno(), self._pidfd, *([stderr] if self._stderr_open else [])):
            poll.register(fd, select.POLLIN)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            limit = f"{self._limits.time_s:g} s{_raised_by(self._limits.time_setting)}"
            raise ConversionError(f"{self.what}: not done within the time limit of {limit}")
        if self._has_weight != self._gives_way:
            self._set_weight()
        changes = self._has_weight or self._gives_way
        ready = {fd for fd, _ in poll.poll(min(left_s, CHANGE_PAUSE_S if changes else 3600.0) * 1000)}
        if stderr in ready:
            self._drain_stderr()
        return ready

    def _read(self) -> dict[str, Any]:
        try:
            received = messages.receive(self._child.socket, long_bytes=MAX_MESSAGE_BYTES)
        except BadMessageError as error:
            raise self._garbage(f"what is no message ({error})") from None
        if received is None:
            raise self._post_mortem()
        message, fds = received
        messages.close_all(fds)
        return message

    def size_of(self, frame: dict[str, Any], field: str) -> int:
        """Return a size out of a message. Raises ConversionError if it cannot be one."""
        size = frame.get(field)
        if type(size) is not int or not 0 <= size < 1 << 50:
            raise self._garbage(f"{field} = {size!r}"[:200])
        return size

    def _garbage(self, what: str) -> ConversionError:
        return ConversionError(f"{self.what}: the child process sent {what}; something else writes to its socket?")

    def _refusal(self, frame: dict[str, Any]) -> TrimsError:
        message = str(frame.get("message"))[:20_000]
        if frame.get("memory") or names_memory(message):
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
        if names_memory(tail):
            return self._memory_error(tail)
        return ConversionError(f"{self.what}: the child process {_death(self._child.exit_status())}{words}")

    def _drain_stderr(self) -> None:
        assert self._child.stderr is not None
        fd = self._child.stderr.fileno()
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
        self._set_weight()

    def _set_weight(self) -> None:
        """Set the weight of the child's session. What the kernel puts off is done while its answer is waited for."""
        with self._weighing:
            wanted = self._gives_way
            try:
                self._child.weigh(GIVES_WAY if wanted else 0)
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("%s: its child cannot give way: %s", self.what, error)
            self._has_weight = wanted

    def cancel(self, why: str) -> None:
        """Kill the child; a request that waits in another thread raises ConversionError, which says why."""
        self._why_stopped = self._why_stopped or why
        self.kill()

    def kill(self) -> None:
        """Kill the child and all it started. Idempotent, from any thread."""
        self._child.kill()

    def close(self) -> None:
        """Kill and reap the child and remove what it left. Not while a request runs; idempotent."""
        if self._pidfd >= 0:
            self._child.close()
            os.close(self._pidfd)
            self._pidfd = -1
            self._scratch.remove()
            self._let_go()

    def _let_go(self) -> None:
        """Release the environment, which may be removed from now on."""
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None


def _origin(name: str) -> tuple[str, str] | None:
    """Return a top-level package or module and its file, as this process would import it; None if it would not."""
    spec = importlib.util.find_spec(name)
    return (name, spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _raised_by(setting: str) -> str:
    return f" (raise the setting {setting})" if setting else ""


def _death(status: int) -> str:
    return f"{exit_words(status, killed_words())}{'' if status < 0 else ' and without an answer'}"
