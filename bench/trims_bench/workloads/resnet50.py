"""ResNet-50 classifies one image with ONNX Runtime."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trims_bench.answers import Agreement, Answer, compare, top_classes

if TYPE_CHECKING:
    from pathlib import Path

    from trims_client.weights import Weights

    from trims_bench.stages import Stages

#: Without pre-packing the last layer's sums are taken in another order: the only kernel that differs.
TOLERANCE = 1e-5


def prepare(trace: Stages) -> None:
    """Import ONNX Runtime, which must not spend the time measured on reports to its maker."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with trace.stage("import"):
        import onnxruntime  # noqa: F401


def framework_alone(artifact: Path, trace: Stages) -> Answer:
    """`InferenceSession(path)` as the manual says."""
    prepare(trace)
    import onnxruntime

    with trace.stage("load"):
        session = onnxruntime.InferenceSession(artifact, providers=["CPUExecutionProvider"])
    return _infer(session, trace)


def with_trims(weights: Weights, trace: Stages) -> Answer:
    """A session over the shared initializers."""
    prepare(trace)
    with trace.stage("load"):
        from trims_client.frameworks.onnxruntime import session

        made = session(weights)
    return _infer(made, trace)


def same(one: Answer, other: Answer) -> Agreement:
    """Equal logits up to the order of summation in the last layer."""
    return compare(one, other, tolerance=TOLERANCE)


def _infer(session: Any, trace: Stages) -> Answer:
    with trace.stage("first inference"):
        (logits,) = session.run(["logits"], {"image": image()})
    return Answer.of(logits, top_classes(logits[0]), session)


def image() -> Any:
    """One seeded image, [1, 3, 224, 224] float32."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(3)).standard_normal((1, 3, 224, 224), dtype=np.float32)
