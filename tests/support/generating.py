"""A service that generates: three parts, then the whole; what it was asked is kept."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
from served_grpc import NO_FLEET
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.observe.metrics import Metrics
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import ModelNotFoundError

PARTS = ("one", " two", " three")


def words(*values: str) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), dtype=object)
    made[:] = [each.encode() for each in values]
    return made


class Generator:
    """Stands for `Service`, with the model `m`."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.metrics.register("m")
        self.exporter = None
        self.error: Exception | None = None
        self.fails_after = 0
        self.asked: list[dict[str, Any]] = []
        self.hangs = False
        self.registered = [SimpleNamespace(name="m", reference="m@1.0.0", versions=("1.0.0",))]
        self.cancelled = asyncio.Event()

    async def models(self) -> list[Any]:
        return self.registered

    async def deployment(self, model: str, version: str = "") -> Any:
        del version
        if model != "m":
            raise ModelNotFoundError(f"no model {model!r} is registered")
        return SimpleNamespace(model="m", version="1.0.0")

    async def run(self, model: str, version: str, asked: Any, *, on_part: Any = None, span: Any = None) -> Any:
        del span
        deployment = await self.deployment(model, version)
        self.asked.append({each.name: to_array(each).tolist() for each in asked.inputs})
        for number, part in enumerate(PARTS if on_part is not None else ()):
            if self.error is not None and number == self.fails_after:
                raise self.error
            on_part([from_array("generated_text", words(part))])
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        outputs = {
            "generated_text": words("".join(PARTS)), "finish_reason": words("stop"), "prompt_tokens": np.array([2]),
            "completion_tokens": np.array([3]), "embedding": np.array([[0.5, 1.0]], np.float32),
        }  # fmt: skip
        wanted = asked.wanted or ("generated_text",)
        answer = Answer(
            [from_array(name, outputs[name]) for name in wanted], cold=False, how="running", place="cpu", warm=True,
            batch=1, stages={},
        )  # fmt: skip
        return deployment, answer

    def counted(self, code: str) -> float:
        """Requests that ended so."""
        page = self.metrics.page(NO_FLEET, [])
        lines = [line for line in page.decode().splitlines() if "requests_total{" in line and f'"{code}"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)
