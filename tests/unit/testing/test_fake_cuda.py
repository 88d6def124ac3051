"""The stand-in for a CUDA driver keeps its own tables right, whatever other threads do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.memory.cuda.api import Device
from trims.testing import fake_cuda
from trims.testing.fake_cuda import GRANULARITY_BYTES, FakeCuda, make_devices

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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
