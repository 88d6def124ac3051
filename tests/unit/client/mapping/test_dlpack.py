"""Device memory lent through DLPack: what a capsule says, and that the memory lives as long as who borrowed it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
from trims_client.mapping import dlpack
from trims_client.mapping.device import DeviceRegion, DeviceTensor, leave_devices

from trims.core.layout import DTYPES, TensorSpec
from trims.memory.cuda.api import Device
from trims.testing.device_memory import CONTENT, Owner
from trims.testing.fake_cuda import make_devices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UUID = "GPU-00000000-0000-0000-0000-000000000001"
_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Machine:
    """One fake device with an image, and regions of it that count how many are open."""

    def __init__(self, folder: Path) -> None:
        self.owner = Owner(make_devices(folder, [Device(UUID, "Fake", 64 << 20)]), "vmm")
        self.allocation = self.owner.sealed()
        self.regions: list[weakref.ref[DeviceRegion]] = []

    def tensor(self, dtype: str = "U8", shape: tuple[int, ...] = (64,), offset: int = 0) -> DeviceTensor:
        region = DeviceRegion(self.owner.memory.export(self.allocation), memoryview(b""))
        self.regions.append(weakref.ref(region))
        return DeviceTensor(region, TensorSpec("t", dtype, shape, offset), 0)

    def open_regions(self) -> int:
        dlpack.collect()
        return sum(region() is not None for region in self.regions)


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    made = Machine(folder)
    yield made
    assert made.open_regions() == 0
    assert dlpack.collect() == 0
    made.owner.memory.free(made.allocation)
    made.owner.end()
    leave_devices()


class Borrowing:
    """Use of a capsule by a library, by the letter of the protocol."""

    def __init__(self, capsule: object) -> None:
        self.name = _name_of(capsule)
        self.address = _pointer_of(capsule, self.name)
        self.used = b"used_" + self.name
        _rename(capsule, self.used)
        kind = dlpack._ManagedVersioned if b"versioned" in self.name else dlpack._Managed
        self.managed = kind.from_address(self.address)

    def end(self) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.managed.deleter)(self.address)


def test_a_borrower_that_knows_versions_gets_the_read_only_flag(machine: Machine) -> None:
    borrowing = Borrowing(machine.tensor("F32", (4, 2), 64).__dlpack__(max_version=(1, 3)))
    managed = borrowing.managed
    assert borrowing.name == b"dltensor_versioned"
    assert ((managed.major, managed.minor), managed.flags) == ((1, 0), 1)
    tensor = managed.tensor
    numbers = (ctypes.c_int64 * 4).from_address(tensor.shape)
    assert (tensor.ndim, list(numbers), tensor.byte_offset) == (2, [4, 2, 2, 1], 0)
    assert (tensor.device.device_type, tensor.device.device_id) == (dlpack.CPU, 0), "the fake's memory is the host's"
    assert bytes((ctypes.c_ubyte * 8).from_address(tensor.data)) == CONTENT[64:72]
    borrowing.end()


@pytest.mark.parametrize("max_version", [None, (0, 8)])
def test_a_borrower_that_asks_for_no_version_gets_the_older_capsule(
    machine: Machine, max_version: tuple[int, int] | None
) -> None:
    borrowing = Borrowing(machine.tensor().__dlpack__(max_version=max_version))
    assert borrowing.name == b"dltensor"
    borrowing.end()


def test_every_dtype_has_its_code(machine: Machine) -> None:
    torch = pytest.importorskip("torch")
    from trims_client.frameworks._torch_dtypes import DTYPES as _DTYPES

    assert set(dlpack._CODES) == set(DTYPES)
    for dtype, known in _DTYPES.items():
        assert torch.from_dlpack(machine.tensor(dtype, (2,))).dtype is known


def test_scalars_and_empty_tensors_are_lent_too(machine: Machine) -> None:
    torch = pytest.importorskip("torch")
    assert torch.from_dlpack(machine.tensor("U8", (), 7)).item() == 7
    assert torch.from_dlpack(machine.tensor("F32", (0, 3))).shape == (0, 3)


def test_numpy_borrows_it_read_only(machine: Machine) -> None:
    array = np.from_dlpack(machine.tensor("U16", (8,)))  # type: ignore[arg-type]
    assert array.tobytes() == CONTENT[:16]
    assert not array.flags.writeable
    assert machine.open_regions() == 1
    del array


def test_what_is_asked_for_and_cannot_be_lent_is_refused_as_the_protocol_says(machine: Machine) -> None:
    tensor = machine.tensor()
    with pytest.raises(BufferError, match="lent, not copied"):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"is device \(1, 0\) of DLPack here, not \(2, 0\)"):
        tensor.__dlpack__(dl_device=(2, 0))
    capsule = tensor.__dlpack__(copy=False, dl_device=(1, 0), stream=1)
    del tensor
    assert machine.open_regions() == 1
    del capsule


def test_a_returned_loan_is_released_without_any_further_call(machine: Machine) -> None:
    """The session may be closed by then, so nothing of it looks any more."""
    borrowing = Borrowing(machine.tensor().__dlpack__())
    (region,) = machine.regions
    closed = threading.Event()
    weakref.finalize(region(), closed.set)
    borrowing.end()
    assert closed.wait(20)


@pytest.mark.parametrize("versioned", [True, False])
def test_the_memory_lives_until_the_borrower_is_done(machine: Machine, versioned: bool) -> None:
    borrowing = Borrowing(machine.tensor().__dlpack__(max_version=(1, 0) if versioned else None))
    assert machine.open_regions() == 1
    assert dlpack.collect() == 1
    borrowing.end()
    assert machine.open_regions() == 0


def test_an_untaken_capsule_holds_nothing_once_it_is_dropped(machine: Machine) -> None:
    capsule = machine.tensor().__dlpack__()
    assert machine.open_regions() == 1
    del capsule
    assert machine.open_regions() == 0


def test_a_capsule_that_was_taken_may_go_before_its_borrower(machine: Machine) -> None:
    capsule = machine.tensor().__dlpack__()
    borrowing = Borrowing(capsule)
    del capsule
    assert machine.open_regions() == 1
    borrowing.end()
    assert machine.open_regions() == 0


def test_the_last_of_several_borrowers_ends_it(machine: Machine) -> None:
    tensor = machine.tensor()
    borrowings = [Borrowing(tensor.__dlpack__(max_version=(1, 0))) for _ in range(3)]
    del tensor
    for borrowing in borrowings:
        assert machine.open_regions() == 1
        borrowing.end()
    assert machine.open_regions() == 0


def test_a_borrower_may_end_in_another_thread_in_the_middle_of_an_error(machine: Machine) -> None:
    """The deleter runs no Python code: an error on its way goes on, and no thread need know the interpreter."""
    torch = pytest.importorskip("torch")
    raised: list[str] = []
    tensors = [machine.tensor("F32", (2,))]

    def fail() -> None:
        try:
            torch.ones(3) @ torch.from_dlpack(tensors.pop())
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert len(raised) == 1
    assert machine.open_regions() == 0


def test_threads_that_lend_and_end_at_once_lose_nothing(machine: Machine) -> None:
    tensor = machine.tensor()

    def lend_often() -> None:
        for _ in range(200):
            Borrowing(tensor.__dlpack__(max_version=(1, 0))).end()

    threads = [threading.Thread(target=lend_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dlpack.collect() == 0


AT_EXIT = """
import sys
import numpy as np
sys.path[:0] = sys.argv[2:]
from trims_client.mapping.device import DeviceRegion, DeviceTensor
from trims.core.layout import TensorSpec
from trims.testing.device_memory import Owner
owner = Owner(sys.argv[1], "vmm")
allocation = owner.sealed()
region = DeviceRegion(owner.memory.export(allocation), memoryview(b""))
tensor = DeviceTensor(region, TensorSpec("t", "U8", (64,), 0), 0)
class Late:
    def __init__(self, what):
        self.what = what
kept = Late([np.from_dlpack(tensor), tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))])
try:
    import torch
    kept.what.append(torch.from_dlpack(tensor))
except ImportError:
    pass
sys.modules["kept until the very end"] = kept
kept.self = kept
"""


def test_the_end_of_the_interpreter_ends_it_without_a_crash(folder: Path) -> None:
    kind = make_devices(folder, [Device(UUID, "Fake", 64 << 20)])
    done = subprocess.run([sys.executable, "-c", AT_EXIT, kind, *sys.path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_copy_on_the_host_is_ones_own(machine: Machine) -> None:
    copied = machine.tensor("U8", (64,), 64).to_host()
    assert copied == CONTENT[64:128]
    copied[0] ^= 255
    assert machine.tensor("U8", (1,), 64).to_host()[0] == CONTENT[64]
    assert machine.tensor("F32", (0,)).to_host() == b""
