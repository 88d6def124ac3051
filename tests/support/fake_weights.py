"""Weights on a fake device in this process, without a daemon: for tests of what frameworks make of them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trims_client.mapping import dlpack
from trims_client.mapping.device import DeviceRegion, leave_devices
from trims_client.weights import Weights

from trims.image.reader import ImageView
from trims.memory.attach import Attachment
from trims.memory.cuda.api import Device
from trims.testing.device_memory import Owner
from trims.testing.fake_cuda import make_devices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.memory.cuda.drivers import Allocation

UUID = "GPU-00000000-0000-0000-0000-000000000001"


class _Attached:
    """A head on the host, in which all tensors are zeros, and the memory they really lie in."""

    lost = None
    place = None

    def __init__(self, head: Attachment, region: DeviceRegion) -> None:
        self._head = head
        self.region: DeviceRegion | None = region

    @property
    def data(self) -> memoryview:
        return self._head.data

    def private_data(self) -> memoryview:
        return self._head.private_data()

    def close(self) -> None:
        self.region = None
        self._head.close()

    def drop(self) -> None:
        self.close()


class DeviceShelf:
    """One fake device that images are put on.

    Args:
        folder: Empty.
    """

    def __init__(self, folder: Path) -> None:
        self.owner = Owner(make_devices(folder, [Device(UUID, "Fake", 256 << 20)]), "vmm")
        self.allocations: dict[str, Allocation] = {}
        self.opened: list[Weights] = []
        #: Models whose last holder has gone, one entry each time.
        self.released: list[str] = []

    def open(self, image: Path) -> Weights:
        """The weights of an image file, on the device."""
        content = image.read_bytes()
        made = self.allocations[str(image)] = self.owner.sealed(content)
        view = ImageView(memoryview(content))
        head = bytearray(content)
        for spec in view.layout:
            head[view.data_start + spec.offset : view.data_start + spec.end] = bytes(spec.nbytes)
        fd = os.memfd_create("head")
        os.write(fd, head)
        attachment = Attachment(fd, len(head), lambda: self.released.append(str(image)))
        os.close(fd)
        region = DeviceRegion(self.owner.memory.export(made), attachment.data)
        self.opened.append(Weights(str(image), _Attached(attachment, region), place="gpu:0"))
        return self.opened[-1]

    def bytes_of(self, image: Path) -> bytes:
        """Return the bytes that lie in an image's allocation now."""
        made = self.allocations[str(image)]
        return self.owner.read(made, made.nbytes)

    @contextmanager
    def writable(self, image: Path) -> Iterator[int]:
        """The address of a second mapping of it, which may be written."""
        made, cuda = self.allocations[str(image)], self.owner.cuda
        address = cuda.vmm_map(made.handle, made.size_bytes, writable=True)
        yield address
        cuda.vmm_unmap(address, made.size_bytes)

    def end(self) -> None:
        """Everything is given back."""
        for weights in self.opened:
            weights.close()
        assert dlpack.collect() == 0
        for made in self.allocations.values():
            self.owner.memory.free(made)
        self.owner.end()
        leave_devices()
