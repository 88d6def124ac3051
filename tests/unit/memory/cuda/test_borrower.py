"""The driver through ctypes: the C interface as NVIDIA's package declares it, and what a missing library means."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trims.core.errors import NotSupportedError
from trims.memory.cuda import borrower
from trims.memory.cuda.borrower import FUNCTIONS, BorrowerDriver
from trims.memory.cuda.connect import connect_borrower

#: C type -> bytes; enumerations are integers.
SIZES = {"int": 4, "unsigned int": 4, "size_t": 8, "unsigned long long": 8, "char": 1, "const char": 1}
STRUCTURES = {
    "CUuuid": borrower.Uuid,
    "CUipcMemHandle": borrower.IpcHandle,
    "CUmemLocation": borrower.Location,
    "CUmemAccessDesc": borrower.AccessDescription,
}


def prototypes() -> dict[str, list[str]]:
    """Functions of the driver and the types of their arguments, from the declarations that the package ships."""
    found = importlib.util.find_spec("cuda.bindings")
    assert found is not None
    assert found.submodule_search_locations is not None
    text = (Path(found.submodule_search_locations[0]) / "cydriver.pxd").read_text()
    declared = re.findall(r"cdef CUresult (cu\w+)\(([^)]*)\) except", text)
    return {name: re.findall(r"(\w[\w ]*?[\w*]\**) \w+(?:, |$)", arguments) for name, arguments in declared}


def size_of(c_type: str) -> int:
    """Bytes of a C type of the driver, as the package has it."""
    driver = pytest.importorskip("cuda.bindings.driver")
    if c_type.endswith("*"):
        return ctypes.sizeof(ctypes.c_void_p)
    if c_type in SIZES:
        return SIZES[c_type]
    made = getattr(driver, c_type)
    return 4 if hasattr(made, "__members__") else int(driver.sizeof(made))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_is_declared_as_nvidias_package_declares_it(function: str) -> None:
    pytest.importorskip("cuda.bindings.driver")
    wanted, declared = prototypes()[function], FUNCTIONS[function][1]
    assert [ctypes.sizeof(each) for each in declared] == [size_of(each) for each in wanted]
    for ours, theirs in zip(declared, wanted, strict=True):
        pointer = issubclass(ours, (ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p))
        assert pointer == (theirs.endswith("*") or theirs in ("CUcontext", "CUstream")), (function, theirs)
        if hasattr(ours, "contents"):
            assert ctypes.sizeof(ours._type_) == size_of(theirs.removeprefix("const ")[:-1])


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_has_the_size_of_nvidias(name: str) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert ctypes.sizeof(STRUCTURES[name]) == driver.sizeof(getattr(driver, name))


def test_fields_lie_where_the_package_writes_them() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    theirs = driver.CUmemAccessDesc()
    theirs.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    theirs.location.id = 7
    theirs.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    ours = borrower.AccessDescription.from_buffer_copy(ctypes.string_at(theirs.getPtr(), 12))
    assert (ours.location.type, ours.location.id, ours.flags) == (borrower._ON_DEVICE, 7, borrower._READ)
    assert int(driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == borrower._READ_WRITE


def test_numbers_of_attributes_and_flags_are_those_of_the_package() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    attribute = driver.CUdevice_attribute
    assert borrower.VMM_SUPPORTED == attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    assert borrower.DESCRIPTORS_SUPPORTED == attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    assert borrower.READ_ONLY_REGISTER_SUPPORTED == attribute.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
    assert borrower.IPC_SUPPORTED == attribute.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED
    kinds = driver.CUmemAllocationHandleType
    assert kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == borrower._POSIX_DESCRIPTOR
    assert driver.CUstream_flags.CU_STREAM_NON_BLOCKING == borrower._NON_BLOCKING
    assert driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == borrower._LAZY_PEER_ACCESS


def test_a_machine_without_the_library_is_not_supported_and_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrower, "LIBRARY", "libcuda-none.so.1")
    with pytest.raises(NotSupportedError, match=r"no NVIDIA driver here: libcuda-none.so.1.*trims doctor"):
        connect_borrower("driver")


class Library:
    """A driver's library with the functions given, each answering a status."""

    def __init__(self, **functions: Any) -> None:
        self.__dict__.update(functions)


class Function:
    """Answers a status; attributes can be set, as those of ctypes."""

    def __init__(self, status: int) -> None:
        self.status = status

    def __call__(self, *_: object) -> int:
        return self.status


def test_a_driver_without_a_function_is_too_old_and_the_error_names_the_symbol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library(cuInit=Function(0)))
    cuda = BorrowerDriver()
    with pytest.raises(NotSupportedError, match=r"too old: it has no cuIpcOpenMemHandle_v2; update the driver"):
        cuda.ipc_open(bytes(64))


def test_a_status_that_the_driver_has_no_name_for_is_shown_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library(cuInit=Function(4321), cuGetErrorName=Function(1)))
    with pytest.raises(NotSupportedError, match=r"does not start; .*\(cuInit: 4321\)"):
        BorrowerDriver()


def test_the_way_to_the_driver_imports_what_it_needs_and_no_package() -> None:
    program = (
        "import sys, ctypes, contextlib, typing, trims.core.errors\n"
        "before = set(sys.modules)\n"
        "from trims.memory.cuda import borrower\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) - {"__future__"} == {
        "trims.memory", "trims.memory.cuda", "trims.memory.cuda.api", "trims.memory.cuda.borrower",
        "trims.memory.cuda.statuses",
    }  # fmt: skip
