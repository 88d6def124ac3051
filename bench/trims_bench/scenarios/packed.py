"""ONNX Runtime over packed weights in the image: ready at once, at full speed after the first answer, one copy."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from trims_bench.child import call, started
from trims_bench.figures import Bar, Comparison, Figure, Samples, faster, share
from trims_bench.turns import take_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_bench.scenarios.base import Setup

TITLE = "ONNX Runtime BERT-base with `prepack: shared`, against `InferenceSession(path)` with its own packing"
_NAME = "bert-base-onnx"
_TOKENS = 16
_PROCESSES = 6


def run(setup: Setup) -> Figure:
    """Sessions made in turns; runs of both stages and of the other side in turns; then several processes at once."""
    from trims_bench.runs import artifact_of
    from trims_bench.smaps import of_process, of_weights

    shape = {} if not setup.quick else {"layers": 1, "width": 48}
    manifest: dict[str, Any] = {
        "name": _NAME,
        "artifact": {
            "format": "onnx",
            "builder": {"call": "trims_bench.builders.bert_base_onnx:build", "args": {"seed": 7, **shape}},
            "options": {"prepack": "shared"},
        },
    }
    with setup.daemon() as daemon:
        nbytes = daemon.load(daemon.add(manifest)).nbytes
        where = {"runtime_dir": str(daemon.runtime_dir), "path": str(artifact_of(manifest, setup.state_dir))}
        found = call(measure, {**where, "sessions": setup.repeats(9), "runs": setup.repeats(60)})
        segment = daemon.location(_NAME)
        with ExitStack() as stack:
            holders = [stack.enter_context(started(hold, where)) for _ in range(setup.size(_PROCESSES, 2))]
            pids = [holder.result() for holder in holders]
            weights = [of_weights(pid, segment) for pid in pids]
            private = [of_process(pid).private for pid in pids]
            for holder in holders:
                holder.end()
        with started(hold, {**where, "alone": True}) as holder:
            alone = [of_process(holder.result()).private]
            holder.end()
    return Figure("packed", TITLE, _compared(found, nbytes, weights, private, alone), [_TURNS, _MEMORY])


_TURNS = (
    f"Texts of {_TOKENS} tokens; each side with ONNX Runtime's default threads. Trims has the model in shared memory. "
    "First: the session as it begins, which reads the weights as published; packed: after the exchange."
)
_MEMORY = (
    "Weights in memory: proportional bytes of the image in all processes after the exchange, which has touched both "
    "forms, over the bytes of the image. Private: the median process, Python and libraries included (other side: one "
    "process with its own loader)."
)


def _compared(
    found: dict[str, dict[str, list[int]]], nbytes: int, weights: list[Any], private: list[int], alone: list[int]
) -> list[Comparison]:
    ready = Samples("trims", found["made"]["trims"])
    own = Samples("onnxruntime", found["made"]["onnxruntime"])
    ran = {side: Samples(side, values) for side, values in found["ran"].items()}
    once = Samples("proportional", [each.pss for each in weights], "bytes")
    return [
        Comparison("session ready", ready.median / 1e6, "ms", Bar("<=", 30.0), (ready, own)),
        faster("session ready, times sooner", ready, own, None),
        share("steady run, first, times the other's", ran["first"], ran["onnxruntime"], None),
        share("steady run, packed, times the other's", ran["packed"], ran["onnxruntime"], Bar("<=", 1.03)),
        Comparison(
            "from the first answer to packed", Samples("", found["exchanged"]["trims"]).median / 1e6, "ms", None, ()
        ),
        Comparison("weights in memory", sum(once.values) / nbytes, "x", Bar("<=", 1.05), (once,)),
        Comparison(
            "private memory of a process",
            Samples("trims", private, "bytes").median,
            "bytes",
            None,
            (Samples("trims", private, "bytes"), Samples("onnxruntime", alone, "bytes")),
        ),
    ]


def feeds() -> dict[str, Any]:
    """One text."""
    import numpy as np

    ids = np.arange(1000, 1000 + _TOKENS, dtype=np.int64)[None]
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def measure(runtime_dir: str, path: str, sessions: int, runs: int) -> dict[str, dict[str, list[int]]]:
    """Nanoseconds to a session, of a run in each stage, and of an exchange; answers are compared."""
    import numpy as np
    import onnxruntime
    from trims_client.frameworks.onnxruntime import SharedSession
    from trims_client.frameworks.onnxruntime import session as over_weights

    import trims

    def over_trims() -> SharedSession:
        with connection.open(_NAME) as weights:
            return over_weights(weights)

    def alone() -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    exchanged = []
    with trims.connect(runtime_dir) as connection:
        made = take_turns({"trims": over_trims, "onnxruntime": alone}, sessions)
        for _ in range(sessions):
            ours = over_trims()
            ours.run(None, feeds())
            began = time.perf_counter_ns()
            stage = ours.pack()
            exchanged.append(time.perf_counter_ns() - began)
            assert stage == "packed", ours.why_plain
        first, theirs = over_trims(), alone()
        first._packing = None  # it stays as it is
        for session in (first, ours):
            np.testing.assert_allclose(
                session.run(None, feeds())[0], theirs.run(None, feeds())[0], rtol=1e-3, atol=1e-4
            )
        ways = {
            "first": lambda: first.run(None, feeds()),
            "packed": lambda: ours.run(None, feeds()),
            "onnxruntime": lambda: theirs.run(None, feeds()),
        }
        return {"made": made, "ran": take_turns(ways, runs, warm_up=5), "exchanged": {"trims": exchanged}}


def hold(runtime_dir: str, path: str, alone: bool = False) -> Iterator[int]:
    """A process that has run the model; yields its number, and again at the end."""
    import os

    import onnxruntime
    from trims_client.frameworks.onnxruntime import session as over_weights

    import trims

    with ExitStack() as stack:
        if alone:
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        else:
            connection = stack.enter_context(trims.connect(runtime_dir))
            session = over_weights(stack.enter_context(connection.open(_NAME)))
            session.run(None, feeds())
            assert session.pack() == "packed", session.why_plain
        session.run(None, feeds())
        yield os.getpid()
    yield 0
