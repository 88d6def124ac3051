"""What the endpoint counts of each model, in the shape of Triton's statistics extension."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trims_predictors.records import Answer


@dataclass(slots=True)
class _Sum:
    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += round(seconds * 1e9)

    def told(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class ModelStatistics:
    """Of one model since the endpoint began.

    Attributes:
        inferences: Rows answered, or requests of models without batches.
        runs: Runs of a predictor.
        cold: Requests that a predictor was started for.
    """

    inferences: int = 0
    runs: float = 0.0
    cold: int = 0
    last_ms: int = 0
    sums: dict[str, _Sum] = field(default_factory=dict)

    def answered(self, answer: Answer, seconds: float) -> None:
        """Count a request and the seconds it took to answer."""
        self.inferences += 1
        self.runs += 1 / answer.batch
        self.cold += answer.cold
        self.last_ms = time.time_ns() // 1_000_000
        self._add("success", seconds)
        for name, stages in (
            ("queue", ("queue_s",)), ("compute_input", ("input_s", "preprocess_s")), ("compute_infer", ("predict_s",)),
            ("compute_output", ("postprocess_s", "output_s")),
        ):  # fmt: skip
            self._add(name, sum(answer.stages.get(stage, 0.0) for stage in stages))

    def failed(self, seconds: float) -> None:
        """Count a request that ended in an error."""
        self._add("fail", seconds)

    def _add(self, name: str, seconds: float) -> None:
        self.sums.setdefault(name, _Sum()).add(seconds)

    def told(self, name: str, version: str) -> dict[str, Any]:
        """As the extension says; `cold_count` is ours."""
        names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_ms,
            "inference_count": self.inferences,
            "execution_count": round(self.runs),
            "inference_stats": {each: self.sums.get(each, _Sum()).told() for each in names},
            "batch_stats": [],
            "cold_count": self.cold,
        }
