"""cupy over weights on a device: what it is asked for, with a stand-in for cupy; the arrays themselves need a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trims_client.frameworks import cupy as shared
from trims_client.mapping import dlpack
from trims_client.weights import Weights

from trims.core.errors import NotSupportedError, TensorNotFoundError
from trims.image.plan import SourceTensor, plan_image

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from fake_weights import DeviceShelf

DEVICE = 3


class UnownedMemory:
    """Stand-in for cupy's class: a pointer, and an owner that is kept."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class Array:
    #: 14.2 shows float8, 14.0 refuses it as here.
    has_float8 = False

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], memptr: MemoryPointer) -> None:
        if dtype.name.startswith("float8") and not self.has_float8:
            raise ValueError(f"Unsupported dtype {dtype}")
        self.shape, self.dtype, self.data = shape, dtype, memptr


class Device:
    used: list[int]

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.used.append(self.number)

    def __exit__(self, *error: object) -> None:
        return


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = ModuleType("cupy")
    Device.used = []
    made.ndarray = Array
    made.cuda = SimpleNamespace(UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer, Device=Device)
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def image(folder: Path, *tensors: tuple[str, str, tuple[int, ...]]) -> Path:
    plan = plan_image([SourceTensor(*tensor, lambda place: None) for tensor in tensors])
    content = bytearray(plan.nbytes)
    plan.write_into(memoryview(content))
    (folder / "m.image").write_bytes(content)
    return folder / "m.image"


def on_cuda(weights: Weights) -> Weights:
    assert weights._attachment.region is not None
    weights._attachment.region.dlpack_device = (dlpack.CUDA, DEVICE)
    return weights


def test_arrays_lie_over_the_shared_bytes_of_their_device(cupy: Any, shelf: DeviceShelf, tmp_path: Path) -> None:
    weights = on_cuda(shelf.open(image(tmp_path, ("a", "F32", (4, 2)), ("b", "I8", ()), ("none", "F16", (0, 3)))))
    found = shared.arrays(weights)
    assert {name: (array.shape, array.dtype.name) for name, array in found.items()} == {
        "a": ((4, 2), "float32"), "b": ((), "int8"), "none": ((0, 3), "float16"),
    }  # fmt: skip
    assert found["a"].data.ptr == weights.on_device("a").address
    assert found["b"].data.ptr == weights.on_device("b").address
    assert len({id(array.data.mem) for array in found.values()}) == 1, "one loan, whatever the layers"
    assert (found["a"].data.mem.device_id, Device.used) == (DEVICE, [DEVICE])


def test_arrays_outlive_the_weights_and_the_last_of_them_ends_the_lease(
    cupy: Any, shelf: DeviceShelf, tmp_path: Path
) -> None:
    weights = on_cuda(shelf.open(image(tmp_path, ("a", "F32", (4, 2)), ("b", "I8", ()))))
    found = shared.arrays(weights)
    weights.close()
    kept = found.pop("b")
    found.clear()
    assert not shelf.released
    del kept
    assert len(shelf.released) == 1


def test_bfloat16_is_shown_with_ml_dtypes_and_float8_is_refused_with_what_has_it(
    cupy: Any, shelf: DeviceShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ml_dtypes")
    weights = on_cuda(shelf.open(image(tmp_path, ("half", "BF16", (4,)))))
    assert shared.arrays(weights)["half"].dtype.name == "bfloat16"
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(NotSupportedError, match=r"'half' of BF16 .*ml_dtypes.*weights\.on_device\('half'\)"):
        shared.arrays(weights, ["half"])


def test_a_dtype_that_cupy_lacks_costs_the_other_tensors_nothing(
    cupy: Any, shelf: DeviceShelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("ml_dtypes")
    weights = on_cuda(shelf.open(image(tmp_path, ("small", "F8_E4M3", (4,)), ("a", "F32", (2,)), ("b", "I8", ()))))
    assert set(shared.arrays(weights)) == {"a", "b"}
    assert "1 of 3 tensors are left out" in caplog.text
    assert "'small' of F8_E4M3" in caplog.text
    assert set(shared.arrays(weights, ["b"])) == {"b"}
    with pytest.raises(NotSupportedError, match=r"'small' of F8_E4M3 .*weights\.on_device\('small'\)"):
        shared.arrays(weights, ["a", "small"])
    with pytest.raises(TensorNotFoundError, match="has no tensor 'c'"):
        shared.arrays(weights, ["c"])


def test_float8_is_shown_by_a_cupy_that_has_it(
    cupy: Any, shelf: DeviceShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("ml_dtypes")
    monkeypatch.setattr(Array, "has_float8", True)
    weights = on_cuda(shelf.open(image(tmp_path, ("small", "F8_E4M3", (4,)), ("a", "F32", (2,)))))
    found = shared.arrays(weights)
    assert {name: array.dtype.name for name, array in found.items()} == {"small": "float8_e4m3fn", "a": "float32"}
    assert found["small"].data.ptr == weights.on_device("small").address
    assert "left out" not in caplog.text


def test_what_is_missing_is_named(shelf: DeviceShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = image(tmp_path, ("a", "F32", (4, 2)))
    weights = shelf.open(path)
    with pytest.raises(NotSupportedError, match="lies on no CUDA device"):
        shared.arrays(weights)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(NotSupportedError, match="cupy is not installed"):
        shared.arrays(on_cuda(weights))
    with Weights.map_file(path) as on_host, pytest.raises(NotSupportedError, match="open it with place='gpu'"):
        shared.arrays(on_host)
