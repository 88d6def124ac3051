"""Device memory in a user's threads and processes: what opening, reading and closing leave behind there."""

# fault (gpus): a client's thread has another context, or none -> nothing

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
from typing import TYPE_CHECKING

import pytest
from trims_client.mapping import device as client_device
from trims_client.mapping.device import DeviceRegion, DeviceTensor, collect, leave_devices

from trims.core.errors import CudaError, DeviceLostError, NotSupportedError
from trims.core.layout import TensorSpec
from trims.memory.attach import Attachment
from trims.memory.cuda.api import Device
from trims.testing.device_memory import CONTENT, Owner
from trims.testing.fake_cuda import FakeCuda, current, make_devices
from trims.testing.tiers import an_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fake_weights import DeviceShelf

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

        self.leases = 0

    def region(self) -> DeviceRegion:
        """Opens the image as a client does, under a lease that ends with the last reference to its head."""
        fd = os.memfd_create("head")
        os.write(fd, b"head")
        head = Attachment(fd, 4, self._released)
        os.close(fd)
        self.leases += 1
        return DeviceRegion(self.owner.memory.export(self.allocation), head.data)

    def _released(self) -> None:
        self.leases -= 1

    def mappings(self) -> int:
        """Count the mappings of the image's memory that clients have, in this process."""
        return sum(len(cuda._files) for cuda, _ in client_device._connected.values() if isinstance(cuda, FakeCuda))

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
def test_a_thread_that_opens_reads_and_closes_keeps_its_current_context(
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


# -- what cannot be closed just now ------------------------------------------------------------------------------------

CAPTURED = CudaError("cuCtxSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")


class Refusing:
    """Stands for `FakeCuda.wait`, and fails so many times."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.left, self.asked = error, times, 0

    def __call__(self) -> None:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise type(self.error)(*self.error.args)  # another each time: an error keeps what it was raised over


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception, int], Refusing]:
    def patch(error: Exception, times: int) -> Refusing:
        made = Refusing(error, times)
        monkeypatch.setattr(FakeCuda, "wait", lambda _: made())
        return made

    return patch


@pytest.mark.parametrize("error", [CAPTURED, RuntimeError("the package does not know the call")])
def test_memory_that_cannot_be_closed_just_now_stays_with_its_lease_until_it_can(
    machine: Machine,
    refuse: Callable[..., Refusing],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    monkeypatch.setattr(client_device, "_PAUSE_S", 0.0)
    region = machine.region()
    refuse(error, 2)
    del region
    gc.collect()
    assert (machine.mappings(), machine.leases) == (1, 1)
    collect()
    assert (machine.mappings(), machine.leases) == (1, 1)
    collect()
    assert (machine.mappings(), machine.leases) == (0, 0)
    (said,) = caplog.records
    assert (said.levelno, said.name) == (logging.WARNING, "trims_client.mapping.device")
    assert UUID in said.getMessage()
    assert str(error) in said.getMessage()


def test_the_next_open_closes_memory_that_could_not_be_closed_earlier(
    machine: Machine, refuse: Callable[..., Refusing]
) -> None:
    region = machine.region()
    refuse(CAPTURED, 1)
    del region
    gc.collect()
    assert machine.leases == 1
    region = machine.region()
    assert (machine.mappings(), machine.leases) == (1, 1), "its own"
    del region
    gc.collect()
    assert (machine.mappings(), machine.leases) == (0, 0)


def test_what_cannot_be_closed_is_tried_ever_more_rarely(
    machine: Machine, refuse: Callable[..., Refusing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try waits for the device, which spoils a graph that another thread captures."""
    now_s = [0.0]
    monkeypatch.setattr(client_device.time, "monotonic", lambda: now_s[0])
    region = machine.region()
    asked = refuse(CAPTURED, 100)
    del region
    gc.collect()
    tried_at_s = []
    for second in range(400):
        now_s[0] = float(second)
        before = asked.asked
        collect()
        if asked.asked > before:
            tried_at_s.append(second)
    assert tried_at_s == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]
    asked.left = 0
    now_s[0] = 1e9
    collect()
    assert machine.mappings() == 0


def test_memory_is_closed_once_even_if_the_threads_context_cannot_be_restored(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    region = machine.region()
    bound = FakeCuda.bound

    @contextlib.contextmanager
    def fails_after(cuda: FakeCuda) -> Iterator[None]:
        with bound(cuda):
            yield
        raise CudaError("cuCtxPopCurrent: CUDA_ERROR_INVALID_VALUE")

    with monkeypatch.context() as patched:
        patched.setattr(FakeCuda, "bound", fails_after)
        del region
        gc.collect()
    assert (machine.mappings(), machine.leases) == (0, 0)
    assert not client_device._late
    assert "cuCtxPopCurrent" in caplog.text


def test_what_went_with_its_context_is_not_closed_again(
    machine: Machine, refuse: Callable[..., Refusing], caplog: pytest.LogCaptureFixture
) -> None:
    region = machine.region()
    ((cuda, _),) = client_device._connected.values()
    asked = refuse(DeviceLostError("CUDA_ERROR_LAUNCH_FAILED"), 1)
    (address,) = cuda._files  # type: ignore[attr-defined]
    del region
    gc.collect()
    collect()
    assert (asked.asked, machine.leases, caplog.records) == (1, 0, [])
    with cuda.bound():
        cuda.vmm_unmap(address, machine.allocation.size_bytes)  # which a driver does by itself


def test_a_child_of_a_fork_closes_nothing_of_its_parents(machine: Machine, refuse: Callable[..., Refusing]) -> None:
    late, region = machine.region(), machine.region()
    asked = refuse(CAPTURED, 1)
    del late
    gc.collect()
    child = os.fork()
    if not child:
        try:
            del region
            gc.collect()
            collect()
        finally:
            os._exit(0 if asked.asked == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (machine.mappings(), machine.leases) == (2, 2)
    collect()
    del region
    gc.collect()
    assert (machine.mappings(), machine.leases) == (0, 0)


def test_unclosed_weights_are_given_back_when_their_last_reference_is_gone(shelf: DeviceShelf, folder: Path) -> None:
    image = folder / "image"
    image.write_bytes(an_image())
    weights = shelf.open(image)
    shelf.opened.clear()
    kept: list[object] = [weights]
    kept.append(kept)  # found by the collector only
    del weights, kept
    with pytest.warns(ResourceWarning, match="were never closed"):
        gc.collect()
    assert shelf.released == [str(image)]


# -- devices that cannot be reached ------------------------------------------------------------------------------------


def test_a_variable_that_hides_the_device_is_named(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = folder / "devices.json"
    known = there.read_text()

    def refusal() -> str:
        with pytest.raises(NotSupportedError, match="cannot be opened here") as hidden:
            machine.region()
        hidden.value.__traceback__ = None
        return str(hidden.value)

    there.write_text("[]")
    assert "CUDA_VISIBLE_DEVICES" not in refusal()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert "CUDA_VISIBLE_DEVICES is '1' here" in refusal()
    there.write_text(known)
    gc.collect()
    assert not machine.leases
