"""Device memory in somebody else's threads and processes: what opening, reading and closing leave behind there."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest
from trims_client.device import DeviceRegion, DeviceTensor, leave_devices

from trims.core.layout import TensorSpec
from trims.memory.cuda.api import Device
from trims.testing.device_memory import CONTENT, Owner
from trims.testing.fake_cuda import FakeCuda, current, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER_UUID = "GPU-00000000-0000-0000-0000-000000000002"
ALL = TensorSpec("t", "U8", (len(CONTENT),), 0)


class Machine:
    """Two fake devices; on the first one lies an image."""

    def __init__(self, folder: Path) -> None:
        devices = [Device(UUID, "Fake", 64 << 20), Device(OTHER_UUID, "Fake", 64 << 20)]
        self.kind = make_devices(folder, devices)
        self.owner = Owner(self.kind, "vmm")
        self.allocation = self.owner.sealed()

    def region(self) -> DeviceRegion:
        """Opens the image as a client does."""
        return DeviceRegion(self.owner.memory.export(self.allocation), memoryview(b""))

    def end(self) -> None:
        """Nothing of it may be open."""
        self.owner.memory.free(self.allocation)
        leave_devices()
        self.owner.end()


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    made = Machine(folder)
    yield made
    gc.collect()
    made.end()
    assert current() is None


def elsewhere(work: Callable[[], None]) -> None:
    """Do it in a thread that has used no device."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


# -- the device that a thread uses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("used", [None, OTHER_UUID])
def test_who_opens_reads_and_closes_uses_the_device_he_used_before(
    machine: Machine, folder: Path, used: str | None
) -> None:
    def work() -> None:
        theirs = FakeCuda(str(folder))
        if used is not None:
            theirs.use(used)
        before = current()
        region = machine.region()
        assert current() == before
        assert region.read(region.address, len(CONTENT)) == CONTENT
        assert current() == before
        del region
        gc.collect()
        assert current() == before
        theirs.leave()

    elsewhere(work)


def test_the_last_tensor_may_end_in_any_thread_which_uses_what_it_used_before(machine: Machine) -> None:
    free = machine.owner.cuda.memory()[0]
    tensors: list[DeviceTensor] = []
    elsewhere(lambda: tensors.append(DeviceTensor(machine.region(), ALL, 0)))
    found: list[str | None] = []

    def drop() -> None:
        tensors.clear()
        gc.collect()
        found.append(current())

    elsewhere(drop)
    leave_devices()
    assert found == [None]
    assert machine.owner.cuda.memory()[0] == free


def test_giving_a_context_back_leaves_no_thread_with_one_that_ended(folder: Path) -> None:
    kind = make_devices(folder, [Device(UUID, "Fake", 64 << 20)])
    folder_name = kind.partition(":")[2]

    def work() -> None:
        one, other = FakeCuda(folder_name), FakeCuda(folder_name)
        one.use(UUID)
        other.retain(UUID)
        one.leave()
        assert current() is not None, "the other one holds it"
        assert other.memory()
        other.leave()
        assert current() is None

    elsewhere(work)
