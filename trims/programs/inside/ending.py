"""The end of a program in a fork: what an interpreter does when it ends, but for the template's part of it.

Taking down all that a template has imported would copy its memory and take longer than most programs. So the program's
own objects are taken down, all that is buffered is written, and the process ends at once.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import itertools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from trims.programs.inside.importing import is_imported
from trims.programs.inside.observed import PLACE, with_detail, write_name

if TYPE_CHECKING:
    from mmap import mmap

#: Modules of the interpreter's own loaders.
_LOADERS = ("_frozen_importlib", "_frozen_importlib_external", "zipimport")
#: Exit status of a program whose standard output could not be written, as Python's own.
_UNWRITTEN = 120


class Ending:
    """End of the programs that are forked from this process. Made before anything else registers with `atexit`."""

    def __init__(self) -> None:
        self._status: int | None = None
        self._interrupted = False
        self._memory: mmap | None = None
        self._count = 0
        self._flush_all = ctypes.CDLL(None).fflush
        atexit.register(self._last)

    def begin(self, memory: mmap) -> None:
        """Note in a fork which modules are the template's.

        Args:
            memory: The names of all others are written there at the end.
        """
        self._memory, self._count = memory, len(sys.modules)

    def note(self, status: int, interrupted: bool) -> None:
        """Note how the program has ended; called before the interpreter ends."""
        self._status, self._interrupted = status, interrupted

    def _last(self) -> None:
        """End the process. The functions that others have registered with `atexit` have run."""
        if self._status is None:
            return
        status = self._status
        _flush()
        new = [str(name) for name in itertools.islice(sys.modules, self._count, None)]
        assert self._memory is not None
        for name in new:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if getattr(getattr(spec, "loader", None), "__module__", None) not in _LOADERS:
                continue  # a finder of the program's own has loaded it, such as pytest's
            if not is_imported(name):
                continue  # it is there under a second name, which nothing can import
            write_name(self._memory, name)
            if spec is not None and "." not in name:
                write_name(self._memory, with_detail(PLACE, name, str(spec.origin or "")))
        _take_down(new)
        status = status if _flush() else _UNWRITTEN
        self._flush_all(None)
        if self._interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(status)


def _flush() -> bool:
    """Flush standard output and error. Return whether all of standard output was written."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:  # noqa: BLE001 - a program may have put anything there
            if stream is sys.stdout:
                written = False
                sys.unraisablehook(_Unraisable(error, stream))  # type: ignore[arg-type]
    return written


class _Unraisable:
    """Error that nothing can catch any more, as `sys.unraisablehook` takes it."""

    def __init__(self, error: Exception, culprit: object) -> None:
        self.exc_type, self.exc_value, self.exc_traceback = type(error), error, error.__traceback__
        self.err_msg, self.object = None, culprit


def _take_down(modules: list[str]) -> None:
    """Let go of what the program has made, so that its finalisers run and its files are written."""
    for attribute in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, attribute):
            setattr(sys, attribute, None)
    found: list[Any] = [sys.modules.pop(name, None) for name in reversed(modules)]
    main = sys.modules.get("__main__")
    names = vars(main) if main is not None else {}
    del main
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    for name in [*private, *(name for name in names if name != "__builtins__")]:  # in the interpreter's own order
        names[name] = None
    found.clear()
    gc.enable()
    gc.collect()
