"""Predictors and handlers that fail on a device, for tests of what becomes of the others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims_client.weights import Weights
    from trims_predictors.api import Arrays, Context

#: File beside the weights that says what goes wrong now; nothing does without it.
_ORDER = "order"


class OutOfMemoryError(RuntimeError):
    """As torch raises it, under the same name."""


class Failing:
    """A predictor with code of its own, which reads the first tensor and fails as the order beside its weights says."""

    _weights: Weights
    _folder: Path

    def load(self, weights: Weights, context: Context) -> None:
        self._folder = Path(context.attributes["folder"])
        self._weights = weights
        self._do("load")

    def predict(self, inputs: Arrays) -> Arrays:
        self._do("run")
        name = next(iter(self._weights))
        return {"y": np.frombuffer(self._weights.on_device(name).to_host(), np.uint8)[:1].copy()}

    def unload(self) -> None:
        del self._weights

    def _do(self, when: str) -> None:
        order = self._folder / _ORDER
        said = order.read_text() if order.exists() else ""
        if said == f"die in {when}":
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if said == f"lack memory in {when}" and self._weights.device is not None:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free")


def order(folder: Path, what: str) -> None:
    """Have the predictors of a folder fail so; nothing for none."""
    (folder / _ORDER).unlink(missing_ok=True)
    if what:
        (folder / _ORDER).write_text(what)


def manifest(folder: Path, **fields: Any) -> Mapping[str, Any]:
    """The manifest of a model whose predictors fail on order."""
    return {
        "artifact": {"path": str(folder / "m.safetensors")},
        "framework": {"name": "torch"},
        "predictor": {"call": "device_cases:Failing"},
        "attributes": {"folder": str(folder)},
        **fields,
    }
