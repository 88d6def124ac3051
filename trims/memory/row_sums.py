"""Checksum of an image's bytes as they lie, which a device computes at the speed of its memory: a matrix product.

Definition. The bytes are rows of `ROW_BYTES`, the last one filled up with zeros, read as signed bytes: a matrix X.

1. Y = X W, with the fixed matrix W of `ROW_BYTES` x `COLUMNS` small integers (`weights`). Each sum is below 2^24 in
   size, so it is exact in int32 and in float32: on tensor cores (int8), in BLAS, or by plain addition.
2. S = the sum of Y[i, j] M(COLUMNS i + j) modulo 2^64, where M (`multiplier`) is odd and looks random.
3. The checksum is S + M(2^63 + n) modulo 2^64, for n bytes.

So it is linear in the bytes. The byte k of row i counts with a factor of its own, the sum of W[k, j] M(COLUMNS i + j).
Parts of an image may be summed up in any order, by different processes (`part`), and where few bytes change, no others
need to be read (`change`).

Errors that are found:

- Any change within one byte, for certain: each row of W has an odd sum, so the factor is odd, and a difference of less
  than 2^8 times an odd number is not 0 modulo 2^64.
- Bytes that were exchanged, moved or replaced, and a wrong length: but for a chance of at most about 2^-49. Two bytes
  that are exchanged go unnoticed only if the difference of their factors, times that of the bytes, is a multiple of
  2^64. Rows of W differ, so this holds within a row as well.

The checksum guards against faults. Against changes by intent there is blake3.

Many bytes take numpy, `change` takes the standard library alone. Not covered: where an image keeps its checksum
(`trims.image.checksum`), a device's own sums (`trims.keeper.device_sums`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes of a row. 1024 products of a signed byte and of at most 127 stay below 2^24.
ROW_BYTES = 1024
COLUMNS = 4
_MODULUS = 1 << 64
#: Added to the length to make the argument of M, so that no row shares it.
_LENGTHS = 1 << 63
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
#: Rows of one product: so few that BLAS uses one thread, and no others wait for a processor.
_ROWS_AT_ONCE = 32
#: Bytes that are converted at once: they stay in the processor's cache.
_CHUNK_BYTES = 256 << 10


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum of all the bytes."""
    return whole(part(data, 0), len(data))


def whole(parts: int, nbytes: int) -> int:
    """Return the checksum of `nbytes` bytes, of which `parts` is the sum of all parts."""
    return (parts + multiplier(_LENGTHS + nbytes)) % _MODULUS


def part(data: bytes | bytearray | memoryview, offset: int) -> int:
    """Return what bytes add to the sum, modulo 2^64; sums of parts may be added up in any order.

    Args:
        data: Contiguous bytes. If more follow, their number is a multiple of `ROW_BYTES`.
        offset: Place of the first byte in the image, a multiple of `ROW_BYTES`.

    Raises:
        CallerError: The offset is no such multiple.
    """
    if offset % ROW_BYTES:
        raise CallerError(f"a part of a checksum begins at a multiple of {ROW_BYTES} bytes, not at {offset}")
    import numpy as np

    given = np.frombuffer(data, np.int8)
    whole_bytes = len(given) // ROW_BYTES * ROW_BYTES
    total = 0
    for begin in range(0, whole_bytes, _CHUNK_BYTES):
        chunk = given[begin : min(begin + _CHUNK_BYTES, whole_bytes)]
        total += _sum_of_rows(chunk, (offset + begin) // ROW_BYTES)
    if whole_bytes < len(given):
        last = np.zeros(ROW_BYTES, np.int8)
        last[: len(given) - whole_bytes] = given[whole_bytes:]
        total += _sum_of_rows(last, (offset + whole_bytes) // ROW_BYTES)
    return total % _MODULUS


def change(before: bytes, after: bytes, offset: int) -> int:
    """Return what is added to the sum, modulo 2^64, if few bytes at any offset are replaced by as many others."""
    added = 0
    for at, (old, new) in enumerate(zip(before, after, strict=True), offset):
        row, within = divmod(at, ROW_BYTES)
        factor = sum(w * multiplier(COLUMNS * row + j) for j, w in enumerate(weights()[within]))
        added += (_signed(new) - _signed(old)) * factor
    return added % _MODULUS


class Sum:
    """Sum of bytes that come one piece after the other, each but the last a multiple of `ROW_BYTES`: like a hash."""

    def __init__(self) -> None:
        self._parts, self._nbytes = 0, 0

    def update(self, data: memoryview, /) -> None:
        """Add the next piece."""
        self._parts += part(data, self._nbytes)
        self._nbytes += len(data)

    @property
    def parts(self) -> int:
        """Return the sum of all parts so far."""
        return self._parts % _MODULUS

    def hexdigest(self) -> str:
        """Return the checksum in hex."""
        return f"{whole(self._parts, self._nbytes):016x}"


def multiplier(argument: int) -> int:
    """Return M: splitmix64 of the argument, made odd."""
    return _mixed((argument + 1) * _GOLDEN % _MODULUS) | 1


@functools.cache
def weights() -> tuple[tuple[int, ...], ...]:
    """Return W: `ROW_BYTES` different rows of integers from -127 to 127, each with an odd sum.

    A row takes the low bytes of the next number of splitmix64, less 128 each, and -127 for -128. If their sum is even,
    the last one counts one more, or one less if it is 127. A row that is there already is left out.
    """
    rows: dict[tuple[int, ...], None] = {}
    state = 0
    while len(rows) < ROW_BYTES:
        state = (state + _GOLDEN) % _MODULUS
        row = [max(-127, (_mixed(state) >> 8 * column & 0xFF) - 128) for column in range(COLUMNS)]
        if sum(row) % 2 == 0:
            row[-1] += 1 if row[-1] < 127 else -1
        rows[tuple(row)] = None
    return tuple(rows)


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _mixed(number: int) -> int:
    """Return the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    for shift, factor in _MIX:
        number = (number ^ (number >> shift)) * factor % _MODULUS
    return number ^ (number >> 31)


def _sum_of_rows(data: NDArray[np.int8], first_row: int) -> int:
    """Return what whole rows add to the sum, modulo 2^64."""
    import numpy as np

    matrix = data.astype(np.float32).reshape(-1, ROW_BYTES)
    products = np.empty((len(matrix), COLUMNS), np.float32)
    for begin in range(0, len(matrix), _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        np.matmul(matrix[rows], _matrix(), out=products[rows])
    exact = products.astype(np.int64).reshape(-1).view(np.uint64)
    return int(np.sum(exact * _multipliers(COLUMNS * first_row, len(exact)), dtype=np.uint64))


@functools.cache
def _matrix() -> NDArray[np.float32]:
    import numpy as np

    return np.array(weights(), np.float32)


def _multipliers(first: int, count: int) -> NDArray[np.uint64]:
    """Return M of `count` arguments."""
    import numpy as np

    numbers: Any = np.arange(first + 1, first + 1 + count, dtype=np.uint64) * np.uint64(_GOLDEN)
    for shift, factor in _MIX:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    found: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31)) | np.uint64(1)
    return found
