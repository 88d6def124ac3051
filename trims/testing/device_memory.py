"""The contract of every way to share device memory, as an inheritable suite.

It runs an owner in the test's process and borrowers in processes of their own, on the fake and on a real device alike.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CallerError, CapacityError, LostPeerError, NotSupportedError, TrimsError
from trims.memory.cuda.connect import connect
from trims.memory.cuda.drivers import Export, device_memory
from trims.testing.device_borrower import Borrower

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.memory.cuda.api import Cuda, Device
    from trims.memory.cuda.drivers import Allocation, DeviceMemory

CONTENT = bytes(range(256)) * 64
#: Least bytes of an allocation on a real device, so that one that leaks shows: a driver's page tables, staging and
#: scrubbing move the free bytes by some, and for a while.
_REAL_BYTES = 64 << 20
_REAL_SLACK_BYTES = 16 << 20
_SETTLE_S = 5.0


class Owner:
    """Owner of device memory that borrowers open: plays the keeper in tests.

    Attributes:
        kind: Name of the CUDA driver, which borrowers pass to `connect`.
        cuda: Connected, with a context on `device`.
        memory: The way to share device memory that is tested.
    """

    def __init__(self, kind: str, driver: str) -> None:
        self.kind = kind
        self.cuda: Cuda = connect(kind)
        self.device: Device = self.cuda.use(self.cuda.devices()[0].uuid)
        try:
            self.memory: DeviceMemory = device_memory(driver, self.cuda, self.device)
        except BaseException:
            self.cuda.leave()
            raise
        self._stream = self.cuda.stream()
        real = not kind.startswith("fake")
        self.least_bytes = _REAL_BYTES if real else 1
        self._slack_bytes = _REAL_SLACK_BYTES if real else 0

    def has_free(self, nbytes: int) -> bool:
        """Return whether so many bytes of the device are free, but for what a driver moves itself; wait up to 5 s."""
        until_s = time.monotonic() + (_SETTLE_S if self._slack_bytes else 0.0)
        while abs(self.cuda.memory()[0] - nbytes) > self._slack_bytes:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_SETTLE_S / 100)
        return True

    def sealed(self, content: bytes = CONTENT, nbytes: int | None = None) -> Allocation:
        """Return an allocation that begins with `content`."""
        made = self.memory.allocate(nbytes or max(len(content), self.least_bytes))
        host = ctypes.create_string_buffer(content, len(content))
        opened = self.memory.reach(made, writable=True)
        self.cuda.copy_in(opened.address, ctypes.addressof(host), len(content), self._stream)
        self.cuda.synchronize(self._stream)
        self.memory.close(opened)
        return made

    def read(self, allocation: Allocation, nbytes: int = len(CONTENT)) -> bytes:
        """Return the first bytes of an allocation."""
        opened = self.memory.reach(allocation)
        host = ctypes.create_string_buffer(nbytes)
        self.cuda.copy_out(ctypes.addressof(host), opened.address, nbytes, self._stream)
        self.cuda.synchronize(self._stream)
        self.memory.close(opened)
        return host.raw

    def borrower(self) -> Borrower:
        """Start a process that may open what is exported."""
        return Borrower(self.kind, self.device.uuid, self.memory.name)

    def end(self) -> None:
        """Give the device back."""
        self.cuda.end_stream(self._stream)
        self.cuda.leave()


class DeviceMemoryContract:
    """Subclass it as `TestMyMemory` and provide `make`."""

    def make(self) -> Owner:
        """Return an owner on a device."""
        raise NotImplementedError

    @pytest.fixture
    def owner(self) -> Iterator[Owner]:
        """Make an owner, and check after the test that all its memory is given back."""
        made = self.make()
        first = made.sealed()  # what a driver takes at first use and keeps is no leak of a test
        made.read(first)
        made.memory.free(first)
        before = made.cuda.memory()[0]
        yield made
        assert made.has_free(before), "bytes of the device have leaked"
        made.end()

    def test_a_borrower_reads_what_was_sealed(self, owner: Owner) -> None:
        made = owner.sealed()
        with owner.borrower() as borrower:
            borrower.open(owner.memory.export(made))
            assert borrower.read(0, 1024) == CONTENT[:1024]
            assert borrower.read(len(CONTENT) - 3, 3) == CONTENT[-3:]
            borrower.close()
        owner.memory.free(made)

    def test_many_borrowers_read_one_copy(self, owner: Owner) -> None:
        made = owner.sealed()
        with owner.borrower() as first, owner.borrower() as second:
            first.open(owner.memory.export(made))
            second.open(owner.memory.export(made))
            assert second.read(0, 16) == first.read(0, 16) == CONTENT[:16]
            free = owner.cuda.memory()[0]
            first.close()
            assert owner.has_free(free), "it had no copy of its own"
            assert second.read(16, 16) == CONTENT[16:32]
            second.close()
        owner.memory.free(made)

    def test_dlpacks_number_is_the_devices_own_in_this_process(self, owner: Owner) -> None:
        kind, number = owner.cuda.dlpack_device()
        assert kind in (1, 2), "kDLCPU for the fake, kDLCUDA"
        assert owner.cuda.devices()[number].uuid == owner.device.uuid

    def test_a_bound_thread_uses_the_device_and_afterwards_what_it_used_before(self, owner: Owner) -> None:
        found: list[object] = []

        def ask() -> None:
            try:
                found.append(owner.cuda.memory()[1] > 0)
            except TrimsError:
                found.append("none")

        def elsewhere() -> None:
            ask()
            with owner.cuda.bound():
                ask()
                with owner.cuda.bound():
                    ask()
                ask()
            ask()

        stranger = threading.Thread(target=elsewhere)
        stranger.start()
        stranger.join()
        assert found == ["none", True, True, True, "none"]

    def test_a_context_that_others_hold_stays_with_the_thread_when_one_gives_it_back(self, owner: Owner) -> None:
        other = connect(owner.kind)
        other.use(owner.device.uuid)
        other.leave()
        other.leave()
        assert owner.cuda.memory()[1] > 0

    def test_the_owner_reads_what_it_sealed(self, owner: Owner) -> None:
        made = owner.sealed()
        assert owner.read(made) == CONTENT
        owner.memory.free(made)

    def test_allocations_are_apart(self, owner: Owner) -> None:
        one, other = owner.sealed(b"one" * 100), owner.sealed(b"two" * 100)
        with owner.borrower() as borrower:
            borrower.open(owner.memory.export(other))
            assert borrower.read(0, 3) == b"two"
            borrower.close()
            borrower.open(owner.memory.export(one))
            assert borrower.read(0, 3) == b"one"
            borrower.close()
        owner.memory.free(one)
        owner.memory.free(other)

    def test_a_borrower_that_is_killed_takes_nothing_with_it(self, owner: Owner) -> None:
        made = owner.sealed()
        with owner.borrower() as borrower:
            borrower.open(owner.memory.export(made))
            borrower.kill()
        with owner.borrower() as next_one:
            next_one.open(owner.memory.export(made))
            assert next_one.read(0, 16) == CONTENT[:16]
            next_one.close()
        assert owner.read(made) == CONTENT
        owner.memory.free(made)

    def test_writing_is_stopped_where_the_driver_says_so(self, owner: Owner) -> None:
        made = owner.sealed()
        with owner.borrower() as offender, owner.borrower() as other:
            offender.open(owner.memory.export(made))
            other.open(owner.memory.export(made))
            if owner.memory.read_only:
                with pytest.raises(TrimsError):
                    offender.write(0, b"\xff" * 16)
                assert other.read(0, 16) == CONTENT[:16]
                assert owner.read(made) == CONTENT
            else:
                offender.write(0, b"\xff" * 16)
                assert other.read(0, 16) == b"\xff" * 16, "said to be not enforced, so it is not"
            offender.kill()
            other.close()
        owner.memory.free(made)

    def test_more_than_there_is_is_a_capacity_error_and_takes_nothing(self, owner: Owner) -> None:
        free, total = owner.cuda.memory()
        with pytest.raises(CapacityError):
            owner.memory.allocate(total + 1)
        assert owner.has_free(free)

    def test_sizes_are_those_asked_for_and_what_was_taken(self, owner: Owner) -> None:
        made = owner.sealed(b"x", nbytes=3)
        assert made.nbytes == 3
        assert made.size_bytes >= 3
        exported = owner.memory.export(made)
        assert (exported.driver, exported.device) == (owner.memory.name, owner.device.uuid)
        assert exported.size_bytes == made.size_bytes
        exported.close()
        owner.memory.free(made)

    def test_an_export_for_another_device_or_driver_is_refused(self, owner: Owner) -> None:
        made = owner.sealed()
        right = owner.memory.export(made)
        for wrong, error in (
            (Export("other", right.device, right.size_bytes, right.handle, right.fd), CallerError),
            (Export(right.driver, "GPU-another", right.size_bytes, right.handle, right.fd), NotSupportedError),
        ):
            with pytest.raises(error):
                owner.memory.open(wrong)
        right.close()
        owner.memory.free(made)

    def test_a_handle_that_says_nothing_is_an_error_of_its_own(self, owner: Owner) -> None:
        made = owner.sealed()
        try:
            with owner.borrower() as borrower:
                exported = owner.memory.export(made)
                with pytest.raises(TrimsError) as found:
                    borrower.open(_says_nothing(exported))
                assert not isinstance(found.value, LostPeerError), f"process and device are well: {found.value!r}"
                borrower.open(exported)
                assert borrower.read(0, 4) == CONTENT[:4]
                borrower.close()
        finally:  # else a failure here would be reported as a leak, too
            owner.memory.free(made)


def _says_nothing(exported: Export) -> Export:
    """Return an export as the one given, with a handle that stands for no memory."""
    if exported.fd >= 0:
        return exported._replace(fd=os.open("/dev/null", os.O_RDWR))
    return exported._replace(handle=b"\0" * len(exported.handle))


class KeptMemoryContract(DeviceMemoryContract):
    """Contract of memory that lives while any process has it. With `ipc` that is undefined: no keeper asks for it."""

    def test_memory_is_made_exported_and_given_back_without_a_context(self, owner: Owner) -> None:
        """A context takes device memory, of which there may be none left."""
        assert not owner.memory.needs_context
        free, found = owner.cuda.memory()[0], list[object]()

        def elsewhere() -> None:
            made = owner.memory.allocate(owner.least_bytes)
            exported = owner.memory.export(made)
            found.append(exported.fd >= 0)
            exported.close()
            owner.memory.free(made)
            found.append("freed")

        stranger = threading.Thread(target=elsewhere)  # one to which no context was ever bound
        stranger.start()
        stranger.join()
        assert found == [True, "freed"]
        assert owner.has_free(free)

    def test_a_descriptor_keeps_memory_that_its_owner_has_given_up(self, owner: Owner) -> None:
        made = owner.sealed()
        exported = owner.memory.export(made)
        parked = Export(exported.driver, exported.device, exported.size_bytes, fd=os.dup(exported.fd))
        exported.close()
        owner.memory.free(made)
        with owner.borrower() as borrower:
            borrower.open(parked)
            assert borrower.read(0, 16) == CONTENT[:16]
            borrower.close()
