"""Sums that a device computes: each kernel's is the host's, and one that goes wrong is found out and used no more."""

from __future__ import annotations

import ctypes
import hashlib
import random
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from keepers import UUID
from repository import ROOT

from trims.core.errors import NotSupportedError
from trims.keeper.device_sums import GROUP_BYTES, KNOWN, KNOWN_ROW, KNOWN_SUM, WAYS, DeviceSums
from trims.keeper.mover import BY_HOST, Mover
from trims.keeper.pace import TELLING_BYTES
from trims.memory.row_sums import COLUMNS, ROW_BYTES, part, weights
from trims.testing.fake_cuda import FakeCuda, refuse_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FOLDER = ROOT / "trims" / "memory" / "cuda"
#: Round the ends of a row and of a group.
LENGTHS = [1, 1023, 1024, GROUP_BYTES - 1, GROUP_BYTES, GROUP_BYTES + 1, 5 * GROUP_BYTES, 5 * GROUP_BYTES + 4999]


@pytest.fixture
def device(cuda: FakeCuda) -> Iterator[FakeCuda]:
    cuda.use(UUID)
    yield cuda
    cuda.leave()


@pytest.fixture
def put(device: FakeCuda) -> Iterator[Callable[[bytes], int]]:
    """Puts bytes on the device; returns their address."""
    made: list[int] = []

    def put(data: bytes) -> int:
        made.append(device.allocate(len(data)))
        ctypes.memmove(made[-1], data, len(data))
        return made[-1]

    yield put
    for address in made:
        device.free(address)


@pytest.fixture
def sums(device: FakeCuda) -> Iterator[DeviceSums]:
    made = DeviceSums(device)
    yield made
    made.close()


def noise(nbytes: int) -> bytes:
    return random.Random(nbytes).randbytes(nbytes)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nbytes", LENGTHS)
def test_a_sum_by_the_device_is_that_of_the_host(
    sums: DeviceSums, put: Callable[[bytes], int], nbytes: int, way: str
) -> None:
    """What lies behind the image does not count."""
    address = put(noise(nbytes) + b"\xff" * 100)
    told: list[int] = []
    assert sums.sum(address, nbytes, told.append, way=way) == (part(noise(nbytes), 0), way)
    assert told == ([nbytes - nbytes % GROUP_BYTES] if nbytes >= GROUP_BYTES else [])


def test_pieces_of_a_large_image_add_up(
    sums: DeviceSums, put: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims.keeper.device_sums._PIECE_BYTES", 2 * GROUP_BYTES)
    data, told = noise(7 * GROUP_BYTES + 77), list[int]()
    assert sums.sum(put(data), len(data), told.append)[0] == part(data, 0)
    assert told == [count * GROUP_BYTES for count in (2, 4, 6, 7)]


def test_both_ways_are_tried_on_large_images_and_the_faster_one_is_kept(
    sums: DeviceSums, put: Callable[[bytes], int]
) -> None:
    address = put(bytes(TELLING_BYTES))
    assert [sums.sum(address, TELLING_BYTES)[1] for _ in WAYS] == list(WAYS)
    sums.costs.record("plain", TELLING_BYTES, 1e-9, shared=False)
    assert sums.sum(address, TELLING_BYTES)[1] == "plain"


def test_a_sum_leaves_no_memory_taken_and_works_after_a_rest(
    sums: DeviceSums, device: FakeCuda, put: Callable[[bytes], int]
) -> None:
    address, before = put(b"x" * 5000), device.memory()
    for _ in range(2):
        assert sums.sum(address, 5000)[0] == part(b"x" * 5000, 0)
        assert device.memory() == before
        sums.close()


def test_a_driver_too_old_for_kernels_computes_no_sum_and_says_why(sums: DeviceSums, folder: Path) -> None:
    refuse_kernels(folder)
    with pytest.raises(NotSupportedError, match=r"cannot compute checksums: .*UNSUPPORTED_PTX_VERSION"):
        sums.sum(0, 1)


def test_a_kernel_that_sums_known_bytes_wrongly_is_not_used(
    sums: DeviceSums, put: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims.keeper.device_sums.KNOWN_SUM", 1)
    with pytest.raises(NotSupportedError, match="the sum of known bytes is 0x495f7b02d0f9bc9a by it, and not 0x1"):
        sums.sum(put(b"x"), 1)


def test_one_kernel_that_sums_wrongly_leaves_the_other(
    sums: DeviceSums, device: FakeCuda, put: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, first = device.launch, list[int]()

    def without_tensor_cores(kernel: int, blocks: int, threads: int, arguments: list[int], stream: int) -> None:
        first.append(kernel)
        if kernel != first[0]:
            launch(kernel, blocks, threads, arguments, stream)

    monkeypatch.setattr(device, "launch", without_tensor_cores)
    assert sums.sum(put(b"x" * 3000), 3000) == (part(b"x" * 3000, 0), "plain")


# fault (gpus): a kernel of the checksum goes wrong -> nothing; the host sums up before an image is blamed
def test_a_kernel_that_differs_from_the_host_is_distrusted(
    device: FakeCuda, put: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image must not look broken because a kernel is."""
    mover, data = Mover(device, device.devices()[0]), noise(40_000)
    address, right = put(data), part(data, 0)
    assert mover.sum(address, len(data), right) == ("products", right)
    launch = device.launch

    def wrongly(kernel: int, blocks: int, threads: int, arguments: list[int], stream: int) -> None:
        data, groups, first_row, table, total = arguments
        launch(kernel, blocks, threads, [data, groups, first_row + 1, table, total], stream)

    with monkeypatch.context() as patch:
        patch.setattr(device, "launch", wrongly)
        assert mover.sum(address, len(data), right) == (BY_HOST, right)
    assert mover.sum(address, len(data), right) == ("plain", right)
    assert mover.sum(address, len(data), 1) == (BY_HOST, right), "the bytes differ from what is expected, really"
    assert mover.sum(address, len(data), right) == ("plain", right), "which is no fault of the kernel"
    mover.close()


# -- the kernels -------------------------------------------------------------------------------------------------------


def test_the_known_sum_is_the_hosts() -> None:
    assert part(KNOWN, KNOWN_ROW * ROW_BYTES) == KNOWN_SUM
    assert 2 * GROUP_BYTES < len(KNOWN) < 3 * GROUP_BYTES


def test_the_kernels_are_translated_from_their_source() -> None:
    """`make kernels` does that, and needs nvcc."""
    digest = hashlib.sha256((FOLDER / "checksum.cu").read_bytes()).hexdigest()
    assert re.search(r"sha256 is (\w+)", (FOLDER / "checksum.ptx").read_text()) is not None
    assert f"sha256 is {digest}," in (FOLDER / "checksum.ptx").read_text().partition("\n")[0]


@pytest.fixture(scope="module")
def on_processor(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels, compiled for this processor."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "run.c").write_text(f'#include "{ROOT / "tests" / "stub_driver" / "warp.h"}"\n{_RUN}')
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", folder / "run.so", folder / "run.c", "-lpthread"], check=True
    )
    return ctypes.CDLL(str(folder / "run.so"))


_RUN = """
void run(int is_plain, unsigned blocks, unsigned threads, const void *data, u64 groups, u64 first_row,
         const void *table, u64 *total) {
  run_kernel(is_plain, blocks, threads, (Arguments){data, groups, first_row, table, total});
}
"""


@pytest.mark.cc
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("groups", "blocks", "threads"), [(1, 1, 32), (5, 1, 64), (7, 2, 64), (3, 4, 256)])
def test_a_kernel_run_on_a_processor_computes_the_sum_of_the_definition(
    on_processor: ctypes.CDLL, way: str, groups: int, blocks: int, threads: int
) -> None:
    table = b"".join(bytes(row[column] & 0xFF for row in weights()) for column in range(COLUMNS))
    first_row, data, total = 1 << 40, noise(groups * GROUP_BYTES), ctypes.c_uint64(5)
    given = (data, ctypes.c_uint64(groups), ctypes.c_uint64(first_row), table, ctypes.byref(total))
    on_processor.run(int(way == "plain"), blocks, threads, *given)
    assert (total.value - 5) % (1 << 64) == part(data, first_row * ROW_BYTES)
