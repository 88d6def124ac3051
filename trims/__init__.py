"""trims: a resident model store.

    import trims

    with trims.connect() as session, session.open("resnet50") as weights:
        weights["conv1.weight"]          # a read-only numpy view, no bytes copied

`trims.admin()` is a client for operators: what the `trims` command does, from Python; `trims.aadmin()` is the same for
asyncio. `trims.errors` has every error class. `trims.torch`, `trims.onnxruntime`, `trims.mxnet` and `trims.cupy` turn
weights into what the framework runs; each needs its framework, and is imported when it is first used, or by
`import trims.torch`. `trims.faas` adapts a `handler(model, event)` to platforms for functions. `trims.evaluate()`
measures where the time of a model's start goes. `from trims import *` brings the names that need no extra package.

This is the one upward reference of the house: the names below are taken from `trims_client` and `trims_predictors`,
lazily.
"""

from __future__ import annotations

# Without the import of `typing`, which would be a tenth of what `trims exec` takes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trims_client import Session, Weights, connect, open_file
    from trims_client.mapping.lost_leases import Loss

    from trims import cupy as cupy
    from trims import errors, faas
    from trims import mxnet as mxnet
    from trims import onnxruntime as onnxruntime
    from trims import torch as torch
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
    "errors",
    "faas",
    "open_file",
]
#: Names that need a package which may be missing: `from trims import *` must not.
_OPTIONAL = ("cupy", "evaluate", "mxnet", "onnxruntime", "torch")
#: Names -> modules that have them.
_HOMES = {
    "Loss": "trims_client.mapping.lost_leases",
    "TrimsError": "trims.core.errors",
    "aadmin": "trims.control",
    "admin": "trims.control",
    "evaluate": "trims_bench.evaluation.library",
}
_MODULES = ("cupy", "errors", "faas", "mxnet", "onnxruntime", "torch")
#: Extras that bring what a name needs.
_EXTRAS = {"evaluate": "trims[eval]"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"trims.{name}")
    if name in _HOMES:
        from trims.public import imported

        return getattr(imported(f"trims.{name}", _HOMES[name], _EXTRAS.get(name, "trims")), name)
    if name in __all__:
        return getattr(importlib.import_module("trims_client"), name)
    raise AttributeError(f"module 'trims' has no attribute {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted((*__all__, *_OPTIONAL))
