"""Checks of `mxnet.nd.load` through the store, inside the MXNet environment: `mxnet_modules_side.py` runs them.

Each compares what is loaded with the loaders in place and what is loaded without them.
"""
# ruff: noqa: PT017 - it runs without pytest

from __future__ import annotations

import os
import struct
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from trims_client.transparent import outcomes

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
    if value is None or isinstance(value, str):
        return value
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


def warned(load: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        return load(), [str(each.message) for each in found]


def same(load: Callable[[], Any]) -> Any:
    """Load with the loaders, which must share, and without them, and compare. Return what was loaded with them."""
    ours, our_warnings = warned(load)
    shared, _ = counted()
    assert shared, "nothing was shared"
    trims.transparent.uninstall()
    try:
        alone, warnings_alone = warned(load)
    finally:
        assert trims.transparent.install()
    assert type(ours) is type(alone)
    assert our_warnings == warnings_alone
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
