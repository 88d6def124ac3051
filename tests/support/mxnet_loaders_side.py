"""Program that tests run inside the MXNet environment, without pytest: see `e2e/test_transparent_mxnet.py`.

`check FOLDER` runs every `check_` function with the loaders in place and prints {name: None or what went wrong};
`checkpoint FOLDER` writes a model and prints its prefix; `bytes FILE` runs one and prints the digest of its arrays, how
many were written meanwhile, and whether they came from shared memory.
"""
# ruff: noqa: PT017, T201 - it stands in for pytest: it catches everything and prints its result

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import struct
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.gluon import SymbolBlock, nn
from trims_client.transparent import file_bytes, outcomes

import trims.transparent  # which puts the adapter in place

if TYPE_CHECKING:
    from collections.abc import Callable

TYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
HIDDEN, WIDE = 256, 2048
INPUT = (2, WIDE)
#: The original, in a container: names of modules that hold it are given the adapter.
PLAIN = [mx.nd.load.__wrapped__]


def plain(path: Any) -> Any:
    return PLAIN[0](path)


def weight(seed: int = 0) -> Any:
    return mx.nd.array(np.random.RandomState(seed).randn(HIDDEN, WIDE) / WIDE)


def saved(folder: Path, arrays: Any, name: str = "a.params") -> str:
    mx.nd.save(str(folder / name), arrays)
    return str(folder / name)


def counted() -> tuple[int, list[str]]:
    """Loads from shared memory, and the reasons of the others, since the last call."""
    found = trims.transparent.report()
    outcomes._shared.clear()
    outcomes._stepped_aside.clear()
    return sum(found.shared.values()), sorted({reason for _, reason in found.stepped_aside})


def told_of(value: Any) -> Any:
    """All that there is to an array, a list or a dict of them: types, order, dtypes, shapes, contexts, bytes."""
    if isinstance(value, dict):
        return [(name, told_of(each)) for name, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value), *map(told_of, value)]
    if isinstance(value, mx.sym.Symbol):
        return value.tojson()
    if value is None:
        return None
    assert type(value) is mx.nd.NDArray, type(value)
    array = value.asnumpy()
    return (
        value.dtype,
        value.shape,
        str(value.context),
        value.stype,
        value.writable,
        told_of(value.grad),
        array.tobytes(),
    )


def same(load: Callable[[], Any]) -> Any:
    """Load with the loaders, which must share, and without them, and compare. Return what was loaded with them."""
    ours = load()
    shared, _ = counted()
    assert shared, "nothing was shared"
    trims.transparent.uninstall()
    try:
        alone = load()
    finally:
        assert trims.transparent.install()
    assert type(ours) is type(alone)
    assert told_of(ours) == told_of(alone)
    return ours


def check_arrays_with_names(folder: Path) -> None:
    arrays = {f"arg:{name}": mx.nd.array(np.arange(6).reshape(2, 3), dtype=name) for name in TYPES}
    arrays |= {"aux:ü": weight(), "": weight(1).reshape((-1,)), "turned": weight(2).T, "elsewhere": weight(3)}
    arrays["elsewhere"] = arrays["elsewhere"].as_in_context(mx.cpu(1))
    path = saved(folder, arrays)
    assert {name: told_of(each) for name, each in same(lambda: mx.nd.load(path)).items()}.keys() == arrays.keys()


def check_arrays_without_names(folder: Path) -> None:
    path = saved(folder, [weight(), weight(1).astype("float64")])
    assert isinstance(same(lambda: mx.nd.load(path)), list)


def check_arrays_that_are_not_aligned_to_an_element(folder: Path) -> None:
    data = np.random.RandomState(0).randn(HIDDEN, WIDE)
    arrays = {"a": mx.nd.ones((3,), dtype="int8"), "b": mx.nd.array(data, dtype="float64"), "c": weight()}
    path = saved(folder, arrays)
    ours = same(lambda: mx.nd.load(path))
    assert mx.nd.dot(ours["b"], ours["b"].T).asnumpy().shape == (HIDDEN, HIDDEN)
    np.testing.assert_array_equal(
        mx.nd.dot(ours["c"], ours["c"].T).asnumpy(), mx.nd.dot(weight(), weight().T).asnumpy()
    )


def check_what_a_program_writes_no_other_load_sees(folder: Path) -> None:
    path = saved(folder, {"w": weight()})
    before = Path(path).read_bytes()
    one, other = mx.nd.load(path)["w"], mx.nd.load(path)["w"]
    one[:] = 7
    one += 1
    one.wait_to_read()
    assert (one.asnumpy() == 8).all()
    for value in (other, mx.nd.load(path)["w"]):
        np.testing.assert_array_equal(value.asnumpy(), weight().asnumpy())
    assert Path(path).read_bytes() == before
    assert counted() == (3, [])


def check_gradients_of_a_loaded_array(folder: Path) -> None:
    path = saved(folder, {"w": weight()})
    value = mx.nd.load(path)["w"]
    value.attach_grad()
    with mx.autograd.record():
        loss = (value * value).sum()
    loss.backward()
    np.testing.assert_array_equal(value.grad.asnumpy(), 2 * weight().asnumpy())


def check_a_file_that_changes_after_its_load_changes_no_array(folder: Path) -> None:
    for change in (
        lambda path: Path(path).write_bytes(b"x" * (2 << 20)),
        lambda path: os.truncate(path, 10),
        os.unlink,
    ):
        path = saved(folder, {"w": weight()})
        value = mx.nd.load(path)["w"]
        assert counted() == (1, [])
        change(path)
        np.testing.assert_array_equal(value.asnumpy(), weight().asnumpy())
        outcome = error_of(lambda: mx.nd.load(path))  # noqa: B023 - called at once
        assert outcome == error_of(lambda: plain(path)) != ""  # noqa: B023
        counted()


def error_of(load: Callable[[], Any]) -> str:
    try:
        load()
    except Exception as error:
        assert error.__context__ is None, error.__context__
        return f"{type(error).__name__}: {str(error).splitlines()[-1]}"
    return ""


def check_errors_are_the_originals(folder: Path) -> None:
    path = saved(folder, {"w": weight()})
    whole = Path(path).read_bytes()
    for wrong in (folder / "none.params", 3, str(folder / "none.params"), None, b"x", "stdout/x", "no\0name", "\udcff"):
        assert error_of(lambda: mx.nd.load(wrong)) == error_of(lambda: plain(wrong)) != ""  # noqa: B023
    for broken in (whole[:-30], whole[: 1 << 20], whole[:-20] + b"\xff" * 20, b"x" + whole):
        Path(path).write_bytes(broken)
        assert error_of(lambda: mx.nd.load(path)) == error_of(lambda: plain(path)) != ""
    assert counted()[0] == 0


def old(generation: str) -> bytes:
    """Write a file with one array as MXNet before 0.12 did: magic or none, shape, context, type."""
    data = np.ones((HIDDEN, WIDE), "f4")
    shape = (
        struct.pack("<Iiqq", 0xF993FAC8, 2, *data.shape) if generation == "V1" else struct.pack("<III", 2, *data.shape)
    )
    return struct.pack("<QQQ", 0x112, 0, 1) + shape + struct.pack("<iii", 1, 0, 0) + data.tobytes() + bytes(8)


def check_what_is_not_dense_is_loaded_as_ever(folder: Path) -> None:
    sparse = saved(folder, {"w": weight().tostype("row_sparse"), "v": weight()}, "sparse.params")
    small = saved(folder, {"w": mx.nd.ones((2, 2))}, "small.params")
    many = saved(folder, [mx.nd.ones((64,))] * 5000, "many.params")
    for path, reason in ((sparse, "sparse"), (small, "too small"), (many, "many small"), *(
        (str(folder / generation), "of another release") for generation in ("V1", "V0")
    )):  # fmt: skip
        if not os.path.exists(path):
            Path(path).write_bytes(old(os.path.basename(path)))
        ours, alone = mx.nd.load(path), plain(path)
        for one, other in zip(
            *(each.values() if isinstance(each, dict) else each for each in (ours, alone)), strict=True
        ):
            assert (type(one), one.stype) == (type(other), other.stype)
            np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
        shared, reasons = counted()
        assert not shared, path
        assert len(reasons) == 1, (path, reasons)
        assert reason in reasons[0], (path, reasons)


def check_numpys_shapes_and_arrays_are_mxnets(folder: Path) -> None:
    legacy = saved(folder, {"w": weight()}, "legacy.params")
    with mx.util.np_shape(True):
        path = saved(folder, {"w": weight(), "scalar": mx.np.array(3.5).as_nd_ndarray(), "none": mx.nd.zeros((0, 3))})
        assert told_of(mx.nd.load(path)) == told_of(plain(path))
        assert error_of(lambda: mx.nd.load(legacy)) == error_of(lambda: plain(legacy))
    assert error_of(lambda: mx.nd.load(path)) == error_of(lambda: plain(path)) != ""
    assert counted() == (0, ["an array that is sparse, empty or of another release", "numpy's shapes"])


def check_threads_that_load_one_file_at_once(folder: Path) -> None:
    path, found = saved(folder, {"w": weight()}), dict[int, Any]()
    together = threading.Barrier(4)

    def load(number: int) -> None:
        together.wait()
        found[number] = mx.nd.load(path)["w"]
        found[number] += number

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, value in found.items():
        np.testing.assert_array_equal(value.asnumpy(), (weight() + number).asnumpy())
    assert (len(found), counted()) == (4, (4, []))


def check_all_names_of_the_function_lead_to_the_adapter(folder: Path) -> None:
    del folder
    names = (
        lambda: mx.nd.load, lambda: mx.ndarray.load, lambda: mx.ndarray.utils.load, lambda: mx.initializer.load,
        lambda: mx.contrib.quantization.nd_load,
    )  # fmt: skip
    assert {name() for name in names} == {mx.nd.load}
    assert mx.nd.load is not PLAIN[0]
    trims.transparent.uninstall()
    assert {name() for name in names} == {PLAIN[0]}
    assert trims.transparent.install()


def check_mxnet_is_left_as_it_was(folder: Path) -> None:
    del folder
    assert not [name for name in os.environ if name.startswith("MXNET_DISABLE")]
    assert "int8" not in mx.ndarray.ndarray.DLDataType.TYPE_MAP


def check_an_unknown_release_is_left_alone(folder: Path) -> None:
    path = saved(folder, {"w": weight()})
    trims.transparent.uninstall()
    version, mx.__version__ = mx.__version__, "1.10.0"
    try:
        assert trims.transparent.install()
        assert mx.nd.load is PLAIN[0]
        mx.nd.load(path)
    finally:
        trims.transparent.uninstall()
        mx.__version__ = version
        assert trims.transparent.install()
    assert counted() == (0, ["mxnet 1.10.0 is not known"])


def symbol() -> Any:
    """A convolution, a transposed one whose weights oneDNN reorders in place, a normalisation, and two dense layers."""
    value = mx.sym.Convolution(mx.sym.var("data"), num_filter=64, kernel=(3, 3), pad=(1, 1), name="conv0")
    value = mx.sym.Activation(mx.sym.BatchNorm(value, fix_gamma=False, name="norm"), act_type="relu")
    value = mx.sym.Deconvolution(value, num_filter=64, kernel=(3, 3), pad=(1, 1), name="up")
    value = mx.sym.Activation(mx.sym.FullyConnected(value, num_hidden=HIDDEN, name="wide"), act_type="relu")
    return mx.sym.FullyConnected(value, num_hidden=10, name="head")


PICTURES = (2, 3, 16, 16)


def pictures() -> Any:
    return mx.nd.array(np.random.RandomState(5).randn(*PICTURES))


def fresh_module(graph: Any, **how: Any) -> Any:
    made = mx.mod.Module(graph, label_names=None, context=mx.cpu())
    made.bind([("data", PICTURES)], **{"for_training": False, **how})
    return made


def checkpoint(folder: Path) -> str:
    module = fresh_module(symbol())
    mx.random.seed(3)
    module.init_params(mx.init.Xavier())
    module.save_checkpoint(str(folder / "m"), 0)
    return str(folder / "m")


def answers(module: Any, times: int = 2) -> list[Any]:
    found = []
    for _ in range(times):
        module.forward(mx.io.DataBatch([pictures()]), is_train=False)
        found.append(module.get_outputs()[0].copy())
    return found


def check_checkpoints(folder: Path) -> None:
    prefix = checkpoint(folder)
    same(lambda: mx.model.load_checkpoint(prefix, 0))
    same(lambda: mx.model.load_params(prefix, 0))

    def run() -> Any:
        graph, arguments, states = mx.model.load_checkpoint(prefix, 0)
        module = fresh_module(graph)
        module.set_params(arguments, states)
        return [*answers(module), *module.get_params(), arguments, states]

    same(run)


def own_bytes() -> int:
    """Return the memory of this process that it shares with nobody."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Dirty", "Anonymous"))) // 2


def ways_to_fill(prefix: str) -> dict[str, Callable[[], list[Any]]]:
    """Ways in which programs give a module its parameters; each returns all that it then has, and its answers."""
    graph = mx.sym.load(f"{prefix}-symbol.json")

    def filled(how: Callable[[Any, Any, Any], Any], **bound: Any) -> list[Any]:
        _, arguments, states = mx.model.load_checkpoint(prefix, 0)
        module = fresh_module(graph, **bound)
        other = how(module, arguments, states)
        return [*answers(module), *module.get_params(), arguments, states, *([] if other is None else [other])]

    def changed(module: Any, arguments: Any, states: Any) -> None:
        arguments["wide_weight"][3] = 0.5
        module.set_params(arguments, states)

    def some(module: Any, arguments: Any, states: Any) -> Any:
        few = {name: value for name, value in arguments.items() if name != "wide_weight"}
        module.set_params(few, states, allow_missing=True)
        return module._exec_group.execs[0].arg_dict["wide_weight"]

    def missing(module: Any, arguments: Any, states: Any) -> None:
        few = {name: value for name, value in arguments.items() if name != "wide_weight"}
        mx.random.seed(9)
        module.init_params(mx.init.Uniform(0.01), few, states, allow_missing=True)

    def none(module: Any, arguments: Any, states: Any) -> None:
        del arguments, states
        mx.random.seed(9)
        module.init_params(mx.init.Uniform(0.01))

    def twice(module: Any, arguments: Any, states: Any) -> None:
        module.set_params(arguments, states)
        answers(module)
        module.set_params({name: value * 2 for name, value in arguments.items()}, states)
        answers(module)
        module.set_params(arguments, states)

    def written(module: Any, arguments: Any, states: Any) -> Any:
        module.set_params(arguments, states)
        before, _ = module.get_params()
        before["wide_weight"][:] = 3
        arguments["head_weight"][:] = 4
        other = fresh_module(graph)
        other.set_params(arguments, states)
        return [*answers(other), *other.get_params()]

    def reshaped(module: Any, arguments: Any, states: Any) -> None:
        module.reshape([("data", (1, *PICTURES[1:]))])
        module.set_params(arguments, states)
        module.reshape([("data", PICTURES)])

    def more(module: Any, arguments: Any, states: Any) -> None:
        module.set_params({**arguments, "else": mx.nd.ones((3,))}, states, allow_extra=True)

    plain = lambda module, arguments, states: module.set_params(arguments, states)  # noqa: E731 - beside the others
    found = {each.__name__: functools.partial(filled, each) for each in (changed, some, missing, none, twice, written)}
    found |= {each.__name__: functools.partial(filled, each) for each in (reshaped, more)}
    return {"plain": functools.partial(filled, plain), **found, "training": lambda: filled(plain, for_training=True)}


def check_all_ways_to_fill_a_module(folder: Path) -> None:
    for name, way in ways_to_fill(checkpoint(folder)).items():
        try:
            same(way)
        except AssertionError as error:
            raise AssertionError(name) from error


def check_errors_of_modules_are_the_originals(folder: Path) -> None:
    prefix = checkpoint(folder)

    def wrong(change: Callable[[Any], Any]) -> str:
        graph, arguments, states = mx.model.load_checkpoint(prefix, 0)
        change(arguments)
        return error_of(lambda: fresh_module(graph).set_params(arguments, states))

    for change in (
        lambda arguments: arguments.pop("wide_weight"),
        lambda arguments: arguments.update(more=mx.nd.ones(3)),
        lambda arguments: arguments.update(wide_weight=mx.nd.ones((3, 3))),
        lambda arguments: arguments.update(wide_weight=3),
    ):
        ours = wrong(change)
        trims.transparent.uninstall()
        alone = wrong(change)
        assert trims.transparent.install()
        assert ours == alone


def check_modules_and_blocks_share_the_weights(folder: Path) -> None:
    prefix, nbytes = checkpoint(folder), HIDDEN * 64 * 256 * 4
    before = own_bytes()
    graph, arguments, states = mx.model.load_checkpoint(prefix, 0)
    modules = [fresh_module(graph) for _ in range(2)]
    for module in modules:
        module.set_params(arguments, states)
    block = SymbolBlock(graph, [mx.sym.var("data")])
    block.collect_params().setattr("grad_req", "null")
    block.collect_params().load(f"{prefix}-0000.params")
    mx.nd.waitall()
    assert own_bytes() - before < nbytes // 4, (own_bytes() - before, nbytes)


def check_a_module_loads_trains_and_saves(folder: Path) -> None:
    prefix = checkpoint(folder)

    def run() -> Any:
        module = mx.mod.Module.load(prefix, 0, label_names=None)
        module.bind([("data", PICTURES)], for_training=True)
        module.init_optimizer(optimizer_params={"learning_rate": 0.01})
        for _ in range(2):
            module.forward(mx.io.DataBatch([pictures()]), is_train=True)
            module.backward([mx.nd.ones((2, 10))])
            module.update()
            mx.nd.waitall()  # else MXNet's own moving averages differ from run to run
        module.save_checkpoint(prefix, 1)
        other = fresh_module(symbol())
        other.load_params(f"{prefix}-0001.params")
        return [*module.get_params(), *other.get_params(), *answers(other)]

    same(run)


def net() -> Any:
    made = nn.HybridSequential(prefix="n_")
    with made.name_scope():
        made.add(nn.Conv2D(64, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=64), nn.Activation("relu"))
        made.add(nn.Dense(HIDDEN, activation="relu", in_units=64 * 256), nn.Dense(10, in_units=HIDDEN))
    return made


def told_of_block(block: Any) -> list[Any]:
    parameters = block.collect_params()
    found = [told_of(each.data()) for each in parameters.values()]
    return [found, [(each.name, each.shape, str(each.dtype), each.grad_req) for each in parameters.values()]]


def check_gluons_parameters(folder: Path) -> None:
    mx.random.seed(3)
    first = net()
    first.initialize(mx.init.Xavier())
    first.save_parameters(path := str(folder / "g.params"))
    first.hybridize()
    expected = first(pictures()).asnumpy()
    first.export(str(folder / "e"), 0)
    for make in (
        lambda: loaded(net(), path),
        lambda: loaded(net(), path, ctx=[mx.cpu(0), mx.cpu(1)]),
        lambda: loaded(initialized(net()), path),
        lambda: loaded(net(), path, cast_dtype=True, dtype_source="saved"),
        lambda: SymbolBlock.imports(str(folder / "e-symbol.json"), ["data"], str(folder / "e-0000.params")),
        lambda: SymbolBlock.imports(
            str(folder / "e-symbol.json"), ["data"], str(folder / "e-0000.params"), ctx=mx.cpu()
        ),
    ):
        counted()
        ours = make()
        assert counted()[0], "nothing was shared"
        trims.transparent.uninstall()
        alone = make()
        assert trims.transparent.install()
        assert told_of_block(ours)[0] == told_of_block(alone)[0]
        np.testing.assert_array_equal(ours(pictures()).asnumpy(), alone(pictures()).asnumpy())
        np.testing.assert_allclose(ours(pictures()).asnumpy(), expected, rtol=1e-4, atol=1e-5)
        assert trained(ours) == trained(alone)


def trained(block: Any) -> Any:
    """Take one step of a block's training. Return its parameters."""
    trainer = mx.gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        loss = block(pictures()).sum()
    loss.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.step(2, ignore_stale_grad=True)
    return told_of_block(block)[0]


def loaded(block: Any, path: str, **how: Any) -> Any:
    block.load_parameters(path, **how)
    return block


def initialized(block: Any) -> Any:
    block.initialize(mx.init.One())
    return block


def check_names_of_legacy_files_of_gluon(folder: Path) -> None:
    first = initialized(net())
    first.collect_params().save(path := str(folder / "l.params"))
    ours, alone = net(), net()
    ours.collect_params().load(path)
    assert counted()[0]
    trims.transparent.uninstall()
    alone.collect_params().load(path)
    assert trims.transparent.install()
    assert told_of_block(ours)[0] == told_of_block(alone)[0]


def check(folder: Path) -> dict[str, str | None]:
    file_bytes._REST_S, file_bytes._PATIENCE_S = 0.0, 20.0
    outcome: dict[str, str | None] = {}
    for name, function in list(globals().items()):
        if name.startswith("check_"):
            (folder / name).mkdir()
            counted()
            try:
                function(folder / name)
            except Exception:
                outcome[name] = traceback.format_exc()
            else:
                outcome[name] = None
    return outcome


def digest(path: Path) -> dict[str, Any]:
    """Return the digest of a file's arrays, and how many of them oneDNN writes when a model runs."""
    file_bytes._REST_S, file_bytes._PATIENCE_S = 0.0, 20.0
    found = mx.nd.load(str(path))
    digested = hashlib.sha256(repr(told_of(found)).encode()).hexdigest()
    at = [(address(value), value.asnumpy().tobytes()) for value in found.values()]
    kinds: dict[str, dict[str, Any]] = {"arg": {"data": pictures()}, "aux": {}}
    for name, value in found.items():
        kinds[name[:3]][name[4:]] = value
    bound = symbol().bind(mx.cpu(), kinds["arg"], grad_req="null", aux_states=kinds["aux"])
    bound.forward(is_train=False)[0].wait_to_read()
    shared, reasons = counted()
    written = sum(ctypes.string_at(where, len(data)) != data for where, data in at)
    return {"digest": digested, "shared": shared, "reasons": reasons, "written": written}


def address(value: Any) -> int:
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(value.handle, ctypes.byref(pointer)))
    return int(pointer.value or 0)


if __name__ == "__main__":
    print(json.dumps({"check": check, "bytes": digest, "checkpoint": checkpoint}[sys.argv[1]](Path(sys.argv[2]))))
