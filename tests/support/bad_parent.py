"""A program that runs another one in a state that it should not inherit: `bad_parent.py STATE... -- COMMAND...`.

Not a test itself.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Exit status if this user may not have such a state.
NOT_ALLOWED = 77
_FIXED = {signal.SIGKILL, signal.SIGSTOP}


def _ignore_all() -> None:
    for number in signal.valid_signals() - _FIXED:
        signal.signal(number, signal.SIG_IGN)


def _close_standard_files() -> None:
    for fd in (0, 1, 2):
        os.close(fd)


def _score(score: str) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(score)


def _in_ascii() -> None:
    os.environ.update(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")


def _from_nowhere() -> None:
    folder = f"/tmp/trims-nowhere-{os.getpid()}"
    os.mkdir(folder)
    os.chdir(folder)
    os.rmdir(folder)


STATES: dict[str, Callable[[], object]] = {
    "SIGCHLD ignored": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "all signals ignored": _ignore_all,
    "all signals blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "a timer that ends it": lambda: signal.setitimer(signal.ITIMER_REAL, 2.0),
    "a mask against its owner": lambda: os.umask(0o777),
    "closed standard files": _close_standard_files,
    "locale C": lambda: os.environ.update(LC_ALL="C"),
    "locale C without UTF-8": _in_ascii,
    "nice": lambda: os.nice(5),
    "before others": lambda: os.nice(-5),
    "spared by the out-of-memory killer": lambda: _score("-500"),
    "first for the out-of-memory killer": lambda: _score("500"),
    "a working folder that is gone": _from_nowhere,
}


def main() -> None:
    end = sys.argv.index("--")
    for state in sys.argv[1:end]:
        try:
            STATES[state]()
        except PermissionError:
            sys.exit(NOT_ALLOWED)
    command = sys.argv[end + 1 :]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
