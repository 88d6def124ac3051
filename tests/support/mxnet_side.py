"""Program that tests run inside the MXNet environment, without pytest: see `unit/client/frameworks/test_mxnet.py`.

`save FOLDER` writes files with MXNet and prints what is in them; `model FOLDER` writes a small model, `dense FOLDER`
one of a large dense layer;
`check FOLDER` runs every `check_` function on the model and its image and prints {name: None or what went
wrong}.
"""
# ruff: noqa: PT017, T201 - it stands in for pytest: it catches everything and prints its result

from __future__ import annotations

import ctypes
import gc
import json
import sys
import traceback
from pathlib import Path

import mxnet as mx
import numpy as np

NAMES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "uint8": "U8", "int32": "I32", "int8": "I8",
    "int64": "I64", "bool": "BOOL",
}  # fmt: skip
INPUT = (2, 3, 16, 16)


def save(folder: Path) -> dict[str, object]:
    plain = {f"arg:{name}": mx.nd.array(np.arange(6).reshape(2, 3), dtype=name) for name in NAMES}
    mx.nd.save(str(folder / "plain.params"), plain)
    told = {"plain.params": {key: told_of(value) for key, value in plain.items()}}
    with mx.util.np_shape(True):
        shaped = {"arg:empty": mx.nd.zeros((0, 3)), "aux:scalar": mx.np.array(3.5).as_nd_ndarray()}
        mx.nd.save(str(folder / "shaped.params"), shaped)
        told["shaped.params"] = {key: told_of(value) for key, value in shaped.items()}
    return told


def told_of(value: mx.nd.NDArray) -> list[object]:
    array = value.asnumpy()
    return [NAMES[array.dtype.name], list(array.shape), array.tobytes().hex()]


def model(folder: Path) -> None:
    """Convolution, normalisation, a transposed convolution that no fused kernel takes, two dense layers."""
    value = mx.sym.Variable("data")
    value = mx.sym.Convolution(value, num_filter=16, kernel=(3, 3), pad=(1, 1), name="conv")
    value = mx.sym.BatchNorm(value, fix_gamma=False, name="norm")
    value = mx.sym.Activation(value, act_type="relu")
    value = mx.sym.Deconvolution(value, num_filter=16, kernel=(2, 2), stride=(2, 2), name="up")
    value = mx.sym.FullyConnected(mx.sym.flatten(value), num_hidden=64, name="dense")
    value = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(value, num_hidden=10, name="head"), name="prob")
    shapes, _, states = value.infer_shape(data=INPUT)
    random = np.random.RandomState(1)
    arguments = {
        name: mx.nd.array(random.randn(*shape) / 4)
        for name, shape in zip(value.list_arguments(), shapes, strict=True)
        if name not in ("data", "prob_label")
    }
    auxiliary = {
        name: mx.nd.array(random.rand(*shape) + 0.5)
        for name, shape in zip(value.list_auxiliary_states(), states, strict=True)
    }
    mx.model.save_checkpoint(str(folder / "m"), 0, value, arguments, auxiliary)


def dense(folder: Path) -> None:
    """One dense layer of 16 MiB, with an activation behind it."""
    value = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1024, no_bias=True, name="dense")
    value = mx.sym.Activation(value, act_type="relu")
    mx.model.save_checkpoint(str(folder / "d"), 0, value, {"dense_weight": mx.nd.ones((1024, 4096))}, {})


class Case:
    """The model as MXNet loads it, and its image."""

    def __init__(self, folder: Path) -> None:
        from trims_client.weights import Weights

        self.folder = folder
        self.open = lambda on_release=None: Weights.map_file(folder / "image", on_release)
        self.symbol, self.arguments, self.states = mx.model.load_checkpoint(str(folder / "m"), 0)
        self.data = mx.nd.array(np.random.RandomState(2).randn(*INPUT))

    def own_answer(self) -> np.ndarray:
        arguments = {**self.arguments, "data": self.data, "prob_label": mx.nd.zeros((INPUT[0],))}
        bound = self.symbol.bind(mx.cpu(), arguments, grad_req="null", aux_states=self.states)
        return bound.forward(is_train=False)[0].asnumpy()


def address(value: mx.nd.NDArray) -> int:
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(value.handle, ctypes.byref(pointer)))
    return int(pointer.value)


def check_weights_on_a_device_are_refused_with_the_way_out(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared
    from trims_client.weights import Weights

    from trims.core.errors import NotSupportedError

    class Elsewhere(Weights):
        device = "GPU-1"
        place = "gpu:0"

    with Elsewhere.map_file(case.folder / "image") as weights:
        for use in (shared.params, shared.block, lambda given: shared.executor(given, {"data": INPUT})):
            what = "MXNet is not supported on this device: "
            raises(NotSupportedError, what, lambda made=use: made(weights))


def check_params_equal_those_of_load_checkpoint(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    with case.open() as weights:
        arguments, states = shared.params(weights)
    for ours, theirs in ((arguments, case.arguments), (states, case.states)):
        assert set(ours) == set(theirs)
        for name, value in theirs.items():
            assert ours[name].dtype == value.dtype
            np.testing.assert_array_equal(ours[name].asnumpy(), value.asnumpy())


def check_params_are_not_copied(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    with case.open() as weights:
        layout = weights.layout.tensors
        arguments, _ = shared.params(weights)
    base = address(arguments["conv_weight"]) - layout["conv_weight"].offset
    assert {name: address(value) - base for name, value in arguments.items()} == {
        name: layout[name].offset for name in arguments
    }


def check_an_executor_answers_as_mxnets_own(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    with case.open() as weights:
        bound = shared.executor(weights, {"data": INPUT})
    for _ in range(3):
        answer = bound.forward(is_train=False, data=case.data)[0].asnumpy()
        np.testing.assert_array_equal(answer, case.own_answer())


def check_a_block_answers_as_mxnets_own(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    with case.open() as weights:
        net = shared.block(weights)
    prefix = str(case.folder / "m")
    own = mx.gluon.SymbolBlock.imports(f"{prefix}-symbol.json", ["data", "prob_label"], f"{prefix}-0000.params")
    label = mx.nd.zeros((INPUT[0],))
    for _ in range(3):
        np.testing.assert_array_equal(net(case.data, label).asnumpy(), own(case.data, label).asnumpy())
    for each in (net, own):
        each.hybridize(static_alloc=True, static_shape=True)
    np.testing.assert_array_equal(net(case.data, label).asnumpy(), own(case.data, label).asnumpy())


def check_a_blocks_parameters_are_not_copied(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    with case.open() as weights:
        layout = weights.layout.tensors
        parameters = shared.block(weights).collect_params()
    base = address(parameters["up_weight"].data()) - layout["up_weight"].offset
    assert all(address(parameter.data()) - base == layout[name].offset for name, parameter in parameters.items())


def check_what_one_executor_writes_no_other_sees(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    with case.open() as weights:
        first = shared.executor(weights, {"data": INPUT})
        first.forward(is_train=True, data=case.data)[0].wait_to_read()
        first.arg_dict["dense_weight"][:] = 7
        first.aux_dict["norm_moving_mean"][:] = 7
        mx.nd.waitall()
        second = shared.executor(weights, {"data": INPUT})
        answer = second.forward(is_train=False, data=case.data)[0].asnumpy()
        for name, value in {**case.arguments, **case.states}.items():
            np.testing.assert_array_equal(weights[name], value.asnumpy())
    np.testing.assert_array_equal(answer, case.own_answer())


def check_the_mapping_lives_as_long_as_its_arrays(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    released = []
    weights = case.open(lambda: released.append(True))
    arguments, states = shared.params(weights)
    weights.close()
    gc.collect()
    assert not released
    arguments["head_bias"].asnumpy()
    del arguments, states
    mx.nd.waitall()
    gc.collect()
    assert released


def check_another_device_is_refused(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    from trims.core.errors import NotSupportedError

    with case.open() as weights:
        for make in (
            lambda: shared.executor(weights, {"data": INPUT}, mx.gpu(0)),
            lambda: shared.block(weights, ctx=mx.gpu(0)),
        ):
            raises(NotSupportedError, "use mx.cpu()", make)


def check_inputs_that_do_not_fit_are_refused(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    from trims.core.errors import CallerError

    with case.open() as weights:
        raises(
            CallerError,
            "img is no input; this model has data",
            lambda: shared.executor(weights, {"img": INPUT}),
        )
        raises(CallerError, "do not follow", lambda: shared.executor(weights, {}))
        raises(CallerError, "does not take these shapes", lambda: shared.executor(weights, {"data": (1, 3)}))
        raises(CallerError, "'prob_label' is neither an input", lambda: shared.block(weights, ["data"]))


def check_an_input_has_the_graphs_type_if_that_holds_its_values(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared

    from trims.core.errors import CallerError

    def bound(dtype: str, name: str = "data") -> np.dtype:
        with case.open() as weights:
            return np.dtype(shared.executor(weights, {"data": INPUT}, dtypes={name: dtype}).arg_dict["data"].dtype)

    assert {bound(dtype) for dtype in ("float32", "float16", "uint8", "int8")} == {np.dtype("float32")}
    for dtype in ("float64", "int64", "int32"):
        what = f"'data' is {dtype} and the graph takes float32"
        raises(CallerError, what, lambda given=dtype: bound(given))
    raises(CallerError, "'data' is uint16; MXNet has arrays of", lambda: bound("uint16"))
    raises(CallerError, "img is no input", lambda: bound("float32", "img"))


def check_weights_that_are_no_mxnet_model_are_refused(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared
    from trims_client.weights import Weights

    from trims.core.errors import NotSupportedError

    with Weights.map_file(case.folder / "plain") as weights:
        raises(NotSupportedError, "carries no program", lambda: shared.params(weights))


def check_every_dtype_of_mxnet_arrives_and_no_other(case: Case) -> None:
    from trims_client.frameworks import mxnet as shared
    from trims_client.weights import Weights

    from trims.core.errors import NotSupportedError

    with Weights.map_file(case.folder / "dtypes") as weights:
        arguments, _ = shared.params(weights)
        for name, value in arguments.items():
            assert NAMES[value.asnumpy().dtype.name] == name
            np.testing.assert_array_equal(value.asnumpy(), weights[name])
    with Weights.map_file(case.folder / "foreign") as weights:
        raises(NotSupportedError, "'w' is U32; MXNet computes with", lambda: shared.params(weights))


def raises(kind: type[Exception], text: str, act: object) -> None:
    try:
        act()
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind.__name__} with {text!r}")


def check(folder: Path) -> dict[str, str | None]:
    case, outcome = Case(folder), {}
    for name, function in list(globals().items()):
        if name.startswith("check_"):
            try:
                function(case)
            except Exception:
                outcome[name] = traceback.format_exc()
            else:
                outcome[name] = None
    return outcome


if __name__ == "__main__":
    print(json.dumps({"save": save, "model": model, "dense": dense, "check": check}[sys.argv[1]](Path(sys.argv[2]))))
