"""Programs that run once, to their end: nothing that they have started outlives a deadline or an error here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended.

    Attributes:
        status: Exit code, or minus the signal.
        out: What it wrote to its standard output.
        err: What it wrote to its standard error.
    """

    status: int
    out: str
    err: str

    def last_words(self, lines: int, otherwise: str = "") -> str:
        """Return the last lines of its standard error.

        Args:
            otherwise: What is returned if there are none.
        """
        return "\n".join(self.err.strip().splitlines()[-lines:]) or otherwise


def run(command: Sequence[str | os.PathLike[str]], *, seconds: float, fds: Sequence[int] = (), **how: Any) -> Finished:
    """Run a program in a session of its own and return how it ended; it has no input.

    Args:
        command: Program and arguments.
        seconds: After which it is killed, and what it has started in its group with it.
        fds: Descriptors that it inherits.
        how: Further arguments for `subprocess.Popen`, such as `env`.

    Raises OSError if it cannot be started, TimeoutError (one of them) if it was killed.
    """
    process: subprocess.Popen[str] = subprocess.Popen(
        command,
        pass_fds=[*fds],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        **how,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException as error:
        _end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"{os.fspath(command[0])} did not end within {seconds:g} s") from None
        raise
    return Finished(process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the group of a program, whose number is its own until it is waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
