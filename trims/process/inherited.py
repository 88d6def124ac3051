"""Defaults in place of what a process inherits from the program that starts it, and must not keep.

A parent that ignores SIGCHLD has the kernel reap our children, so no exit status is left of them. A signal that it
blocks does not end us, a timer of its own does, and a mask may keep us from our own files. The kernel hands all of that
on, also to other programs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

#: Ignored for a reason: Python ignores two for every program; `nohup`, a shell's `&` and job control ignore the others.
_MAY_BE_IGNORED = frozenset({
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN,
    signal.SIGTTOU,
})  # fmt: skip
#: Bits of a file's mode that are its owner's.
_OWNERS = 0o700


def take_defaults() -> None:
    """Give this process the defaults of signals, timers and the file mode mask; for the main thread, before others.

    Left as they are: niceness, scheduling and the score of the out-of-memory killer, which an operator chooses for a
    daemon; the mask's bits for group and others; the signals that shells and `nohup` ignore.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # first: what waits and is ignored is dropped
    for number in signal.valid_signals() - _MAY_BE_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    os.umask(os.umask(_OWNERS) & ~_OWNERS)


def use_utf8() -> None:
    """Start this program once more where the locale has another encoding: paths and texts of trims are in UTF-8.

    Programs that are started from here inherit it.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def favour_none(pid: int = 0) -> None:
    """Take from a child what its parent has before other programs: a negative niceness, and protection from the kernel.

    A daemon may be the last that the out-of-memory killer takes; one conversion or predictor of many must not be.

    Args:
        pid: Process id of the child; 0 for this process, which its parent has not reached where another program started
            it.
    """
    with contextlib.suppress(OSError):  # it may have ended, or be another user's by now
        if os.getpriority(os.PRIO_PROCESS, pid) < 0:
            os.setpriority(os.PRIO_PROCESS, pid, 0)
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid or 'self'}/oom_score_adj", "r+", encoding="ascii") as score,
    ):
        if int(score.read()) < 0:
            score.seek(0)
            score.write("0")
