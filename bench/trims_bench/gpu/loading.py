"""Figures (c) and (e): a model from the disk, or from wherever it is resident, to the device, against frameworks.

The other sides need a PyTorch that can use the device; without one their lines say so.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import TrimsError
from trims_bench.child import ChildError, call, environment
from trims_bench.gpu.lines import Line, not_taken, taken
from trims_bench.gpu.resident import evict, gpu_daemon, model
from trims_bench.gpu.rig import UnavailableError
from trims_bench.measuring import Bar, Comparison, Samples, faster, measure
from trims_bench.models import artifact_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_bench.gpu.rig import Rig

_PLACE = "gpu:0"
_RIVALS = ("safetensors", "fastsafetensors", "runai_model_streamer")


# -- (c) -----------------------------------------------------------------------------------------------------------


def disk_to_device(rig: Rig) -> list[Line]:
    """Measure from an image in the page cache to ready on the device, against loaders of safetensors files."""
    why = _no_torch(rig)
    with rig.scratch() as folder, gpu_daemon(rig, folder / "state", 2 * rig.sizes.copy_bytes) as daemon:
        manifest = model(folder, "read", rig.sizes.copy_bytes)
        given = {
            "runtime_dir": str(daemon.runtime_dir), "name": daemon.add(manifest), "kind": rig.kind,
            "uuid": rig.device.uuid, "path": manifest["artifact"]["path"], "count": rig.sizes.loads,
            "drop": rig.drivers()[0] == "vmm", "rivals": not why,
        }  # fmt: skip
        found = call(measure_loads, given)
    ours = Samples("trims", found["taken"]["trims"])
    lines = [taken(Comparison("disk image to the device, p50", ours.median / 1e6, "ms", None, (ours,)))]
    for rival in _RIVALS:
        bar = Bar(">=", 1.5) if rival == "safetensors" else None
        what = f"faster than {rival}"
        if rival in found["taken"]:
            lines.append(taken(faster(what, ours, Samples(rival, found["taken"][rival]), bar)))
        else:
            lines.append(not_taken(what, bar, found["missing"].get(rival, why)))
    return lines


def measure_loads(
    *, runtime_dir: str, name: str, kind: str, uuid: str, path: str, count: int, drop: bool, rivals: bool
) -> dict[str, Any]:
    """Return nanoseconds to the device by each way, in turns, and why rivals failed; in a process with a context."""
    import trims
    from trims.memory.cuda.connect import connect

    connect(kind).use(uuid)
    held: list[Any] = []
    missing: dict[str, str] = {}
    ways: dict[str, Callable[[], Any]] = {}
    for rival in _RIVALS if rivals else ():
        way = _loader(rival, path, held)
        try:
            way()
            ways[rival] = way
        except Exception as error:  # noqa: BLE001 - whatever it is that a rival cannot do here
            missing[rival] = f"{type(error).__name__}: {error}"
        _let_go(held)
    with trims.connect(runtime_dir) as session:

        def keep(way: str, result: Any) -> None:
            if way == "trims":
                result.close()
                if drop:
                    session.open(name, place="cpu").close()  # given-up weights are reported with the next request
                    evict(runtime_dir, name, "cpu", _PLACE)
            else:
                _let_go(held)

        ways["trims"] = lambda: session.open(name, place=_PLACE)
        found = measure(ways, count if drop else 1, warm_up=1 if drop else 0, keep=keep)
    return {"taken": found, "missing": missing}


def _loader(rival: str, path: str, held: list[Any]) -> Callable[[], None]:
    """Load all tensors to the device, as its documentation does, and waits; `held` gets what keeps them."""

    def over_safetensors() -> None:
        import torch
        from safetensors.torch import load_file

        held.append(load_file(path, device="cuda:0"))
        torch.cuda.synchronize()

    def over_fastsafetensors() -> None:
        import torch
        from fastsafetensors import fastsafe_open

        opened = fastsafe_open(path, device="cuda:0", nogds=True)
        held.append((opened, {key: opened.get_tensor(key) for key in opened.keys()}))  # noqa: SIM118 - it is no mapping
        torch.cuda.synchronize()

    def over_runai() -> None:
        import torch
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            held.append({key: tensor.to("cuda:0") for key, tensor in streamer.get_tensors()})
        torch.cuda.synchronize()

    return {"safetensors": over_safetensors, "fastsafetensors": over_fastsafetensors}.get(rival, over_runai)


def _let_go(held: list[Any]) -> None:
    """Memory goes back to the device, so that each load allocates it again."""
    import torch

    held.clear()
    gc.collect()
    torch.cuda.empty_cache()


# -- (e) -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One PyTorch model: which of `torch_models`, and how much faster it must be ready."""

    name: str
    bar: float
    args: dict[str, Any]

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the manifest as a user would write it."""
        builder = {"call": "trims_bench.gpu.torch_models:build", "args": self.args}
        options = {"module": "trims_bench.gpu.torch_models:build_module", "module_args": self.args}
        return {"name": self.name, "artifact": {"format": "torch", "builder": builder, "options": options}}


def cases(rig: Rig) -> list[Case]:
    """The published architectures with seeded weights, and a stack of linear layers of any size."""
    linears = {"layers": rig.sizes.linears, "nbytes": rig.sizes.linear_bytes}
    return [
        Case("linears-torch", 210, {"model": "linears", **linears}),  # first: it decides most
        Case("resnet50-torch", 24, {"model": "resnet50"}),
        Case("vgg16-torch", 24, {"model": "vgg16"}),
        Case("bert-base-torch", 24, {"model": "bert-base"}),
    ]


def modules_ready(rig: Rig) -> Iterator[Line]:
    """A PyTorch module ready on the device, against building it, `torch.load` and `.cuda()`.

    In fresh processes, which have imported torch and the model's code and have a context before the time begins.
    """
    every = cases(rig)
    if why := _no_torch(rig):
        yield from (not_taken(_ready(case), Bar(">=", case.bar), why) for case in every)
        return
    nbytes = rig.sizes.linears * rig.sizes.linear_bytes
    with rig.scratch() as folder, gpu_daemon(rig, folder / "state", nbytes + (2 << 30)) as daemon:
        for case in every:
            try:
                daemon.load(daemon.register(case.manifest), place=_PLACE)
                path = str(artifact_of(case.manifest, folder / "state"))
                yield _compare(case, {"runtime_dir": str(daemon.runtime_dir), "path": path}, rig.sizes.loads)
            except (ChildError, TrimsError) as error:
                yield not_taken(_ready(case), Bar(">=", case.bar), str(error))


def _compare(case: Case, given: dict[str, Any], count: int) -> Line:
    given = {**given, "name": case.name, "args": case.args}
    found: dict[str, list[int]] = {"trims": [], "torch": []}
    for _ in range(max(1, count - 1)):
        for way, times in found.items():
            times.append(call(measure_module, {**given, "way": way}, env=environment()))
    ours, theirs = Samples("open + module", found["trims"]), Samples("build + torch.load + .cuda()", found["torch"])
    return taken(faster(_ready(case), ours, theirs, Bar(">=", case.bar)))


def measure_module(runtime_dir: str, name: str, args: dict[str, Any], path: str, way: str) -> int:
    """Return nanoseconds to the module, in a process that has a context, torch and the model's code."""
    import torch

    from trims_bench.gpu.torch_models import build_module

    with torch.device("meta"):
        build_module(**args)  # which imports its code
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    if way == "torch":
        began = time.perf_counter_ns()
        made = build_module(**args)
        made.load_state_dict(torch.load(path, weights_only=True))
        made.cuda()
        torch.cuda.synchronize()
        return time.perf_counter_ns() - began
    import trims_client.frameworks.torch as over_trims

    import trims

    with trims.connect(runtime_dir) as session:
        began = time.perf_counter_ns()
        made = over_trims.module(session.open(name, place=_PLACE))
        torch.cuda.synchronize()
        ended = time.perf_counter_ns()
        assert all(tensor.is_cuda for tensor in made.state_dict().values()), "all of it lies on the device"
    return ended - began


def _ready(case: Case) -> str:
    return f"{case.name}: ready faster than built and loaded"


def _no_torch(rig: Rig) -> str:
    try:
        rig.require_torch()
    except UnavailableError as error:
        return str(error)
    return ""
