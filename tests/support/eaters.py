"""Predictors that take more memory or room than they may, each in its own way, as `eaters:Eater`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client.weights import Weights
    from trims_predictors import Context
    from trims_predictors.api import Arrays

_TOO_MANY_BYTES = 4 << 30


class QuietlyBrokenError(Exception):
    """An error of a library that hides what is behind it."""


def python() -> None:
    """Raises MemoryError, which has no text."""
    bytearray(_TOO_MANY_BYTES)


def numpy() -> None:
    """Raises a class of numpy's own."""
    np.ones(_TOO_MANY_BYTES, dtype=np.uint8)


def torch() -> None:
    """Raises RuntimeError: DefaultCPUAllocator: can't allocate memory."""
    import torch as framework

    framework.empty(_TOO_MANY_BYTES, dtype=framework.uint8)


def hidden() -> None:
    """Raises an error of its own while it handles MemoryError."""
    try:
        python()
    except MemoryError:
        raise QuietlyBrokenError("no") from None


def threads() -> None:
    """Starts threads until there is no room for a stack."""
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def cxx() -> None:
    """Ends the process: nothing catches C++'s std::bad_alloc."""
    allocate = ctypes.CDLL("libstdc++.so.6")._Znwm
    allocate.argtypes, allocate.restype = [ctypes.c_size_t], ctypes.c_void_p
    allocate(_TOO_MANY_BYTES)


def exit_() -> None:
    """Ends the process as OpenMP's library does."""
    sys.stderr.write("libgomp: Thread creation failed: Resource temporarily unavailable\n")
    sys.stderr.flush()
    os._exit(1)


def kernel() -> None:
    """Ends as the kernel ends what goes beyond its control group."""
    os.kill(os.getpid(), signal.SIGKILL)


def files() -> None:
    """Writes more files than there is room for."""
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(1 << 12):
            file.write(bytes(1 << 20))


def sleep() -> None:
    """Takes longer than it may."""
    time.sleep(600)


WAYS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (python, numpy, torch, hidden, threads, cxx, exit_, kernel, files, sleep)
}


class Eater:
    """Does what the option `load` says when it loads, and what the option `predict` says when it is asked."""

    def load(self, weights: Weights, context: Context) -> None:
        self._options: dict[str, Any] = dict(context.options)
        if "noted" in self._options:
            Path(self._options["noted"]).touch()
        self._eat("load")

    def predict(self, inputs: Arrays) -> Arrays:
        self._eat("predict")
        return dict(inputs)

    def _eat(self, when: str) -> None:
        if when in self._options:
            WAYS[self._options[when]]()

    def unload(self) -> None:
        pass
