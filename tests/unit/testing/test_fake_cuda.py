"""The stand-in for a CUDA driver keeps its own tables right, whatever other threads do meanwhile."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from trims_predictors.sandbox import landlock

from trims.memory.cuda.api import Device
from trims.testing import fake_cuda
from trims.testing.device_borrower import Borrower
from trims.testing.device_memory import CONTENT, Owner
from trims.testing.fake_cuda import CONTEXT_BYTES, GRANULARITY_BYTES, FakeCuda, make_devices

if TYPE_CHECKING:
    from pathlib import Path

UUID = "GPU-00000000-0000-0000-0000-000000000001"


class _Overtaken:
    """A C library whose munmap returns only after another thread was given the same address."""

    def __init__(self, cuda: FakeCuda, handle: int) -> None:
        self.map_again = lambda nbytes: cuda.vmm_map(handle, nbytes, writable=True)

    def munmap(self, address: int, nbytes: int) -> int:
        assert self.map_again(nbytes) == address
        return 0


def test_an_unmapped_address_may_be_mapped_again_by_another_thread_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_devices(folder, [Device(UUID, "Fake", 64 << 20)])
    cuda = FakeCuda(str(folder))
    cuda.use(UUID)
    handle = cuda.vmm_create(GRANULARITY_BYTES)
    address = cuda.vmm_map(handle, GRANULARITY_BYTES, writable=True)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(fake_cuda, "_map", lambda *_, **__: address)
        library = _Overtaken(cuda, handle)
        meanwhile.setattr(fake_cuda, "c_library", lambda: library)
        cuda.vmm_unmap(address, GRANULARITY_BYTES)
    cuda.vmm_unmap(address, GRANULARITY_BYTES)  # the other thread's mapping: a KeyError if the first call forgot it
    cuda.vmm_release(handle)
    cuda.leave()


_READING_ONLY = """
import os, sys
from trims_predictors.sandbox.landlock import restrict
restrict(("/dev",))
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_a_process_that_may_only_read_the_folder_borrows_as_any(folder: Path) -> None:
    """As a predictor in a namespace of its own: there are its reads, and nothing in the folder is its to change."""
    owner = Owner(make_devices(folder, [Device(UUID, "Fake", 64 << 20)]), "vmm")
    made = owner.sealed()
    left = folder / f"memory.{UUID}.vmm.1.1"  # of a process that is dead
    left.touch()
    before = {path.name for path in folder.iterdir()}
    with Borrower(owner.kind, UUID, "vmm", prefix=(sys.executable, "-c", _READING_ONLY)) as borrower:
        borrower.open(owner.memory.export(made))
        assert borrower.read(0, len(CONTENT)) == CONTENT
        assert {path.name for path in folder.iterdir()} == before
        borrower.close()
    assert owner.cuda.memory()[0] == (64 << 20) - made.size_bytes - CONTEXT_BYTES
    owner.memory.free(made)
    owner.end()
