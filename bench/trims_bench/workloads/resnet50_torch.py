"""ResNet-50 classifies one image with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_bench.answers import Agreement, Answer, compare, top_classes

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from trims_client.weights import Weights

    from trims_bench.stages import Stages


def prepare(trace: Stages) -> None:
    """Import PyTorch."""
    with trace.stage("import"):
        import torch  # noqa: F401


def framework_alone(artifact: Path, trace: Stages) -> Answer:
    """Build the module, `torch.load`, `load_state_dict`."""
    prepare(trace)
    import torch

    from trims_bench.builders.resnet50_torch import build_module

    with trace.stage("load"):
        made = build_module()
        made.load_state_dict(torch.load(artifact, weights_only=True))
    return _infer(made, trace)


def with_trims(weights: Weights, trace: Stages) -> Answer:
    """The module over the shared weights."""
    prepare(trace)
    with trace.stage("load"):
        from trims_client.frameworks.torch import module

        made = module(weights, trust_program=True)
    return _infer(made, trace)


def same(one: Answer, other: Answer) -> Agreement:
    """Compare two answers, whose bits must be the same: the same kernels run."""
    return compare(one, other)


def _infer(module: torch.nn.Module, trace: Stages) -> Answer:
    import torch

    from trims_bench.workloads.resnet50 import image

    with trace.stage("first inference"), torch.inference_mode():
        logits = module(torch.from_numpy(image())).numpy()
    return Answer.of(logits, top_classes(logits[0]), module)
