"""VGG-16, or another graph, classifies one image with MXNet, in its environment: Python 3.11, numpy 1.23 at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims_bench.answers import Agreement, Answer, compare, top_classes

if TYPE_CHECKING:
    from pathlib import Path

    from trims_client.weights import Weights

    from trims_bench.stages import Stages

SHAPE = (1, 3, 224, 224)


def prepare(trace: Stages) -> None:
    """Import MXNet as a user of trims does: by the module that puts models on shared weights."""
    with trace.stage("import"):
        import trims_client.frameworks.mxnet  # noqa: F401


def framework_alone(artifact: Path, trace: Stages) -> Answer:
    """`load_checkpoint` and `bind`, from the symbol's path."""
    with trace.stage("import"):
        import mxnet as mx

    with trace.stage("load"):
        prefix = artifact.with_name(artifact.name.removesuffix("-symbol.json"))
        symbol, arguments, states = mx.model.load_checkpoint(str(prefix), 0)
        shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=SHAPE)[0], strict=True))
        inputs = {name: mx.nd.zeros(shape) for name, shape in shapes.items() if name not in arguments}
        bound = symbol.bind(mx.cpu(), {**arguments, **inputs}, grad_req="null", aux_states=states)
    return _infer(bound, trace)


def with_trims(weights: Weights, trace: Stages) -> Answer:
    """An executor over the shared parameters."""
    prepare(trace)
    with trace.stage("load"):
        from trims_client.frameworks.mxnet import executor

        bound = executor(weights, {"data": SHAPE})
    return _infer(bound, trace)


def same(one: Answer, other: Answer) -> Agreement:
    """Compare two answers, whose bits must be the same: the same kernels run."""
    return compare(one, other)


def _infer(bound: Any, trace: Stages) -> Answer:
    import mxnet as mx
    import numpy as np

    with trace.stage("first inference"):
        image = np.random.Generator(np.random.PCG64(3)).standard_normal(SHAPE, dtype=np.float32)
        (output,) = bound.forward(is_train=False, data=mx.nd.array(image))
        probabilities = output.asnumpy()
    return Answer.of(probabilities, top_classes(probabilities[0]), bound)
