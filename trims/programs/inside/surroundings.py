"""Surroundings of a program in a fork: all that a process inherits, made as the caller has it.

`Surroundings` travels from the caller through the template's host to the fork, as JSON and descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import mmap
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SET_NAME, _SET_MM, _MM_MAP = 15, 35, 14
#: Fields of /proc/self/stat from the memory map on, counted from the state: see proc(5).
_CODE, _STACK, _DATA = 23, 25, 42


def become(plan: Mapping[str, Any], environment: Mapping[str, str | None]) -> None:
    """Take over a caller's surroundings in a fork, before any code of the program runs; but for its descriptors.

    Args:
        plan: `environment`; `ignored` and `blocked`, signals; `limits`, `niceness`, `scheduler`, `affinity`, `umask`
            and `oom`, where they differ from the template's; `comm` and `argv`, for `ps`.
        environment: Variables that the template's imports have set; None for those that they have taken away.

    Raises:
        OSError: The kernel refuses one of them.
    """
    for number, pair in plan.get("limits", {}).items():
        resource.setrlimit(int(number), tuple(pair))
    if "scheduler" in plan:
        policy, priority = plan["scheduler"]
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    if "niceness" in plan:
        os.setpriority(os.PRIO_PROCESS, 0, plan["niceness"])
    if "affinity" in plan:
        os.sched_setaffinity(0, plan["affinity"])
    if "oom" in plan:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(plan["oom"]))
    os.umask(plan["umask"])
    _take_environment({**plan["environment"], **environment})
    _take_signals(set(plan["ignored"]), set(plan["blocked"]))
    renew_standard_streams()
    _show(plan["comm"], plan["argv"], plan["environment"])
    main_thread: Any = getattr(sys.modules.get("threading"), "_main_thread", None)
    if hasattr(main_thread, "_set_native_id"):  # until 3.13 it keeps the template's
        main_thread._set_native_id()
    if readline := sys.modules.get("readline"):
        with contextlib.suppress(OSError, AttributeError):  # it has read the template's TERM
            ctypes.CDLL(getattr(readline, "__file__", None)).rl_reset_terminal(None)
    if "logging" in sys.modules:  # its records count from here
        now = getattr(time, "time_ns" if sys.version_info >= (3, 13) else "time")()
        sys.modules["logging"]._startTime = now  # type: ignore[attr-defined]


def take_descriptors(numbers: Sequence[int], descriptors: Sequence[int], kept: int) -> int:
    """Take over a caller's working folder and files in a fork. All other descriptors are closed.

    Args:
        numbers: Descriptors that the files get.
        descriptors: The working folder, and then the files.
        kept: One that stays open.

    Returns:
        The number of the one that stays open, which is a new one.
    """
    os.fchdir(descriptors[0])
    above = max([*numbers, *descriptors, kept, 2]) + 1
    lifted = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in (kept, *descriptors[1:])]
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in lifted:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))
    for number, fd in zip(numbers, lifted[1:], strict=True):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    return lifted[0]


def _take_environment(environment: Mapping[str, str | None]) -> None:
    for name in list(os.environ):
        if name not in environment:
            del os.environ[name]
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != value:
            os.environ[name] = value
    if "TZ" in environment:
        time.tzset()


def _take_signals(ignored: set[int], blocked: set[int]) -> None:
    """Ignore the caller's signals and no others; what Python ignores itself, it goes on to ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        found = signal.getsignal(number)
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
        elif found is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def renew_standard_streams() -> None:
    """Open standard input, output and error again, as the interpreter does when it starts.

    The objects stay the same, because modules may have kept them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, f"__{name}__")
        try:
            os.fstat(number)
        except OSError:
            setattr(sys, name, None)
            setattr(sys, f"__{name}__", None)
            continue
        unbuffered = stream.write_through
        at_once = bool(unbuffered and number)
        raw: Any = io.open(number, "wb" if number else "rb", 0 if at_once else -1, closefd=False)  # noqa: SIM115, UP020
        (raw if at_once else raw.raw).name = f"<{name}>"
        line_buffered = not unbuffered and (number == 2 or raw.isatty())
        stream.__init__(raw, stream.encoding, stream.errors, "\n", line_buffered, unbuffered)
        stream.mode = "w" if number else "r"
        setattr(sys, name, stream)


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack", "arg_start",
            "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_int32),
    ]  # fmt: skip


def _show(comm: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have `ps` and /proc show the program's command line and environment; not every kernel can."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_NAME, os.fsencode(comm)[:15], 0, 0, 0)
    arguments = b"".join(os.fsencode(each) + b"\0" for each in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    memory = mmap.mmap(-1, len(arguments) + len(variables), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = arguments + variables
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))  # which also keeps the memory from being unmapped
    with contextlib.suppress(OSError), open("/proc/self/stat", "rb") as file:
        fields = [int(field) for field in file.read().rpartition(b")")[2].split()[1:]]
        libc.sbrk.restype = ctypes.c_void_p
        between = begin + len(arguments)
        shown = _MemoryMap(
            *fields[_CODE - 1 : _CODE + 1], *fields[_DATA - 1 : _DATA + 2], libc.sbrk(0), fields[_STACK - 1],
            begin, between, between, between + len(variables), 0, 0, -1,
        )  # fmt: skip
        libc.prctl(_SET_MM, _MM_MAP, ctypes.byref(shown), ctypes.sizeof(shown), 0)
    _kept.append(memory)


#: Memory that the kernel reads when it is asked for this process's command line.
_kept: list[mmap.mmap] = []
