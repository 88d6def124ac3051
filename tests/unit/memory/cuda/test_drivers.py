"""Ways to share memory of a device: which one a device gets, and what one process sends another of an allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import BadMessageError, CallerError, NotSupportedError
from trims.memory.cuda.api import IPC_HANDLE_BYTES, Device
from trims.memory.cuda.drivers import Export, IpcMemory, VmmMemory, device_memory, export_message, export_of
from trims.testing.fake_cuda import FakeCuda, make_devices
from trims.wire.frames import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UUID, PEER = "GPU-1", "GPU-2"


@pytest.fixture
def cuda(folder: Path) -> Iterator[FakeCuda]:
    make_devices(folder, [Device(UUID, "Fake", 64 << 20, peers=(PEER,))])
    made = FakeCuda(str(folder))
    made.use(UUID)
    yield made
    made.leave()


@pytest.mark.parametrize(
    ("name", "vmm", "ipc", "kind"),
    [
        ("auto", True, True, VmmMemory),
        ("auto", False, True, IpcMemory),
        ("vmm", True, False, VmmMemory),
        ("ipc", True, True, IpcMemory),
    ],
)
def test_a_device_gets_the_driver_that_was_named_or_the_best_it_has(
    cuda: FakeCuda, name: str, vmm: bool, ipc: bool, kind: type
) -> None:
    assert type(device_memory(name, cuda, Device(UUID, "Fake", 1, vmm=vmm, ipc=ipc))) is kind


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vmm", r"Fake \(GPU-1\) cannot share memory as descriptors; use ipc"),
        ("ipc", r"Fake \(GPU-1\) does not support CUDA IPC; use vmm"),
        ("auto", r"Fake \(GPU-1\) does not support CUDA IPC"),
    ],
)
def test_a_driver_that_the_device_cannot_have_is_refused_with_the_other(cuda: FakeCuda, name: str, words: str) -> None:
    with pytest.raises(NotSupportedError, match=words):
        device_memory(name, cuda, Device(UUID, "Fake", 1, vmm=False, ipc=False))


def test_a_driver_that_is_none_is_answered_with_those_there_are(cuda: FakeCuda) -> None:
    with pytest.raises(CallerError, match="no GPU memory driver 'magic'; there are auto, vmm and ipc"):
        device_memory("magic", cuda, Device(UUID, "Fake", 1))


@given(st.sampled_from(["vmm", "ipc"]), st.text(max_size=10), st.integers(0, 1 << 50), st.binary(max_size=70))
def test_an_export_crosses_a_socket_as_it_was(driver: str, device: str, size_bytes: int, handle: bytes) -> None:
    export = Export(driver, device, size_bytes, handle, fd=7, cuda="fake:/x")
    (message,) = Decoder().feed(encode(export_message(export)))
    assert export_of(message, 7) == export


GOOD: dict[str, Any] = {"driver": "ipc", "device": UUID, "size_bytes": 1, "handle": "00", "cuda": "driver"}


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": "many"},
        {"size_bytes": None},
        {"handle": "0"},
        {"handle": "xy"},
        {"handle": 7},
        *[{k: ...} for k in GOOD],
    ],
    ids=str,
)
def test_a_message_that_is_no_export_is_refused(change: dict[str, Any]) -> None:
    message = {name: value for name, value in {**GOOD, **change}.items() if value is not ...}
    assert export_of(GOOD, -1).size_bytes == 1
    with pytest.raises(BadMessageError, match="no export of device memory: "):
        export_of(message, -1)


@pytest.mark.parametrize("name", ["vmm", "ipc"])
def test_an_export_of_another_driver_or_device_is_not_opened(cuda: FakeCuda, name: str) -> None:
    device = cuda.devices()[0]
    memory, other = device_memory(name, cuda, device), {"vmm": "ipc", "ipc": "vmm"}[name]
    with pytest.raises(CallerError, match=f"an export of {other} was given to {name}"):
        memory.open(Export(other, UUID, 1))
    with pytest.raises(NotSupportedError, match=f"the memory lies on {PEER}, this process uses {UUID}"):
        memory.open(Export(name, PEER, 1))
    with pytest.raises(NotSupportedError, match="the memory lies on GPU-3"):
        memory.open(Export(name, "GPU-3", 1), peer=True)


def test_a_handle_of_another_length_is_refused_before_the_driver_sees_it(cuda: FakeCuda) -> None:
    memory = device_memory("ipc", cuda, cuda.devices()[0])
    with pytest.raises(CallerError, match=f"an IPC handle has {IPC_HANDLE_BYTES} bytes, not 3"):
        memory.open(Export("ipc", UUID, 1, handle=b"abc"))


def test_an_import_that_cannot_be_mapped_is_given_back(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise NotSupportedError("refused")

    memory, before = device_memory("vmm", cuda, cuda.devices()[0]), cuda.memory()
    allocation = memory.allocate(1)
    exported = memory.export(allocation)
    monkeypatch.setattr(cuda, "vmm_map", refuse)
    with pytest.raises(NotSupportedError, match="refused"):
        memory.open(exported)
    exported.close()
    memory.free(allocation)
    assert cuda.memory() == before
