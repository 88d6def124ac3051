"""Random numbers of forks: what a library seeds when it is imported is seeded again in each predictor.

A template has imported the library, so its forks would all draw the same numbers, where fresh processes draw different
ones. Python's own `random` and OpenSSL seed themselves after a fork; ONNX Runtime when it draws first; MXNet draws the
same numbers in each fresh process. A package whose generators are not known here names a function without arguments in
the entry points `trims.reseed`; the name of the entry point is the module that must be imported for it.

Not covered: the seed of Python's string hashes, which all forks of a template share.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Reseeder = Callable[[], object]

GROUP = "trims.reseed"


def _numpy() -> None:
    sys.modules["numpy.random"].seed()


def _torch() -> None:
    sys.modules["torch"].default_generator.seed()  # devices have theirs from their first use on, which is after a fork


def _multiprocessing() -> None:
    sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


#: Module that seeds something at its import -> what seeds it again.
_OURS: dict[str, Reseeder] = {
    "numpy.random": _numpy,
    "torch": _torch,
    "multiprocessing.process": _multiprocessing,
}


def installed_reseeders() -> list[Reseeder]:
    """Return the functions of plug-ins whose modules this process has imported; for a template, before its forks.

    Raises:
        NotSupportedError: One of them cannot be loaded, so forks of this process would repeat random numbers.
    """
    found: list[Reseeder] = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name not in sys.modules:
            continue
        try:
            found.append(entry.load())
        except Exception as error:
            raise NotSupportedError(
                f"the {GROUP} plugin {entry.name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
    return found


def reseed(installed: Sequence[Reseeder] = ()) -> None:
    """Seed again what this process has imported; in a fork, before any code of a model runs.

    Args:
        installed: What `installed_reseeders` returned in the parent.

    Raises:
        Exception: What a plug-in raises. The fork must end then, for its random numbers repeat another one's.
    """
    for module, seed in _OURS.items():
        if module in sys.modules:
            seed()
    for seed in installed:
        seed()
