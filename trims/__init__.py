"""trims: a resident model store.

    import trims

    with trims.connect() as session, session.open("resnet50") as weights:
        weights["conv1.weight"]          # a read-only numpy view, no bytes copied

`trims.admin()` is a client for operators: what the `trims` command does, from Python; `trims.aadmin()` is the same for
asyncio. `trims.errors` has every error class. `trims.torch`, `trims.onnxruntime`, `trims.mxnet` and `trims.cupy` turn
weights into what the framework runs; each needs its framework and is imported when it is first asked for. `trims.faas`
adapts a `handler(model, event)` to platforms for functions. `trims.evaluate()` measures where the time of a model's
start goes.

This is the one upward reference of the house: the names below are taken from `trims_client` and `trims_predictors`,
lazily.
"""

from __future__ import annotations

# Without the import of `typing`, which would be a tenth of what `trims exec` takes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trims_client import Session, Weights, connect, faas, open_file
    from trims_client.frameworks import cupy, mxnet, onnxruntime, torch
    from trims_client.mapping.lost_leases import Loss

    from trims import errors
    from trims.control import aadmin, admin
    from trims.core.errors import TrimsError

__version__ = "0.1.0"
__all__ = [
    "Loss",
    "Session",
    "TrimsError",
    "Weights",
    "__version__",
    "aadmin",
    "admin",
    "connect",
    "cupy",
    "errors",
    "evaluate",
    "faas",
    "mxnet",
    "onnxruntime",
    "open_file",
    "torch",
]
#: Names -> modules that have them.
_HOMES = {
    "Loss": "trims_client.mapping.lost_leases",
    "TrimsError": "trims.core.errors",
    "aadmin": "trims.control",
    "admin": "trims.control",
    "evaluate": "trims_predictors.evaluation.library",
}
_MODULES = {
    "cupy": "frameworks.cupy",
    "faas": "faas",
    "mxnet": "frameworks.mxnet",
    "onnxruntime": "frameworks.onnxruntime",
    "torch": "frameworks.torch",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "errors":
        return importlib.import_module("trims.errors")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"trims_client.{_MODULES[name]}")
    if name in __all__:
        return getattr(importlib.import_module("trims_client"), name)
    raise AttributeError(f"module 'trims' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
