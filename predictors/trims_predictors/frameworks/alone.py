"""Predictors of evaluations that a framework loads alone, from the artifact, as its own documentation does.

Each reads the file itself: `torch.load` or safetensors' `load_file` and `load_state_dict`, an ONNX Runtime session over
the path, `mx.model`'s way of a checkpoint, `numpy.load`. No daemon, no image and no shared memory take part.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims_predictors.api import Predictor

#: Classes of predictors that are ours -> what loads their models alone.
_TORCH, _ONNX, _MXNET = (
    f"trims_predictors.frameworks.{name}"
    for name in ("torch:TorchPredictor", "onnxruntime:OnnxPredictor", "mxnet:MxnetPredictor")
)


def why_not(call: str, how: str, artifact_format: str) -> str:
    """Return why a model has nothing that loads it without trims; empty if it has.

    Args:
        call: What its predictor is made from.
    """
    if how == "function":
        return "" if artifact_format in _ARRAYS else f"no library of arrays reads the format {artifact_format!r}"
    if call in (_ONNX, _MXNET) or (call == _TORCH and artifact_format in _STATES):
        return ""
    return "its predictor is made for weights that trims hands it, and has no other way to load them"


def make(call: str, how: str, origin: str, artifact: Mapping[str, Any]) -> Predictor:
    """Return the predictor that loads a model alone; its `load` is given no weights.

    Args:
        call: Argument of `resolve.make`.
        how: Argument of `resolve.make`.
        artifact: `path`, `format` and `options` of the artifact.

    Raises NotSupportedError if there is none.
    """
    why = why_not(call, how, artifact["format"])
    if why:
        raise NotSupportedError(why)
    path, options = Path(artifact["path"]), artifact["options"]
    if how == "function":
        return _of_function(call, origin, path, artifact["format"])
    if call == _TORCH:
        return _of_torch(path, artifact["format"], options, origin)
    return _of_onnx(path) if call == _ONNX else _of_mxnet(path, options)


def _of_function(call: str, origin: str, path: Path, artifact_format: str) -> Predictor:
    from trims_predictors.frameworks.function import FunctionPredictor
    from trims_predictors.frameworks.resolve import imported

    class Alone(FunctionPredictor):
        def load(self, weights: Any, context: Any) -> None:
            del weights
            arrays: Any = _ARRAYS[artifact_format](path)
            super().load(arrays, context)

    return Alone(imported(call, origin, "the predictor"))


def _of_torch(path: Path, artifact_format: str, options: Mapping[str, Any], origin: str) -> Predictor:
    import inspect

    from trims.image.torch_builders import build_module
    from trims_predictors.frameworks.torch import TorchPredictor

    class Alone(TorchPredictor):
        def load(self, weights: Any, context: Any) -> None:
            del weights
            module = build_module(options.get("module"), options.get("module_args", {}), repr(context.model), origin)
            module.load_state_dict(_STATES[artifact_format](path, options), strict=False)
            self._module = module.eval()
            self._takes = frozenset(inspect.signature(module.forward).parameters)
            self._names = tuple(each.name for each in context.outputs)

    return Alone()


def _of_onnx(path: Path) -> Predictor:
    import onnxruntime

    from trims_predictors.frameworks.onnxruntime import OnnxPredictor

    class Alone(OnnxPredictor):
        def load(self, weights: Any, context: Any) -> None:
            del weights
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = context.threads
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            self._choose(context.model)

    return Alone()


def _of_mxnet(path: Path, options: Mapping[str, Any]) -> Predictor:
    import mxnet

    from trims.formats.mxnet.converter import MxnetConverter
    from trims_predictors.frameworks.mxnet import MxnetPredictor

    class Alone(MxnetPredictor):
        def load(self, weights: Any, context: Any) -> None:
            symbol, params = sorted(MxnetConverter().files(path, options), key=lambda each: each.suffix)
            self._symbol = mxnet.sym.load(str(symbol))
            found = mxnet.nd.load(str(params))
            self._arguments = {name[4:]: array for name, array in found.items() if name.startswith("arg:")}
            self._states = {name[4:]: array for name, array in found.items() if name.startswith("aux:")}
            super().load(weights, context)

        def _bind(self, shapes: Any) -> None:
            if shapes == self._bound:
                return
            given = {name: mxnet.nd.zeros(shape, dtype=dtype) for name, shape, dtype in shapes}
            others = self._symbol.infer_shape(**{name: shape for name, shape, _ in shapes})[0]
            labels = {
                name: mxnet.nd.zeros(shape)
                for name, shape in zip(self._symbol.list_arguments(), others, strict=True)
                if name not in given and name not in self._arguments
            }
            arguments = {**self._arguments, **labels, **given}
            self._executor = self._symbol.bind(mxnet.cpu(), arguments, grad_req="null", aux_states=self._states)
            self._bound = shapes

    return Alone()


def _npz(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as found:
        return {name: found[name] for name in found.files}


def _npy(path: Path) -> dict[str, Any]:
    import numpy as np

    return {path.stem: np.load(path)}


def _safetensors(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    found: dict[str, Any] = load_file(path)
    return found


def _safetensors_state(path: Path, options: Mapping[str, Any]) -> Any:
    from safetensors.torch import load_file

    del options
    return load_file(path)


def _torch_state(path: Path, options: Mapping[str, Any]) -> Any:
    import torch

    from trims.formats.torch.state import key_of, select

    loaded = torch.load(path, map_location="cpu", weights_only=not options.get("allow_pickle", False))
    key = key_of(options, path)
    return loaded if key is None else select(loaded, path, key)[0]


#: Formats -> what reads their arrays, and state dicts of modules.
_ARRAYS: dict[str, Callable[[Path], dict[str, Any]]] = {"npz": _npz, "npy": _npy, "safetensors": _safetensors}
_STATES: dict[str, Callable[[Path, Mapping[str, Any]], Any]] = {
    "torch": _torch_state, "safetensors": _safetensors_state,
}  # fmt: skip
