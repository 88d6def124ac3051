"""Evaluations that tests of reports need: with samples of stated medians."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_bench.evaluation.records import Evaluated, Order, Sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def samples(
    tier: str, way: str, seconds: float, count: int = 5, *, digest: str = "d", batch: int = 1, steady_s: float = 0.1
) -> list[Sample]:
    """Return samples that all take as long; three quarters of it are `open`."""
    stages = {"open": seconds * 0.75, "unattributed": seconds * 0.25}
    return [
        Sample(tier, way, number, seconds, stages, (steady_s,), digest, "t", batch=batch) for number in range(count)
    ]


def evaluated(
    taken: Sequence[Sample], *, model: str = "m", key: str = "k", stack: Mapping[str, Any] | None = None,
    evaluation_id: str = "20260101-1", **more: Any,
) -> Evaluated:  # fmt: skip
    """Return an evaluation that has ended."""
    facts = {"processors": 2, "processor": "P", "libraries": {"numpy": "2"}} if stack is None else stack
    order = Order(evaluation_id, model, key, ("cpu",), ("fresh",), 5, began_unix_s=1.0, stack=facts)
    return Evaluated(order, taken, **{"ended": True, **more})
