"""Arenas: shared memory in which the tensors of one request, or one answer, travel to another process without a pipe.

One side owns an arena, writes into it and sends the other its address; the other maps it. An arena holds one message at
a time: the owner writes the next one only after the last was answered. It is a memfd that may not shrink, so a peer
that cuts it cannot end its reader by SIGBUS; the reader checks that.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING

from trims_client.connection.sockets import explained, lacks_descriptors

from trims.core.errors import BadMessageError
from trims_predictors.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.wire.frames import Message

_ALIGNMENT = 64
_LEAST_BYTES = 1 << 20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Sender:
    """The owner's side."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._nbytes = 0

    def write(self, tensors: Sequence[Tensor]) -> tuple[list[Message], int | None]:
        """Copy the tensors in, in order, each to the next 64 bytes.

        Returns:
            Their descriptions, and a descriptor if the other side must map another arena, because this one was too
            small. The caller sends it along and closes it.
        """
        described: list[Message] = []
        end = 0
        for tensor in tensors:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + tensor.nbytes
            described.append(
                {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "begin": begin, "end": end}
            )
        fd = self._grow(end) if self._map is None or end > self._nbytes else None
        assert self._map is not None
        for tensor, place in zip(tensors, described, strict=True):
            self._map[place["begin"] : place["end"]] = memoryview(tensor.data).cast("B")
        return described, fd

    def _grow(self, needed: int) -> int:
        nbytes = max(_LEAST_BYTES, 1 << (needed - 1).bit_length() if needed else 0)
        self.close()
        fd = os.memfd_create("trims-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map, self._nbytes = mmap.mmap(fd, nbytes), nbytes
        except BaseException:
            os.close(fd)
            raise
        return fd

    def close(self) -> None:
        """Give the memory up. Idempotent."""
        if self._map is not None:
            self._map.close()
            self._map = None


class Receiver:
    """The other side."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._nbytes = 0

    def take(self, fd: int) -> None:
        """Map the arena behind a descriptor, which is closed.

        Raises BadMessageError if it is none, CapacityError if this process has no descriptor left to map it.
        """
        try:
            nbytes = os.fstat(fd).st_size
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
                raise BadMessageError("the other side sent an arena that may shrink under its reader")
            # The last one goes with the last view into it.
            self._map, self._nbytes = mmap.mmap(fd, nbytes), nbytes
        except (OSError, ValueError) as error:
            if lacks_descriptors(error):
                raise explained(error, "what the other side sent cannot be mapped") from error
            raise BadMessageError(f"the other side sent a descriptor that is no arena: {error}") from error
        finally:
            os.close(fd)

    def read(self, described: Sequence[Message]) -> list[Tensor]:
        """The tensors that a message describes; they are valid until it is answered. Raises BadMessageError."""
        return [self._tensor(each) for each in described]

    def _tensor(self, described: Message) -> Tensor:
        try:
            name, dtype, shape = str(described["name"]), str(described["dtype"]), tuple(map(int, described["shape"]))
            begin, end = int(described["begin"]), int(described["end"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessageError(f"the other side described a tensor wrongly: {error}") from error
        if self._map is None or not 0 <= begin <= end <= self._nbytes:
            raise BadMessageError(f"the tensor {name!r} lies at {begin} to {end} of an arena of {self._nbytes} bytes")
        return Tensor(name, dtype, shape, memoryview(self._map)[begin:end])

    def close(self) -> None:
        """Give the memory up, unless views into it are left: then it goes with them. Idempotent."""
        self._map = None
