"""The gate before every fork: a template may be forked only while it has one thread and holds nothing of the outside.

A fork copies the calling thread only. Locks that other threads hold stay locked in the child, so its first parallel run
would hang: libgomp's threads after one parallel forward pass, OpenBLAS's after an import, ONNX Runtime's telemetry. A
context on a device cannot be used by a child, and a connection would be shared with it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Looks at threads that may still come, and seconds between them.
_LOOKS, _LOOK_S = 20, 0.005
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def fork_blocker(own: Collection[int]) -> str | None:
    """Return why this process must not be forked; None if it may be.

    Args:
        own: Descriptors of its sockets that are known.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"it has {threads} threads: {', '.join(_threads())}"
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # the listing's own
        if target.startswith(_DEVICES):
            return f"it has opened {target}"
        if target.startswith("socket:") and int(fd) not in own:
            return f"it holds a connection (descriptor {fd})"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it has initialised CUDA"
    return None


def threads() -> set[str]:
    """Return the numbers of this process's threads beside the first."""
    return set(os.listdir("/proc/self/task")) - {str(os.getpid())}


def try_fork() -> tuple[str | None, bool]:
    """Fork twice, and return why this process must not be forked, and whether threads come and go with each fork.

    Some libraries end their threads before a fork and start them again when they need them (OpenBLAS), or at once
    (MXNet's engine), by handlers of `pthread_atfork`. Those are no reason not to fork. Two forks show which they are.
    """
    now = threads()
    for _ in range(2):
        before = now
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            return f"a fork of it ends at once with status {status}: a library's handler of forks fails", False
        now = _settled()
        if before & now:
            return f"it starts threads that stay when the process is forked: {', '.join(_names(before & now))}", False
    return None, bool(now)


def _settled() -> set[str]:
    """Return the threads once no more come: libraries start theirs a moment after a fork."""
    found = threads()
    for _ in range(_LOOKS):
        time.sleep(_LOOK_S)
        before, found = found, threads()
        if before == found:
            break
    return found


def _threads() -> list[str]:
    return _names(os.listdir("/proc/self/task"))


def _names(tasks: Iterable[str]) -> list[str]:
    found = []
    for task in sorted(tasks, key=int):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                found.append(file.read().strip())
        except FileNotFoundError:
            continue  # it has ended
    return found
