"""Forks: a child must not use the parent's connection, nor locks that a thread of the parent may hold.

A child inherits every descriptor. The daemon notices the end of a connection when the last copy of its socket is
closed, so a child that kept its copy would keep the leases of a dead parent.

Only `os.fork` and its users (`multiprocessing`, `pty`) are noticed here. A fork in C code, below Python, is not: such a
child keeps its copy of the socket until it ends or executes another program.
"""

from __future__ import annotations

import os
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Inherited(Protocol):
        """An object that must change in a forked child."""

        def after_fork(self) -> None:
            """Called in the child. Must take no lock: the thread that may hold it does not exist in the child."""
            ...


_live: weakref.WeakSet[Inherited] = weakref.WeakSet()


def adapt_in_children(each: Inherited) -> None:
    """Have `each.after_fork` called in every child that is forked while `each` lives."""
    _live.add(each)


def _adapt() -> None:
    for each in list(_live):
        each.after_fork()


os.register_at_fork(after_in_child=_adapt)
