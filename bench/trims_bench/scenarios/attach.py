"""Reading every page of a large model: attached, and as safetensors loads it from the page cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples, faster
from trims_bench.scenarios.base import MEMORIES
from trims_bench.turns import take_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trims_bench.scenarios.base import Setup

TITLE = "attach 1 GiB and touch every page, against safetensors from the page cache"
_PAGE_FLOATS = 1024


def run(setup: Setup) -> Figure:
    """trims, `safetensors.torch.load_file` (which maps) and `safetensors.numpy.load_file` (which copies), in turns."""
    compared = []
    with setup.scratch() as folder:
        path = write_checkpoint(folder / "model.safetensors", setup.size(1 << 30, 1 << 22), tensors=64)
        for where, large_pages in MEMORIES.items():
            compared += _compare(setup, path, where, large_pages)
    notes = ["Each time is a new mapping: every page is faulted in again on both sides."]
    return Figure("attach", TITLE, compared, notes)


def _compare(setup: Setup, path: Path, where: str, large_pages: bool) -> list[Comparison]:
    capacity = 2 * path.stat().st_size
    with setup.daemon(path.parent / "state", cpu_capacity_bytes=capacity, large_pages=large_pages) as daemon:
        daemon.load(daemon.add({"name": "attach", "artifact": {"path": str(path)}}))
        found = call(measure, {"runtime_dir": str(daemon.runtime_dir), "path": str(path), "count": setup.repeats(15)})
    ours = Samples("trims", found["trims"])
    rivals = [Samples(f"safetensors.{name}", found[name]) for name in ("torch", "numpy")]
    bar = Bar(">=", 1.0) if large_pages else None
    return [faster(f"{where}over {rival.of}", ours, rival, bar) for rival in rivals]


def measure(runtime_dir: str, path: str, count: int) -> dict[str, list[int]]:
    """Nanoseconds of each way, from nothing to every page read."""
    import numpy as np
    from safetensors.numpy import load_file as load_numpy
    from safetensors.torch import load_file as load_torch

    import trims

    def touched(arrays: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
        total = sum(array.reshape(-1)[::_PAGE_FLOATS].sum(dtype=np.float64) for array in arrays.values())
        return float(total), arrays

    def over_trims() -> Any:
        with session.open("attach") as weights:  # the arrays keep the bytes
            return touched({name: weights[name] for name in weights})

    def over_torch() -> Any:
        return touched({name: tensor.numpy() for name, tensor in load_torch(path).items()})

    sums: set[float] = set()
    ways: dict[str, Callable[[], Any]] = {
        "trims": over_trims,
        "torch": over_torch,
        "numpy": lambda: touched(load_numpy(path)),
    }
    with trims.connect(runtime_dir) as session:
        found = take_turns(ways, count, keep=lambda _, result: sums.add(result[0]))
    assert len(sums) == 1, "all ways read the same numbers"
    return found
