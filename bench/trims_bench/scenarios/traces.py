"""Costs of the tracer: what recording adds to a warm request, and how long a million spans take to be exported."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from trims_bench.endpoint import EndpointClient, EndpointProcess, as_inputs
from trims_bench.measuring import Bar, Comparison, Figure, Samples, measure, middle, ratio
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.trace.reader import Record
    from trims_bench.scenarios.base import Setup

_ADDED = "a warm request of a millisecond with everything recorded, over the same without"
_EXPORTED = "a million spans as a file for Perfetto"
_SPANS = 1_000_000
_TRACE_SPANS = 20


def added(setup: Setup) -> Figure:
    """Ask two endpoints of one daemon in turns; one records every request at the level `model`."""
    import numpy as np

    from trims_bench.small import WIDTH, manifest, write_weights

    given = as_inputs({"x": np.ones((1, WIDTH), np.float32)})
    with setup.scratch() as folder, setup.daemon() as daemon:
        model = daemon.register(manifest("dense", write_weights(folder / "small.npz"), "dense", [-1, WIDTH]))
        daemon.load(model)
        traced = {"TRIMS_TRACE": "1", "TRIMS_TRACE_DIR": str(folder / "trace")}
        with EndpointProcess(daemon.runtime_dir) as off, EndpointProcess(daemon.runtime_dir, variables=traced) as on:
            clients = {"not recorded": EndpointClient(off.port), "recorded": EndpointClient(on.port)}
            ways = {name: partial(client.infer, "dense", given) for name, client in clients.items()}
            found = measure(ways, setup.repeats(3000), burst=min(setup.repeats(100), 100), warm_up=5)
            for client in clients.values():
                client.close()
    recorded, without = (Samples(name, found[name]) for name in ("recorded", "not recorded"))
    return Figure("traced", _ADDED, [ratio("recorded", recorded, without, Bar("<=", 1.02))], [_note()])


def exported(setup: Setup) -> Figure:
    """Write spans of traces of 20 spans each, from two processes."""
    from trims.trace.export import perfetto

    count = setup.size(_SPANS, 1000)
    with setup.scratch() as folder:
        path, spans = folder / "t.pftrace", list(_spans(count))
        began = time.perf_counter_ns()
        with path.open("wb") as file:
            perfetto.write(file, spans, [])
        took, nbytes = time.perf_counter_ns() - began, path.stat().st_size
    times, sizes = (None, None) if setup.quick else (Bar("<=", 12_000), Bar("<=", 60e6))
    seconds = middle("written", Samples(f"{count:,} spans", [took]), times)
    size = Comparison("size of the file", nbytes, "bytes", sizes, [Samples("file", [nbytes], "bytes")])
    return Figure("exported", _EXPORTED, [seconds, size], ["The spans are in memory."])


def _spans(count: int) -> Iterator[Record]:
    from trims.trace.levels import Level
    from trims.trace.reader import Process, Record

    processes = Process(1, "endpoint", 1, 1), Process(2, "daemon", 1, 1)
    for number in range(count):
        trace, part = divmod(number, _TRACE_SPANS)
        begin = trace * 1_000_000 + part * 1000
        attributes: dict[str, Any] = {"model": "m"} if part % 5 == 0 else {}
        yield Record(
            processes[part % 2], f"{trace + 1:032x}", f"{number + 1:016x}", f"{number:016x}" if part else "",
            f"stage {part}", Level.MODEL, begin, begin + 900_000 - part * 1000, part % 3, attributes,
        )  # fmt: skip


def _note() -> str:
    return (
        "HTTP, binary tensors, one client, in bursts of 100 in turns. Client, endpoint and predictor share "
        f"{os.cpu_count()} processors."
    )


PARTS = {"traced": Part(_ADDED, added), "exported": Part(_EXPORTED, exported)}
