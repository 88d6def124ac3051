"""Opening what is resident: how long it takes, and whether that depends on the size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples, share

if TYPE_CHECKING:
    from trims_bench.scenarios.base import Setup

TITLE = "warm open through the attach door, in a process that has opened before"
_BAR_MS = 0.15
_WARM_UP = 20


def run(setup: Setup) -> Figure:
    """A small and a large checkpoint, opened in turns."""
    sizes = {"1 MB": setup.size(1_000_000, 64_000), "4 GB": setup.size(4_000_000_000, 16_000_000)}
    with (
        setup.scratch() as folder,
        setup.daemon(folder / "state", cpu_capacity_bytes=2 * max(sizes.values())) as daemon,
    ):
        for name, nbytes in sizes.items():
            path = write_checkpoint(folder / f"{nbytes}.safetensors", nbytes)
            daemon.load(daemon.add({"name": _model(name), "artifact": {"path": str(path)}}))
        models = [_model(name) for name in sizes]
        found = call(measure, {"runtime_dir": str(daemon.runtime_dir), "models": models, "count": setup.repeats(2000)})
    sides = [Samples(f"open {name}", values) for name, values in zip(sizes, found, strict=True)]
    ratio = share("4 GB, times 1 MB", sides[1], sides[0], Bar("<=", 1.2))
    return Figure("open", TITLE, [*map(_p50, sides), ratio], ["Closing, which also unmaps, is not part of the time."])


def _model(name: str) -> str:
    return name.lower().replace(" ", "-")


def _p50(side: Samples) -> Comparison:
    return Comparison(f"{side.of}, p50", side.median / 1e6, "ms", Bar("<=", _BAR_MS), (side,))


def measure(runtime_dir: str, models: list[str], count: int) -> list[list[int]]:
    """Open and close the models in turns; nanoseconds of each open, by model."""
    import trims

    found: list[list[int]] = [[] for _ in models]
    with trims.connect(runtime_dir) as session:
        for number in range(count + _WARM_UP):
            for name, taken in zip(models, found, strict=True):
                began = time.perf_counter_ns()
                weights = session.open(name)
                ended = time.perf_counter_ns()
                weights.close()
                if number >= _WARM_UP:
                    taken.append(ended - began)
    return found
