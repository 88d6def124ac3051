"""Images are verified where they lie: after each fill, and when an operator asks."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import blake3
import pytest
from keepers import DIGEST, KEY, TOTAL, UUID, put

from trims.core.errors import CallerError, CudaError, ImageError
from trims.image.checksum import stamp, stated_sum
from trims.image.reader import ImageView
from trims.keeper.keeper import Keeper
from trims.keeper.moves import LocalMover
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import FakeCuda, make_devices, refuse_kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OTHER = "GPU-00000000-0000-0000-0000-000000000002"


@pytest.fixture
def stamped(image: Callable[..., tuple[int, bytes]]) -> tuple[int, bytes]:
    """An image with a checksum, and its file."""
    fd, data = image()
    made = bytearray(data)
    stamp(memoryview(made))
    os.pwrite(fd, made, 0)
    return fd, bytes(made)


def flip(folder: Path, nbytes: int, at: int = -99) -> None:
    """Change a byte of the device's memory, in the only allocation that is large enough."""
    files = (each for each in folder.glob("memory.*") if ".context." not in each.name)
    (path,) = (each for each in files if each.stat().st_size >= nbytes)
    with path.open("r+b") as file:
        file.seek(nbytes + at)
        byte = file.read(1)[0]
        file.seek(nbytes + at)
        file.write(bytes([byte ^ 1]))


def test_an_image_with_a_checksum_is_verified_by_the_device(keeper: Keeper, stamped: tuple[int, bytes]) -> None:
    fd, data = stamped
    number, told = keeper.create(len(data)).number, list[int]()
    keeper.fill(number, fd, told.append)
    keeper.seal(number, KEY, DIGEST)
    assert told == sorted(told)
    expected = f"{stated_sum(ImageView(memoryview(data))):016x}"
    assert keeper.verify(number) == ("products", expected, expected)
    assert keeper.verify(number).wrong == ""


# fault (gpus): bytes change on a device -> a finding of `trims check --verify`; the image leaves service
def test_a_byte_that_is_flipped_on_the_device_is_found(
    keeper: Keeper, stamped: tuple[int, bytes], folder: Path
) -> None:
    fd, data = stamped
    number = put(keeper, fd, len(data))
    flip(folder, len(data))
    verdict = keeper.verify(number)
    assert verdict.way == "host", "it has summed up the same bytes again"
    assert "its bytes have the sum (by host) " in verdict.wrong
    flip(folder, len(data))
    assert keeper.verify(number).wrong == ""


def test_an_image_of_an_older_version_is_verified_by_the_host(
    keeper: Keeper, image: Callable[..., tuple[int, bytes]], folder: Path
) -> None:
    fd, data = image()
    digest = blake3.blake3(data).hexdigest()
    number = keeper.create(len(data)).number
    keeper.fill(number, fd)
    keeper.seal(number, KEY, digest)
    assert keeper.verify(number) == ("blake3", digest, digest)
    flip(folder, len(data))
    assert (
        f"its bytes hash to {keeper.digest(number)[:16]}..., {digest[:16]}... was sealed" == keeper.verify(number).wrong
    )


# fault (gpus): other bytes arrive than the checksum states -> the source's replica is made again, or `cuda` with the
# device; nothing is sealed
def test_a_fill_from_a_changed_file_fails_and_the_image_can_be_filled_again(
    keeper: Keeper, stamped: tuple[int, bytes]
) -> None:
    fd, data = stamped
    number = keeper.create(len(data)).number
    os.pwrite(fd, bytes([data[-99] ^ 1]), len(data) - 99)
    with pytest.raises(ImageError, match="other bytes than its checksum states"):
        keeper.fill(number, fd)
    with pytest.raises(CallerError, match="not filled"):
        keeper.seal(number, KEY, DIGEST)
    os.pwrite(fd, data[-99:-98], len(data) - 99)
    keeper.fill(number, fd)
    keeper.seal(number, KEY, DIGEST)
    assert keeper.verify(number).wrong == ""


@pytest.mark.parametrize("driver", ["ipc"], indirect=True)  # whose mover is in this process
def test_a_device_that_holds_other_bytes_than_were_copied_is_blamed(
    keeper: Keeper, stamped: tuple[int, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, data = stamped
    assert isinstance(keeper.mover, LocalMover)
    copy_in = keeper.mover._mover.copy_in

    def wrongly(*given: object) -> None:
        copy_in(*given)  # type: ignore[arg-type]
        flip(folder, len(data))

    monkeypatch.setattr(keeper.mover._mover, "copy_in", wrongly)
    number = keeper.create(len(data)).number
    with pytest.raises(CudaError, match=f"the device {UUID} holds other bytes than were copied there"):
        keeper.fill(number, fd)
    keeper.free(number)
    assert keeper.held() == []


def test_a_copy_from_a_peer_is_verified(folder: Path, stamped: tuple[int, bytes]) -> None:
    make_devices(folder, [Device(UUID, "Fake", TOTAL, peers=(OTHER,)), Device(OTHER, "Fake", TOTAL)])
    here, there = (Keeper(FakeCuda(str(folder)), uuid, "vmm", idle_s=0.0) for uuid in (UUID, OTHER))
    fd, data = stamped
    exported, head_fd = there.export(put(there, fd, len(data)))
    flip(folder, len(data))
    number = here.create(len(data)).number
    with pytest.raises(CudaError, match="holds other bytes"):
        here.copy(number, exported, head_fd)
    here.free(number)
    exported.close()
    os.close(head_fd)
    here.close()
    there.close()


def test_without_verification_a_fill_takes_what_it_is_given(cuda: FakeCuda, stamped: tuple[int, bytes]) -> None:
    fd, data = stamped
    os.pwrite(fd, bytes([data[-99] ^ 1]), len(data) - 99)
    keeper = Keeper(cuda, UUID, "vmm", idle_s=0.0, verify_fills=False)
    number = put(keeper, fd, len(data))
    assert keeper.verify(number).wrong, "which asks for it"
    keeper.close()


def test_where_a_driver_is_too_old_fills_are_not_verified_and_that_is_logged(
    cuda: FakeCuda, stamped: tuple[int, bytes], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_kernels(folder)
    fd, data = stamped
    keeper = Keeper(cuda, UUID, "vmm", idle_s=0.0)
    number = keeper.create(len(data)).number
    with caplog.at_level(logging.WARNING):
        keeper.fill(number, fd)
    assert "what is copied to the device is not verified there: this device cannot compute checksums" in caplog.text
    keeper.seal(number, KEY, blake3.blake3(data).hexdigest())
    assert keeper.verify(number).way == "blake3"
    assert keeper.verify(number).wrong == ""
    keeper.close()
