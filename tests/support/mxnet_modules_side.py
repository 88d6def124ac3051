"""Program that tests run inside the MXNet environment, without pytest: see `e2e/test_transparent_mxnet.py`.

`check FOLDER` runs every `check_` function, also those of `mxnet_loaders_side.py`, with the loaders in place and prints
{name: None or what went wrong}; `checkpoint FOLDER` writes a model and prints its prefix; `bytes FILE` runs one and
prints the digest of its arrays, how many were written meanwhile, and whether they came from shared memory;
`orphan PREFIX` loads one, waits for a line, and prints whether a module is as it is without the loaders.
"""
# ruff: noqa: T201 - it stands in for pytest: it catches everything and prints its result

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import mxnet_loaders_side
import numpy as np
from mxnet.gluon import SymbolBlock, nn
from mxnet_loaders_side import HIDDEN, counted, error_of, same, told_of
from trims_client.transparent import file_bytes

import trims.transparent

if TYPE_CHECKING:
    from collections.abc import Callable


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


def fill_plainly(module: Any, arguments: Any, states: Any, prefix: str) -> None:
    del prefix
    module.set_params(arguments, states)


def fill_with_a_changed_array(module: Any, arguments: Any, states: Any, prefix: str) -> None:
    del prefix
    arguments["wide_weight"][3] = 0.5
    module.set_params(arguments, states)


def fill_without_one(module: Any, arguments: Any, states: Any, prefix: str) -> Any:
    del prefix
    few = {name: value for name, value in arguments.items() if name != "wide_weight"}
    module.set_params(few, states, allow_missing=True)
    return module._exec_group.execs[0].arg_dict["wide_weight"]


def fill_after_a_change_of_shape(module: Any, arguments: Any, states: Any, prefix: str) -> Any:
    module.reshape([("data", (1, *PICTURES[1:]))])
    module.reshape([("data", PICTURES)])
    return fill_without_one(module, arguments, states, prefix)


def fill_one_by_an_initializer(module: Any, arguments: Any, states: Any, prefix: str) -> None:
    del prefix
    few = {name: value for name, value in arguments.items() if name != "wide_weight"}
    mx.random.seed(9)
    module.init_params(mx.init.Uniform(0.01), few, states, allow_missing=True)


def fill_by_an_initializer(module: Any, arguments: Any, states: Any, prefix: str) -> None:
    del arguments, states, prefix
    mx.random.seed(9)
    module.init_params(mx.init.Uniform(0.01))


def fill_twice(module: Any, arguments: Any, states: Any, prefix: str) -> None:
    del prefix
    module.set_params(arguments, states)
    answers(module)
    module.set_params({name: value * 2 for name, value in arguments.items()}, states)
    answers(module)
    module.set_params(arguments, states)


def fill_and_write(module: Any, arguments: Any, states: Any, prefix: str) -> Any:
    del prefix
    module.set_params(arguments, states)
    before, _ = module.get_params()
    before["wide_weight"][:] = 3
    arguments["head_weight"][:] = 4
    return another(module, arguments, states)


def fill_from_a_file_that_is_gone(module: Any, arguments: Any, states: Any, prefix: str) -> Any:
    os.rename(f"{prefix}-0000.params", f"{prefix}-kept")
    module.set_params(arguments, states)
    found = another(module, arguments, states)
    os.rename(f"{prefix}-kept", f"{prefix}-0000.params")
    return found


def fill_from_a_file_that_was_replaced(module: Any, arguments: Any, states: Any, prefix: str) -> Any:
    os.rename(f"{prefix}-0000.params", f"{prefix}-kept")
    twice = {name: value * 2 for name, value in arguments.items()}
    mx.model.save_checkpoint(prefix, 0, module.symbol, twice, states)
    module.set_params(arguments, states)
    found = another(module, arguments, states)
    os.rename(f"{prefix}-kept", f"{prefix}-0000.params")
    return found


def fill_with_more(module: Any, arguments: Any, states: Any, prefix: str) -> str:
    del prefix
    module.set_params({**arguments, "else": mx.nd.ones((3,))}, states, allow_extra=True)
    return error_of(lambda: fresh_module(module.symbol).set_params(None, states, allow_missing=True))


def check_a_fork_after_a_load(folder: Path) -> None:
    path = mxnet_loaders_side.saved(folder, {"w": mxnet_loaders_side.weight()})
    kept = mx.nd.load(path)["w"]
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(Exception):
            kept[:] = 1
            again = mx.nd.load(path)["w"]
            right = (kept.asnumpy() == 1).all() and (again.asnumpy() == mxnet_loaders_side.weight().asnumpy()).all()
            os._exit(0 if right else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    np.testing.assert_array_equal(kept.asnumpy(), mxnet_loaders_side.weight().asnumpy())


def another(module: Any, arguments: Any, states: Any) -> list[Any]:
    other = fresh_module(module.symbol)
    other.set_params(arguments, states)
    return [*answers(other), *other.get_params()]


def check_all_ways_to_fill_a_module(folder: Path) -> None:
    prefix = checkpoint(folder)

    def filled(fill: Callable[..., Any], **how: Any) -> list[Any]:
        graph, arguments, states = mx.model.load_checkpoint(prefix, 0)
        module = fresh_module(graph, **how)
        others = fill(module, arguments, states, prefix)
        return [*answers(module), *module.get_params(), arguments, states, others]

    for name, fill in [(name, each) for name, each in globals().items() if name.startswith("fill_")]:
        for how in ({}, {"for_training": True}):
            try:
                same(functools.partial(filled, fill, **how))
            except AssertionError as error:
                raise AssertionError(f"{name} {how}") from error


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


def grown_by_modules_and_a_block(prefix: str) -> int:
    before = own_bytes()
    graph, arguments, states = mx.model.load_checkpoint(prefix, 0)
    modules = [fresh_module(graph) for _ in range(2)]
    for module in modules:
        module.set_params(arguments, states)
    block = SymbolBlock(graph, [mx.sym.var("data")])
    block.collect_params().load(f"{prefix}-0000.params")
    mx.nd.waitall()
    return own_bytes() - before


def check_modules_and_blocks_share_the_weights(folder: Path) -> None:
    prefix, nbytes = checkpoint(folder), HIDDEN * 64 * 256 * 4
    # The least of several: MXNet's threads give back what earlier checks had, or take more, when they like.
    grown = min(grown_by_modules_and_a_block(prefix) for _ in range(4))
    assert grown < nbytes // 4, (grown, nbytes)


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
    for name, function in [*vars(mxnet_loaders_side).items(), *globals().items()]:
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


def orphan(prefix: Path) -> dict[str, Any]:
    """Load a model, and fill a module once the daemon is gone; return whether it has and answers what it does alone."""
    file_bytes._REST_S, file_bytes._PATIENCE_S = 0.0, 20.0
    graph, arguments, states = mx.model.load_checkpoint(str(prefix), 0)
    print("loaded", flush=True)
    sys.stdin.readline()
    ours = another(fresh_module(graph), arguments, states)
    shared, _ = counted()
    trims.transparent.uninstall()
    alone = another(fresh_module(graph), *mx.model.load_params(str(prefix), 0))
    return {"shared": shared, "equal": told_of(ours) == told_of(alone)}


def address(value: Any) -> int:
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(value.handle, ctypes.byref(pointer)))
    return int(pointer.value or 0)


if __name__ == "__main__":
    called = {"check": check, "bytes": digest, "checkpoint": checkpoint, "orphan": orphan}[sys.argv[1]]
    print(json.dumps(called(Path(sys.argv[2]))))
