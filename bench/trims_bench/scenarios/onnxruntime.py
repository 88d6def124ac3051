"""ONNX Runtime: to a session that is ready, and how fast it then runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_bench.child import call
from trims_bench.figures import Bar, Figure, Samples, faster, share
from trims_bench.turns import take_turns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trims_bench.scenarios.base import Setup

TITLE = "ONNX Runtime session ready for ResNet-50, against `InferenceSession(path)`, at equal steady run time"
_NAME = "resnet50"


def run(setup: Setup) -> Figure:
    """Sessions made in turns; then one of each, run in turns."""
    from trims_bench.repository import MANIFESTS
    from trims_bench.runs import artifact_of

    manifest = MANIFESTS / f"{_NAME}.yaml"
    with setup.daemon() as daemon:
        daemon.load(daemon.add(manifest))
        found = call(
            measure,
            {
                "runtime_dir": str(daemon.runtime_dir),
                "path": str(artifact_of(manifest, setup.state_dir)),
                "sessions": setup.repeats(15),
                "runs": setup.repeats(80),
            },
        )
    made = [Samples(of, found["made"][of]) for of in ("trims", "onnxruntime")]
    ran = [Samples(of, found["ran"][of]) for of in ("trims", "onnxruntime")]
    compared = [
        faster("session ready", made[0], made[1], Bar(">=", 20)),
        share("steady run, times the other", ran[0], ran[1], Bar("<=", 1.03)),
    ]
    notes = ["Same threads on both sides: ONNX Runtime's default. The manifest asks for no private, pre-packed copies."]
    return Figure("onnxruntime", TITLE, compared, notes)


def measure(runtime_dir: str, path: str, sessions: int, runs: int) -> dict[str, dict[str, list[int]]]:
    """Nanoseconds to a session, and of a run of one that has run before, both ways."""
    import onnxruntime
    from trims_client.frameworks.onnxruntime import session as over_weights

    import trims
    from trims_bench.workloads.resnet50 import image

    def over_trims() -> onnxruntime.InferenceSession:
        with connection.open(_NAME) as weights:
            return over_weights(weights)

    def alone() -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def running(session: onnxruntime.InferenceSession) -> NDArray[np.float32]:
        (logits,) = session.run(["logits"], feed)
        return logits  # type: ignore[no-any-return]

    feed = {"image": image()}
    with trims.connect(runtime_dir) as connection:
        made = take_turns({"trims": over_trims, "onnxruntime": alone}, sessions)
        ours, theirs = over_trims(), alone()
        ways = {"trims": lambda: running(ours), "onnxruntime": lambda: running(theirs)}
        return {"made": made, "ran": take_turns(ways, runs, warm_up=5)}
