"""Descriptions of models as the protocol and Triton have them: metadata, and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.manifests.serving import ANY, ANY_RANK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.manifests.serving import TensorType
    from trims_predictors.deployment.deployment import Deployment

#: Framework -> platform, `project_format` as the protocol says.
PLATFORMS = {
    "torch": "pytorch_module",
    "transformers": "huggingface_transformers",
    "onnxruntime": "onnx_onnxv1",
    "mxnet": "mxnet_mxnet",
    "numpy": "trims_python",
}
#: Data types as the configuration calls them, where it is not TYPE_ and the protocol's name.
_CONFIGURED = {"BYTES": "TYPE_STRING"}


def metadata_of(
    deployment: Deployment, inputs: Sequence[TensorType], outputs: Sequence[TensorType], reason: str
) -> dict[str, Any]:
    """Return the metadata of a model.

    Args:
        reason: Why it could not be loaded last; empty if nothing is known.
    """
    return {
        **({"properties": {"ready": "false", "reason": reason}} if reason else {}),
        "name": deployment.model,
        "versions": list(deployment.versions_there),
        "platform": PLATFORMS.get(deployment.environment.framework, "trims_python"),
        "inputs": [_described(each) for each in inputs],
        "outputs": [_described(each) for each in outputs],
    }


def configuration_of(deployment: Deployment, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
    """Return Triton's configuration of a model."""
    skipped = 1 if deployment.batch else 0
    levels = {"priority_levels": deployment.priority_levels, "default_priority_level": deployment.default_priority}
    return {
        **({"dynamic_batching": levels} if deployment.priority_levels else {}),
        "name": deployment.model,
        "platform": PLATFORMS.get(deployment.environment.framework, "trims_python"),
        "backend": deployment.environment.framework,
        "max_batch_size": deployment.batch,
        "input": [_configured(each, skipped) for each in inputs],
        "output": [_configured(each, skipped) for each in outputs],
        "instance_group": [{"count": deployment.instances, "kind": "KIND_CPU"}],
    }


def _configured(tensor: Any, skipped: int) -> dict[str, Any]:
    """An input or output in a configuration, where the batch dimension is left out."""
    dtype = _CONFIGURED.get(tensor.dtype, f"TYPE_{tensor.dtype}")
    described = {"name": tensor.name, "data_type": dtype, "dims": list(tensor.shape[skipped:])}
    return {**described, "format": f"FORMAT_{tensor.layout}"} if tensor.layout else described


def _described(tensor: TensorType) -> dict[str, Any]:
    """Return a tensor of a model's metadata; the protocol can state any number of dimensions as [-1] at best."""
    shape = [ANY] if tensor.shape == (ANY_RANK,) else list(tensor.shape)
    return {"name": tensor.name, "datatype": tensor.dtype, "shape": shape}
