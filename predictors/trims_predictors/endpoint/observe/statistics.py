"""Counts of each model at the endpoint, in the shape of Triton's statistics extension."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trims_predictors.deployment.deployment import Answer


@dataclass(slots=True)
class _Sum:
    count: int = 0
    ns: int = 0

    def as_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


#: Parts of a run.
_COMPUTE = ("compute_input", "compute_infer", "compute_output")


@dataclass(slots=True)
class _Batch:
    """Runs of so many rows."""

    runs: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self, rows: int) -> dict[str, Any]:
        count = round(self.runs)
        parts = {name: {"count": count, "ns": round(self.seconds.get(name, 0.0) * 1e9)} for name in _COMPUTE}
        return {"batch_size": rows, **parts}


@dataclass(slots=True)
class ModelStatistics:
    """Counts of one model since the endpoint began.

    Attributes:
        inferences: Rows answered, or requests of models without batches.
        batches: Runs by the rows that they had.
        runs: Runs of a predictor.
        cold: Requests that a predictor was started for.
    """

    inferences: int = 0
    runs: float = 0.0
    cold: int = 0
    last_ms: int = 0
    sums: dict[str, _Sum] = field(default_factory=dict)
    batches: dict[int, _Batch] = field(default_factory=dict)

    def answered(self, answer: Answer, seconds: float) -> None:
        """Count a request and the seconds it took to answer."""
        self.inferences += answer.rows
        self.runs += 1 / answer.batch
        self.cold += answer.cold
        self.last_ms = time.time_ns() // 1_000_000
        self._add("success", seconds)
        stages = answer.stages.get
        self._add("queue", stages("queue_s", 0.0))
        parts = {
            "compute_input": stages("input_s", 0.0) + stages("preprocess_s", 0.0),
            "compute_infer": stages("predict_s", 0.0),
            "compute_output": stages("postprocess_s", 0.0) + stages("output_s", 0.0),
        }
        for name, part_s in parts.items():
            self._add(name, part_s)
        batch = self.batches.setdefault(answer.run_rows, _Batch())
        batch.runs += 1 / answer.batch
        for name, part_s in parts.items():  # each request of a run reports the whole run
            batch.seconds[name] = batch.seconds.get(name, 0.0) + part_s / answer.batch

    def failed(self, seconds: float) -> None:
        """Count a request that ended in an error."""
        self._add("fail", seconds)

    def _add(self, name: str, seconds: float) -> None:
        counted = self.sums.setdefault(name, _Sum())
        counted.count += 1
        counted.ns += round(seconds * 1e9)

    def as_json(self, name: str, version: str) -> dict[str, Any]:
        """Return the counts in the shape of the extension; `cold_count` is ours."""
        names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_ms,
            "inference_count": self.inferences,
            "execution_count": round(self.runs),
            "inference_stats": {each: self.sums.get(each, _Sum()).as_json() for each in names},
            "batch_stats": [batch.as_json(rows) for rows, batch in sorted(self.batches.items())],
            "cold_count": self.cold,
        }
