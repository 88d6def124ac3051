"""An image's checksum over device memory, by the device: sums of rows by kernels, at the speed of its memory.

There are two ways, see `trims/memory/cuda/checksum.cu`: `products` on the tensor cores, `plain` on the others. Which is
faster depends on the device: the first large images are summed each way, later ones the way that was measured to be
faster (`trims.keeper.pace`). Before its first use a kernel sums known bytes. One with a wrong sum is not used, and none
is where the driver or the device is too old for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import DeviceLostError, NotSupportedError, TrimsError
from trims.keeper.pace import WayCosts
from trims.memory.row_sums import COLUMNS, ROW_BYTES, weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims.memory.cuda.api import Cuda

log = logging.getLogger(__name__)
WAYS = ("products", "plain")
#: A kernel sums groups of rows; what follows the last whole group is copied and filled up with zeros.
GROUP_BYTES = 16 * ROW_BYTES
#: Bytes between two reports of progress: some milliseconds.
_PIECE_BYTES = 8 << 30
_THREADS = 256
#: More than run at once on any device, so that all of it has work to the end.
_MOST_BLOCKS = 4096
#: Bytes with a known sum, which was computed by the host: two groups and a rest, as the rows from 1000 on.
KNOWN = bytes(range(251)) * 150
KNOWN_ROW, KNOWN_SUM = 1000, 0x495F7B02D0F9BC9A
_PROGRAM = Path(__file__).parents[1] / "memory" / "cuda" / "checksum.ptx"


class DeviceSums:
    """Sums over the memory of one device, whose context is current in every call."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._kernels: dict[str, int] | None = None
        self._why_none = ""
        self.costs = WayCosts()

    def sum(
        self, source: int, nbytes: int, on_progress: Callable[[int], None] | None = None, *, way: str | None = None
    ) -> tuple[int, str]:
        """Return the sum of all rows modulo 2^64 (see `trims.memory.row_sums.part`), and the way it was computed.

        Args:
            source: Device address.
            on_progress: Called with the bytes done so far.
            way: One of `WAYS`; None for the faster one, as measured so far.

        Raises:
            NotSupportedError: No kernel works here; the message says why.
        """
        kernels = self._working()
        if way is None:
            way = self.costs.choose(tuple(kernels), nbytes, shared=False)
        with contextlib.closing(_Scratch(self._cuda)) as memory:
            began = time.perf_counter()
            found = memory.sum(kernels[way], source, nbytes, 0, on_progress)
            self.costs.record(way, nbytes, time.perf_counter() - began, shared=False)
        return found, way

    @property
    def ways(self) -> tuple[str, ...]:
        """Return the checksum methods that this device supports. Raises NotSupportedError if there is none."""
        return tuple(self._working())

    def distrust(self, way: str) -> None:
        """Use a kernel no more: the host found another sum."""
        if self._kernels is not None:
            self._kernels.pop(way, None)
        self._say_wrong(way, "it summed up an image differently from the host")

    def close(self) -> None:
        """Forget the kernels, which go with the context. The next sum loads them again."""
        self._kernels = None

    def _working(self) -> dict[str, int]:
        if self._kernels is None:
            self._kernels = self._load()
        if not self._kernels:
            raise NotSupportedError(f"this device cannot compute checksums: {self._why_none}")
        return self._kernels

    def _load(self) -> dict[str, int]:
        """Return the kernels that work here, by way."""
        try:
            loaded = zip(WAYS, self._cuda.kernels(_PROGRAM.read_bytes(), WAYS), strict=True)
        except DeviceLostError:
            raise
        except TrimsError as error:
            self._why_none = str(error)
            log.warning("images on the device are not summed up there: %s", error)
            return {}
        kernels: dict[str, int] = {}
        with contextlib.closing(_Scratch(self._cuda)) as memory:
            for way, kernel in loaded:
                found = memory.sum_of_known(kernel)
                if found == KNOWN_SUM:
                    kernels[way] = kernel
                else:
                    self._say_wrong(way, f"the sum of known bytes is {found:#x} by it, and not {KNOWN_SUM:#x}")
        return kernels

    def _say_wrong(self, way: str, why: str) -> None:
        self._why_none = why
        log.error("images on the device are not summed up by the kernel %s: %s", way, why)


class _Scratch:
    """Memory for a kernel's work: the matrix W by column, a group of rows, and the sum; and a buffer of the host."""

    _TABLE_BYTES = ROW_BYTES * COLUMNS

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._stream = cuda.stream()
        try:
            self._table = cuda.allocate(self._TABLE_BYTES + 4 * GROUP_BYTES)
        except BaseException:
            cuda.end_stream(self._stream)
            raise
        self._group = self._table + self._TABLE_BYTES
        self._total = self._group + 3 * GROUP_BYTES
        self._put(_by_column(), self._table)

    def sum(
        self, kernel: int, source: int, nbytes: int, first_row: int, on_progress: Callable[[int], None] | None = None
    ) -> int:
        """Return the sum of rows, of which the first has this number."""
        whole = nbytes - nbytes % GROUP_BYTES
        self._cuda.fill(self._total, 0, 8, self._stream)
        for begin in range(0, whole, _PIECE_BYTES):
            count = min(_PIECE_BYTES, whole - begin)
            self._launch(kernel, source + begin, count // GROUP_BYTES, first_row + begin // ROW_BYTES)
            self._cuda.synchronize(self._stream)
            if on_progress is not None:
                on_progress(begin + count)
        if whole < nbytes:
            self._cuda.fill(self._group, 0, GROUP_BYTES, self._stream)
            self._cuda.copy_device(self._group, source + whole, nbytes - whole, self._stream)
            self._launch(kernel, self._group, 1, first_row + whole // ROW_BYTES)
        return self._taken()

    def sum_of_known(self, kernel: int) -> int:
        """Return the sum of the known bytes."""
        at = self._group + GROUP_BYTES
        self._put(KNOWN[: 2 * GROUP_BYTES], at)
        found = self.sum(kernel, at, 2 * GROUP_BYTES, KNOWN_ROW)
        self._put(KNOWN[2 * GROUP_BYTES :], at)
        return (found + self.sum(kernel, at, len(KNOWN) - 2 * GROUP_BYTES, KNOWN_ROW + 32)) % (1 << 64)

    def close(self) -> None:
        self._cuda.free(self._table)
        self._cuda.end_stream(self._stream)

    def _launch(self, kernel: int, rows: int, groups: int, first_row: int) -> None:
        blocks = min(_MOST_BLOCKS, -(-groups // (_THREADS // 32)))
        arguments: Sequence[int] = (rows, groups, first_row, self._table, self._total)
        self._cuda.launch(kernel, blocks, _THREADS, arguments, self._stream)

    def _taken(self) -> int:
        found = ctypes.c_uint64()
        self._cuda.copy_out(ctypes.addressof(found), self._total, 8, self._stream)
        self._cuda.synchronize(self._stream)
        return found.value

    def _put(self, data: bytes, target: int) -> None:
        host = ctypes.create_string_buffer(data, len(data))
        self._cuda.copy_in(target, ctypes.addressof(host), len(data), self._stream)
        self._cuda.synchronize(self._stream)


@functools.cache
def _by_column() -> bytes:
    return b"".join(bytes(row[column] & 0xFF for row in weights()) for column in range(COLUMNS))
