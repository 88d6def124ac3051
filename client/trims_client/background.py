"""Background threads at the end of the interpreter: none of them stops in the middle of its work.

The interpreter does not wait for daemon threads. Each stops where it next needs the interpreter, and a lock that it
holds there stays taken. If that is the lock of `import`, a finaliser that imports waits for ever, and the program with
it. So a background thread works under its gate only, and waits outside. At the end the gates are taken for good.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref

#: Seconds that the interpreter waits for threads that are at work, such as connecting to a daemon that hangs.
LIMIT_S = 2.0
_gates: weakref.WeakValueDictionary[int, threading.Lock] = weakref.WeakValueDictionary()
_ended = threading.Event()


def gate() -> threading.Lock:
    """Return the lock that one background thread holds whenever it works, and never while it waits."""
    made = threading.Lock()
    _gates[id(made)] = made
    if _ended.is_set():
        made.acquire()
    return made


def _end() -> None:
    _ended.set()
    until_s = time.monotonic() + LIMIT_S
    for reference in _gates.valuerefs():
        if (each := reference()) is not None:
            each.acquire(timeout=max(0.0, until_s - time.monotonic()))


atexit.register(_end)
os.register_at_fork(after_in_child=_gates.clear)
