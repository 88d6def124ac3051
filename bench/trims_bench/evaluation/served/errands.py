"""Commands of trims that the endpoint has other processes run: what they read, compute or wait for costs it nothing.

They are started and read in threads. The event loop's own way, uvloop's, runs this process's fork hooks in a child that
shares its memory, and some of those children crashed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from trims.core.errors import BusyError, CapacityError, DeadlineError, InternalError, from_code
from trims.process import oneshot
from trims.process.lifeline import Lifeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Module of the commands, and the exit status of one that an error has ended: see `cli.errand`.
_MODULE, _REFUSED = "trims_bench.evaluation.served.errand", 3
#: Commands at once, and those that wait.
_AT_ONCE, _MOST_WAITING = 2, 16
#: Seconds that a command may take whose answer a client waits for.
_PATIENCE_S = 60.0
#: Characters of the end of the error output that are kept.
_MOST_ERROR = 16 << 10


class Errand:
    """A command that runs for minutes, and prints lines meanwhile.

    Args:
        words: Command line, without `trims`.

    Raises CapacityError if it cannot be started.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._name = words[0]
        self._lifeline = Lifeline()
        fd = self._lifeline.fileno()
        try:
            self._process = subprocess.Popen(
                _command(fd, words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, errors="replace", pass_fds=[fd], start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._lifeline.close()
            raise CapacityError(f"no process can be started for `trims {self._name}`: {error.strerror}") from error
        self._lifeline.given()
        self._err = ""

    async def lines(self, take: Callable[[str], None]) -> None:
        """Hand on each line of its output; return when it has ended. Raises what the command raised."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def read() -> None:
            assert self._process.stdout is not None
            assert self._process.stderr is not None
            err = threading.Thread(target=self._read_err, name="trims-errand-err", daemon=True)
            err.start()
            for line in self._process.stdout:
                loop.call_soon_threadsafe(take, line)
            self._process.wait()
            err.join()
            self._process.stdout.close()
            self._process.stderr.close()
            loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=read, name="trims-errand", daemon=True).start()
        await ended.wait()
        _check(self._name, self._process.returncode, self._err)

    def _read_err(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._err = (self._err + line)[-_MOST_ERROR:]

    def interrupt(self) -> None:
        """Have it end as Ctrl-C does. Idempotent."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """End it and all that it has started, at once. Idempotent."""
        self._lifeline.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


class Errands:
    """Runs commands.

    Args:
        options: Words that every command gets behind its name.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = list(options)
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    def begin(self, name: str, *words: str) -> Errand:
        """Start a command that runs for minutes. Raises CapacityError."""
        return Errand([name, *self._options, *words])

    async def ask(self, name: str, *words: str) -> str:
        """Run a command and return its output.

        Raises BusyError if too many wait, DeadlineError if it takes too long, and what the command raises.
        """
        if self._waiting >= _MOST_WAITING:
            raise BusyError("too many requests for evaluations wait; ask again in a moment")
        self._waiting += 1
        try:
            async with self._free:
                return await asyncio.to_thread(_asked, [name, *self._options, *words])
        finally:
            self._waiting -= 1


def _command(lifeline: int, words: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-m", _MODULE, str(lifeline), *words]


def _asked(words: Sequence[str]) -> str:
    lifeline = Lifeline()
    fd = lifeline.fileno()
    try:
        done = oneshot.run(_command(fd, words), seconds=_PATIENCE_S, fds=[fd])
    except TimeoutError as error:
        raise DeadlineError(f"`trims {words[0]}` did not answer within {_PATIENCE_S:g} s") from error
    except OSError as error:
        raise CapacityError(f"no process can be started for `trims {words[0]}`: {error.strerror}") from error
    finally:
        lifeline.close()
    _check(words[0], done.status, done.err)
    return done.out


def _check(name: str, status: int, err: str) -> None:
    if status == _REFUSED:
        found = json.loads(err.strip().rpartition("\n")[2])
        raise from_code(str(found["code"]), str(found["error"]))
    if status:
        words = " ".join(err.strip().splitlines()[-3:]) or "it printed nothing"
        raise InternalError(f"`trims {name}` ended with the status {status}: {words:.500}")
