"""Reasons why a model's framework cannot compute on the device that its manifest names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.place import Place, TierKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.manifests.manifest import Manifest

    #: Distributions -> the versions of those that are installed where the model runs.
    Versions = Callable[[Sequence[str]], Mapping[str, str]]

#: Optimizations of a graph with which a device can run it: standard operators and layouts.
_NEUTRAL = ("basic", "none", False)
_ELSEWHERE = "or leave `residency.place` out, or say `place: cpu`"


def why_not_on_device(manifest: Manifest, framework: str, versions: Versions | None = None) -> str:
    """Return why no request of a model can be answered where its manifest keeps it, and what to do; empty for nothing.

    Args:
        framework: The one that runs it; empty if nothing says it.
        versions: Looks into the environment of the predictors; None where devices are no NVIDIA GPUs.
    """
    place, own = manifest.residency.place, manifest.predictor
    if not is_on_device(manifest) or own.call or own.name or own.function:  # own code computes with what it likes
        return ""
    begin = f"{manifest.name!r} is kept at {place}, "
    if framework == "mxnet":
        return (
            f"{begin}where MXNet cannot compute: its last release knows no current GPU; export it to ONNX, {_ELSEWHERE}"
        )
    if framework == "onnxruntime" and manifest.artifact.options.get("optimize", "basic") not in _NEUTRAL:
        return (
            f"{begin}and `optimize: {manifest.artifact.options['optimize']}` makes a graph for this processor; say "
            f"`optimize: basic`, {_ELSEWHERE}"
        )
    return "" if versions is None else _why_not_by_build(begin, framework, versions)


def is_on_device(manifest: Manifest) -> bool:
    """Return whether a manifest keeps its model in the memory of a device."""
    place = manifest.residency.place
    return isinstance(place, Place) and place.tier is TierKind.GPU


def _why_not_by_build(begin: str, framework: str, versions: Versions) -> str:
    if framework in ("torch", "transformers"):
        found = versions(["torch"]).get("torch", "")
        if found.endswith("+cpu"):
            return f"{begin}and torch {found} is built without CUDA: install a build with it, {_ELSEWHERE}"
    if framework == "onnxruntime":
        there = versions(["onnxruntime", "onnxruntime-gpu"])
        if "onnxruntime" in there and "onnxruntime-gpu" not in there:
            return (
                f"{begin}and onnxruntime {there['onnxruntime']} has no CUDA provider: install onnxruntime-gpu instead, "
                f"{_ELSEWHERE}"
            )
    return ""
