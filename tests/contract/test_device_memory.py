"""Both ways to share device memory, on the fake driver; on a real device where there is one (`make gpu-check`)."""

# fault (gpus): `ipc` to a process in another PID namespace

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CapacityError, CudaError, DeviceLostError, LostPeerError, NotSupportedError
from trims.memory.cuda.api import Device
from trims.memory.cuda.connect import connect
from trims.memory.cuda.drivers import device_memory
from trims.testing.device_borrower import Borrower
from trims.testing.device_memory import CONTENT, DeviceMemoryContract, KeptMemoryContract, Owner
from trims.testing.fake_cuda import CONTEXT_BYTES, FakeCuda, copies_held, lose_device, make_devices

if TYPE_CHECKING:
    from pathlib import Path

UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
TOTAL = 256 << 20


@pytest.fixture
def kind(folder: Path) -> str:
    return make_devices(folder, [Device(UUID, "Fake One", TOTAL), Device(OTHER, "Fake Two", TOTAL, vmm=False)])


class FakeContract(DeviceMemoryContract):
    driver: str

    @pytest.fixture(autouse=True)
    def _machine(self, kind: str) -> None:
        self.kind = kind

    def make(self) -> Owner:
        return Owner(self.kind, self.driver)


class TestVmmOnTheFake(FakeContract, KeptMemoryContract):
    driver = "vmm"

    def test_it_works_between_pid_namespaces(self, kind: str) -> None:
        owner = Owner(kind, self.driver)
        made = owner.sealed()
        with Borrower(kind, UUID, self.driver, prefix=own_process_ids()) as stranger:
            stranger.open(owner.memory.export(made))
            assert stranger.read(0, 4) == CONTENT[:4]
        owner.memory.free(made)
        owner.end()

    def test_memory_stays_charged_while_a_borrower_has_it_mapped(self, kind: str) -> None:
        owner = Owner(kind, self.driver)
        made = owner.sealed()
        free = owner.cuda.memory()[0]
        with owner.borrower() as borrower:
            borrower.open(owner.memory.export(made))
            owner.memory.free(made)
            assert owner.cuda.memory()[0] == free - CONTEXT_BYTES, "the borrower's context, and still the memory"
            borrower.kill()
        assert owner.cuda.memory()[0] == free + made.size_bytes
        owner.end()


class TestIpcOnTheFake(FakeContract):
    driver = "ipc"

    def test_it_is_refused_between_pid_namespaces_with_the_reason(self, kind: str) -> None:
        owner = Owner(kind, self.driver)
        made = owner.sealed()
        with (
            Borrower(kind, UUID, self.driver, prefix=own_process_ids()) as stranger,
            pytest.raises(NotSupportedError, match="process ids are not visible"),
        ):
            stranger.open(owner.memory.export(made))
        owner.memory.free(made)
        owner.end()

    def test_freeing_under_a_borrower_kills_it_so_the_keeper_must_never_do_it(self, kind: str) -> None:
        owner = Owner(kind, self.driver)
        made = owner.sealed()
        with owner.borrower() as borrower:
            borrower.open(owner.memory.export(made))
            owner.memory.free(made)
            with pytest.raises(LostPeerError, match="ended with status -7"):  # SIGBUS
                borrower.read(0, 4)
        owner.end()


class DeviceContract(DeviceMemoryContract):
    driver: str

    @pytest.fixture(autouse=True)
    def _machine(self, real_device: str) -> None:
        self.kind = real_device

    def make(self) -> Owner:
        return Owner(self.kind, self.driver)


@pytest.mark.gpu
class TestVmmOnTheDevice(DeviceContract, KeptMemoryContract):
    driver = "vmm"


@pytest.mark.gpu
class TestIpcOnTheDevice(DeviceContract):
    driver = "ipc"


def own_process_ids() -> tuple[str, ...]:
    """Words before a command that give it process ids of its own."""
    if os.geteuid() == 0:
        return ("unshare", "--pid", "--fork", "--kill-child")
    return ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


def test_a_lost_device_fails_every_call(kind: str, folder: Path) -> None:
    owner = Owner(kind, "vmm")
    lose_device(folder, UUID)
    for call in (owner.cuda.memory, owner.cuda.granularity, lambda: owner.memory.allocate(1)):
        with pytest.raises(DeviceLostError):
            call()
    owner.end()


def test_devices_are_found_by_uuid_and_another_one_is_refused_by_name(kind: str) -> None:
    cuda = connect(kind)
    assert [device.uuid for device in cuda.devices()] == [UUID, OTHER]
    with pytest.raises(NotSupportedError, match="GPU-none"):
        cuda.use("GPU-none")


def test_the_best_driver_is_the_devices(kind: str) -> None:
    for uuid, best in ((UUID, "vmm"), (OTHER, "ipc")):
        cuda = connect(kind)
        device = cuda.use(uuid)
        assert device_memory("auto", cuda, device).name == best
        if best == "ipc":
            with pytest.raises(NotSupportedError, match=r"Fake Two .*; use ipc"):
                device_memory("vmm", cuda, device)
        cuda.leave()


def test_a_thread_that_was_not_bound_cannot_use_the_device(kind: str) -> None:
    import threading

    cuda = connect(kind)
    cuda.use(UUID)
    found: list[object] = []

    def elsewhere() -> None:
        try:
            cuda.memory()
        except CudaError as error:
            found.append(error)
        cuda.bind()
        found.append(cuda.memory()[1])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert isinstance(found[0], CudaError)
    assert found[1] == TOTAL
    cuda.leave()


def test_copies_happen_when_they_are_waited_for(kind: str, folder: Path) -> None:
    """Copies must not happen at once, or a test of "synchronised before sealed" could not fail."""
    owner = Owner(kind, "ipc")
    assert isinstance(owner.cuda, FakeCuda)
    stream, host = owner.cuda.stream(), owner.cuda.host_allocate(4096)
    made = owner.memory.allocate(4096)
    with copies_held(folder):
        owner.cuda.copy_in(made.address, host, 4096, stream)
    owner.cuda.synchronize(stream)
    owner.cuda.end_stream(stream)
    owner.cuda.host_free(host)
    owner.memory.free(made)
    owner.end()


def test_a_context_takes_memory_and_gives_it_back(kind: str) -> None:
    watcher = connect(kind)
    watcher.use(UUID)
    free = watcher.memory()[0]
    other = connect(kind)
    other.use(UUID)
    assert watcher.memory()[0] == free - CONTEXT_BYTES
    other.leave()
    assert watcher.memory()[0] == free
    watcher.leave()


def test_a_full_device_says_how_much_is_left(kind: str) -> None:
    owner = Owner(kind, "vmm")
    with pytest.raises(CapacityError, match="free"):
        owner.memory.allocate(TOTAL)
    owner.end()
