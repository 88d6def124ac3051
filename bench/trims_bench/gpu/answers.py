"""Figure (g): requests that an endpoint answers from the device, cold from a template, from a spare, and hot.

Beside torch alone in the same run. A daemon, an endpoint and its predictors are real; on the fake the same runs on tiny
models, whose times say nothing.
"""

from __future__ import annotations

import base64
import gzip
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from trims_bench.child import call, environment
from trims_bench.endpoint import EndpointProcess, as_inputs
from trims_bench.gpu.lines import Line, not_taken, taken
from trims_bench.gpu.loading import Case
from trims_bench.gpu.resident import gpu_daemon
from trims_bench.measuring import Bar, Comparison, Samples, ratio
from trims_bench.models import TORCH, artifact_of, inputs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.endpoint import Inputs
    from trims_bench.gpu.rig import Rig

_PLACE = "gpu:0"
_MODELS = ("bert-base", "resnet50", "gpt2")
_SPARE_MS, _TEMPLATE_MS, _HOT_MS, _TIMES = 60.0, 450.0, 1.5, 100.0
_HOT_REQUESTS, _LOOPS = 30, 30
#: Bytes that another program leaves of the device when spares are put under pressure.
_LEFT_BYTES = 64 << 20
#: Bytes of a trace that are kept in the record.
_MOST_TRACE_BYTES = 256 << 10


def answers(rig: Rig) -> Iterator[Line]:
    """Requests to BERT-base, ResNet-50 and a small decoder on the device, each way over what the model computes."""
    real = rig.kind == "driver"
    if real:
        rig.require_torch()
    with rig.scratch() as folder, gpu_daemon(rig, folder / "state", 4 << 30) as daemon:
        cases = [_case(name, small=rig.sizes.small_models) for name in _MODELS]
        for case in cases:
            daemon.load(daemon.register({**case.manifest, "residency": {"place": _PLACE}}), place=_PLACE)
        # The fake's files are locked by predictors, which a namespace does not let them.
        flags = () if real else ("--isolation", "process")
        alone = {case.name: _alone(case, folder, rig.sizes.loads, cuda=real) for case in cases}
        for way, bar, spares in (("template", _TEMPLATE_MS, "0"), ("spare", _SPARE_MS, "1")):
            more = ("--keep-alive-s", "0", "--device-spares", spares)
            with EndpointProcess(daemon.runtime_dir, *flags, *more) as endpoint:
                for case in cases:
                    yield from _cold(endpoint, case, rig.sizes.loads, alone[case.name], (way, bar))
                if way == "spare":
                    yield from _pressure(rig, endpoint, cases[0])
        with EndpointProcess(daemon.runtime_dir, *flags) as endpoint:
            for case in cases:
                yield _hot(endpoint, case, alone[case.name])
            yield _traced(daemon, endpoint, cases[0], folder)


def _case(name: str, *, small: bool) -> Case:
    return Case(f"{name}-answers", 0, {"model": name, **({"small": True} if small else {})})


def _inputs(case: Case) -> Inputs:
    return as_inputs(inputs(case.args["model"], TORCH))


# -- torch alone -----------------------------------------------------------------------------------------------------


def _alone(case: Case, folder: Path, count: int, *, cuda: bool) -> dict[str, list[int]]:
    """Return nanoseconds from the start of a process with torch to its first answer, and of its later runs."""
    path = str(artifact_of(case.manifest, folder / "state"))
    found: dict[str, list[int]] = {"first": [], "loop": []}
    for _ in range(max(1, count - 1)):
        began = time.time_ns()
        made = call(measure_alone, {"args": case.args, "path": path, "cuda": cuda}, env=environment())
        found["first"].append(made["first_at_ns"] - began)
        found["loop"] += made["loop_ns"]
    return found


def measure_alone(args: dict[str, Any], path: str, cuda: bool) -> dict[str, Any]:
    """Load a state dict with torch, run it on the device, and return when it had answered and what later runs took."""
    import torch

    from trims_bench.gpu.torch_models import build_module

    device = torch.device("cuda" if cuda else "cpu")
    module = build_module(**args)
    module.load_state_dict(torch.load(path, weights_only=True))
    module.to(device)
    given = {name: torch.from_numpy(array).to(device) for name, array in inputs(args["model"], TORCH).items()}

    def run() -> None:
        with torch.inference_mode():
            next(iter(module(**given).values())).cpu()

    run()
    first_at_ns, loop_ns = time.time_ns(), []
    for _ in range(_LOOPS):
        began = time.perf_counter_ns()
        run()
        loop_ns.append(time.perf_counter_ns() - began)
    return {"first_at_ns": first_at_ns, "loop_ns": loop_ns[_LOOPS // 3 :]}


# -- requests --------------------------------------------------------------------------------------------------------


def _cold(
    endpoint: EndpointProcess, case: Case, count: int, alone: dict[str, list[int]], way: tuple[str, float]
) -> Iterator[Line]:
    """Requests for which no process of the model runs, over what the model computes."""
    name, limit_ms = way
    given, times, hows = _inputs(case), [], set()
    endpoint.infer(case.name, given)  # templates learn what it imports, and spares run what it ran
    endpoint.await_calm()
    for _ in range(count):
        if name == "spare":
            endpoint.await_state(lambda state: not state["models"].get(case.name) and _spares(state))
        else:
            endpoint.await_spare("torch", case.name)
        began = time.perf_counter_ns()
        answer, _ = endpoint.infer(case.name, given)
        times.append(time.perf_counter_ns() - began)
        hows.add(answer["parameters"]["predictor"])
    computes = int(median(alone["loop"]))
    ours = Samples(f"{case.name} from a {name}", [each - computes for each in times])
    what = f"{case.name}: no process of the model, {name} ({', '.join(sorted(hows))}), over compute"
    yield taken(Comparison(what, ours.median / 1e6, "ms", Bar("<=", limit_ms), (ours,)))
    if name == "spare":
        fresh = Samples("a fresh process with torch", [each - computes for each in alone["first"]])
        bar = Bar(">=", _TIMES)
        yield taken(ratio(f"{case.name}: a fresh process with torch / a spare, over compute", fresh, ours, bar))


def _hot(endpoint: EndpointProcess, case: Case, alone: dict[str, list[int]]) -> Line:
    given, times = _inputs(case), []
    for number in range(_HOT_REQUESTS + 5):
        began = time.perf_counter_ns()
        endpoint.infer(case.name, given)
        if number >= 5:
            times.append(time.perf_counter_ns() - began)
    ours, loop = Samples("a hot request", times), Samples("the module in a loop", alone["loop"])
    over_ms = (ours.median - loop.median) / 1e6
    what = f"{case.name}: hot request over the module called in a loop"
    return taken(Comparison(what, over_ms, "ms", Bar("<=", _HOT_MS), (ours, loop)))


def _pressure(rig: Rig, endpoint: EndpointProcess, case: Case) -> Iterator[Line]:
    """Report whether spares end when another program takes the device, whose requests are answered, and come again."""
    given = _inputs(case)
    endpoint.await_state(_spares)
    nbytes = (rig.free_bytes() - _LEFT_BYTES) // (2 << 20) * (2 << 20)
    with rig.exporter("vmm", nbytes):
        gone_s = endpoint.await_state(lambda state: not _spares(state))
    endpoint.infer(case.name, given)
    back_s = endpoint.await_state(_spares)
    for what, seconds in (("given up", gone_s), ("made again", back_s)):
        sides = (Samples(what, [int(seconds * 1e9)]),)
        yield taken(Comparison(f"spares under pressure: {what} after", seconds, "s", None, sides))


def _spares(state: dict[str, Any]) -> list[Any]:
    return [each for each in state["device_spares"] if each["place"] == _PLACE]


# -- a trace with kernels --------------------------------------------------------------------------------------------


def _traced(daemon: DaemonProcess, endpoint: EndpointProcess, case: Case, folder: Path) -> Line:
    """One hot request at the level `hardware`; its trace is kept in the line, as base64 of gzip."""
    import numpy as np

    from trims.cli.main import main

    what = f"{case.name}: bytes of a trace with kernels"
    arrays, out = folder / "inputs.npz", folder / "trace.json"
    np.savez(arrays, **inputs(case.args["model"], TORCH))
    words = ["--runtime-dir", str(daemon.runtime_dir), "trace", case.name, str(arrays), "--level", "hardware"]
    status = main([*words, "--endpoint", f"http://127.0.0.1:{endpoint.port}", "--export", str(out)])
    if status or not out.exists():
        return not_taken(what, None, f"trims trace ended with status {status}")
    packed = gzip.compress(out.read_bytes())
    line = taken(
        Comparison(what, float(out.stat().st_size), "bytes", None, (Samples("trace", [len(packed)], "bytes"),))
    )
    return {**line, "trace": base64.b64encode(packed).decode() if len(packed) <= _MOST_TRACE_BYTES else ""}
