"""MXNet: to parameters that are ready to be bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.figures import Bar, Figure, Samples, faster
from trims_bench.turns import take_turns

if TYPE_CHECKING:
    from trims_bench.scenarios.base import Setup

TITLE = "MXNet VGG-16 symbol and parameters ready, against `load_checkpoint`"


def run(setup: Setup) -> Figure:
    """Measure in the MXNet environment, in turns. Raises MxnetMissingError where there is none."""
    from trims_bench.runs import artifact_of

    python, manifest = setup.mxnet, setup.vgg16
    with setup.daemon() as daemon:
        daemon.load(daemon.add(manifest))
        found = call(
            measure,
            {
                "runtime_dir": str(daemon.runtime_dir),
                "name": manifest["name"],
                "path": str(artifact_of(manifest, setup.state_dir)),
                "count": setup.repeats(11),
            },
            python=python,
        )
    compared = faster(
        "parameters ready",
        Samples("open + params", found["trims"]),
        Samples("load_checkpoint", found["mxnet"]),
        Bar(">=", 50),
    )
    return Figure(
        "mxnet", TITLE, [compared], ["The file is in the page cache. Binding and running are not part of it."]
    )


def measure(runtime_dir: str, name: str, path: str, count: int) -> dict[str, list[int]]:
    """Nanoseconds to symbol, arguments and auxiliary states, both ways."""
    import mxnet as mx
    from trims_client.frameworks.mxnet import params, symbol

    import trims

    prefix = path.removesuffix("-symbol.json")

    def over_trims() -> Any:
        with session.open(name) as weights:
            return symbol(weights), *params(weights)

    def alone() -> Any:
        made = mx.model.load_checkpoint(prefix, 0)
        mx.nd.waitall()  # MXNet works behind our back: the load has ended when its engine says so
        return made

    with trims.connect(runtime_dir) as session:
        ours, theirs = over_trims()[1], alone()[1]
        assert ours.keys() == theirs.keys()
        assert all((ours[key].asnumpy() == theirs[key].asnumpy()).all() for key in theirs)
        del ours, theirs
        return take_turns({"trims": over_trims, "mxnet": alone}, count)
