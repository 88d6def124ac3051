"""MXNet parameters, executors and gluon blocks over shared weights.

All arrays are copy-on-write: processes share a page until MXNet writes to it, and a written page belongs to one
executor or block only. MXNet does write weights: with oneDNN, its default, the first run reorders them in place
(`NDArray::Chunk::MKLDNNDataReorder`), which in read-only memory would end the process. `MXNET_MKLDNN_ENABLED=0` in the
environment keeps every byte shared and is slower.

MXNet also fuses each fully connected layer with the activation behind it. The fused operator keeps a copy of the
layer's weights for itself, in the layout that they have already. For VGG-16 these are 472 MB, and the copying takes
longer than the run. What is fused is a pass over the layer's outputs, some kilobytes, so this module switches the
fusion off, unless the environment says otherwise (`MXNET_DISABLE_MKLDNN_FC_OPT=0`). Convolutions stay fused. MXNet
reads the variable when it is imported: import `trims.mxnet` before `mxnet`, or set the variable.

Example:
    with trims.connect() as session, session.open("vgg16") as weights:
        executor = trims.mxnet.executor(weights, {"data": (1, 3, 224, 224)})
        arguments, auxiliary = trims.mxnet.params(weights)

Covered: inference on the CPU, with every dtype that MXNet computes with. Not covered: other devices. The last MXNet for
GPUs was built for CUDA 11.2 and has no code for current devices, so weights that lie on a device are refused. Runs in
the MXNet environment: standard library, numpy and MXNet only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import CallerError, NotSupportedError
from trims.core.layout import DTYPE_BYTES
from trims_client.weights import numpy_dtype

os.environ.setdefault("MXNET_DISABLE_MKLDNN_FC_OPT", "1")  # before the import of MXNet, which reads it
import mxnet as mx
from mxnet.ndarray.ndarray import DLDataType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.core.layout import TensorSpec
    from trims.image.program import Program
    from trims_client.weights import Weights

_PROGRAM_KIND = "mxnet-symbol"
#: dtypes that MXNet's operators support.
_DTYPES = ("F32", "F64", "F16", "U8", "I8", "I32", "I64", "BOOL")
#: Quantized models need int8: MXNet's engine supports it, but the table of `from_numpy` lacks it.
DLDataType.TYPE_MAP.setdefault("int8", (0, 8, 1))


def params(weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `mx.model.load_checkpoint` returns after the symbol, over shared memory.

    Returns:
        `arg_params` and `aux_params`, name -> NDArray, over a private mapping that they keep alive, also after
        `Weights.close`. Bind them once: executors that share them also share the weights that MXNet reorders.

    Raises:
        NotSupportedError: The image is no MXNet model, has a dtype or shape that MXNet lacks, or lies on a device.
    """
    _check_on_host(weights)
    auxiliary = _checked_program(weights).attributes["auxiliary"]
    data = weights.data(private=True)
    arrays = {spec.name: _array(spec, _bytes(weights, spec, data)) for spec in weights.layout}
    states = {name: arrays.pop(name) for name in auxiliary}
    return arrays, states


def symbol(weights: Weights) -> Any:
    """The graph. Raises NotSupportedError if the image is no MXNet model."""
    return mx.sym.load_json(_checked_program(weights).body.decode())


def executor(weights: Weights, shapes: Mapping[str, Sequence[int]], ctx: Any = None) -> Any:
    """The graph bound for inference; run it with `executor.forward(is_train=False, data=...)`.

    Args:
        weights: Of a model converted from MXNet.
        shapes: Of the inputs, e.g. `{"data": (1, 3, 224, 224)}`. Inputs whose shape follows from these
            (labels) need not be named.
        ctx: An `mx.cpu()`; the default.

    Raises:
        NotSupportedError: Another device than the CPU, or not an MXNet model.
        CallerError: A shape is for a name that is no input, or the shape of an input is missing.
    """
    _check_on_host(weights)
    device = _checked_device(ctx)
    graph = symbol(weights)
    inputs = _checked_program(weights).attributes["inputs"]
    arguments, states = params(weights)
    arguments.update(_inputs(graph, inputs, shapes, device))
    return graph.bind(device, arguments, grad_req="null", aux_states=states)


def block(weights: Weights, inputs: Sequence[str] | None = None, ctx: Any = None) -> Any:
    """A gluon SymbolBlock over the shared parameters.

    Args:
        weights: Of a model converted from MXNet.
        inputs: Names of the graph's inputs in the order in which the block is called; all of them by default.
        ctx: An `mx.cpu()`; the default.

    Raises:
        NotSupportedError: Another device than the CPU, or not an MXNet model.
        CallerError: A variable of the graph is neither an input nor in the image.
    """
    _check_on_host(weights)
    device = _checked_device(ctx)
    names = _checked_program(weights).attributes["inputs"] if inputs is None else inputs
    net = mx.gluon.SymbolBlock(symbol(weights), [mx.sym.var(name) for name in names])
    arguments, states = params(weights)
    known = {**arguments, **states}
    for name, parameter in net.collect_params().items():
        if name not in known:
            raise CallerError(f"{name!r} is neither an input nor in the image of {weights.name!r}; name it in `inputs`")
        _lend(parameter, known[name], device)
    return net


def _lend(parameter: Any, value: Any, device: Any) -> None:
    """Make the array itself the value of a gluon parameter: every public function of gluon copies it."""
    parameter.grad_req = "null"
    parameter.shape, parameter.dtype = value.shape, value.dtype
    parameter._deferred_init = ()
    parameter._init_impl(_Lent(value), [device])


class _Lent:
    """Stands in for an array. gluon asks it for a copy and gets the array itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def copyto(self, _device: Any) -> Any:
        return self._value


def _check_on_host(weights: Weights) -> None:
    if weights.device is not None:
        raise NotSupportedError(
            f"MXNet is not supported on this device: {weights.name!r} lies at {weights.place}, and MXNet 1.9.1 was "
            "built for CUDA 11.2; open it with place='cpu'"
        )


def _checked_program(weights: Weights) -> Program:
    program = weights.program()
    if program is None or program.kind != _PROGRAM_KIND:
        kind = "no program" if program is None else f"a program for {program.kind}"
        raise NotSupportedError(f"{weights.name!r} carries {kind}; this needs a model converted from MXNet")
    return program


def _checked_device(ctx: Any) -> Any:
    device = mx.cpu() if ctx is None else ctx
    if device.device_type != "cpu":
        raise NotSupportedError(
            f"{device}: shared weights lie in CPU memory, which its operators cannot reach; use mx.cpu()"
        )
    return device


def _inputs(graph: Any, inputs: Sequence[str], shapes: Mapping[str, Sequence[int]], device: Any) -> dict[str, Any]:
    """Zeroed memory for every input."""
    if strange := sorted(set(shapes) - set(inputs)):
        raise CallerError(f"{', '.join(strange)} is no input; this model has {', '.join(inputs)}")
    try:
        found, _, _ = graph.infer_shape(**{name: tuple(shape) for name, shape in shapes.items()})
    except mx.base.MXNetError as error:
        raise CallerError(f"the graph does not take these shapes: {error}") from error
    if found is None:
        raise CallerError(f"the shapes of {', '.join(sorted(set(inputs) - set(shapes)))} do not follow; give them too")
    known = dict(zip(graph.list_arguments(), found, strict=True))
    return {name: mx.nd.zeros(known[name], ctx=device) for name in inputs}


def _bytes(weights: Weights, spec: TensorSpec, data: memoryview) -> memoryview:
    """The tensor's part of the data block, or a copy of it if it is not aligned to its element there."""
    if spec.offset % DTYPE_BYTES[spec.dtype]:
        return memoryview(bytearray(weights.raw(spec.name)))
    return data[spec.offset : spec.end]


def _array(spec: TensorSpec, data: memoryview) -> Any:
    """An NDArray over the bytes; it keeps the numpy view, which keeps the mapping."""
    if spec.dtype not in _DTYPES:
        raise NotSupportedError(f"tensor {spec.name!r} is {spec.dtype}; MXNet computes with {', '.join(_DTYPES)} only")
    array = np.frombuffer(data, dtype=numpy_dtype(spec.dtype)).reshape(spec.shape)
    return mx.nd.from_numpy(array, zero_copy=True)
