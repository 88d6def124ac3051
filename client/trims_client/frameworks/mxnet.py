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

os.environ.setdefault("MXNET_DISABLE_MKLDNN_FC_OPT", "1")  # before the import of MXNet, which reads it
import mxnet as mx

from trims_client.frameworks._mxnet_arrays import TYPES, array_over, memory_over

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.core.layout import TensorSpec
    from trims.image.program import Program
    from trims_client.weights import Weights

_PROGRAM_KIND = "mxnet-symbol"
#: dtypes that MXNet's operators support, by their names in numpy.
_NUMPY = ("float32", "float64", "float16", "uint8", "int8", "int32", "int64", "bool")


def params(weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `mx.model.load_checkpoint` returns after the symbol, over shared memory.

    Returns:
        `arg_params` and `aux_params`, name -> NDArray, over a private mapping that they keep alive, also after
        `Weights.close`. Bind them once: executors that share them also share the weights that MXNet reorders.

    Raises:
        NotSupportedError: The image is no MXNet model, has a dtype or shape that MXNet lacks, or lies on a device.
    """
    _check_on_host(weights)
    auxiliary = _checked_program(weights).attributes["auxiliary"]
    data = weights.data(private=True)
    arrays = {spec.name: _array(spec, data[spec.offset : spec.end]) for spec in weights.layout}
    states = {name: arrays.pop(name) for name in auxiliary}
    return arrays, states


def symbol(weights: Weights) -> Any:
    """Return the graph. Raises NotSupportedError if the image is no MXNet model."""
    return mx.sym.load_json(_checked_program(weights).body.decode())


def executor(
    weights: Weights,
    shapes: Mapping[str, Sequence[int]],
    ctx: Any = None,
    dtypes: Mapping[str, Any] | None = None,
) -> Any:
    """Return the graph bound for inference; run it with `executor.forward(is_train=False, data=...)`.

    Args:
        weights: Model converted from MXNet.
        shapes: Shapes of the inputs, e.g. `{"data": (1, 3, 224, 224)}`. Inputs whose shape follows from these
            (labels) need not be named.
        ctx: An `mx.cpu()`; the default.
        dtypes: numpy's types of the arrays that `forward` will be given, e.g. `{"data": "int64"}`. The executor's own
            array of an input has the type that the graph takes, which holds every value of the one given here. An
            input that is not named has the type that follows from the parameters, else float32: MXNet would round
            other arrays to it without a word.

    Raises:
        NotSupportedError: Another device than the CPU, or not an MXNet model.
        CallerError: A shape or type is for a name that is no input, the shape of an input is missing, or values of an
            input would be rounded.
    """
    _check_on_host(weights)
    device = _checked_device(ctx)
    graph = symbol(weights)
    inputs = _checked_program(weights).attributes["inputs"]
    arguments, states = params(weights)
    if strange := sorted({*shapes, *(dtypes or ())} - set(inputs)):
        raise CallerError(f"{', '.join(strange)} is no input; this model has {', '.join(inputs)}")
    made = _inputs(graph, inputs, arguments, shapes, {name: np.dtype(each) for name, each in (dtypes or {}).items()})
    arguments.update({name: mx.nd.zeros(shape, ctx=device, dtype=dtype) for name, (shape, dtype) in made.items()})
    return graph.bind(device, arguments, grad_req="null", aux_states=states)


def block(weights: Weights, inputs: Sequence[str] | None = None, ctx: Any = None) -> Any:
    """Return a gluon SymbolBlock over the shared parameters.

    Args:
        weights: Model converted from MXNet.
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
    """Stand-in for an array. gluon asks it for a copy and gets the array itself."""

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


def _inputs(
    graph: Any,
    inputs: Sequence[str],
    arguments: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, np.dtype[Any]],
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and type of every input."""
    names = graph.list_arguments()
    own = {name: arguments[name] for name in names if name in arguments}
    # MXNet takes () for a shape that is not known.
    known = {name: value.shape for name, value in own.items() if value.shape}
    known.update({name: tuple(shape) for name, shape in shapes.items()})
    try:
        found, _, _ = graph.infer_shape(**known)
    except mx.base.MXNetError as error:
        raise CallerError(f"the graph does not take these shapes: {error}") from error
    if found is None:
        raise CallerError(f"the shapes of {', '.join(sorted(set(inputs) - set(shapes)))} do not follow; give them too")
    types = _types(graph, names, {name: value.dtype for name, value in own.items()}, dtypes)
    return {name: (shape, types[name]) for name, shape in zip(names, found, strict=True) if name in inputs}


def _types(
    graph: Any, names: Sequence[str], own: Mapping[str, Any], given: Mapping[str, np.dtype[Any]]
) -> dict[str, np.dtype[Any]]:
    """Return the type of each argument: as given if the graph takes that, else one that holds every value.

    Args:
        own: Types of the parameters.
        given: Types of inputs.

    Raises CallerError for an input whose values would be rounded.
    """
    for name, dtype in given.items():
        if dtype.name not in _NUMPY:
            raise CallerError(f"the input {name!r} is {dtype.name}; MXNet has arrays of {', '.join(_NUMPY)} only")
    try:
        return _inferred(graph, names, {**own, **given})
    except mx.base.MXNetError as error:
        listed = ", ".join(f"{name} {dtype.name}" for name, dtype in given.items())
        refused = CallerError(f"the graph does not take inputs of these types: {listed}: {error}")
    try:
        found = _inferred(graph, names, own)
    except mx.base.MXNetError as error:
        raise refused from error
    for name, dtype in given.items():
        if not _holds(found[name], dtype):
            raise CallerError(
                f"the input {name!r} is {dtype.name} and the graph takes {found[name].name}, to which MXNet would "
                f"round it; give {found[name].name}"
            ) from refused
    return found


def _inferred(graph: Any, names: Sequence[str], known: Mapping[str, Any]) -> dict[str, np.dtype[Any]]:
    """Return the type of each argument; float32 if it does not follow from the known ones. Raises MXNetError."""
    for more in ({}, {name: np.float32 for name in names if name not in known}):
        try:
            found, _, _ = graph.infer_type(**known, **more)
        except mx.base.MXNetError:
            if more or len(known) == len(names):
                raise
            continue
        if found is not None:
            return {name: np.dtype(each) for name, each in zip(names, found, strict=True)}
    raise mx.base.MXNetError("its types do not follow")


def _holds(wide: np.dtype[Any], narrow: np.dtype[Any]) -> bool:
    """Return whether `wide` holds each value of `narrow`: numpy calls int64 safe in float64, which has 53 bits."""
    return np.can_cast(narrow, wide, "safe") and not (narrow.name == "int64" and wide.kind == "f")


def _array(spec: TensorSpec, data: memoryview) -> Any:
    if spec.dtype not in TYPES:
        raise NotSupportedError(f"tensor {spec.name!r} is {spec.dtype}; MXNet computes with {', '.join(TYPES)} only")
    return array_over(memory_over(data, spec.dtype), spec.dtype, spec.shape)
