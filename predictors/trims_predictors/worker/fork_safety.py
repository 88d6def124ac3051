"""The gate before every fork: a template may be forked only while it has one thread and holds nothing of the outside.

A fork copies the calling thread only. Locks that other threads hold stay locked in the child, so its first parallel run
would hang: libgomp's threads after one parallel forward pass, OpenBLAS's after an import, ONNX Runtime's telemetry. A
context on a device cannot be used by a child, and a connection would be shared with it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def fork_blocker(own: Collection[int]) -> str | None:
    """Return why this process must not be forked; None if it may be.

    Args:
        own: Its descriptors of sockets that are known.
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


def _threads() -> list[str]:
    found = []
    for task in sorted(os.listdir("/proc/self/task"), key=int):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                found.append(file.read().strip())
        except FileNotFoundError:
            continue  # it has ended
    return found
