"""Steps of a worker's process, or its template, on the frameworks that it has imported.

Standard library only: frameworks, and our code for them, are imported where one is among the modules.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from trims_predictors.frameworks import SHARING, WARM_UPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trims_client.weights import Weights


def are_among(modules: Iterable[str]) -> bool:
    """Return whether predictors that start with these modules compute with a framework."""
    return not WARM_UPS.keys().isdisjoint(modules)


def warm_up_template(modules: Iterable[str]) -> None:
    """Run each framework once with one thread, which starts none: forks of this process find the code warm."""
    for ours in _imported(modules):
        ours.warm_up_template()


def warm_up(modules: Iterable[str], threads: int) -> None:
    """Set the number of threads and run each framework once, so that its threads and code are there."""
    for ours in _imported(modules):
        ours.warm_up(threads)


def _imported(modules: Iterable[str]) -> Iterator[Any]:
    """Our code for each of the modules that is a framework and that this process could import."""
    for module in modules:
        if module in WARM_UPS and module in sys.modules:
            yield importlib.import_module(WARM_UPS[module])


def warm_up_on_device(weights: Weights) -> None:
    """Have torch, if it is imported, run once on the device where weights lie: it loads its libraries for that.

    ONNX Runtime loads them for a session, which belongs to a graph.
    """
    if "torch" in sys.modules:
        importlib.import_module(WARM_UPS["torch"]).warm_up_on_device(weights)


def release_device_memory() -> None:
    """Have frameworks give back what they keep of a device's memory for later runs."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def sharing() -> frozenset[str]:
    """Frameworks that this process has imported and that can compute with another number of threads in each run."""
    return frozenset(SHARING.keys() & sys.modules.keys())


def share_threads(before: int, threads: int) -> None:
    """Have each framework that is imported compute with so many threads, unless model code chose another number."""
    for module, ours in SHARING.items():
        if module in sys.modules:
            importlib.import_module(ours).share_threads(before, threads)
