"""Models that are kept on a device where their framework cannot compute, and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trims.manifests.device_support import why_not_on_device
from trims.manifests.manifest import parse_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.manifests.manifest import Manifest


def made(place: str = "gpu", **fields: Any) -> Manifest:
    artifact = {"path": "m.file", "options": fields.pop("options", {})}
    return parse_manifest({"name": "m", "artifact": artifact, "residency": {"place": place}, **fields})


def having(**found: str) -> Any:
    """Return the versions of an environment that has these distributions; _ stands for -."""
    there = {name.replace("_", "-"): version for name, version in found.items()}

    def versions(names: Sequence[str]) -> Mapping[str, str]:
        return {name: there[name] for name in names if name in there}

    return versions


@pytest.mark.parametrize("place", ["gpu", "gpu:1"])
def test_a_model_of_mxnet_is_refused(place: str) -> None:
    why = why_not_on_device(made(place), "mxnet")
    assert why.startswith(f"'m' is kept at {place}, where MXNet cannot compute")
    assert why_not_on_device(made("cpu"), "mxnet") == ""


def test_a_graph_for_a_processor_is_refused() -> None:
    for optimize in ("all", "extended", True):
        assert "optimize: basic" in why_not_on_device(made(options={"optimize": optimize}), "onnxruntime")
    for options in ({}, {"optimize": "basic"}, {"optimize": "none"}):
        assert why_not_on_device(made(options=options), "onnxruntime") == ""


@pytest.mark.parametrize(
    ("framework", "there", "refused"),
    [
        ("torch", {"torch": "2.11.0+cpu"}, True),
        ("transformers", {"torch": "2.11.0+cpu"}, True),
        ("torch", {"torch": "2.11.0+cu130"}, False),
        ("torch", {"torch": "2.11.0"}, False),
        ("onnxruntime", {"onnxruntime": "1.31.1"}, True),
        ("onnxruntime", {"onnxruntime": "1.31.1", "onnxruntime_gpu": "1.31.1"}, False),
        ("onnxruntime", {"onnxruntime_gpu": "1.31.1"}, False),
        ("", {"torch": "2.11.0+cpu"}, False),
    ],
)
def test_a_build_without_cuda_is_refused(framework: str, there: dict[str, str], refused: bool) -> None:
    assert bool(why_not_on_device(made(), framework, having(**there))) == refused
    assert why_not_on_device(made(), framework) == "", "on a stand-in for the driver every build computes"
    own = made(predictor={"call": "package.module:Class"})
    assert why_not_on_device(own, framework, having(**there)) == "", "what its code computes with is not known"
