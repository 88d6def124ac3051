"""Forks by code that is not ours: a model's, a builder's. Its child must not go on as a second one of this process."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn


class _Forks:
    """Number of forks of this process, apart from those by code below Python."""

    count = 0

    def add(self) -> None:
        """Count one; called in the parent."""
        self.count += 1


_forks = _Forks()
os.register_at_fork(after_in_parent=_forks.add)


def fork_count() -> int:
    """Return how often this process has forked since this module was imported."""
    return _forks.count


@contextlib.contextmanager
def parent_only(own: int | None = None) -> Iterator[None]:
    """Let only one process leave the block: by default the one that entered it.

    A child that code in the block forks, and that returns from there or raises, ends at the end of the block as a
    program ends: `sys.exit` gives its status, an exception its traceback and status 1. Without this it would go on with
    the parent's sockets, take the parent's next request and answer it.

    Args:
        own: The process that may pass; None for this one. Code may fork outside of all blocks, too, in a handler of
            signals: with a number such a child ends where it comes to the next block.
    """
    if own is None:
        own = os.getpid()
    elif os.getpid() != own:
        _end(None)
    try:
        yield
    except BaseException as error:
        if os.getpid() != own:
            _end(error)
        raise
    if os.getpid() != own:
        _end(None)


def _end(error: BaseException | None) -> NoReturn:
    """End this child without cleaning up what is its parent's: no `atexit`, no `finally` of callers."""
    status = 0
    try:
        if isinstance(error, SystemExit):
            code = error.code
            status = code if isinstance(code, int) else int(code is not None)
            if status and not isinstance(code, int):
                sys.stderr.write(f"{code}\n")
        elif error is not None:
            status = 1
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)
