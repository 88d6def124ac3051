"""System shared memory: regions that clients register, read inputs from, and have outputs written to.

Protocol: Triton's `extension_shared_memory.md`. A region is part of a POSIX shared memory object, `/dev/shm/KEY`. The
endpoint opens such objects with its own rights for each client that may send requests, so they are off unless the
operator wants them, and these rules hold:

- An object belongs to the endpoint's user, is writable for it, has no second name, and is none of trims's own.
- A region is seen by the caller that registered it only, and an object is registered by one caller at a time.
- Data is read and written through the descriptor, never through a mapping: a client that cuts its object in the
  meantime gets an error, and the endpoint no SIGBUS. Inputs are copies, which the client cannot change any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims_client.connection.sockets import explained, lacks_descriptors

from trims.core.errors import CallerError, CapacityError, NotOfferedError
from trims_predictors.endpoint.principals import caller
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES, Tensor, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trims_predictors.endpoint.requests.infer_request import InferRequest, SharedRange

_FOLDER = "/dev/shm"  # noqa: S108 - where POSIX has these objects on Linux
#: First letters of the names of trims's own segments.
_OWN_PREFIX = "trims-"
#: Regions of one caller. Each takes a descriptor.
MOST_REGIONS = 256
_MOST_LETTERS = 255


@dataclass(eq=False, slots=True)
class _Region:
    """A registered region. Its descriptor is closed once it is unregistered and no request uses it any more."""

    name: str
    key: str
    offset: int
    nbytes: int
    fd: int
    identity: tuple[int, int]
    users: int = 1

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Use the descriptor."""
        self.users += 1
        try:
            yield self.fd
        finally:
            self.release()

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            os.close(self.fd)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.nbytes}


class SharedMemory:
    """Regions of all callers. Used in one event loop.

    Args:
        offered: Whether any may be registered.
        most_bytes: Limit for the inputs of one request together.
    """

    def __init__(self, *, offered: bool = False, most_bytes: int = 256 << 20) -> None:
        self.offered = offered
        self._most_bytes = most_bytes
        self._regions: dict[str, dict[str, _Region]] = {}

    # -- regions ---------------------------------------------------------------------------------------------------

    async def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Register a region for the caller.

        Args:
            name: Region's name; the caller's own.
            key: Object's name, with or without the slash before it.
            offset: Bytes from the beginning of the object.

        Raises:
            CallerError: The name is taken, or there is no such object, or none of which this is a part.
            CapacityError: The caller has too many regions, or the endpoint no descriptor left.
            NotOfferedError: Shared memory is off.
        """
        self._check_offered()
        regions = self._regions.setdefault(_whose(), {})
        self._check_free(regions, name)
        fd, identity, size = await asyncio.to_thread(_open, key, name)
        try:
            self._check_free(regions, name)
            if offset < 0 or nbytes <= 0 or offset + nbytes > size:
                raise CallerError(
                    f"failed to register shared memory region {name!r}: invalid args: {nbytes} bytes from {offset} on; "
                    f"the object {key!r} has {size}"
                )
            if any(each.identity == identity for others in self._others(regions) for each in others.values()):
                raise CallerError(f"the object {key!r} is registered by another caller of this endpoint")
        except BaseException:
            os.close(fd)
            raise
        regions[name] = _Region(name, key, offset, nbytes, fd, identity)

    def unregister(self, name: str = "") -> None:
        """Forget a region of the caller, or all of them. One that is not there is no error, as in Triton."""
        self._check_offered()
        regions = self._regions.get(_whose(), {})
        for each in [name] if name else list(regions):
            region = regions.pop(each, None)
            if region is not None:
                region.release()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """The caller's regions, none if shared memory is off; or one of them. Raises CallerError if it is not there."""
        if name:
            self._check_offered()
            return [self._of(name).as_json()]
        return [each.as_json() for each in self._regions.get(_whose(), {}).values()]

    def close(self) -> None:
        """Forget all regions. Idempotent."""
        for regions in self._regions.values():
            while regions:
                regions.popitem()[1].release()

    @staticmethod
    def _check_free(regions: dict[str, _Region], name: str) -> None:
        if not 0 < len(name) <= _MOST_LETTERS:
            raise CallerError(f"the name of a region has 1 to {_MOST_LETTERS} letters, not {len(name)}")
        if name in regions:
            raise CallerError(f"shared memory region {name!r} already in manager; unregister it, or take another name")
        if len(regions) >= MOST_REGIONS:
            raise CapacityError(f"{MOST_REGIONS} regions are registered, which is the most; unregister one")

    def _others(self, regions: dict[str, _Region]) -> Iterator[dict[str, _Region]]:
        return (each for each in self._regions.values() if each is not regions)

    def _check_offered(self) -> None:
        if not self.offered:
            raise NotOfferedError(
                "Client shared memory is disabled here: the extension system_shared_memory is off; start the endpoint "
                "with `--shared-memory system`, or send the data in the request"
            )

    def _of(self, name: str) -> _Region:
        region = self._regions.get(_whose(), {}).get(name)
        if region is None:
            raise CallerError(f"there is no region {name!r:.80}; register it first")
        return region

    # -- requests --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lend(self, request: InferRequest) -> Iterator[Lent]:
        """Hold the regions that a request names: they may be unregistered while it runs.

        Raises:
            CallerError: A region is not there or too short, or two outputs would overlap.
            NotOfferedError: Shared memory is off.
        """
        outputs = [each.shared for each in (request.wanted or {}).values() if each.shared is not None]
        regions: dict[str, _Region] = {}
        for place in (*request.shared.values(), *outputs):
            self._check_offered()
            regions[place.region] = region = self._of(place.region)
            _check_inside(place, region)
        _check_overlaps([(each, regions[each.region]) for each in outputs])
        with contextlib.ExitStack() as held:
            for region in regions.values():
                held.enter_context(region.held())
            yield Lent(regions, self._most_bytes)


class Lent:
    """The regions of one request, while it runs."""

    def __init__(self, regions: Mapping[str, _Region], most_bytes: int) -> None:
        self._regions = regions
        self._most_bytes = most_bytes

    async def fill(self, request: InferRequest) -> bool:
        """Read the inputs that lie in shared memory; returns whether there were any.

        Raises CallerError if they are too large together, or their object was cut.
        """
        total = sum(each.nbytes for each in request.shared.values())
        if total > self._most_bytes:
            raise CallerError(
                f"the inputs in shared memory have {total} bytes together; {self._most_bytes} are the most (--max-body)"
            )
        for index, place in request.shared.items():
            tensor = request.inputs[index]
            expected = nbytes_of(tensor.name, tensor.dtype, tensor.shape)
            if expected is not None and expected != place.nbytes:
                raise CallerError(
                    f"input byte size mismatch for input {tensor.name!r}: expected {expected}, got {place.nbytes}"
                )
            data = await self._read(tensor.name, place)
            request.inputs[index] = Tensor(tensor.name, tensor.dtype, tensor.shape, data)
        return bool(request.shared)

    async def _read(self, what: str, place: SharedRange) -> memoryview:
        region = self._regions[place.region]
        arguments = (region.fd, region.offset + place.offset, place.nbytes)
        large = place.nbytes > COPIED_AT_ONCE_BYTES
        data = await asyncio.to_thread(_read, *arguments) if large else _read(*arguments)
        if len(data) != place.nbytes:
            raise CallerError(f"the object {region.key!r} was cut: the input {what!r} is not in it any more")
        return data

    async def write(self, what: str, place: SharedRange, data: bytes | memoryview) -> None:
        """Write an output. Raises CallerError if it is larger than its place, or the object was cut."""
        region = self._regions[place.region]
        nbytes = memoryview(data).nbytes
        if nbytes > place.nbytes:
            raise CallerError(f"the output {what!r} has {nbytes} bytes; its place in shared memory has {place.nbytes}")
        arguments = (region.fd, region.offset + place.offset, data)
        large = nbytes > COPIED_AT_ONCE_BYTES
        try:
            written = await asyncio.to_thread(_write, *arguments) if large else _write(*arguments)
        except OSError as error:  # pages of an object may not be there yet
            why = f"the output {what!r} cannot be written to {region.key!r}: {error.strerror}"
            raise CapacityError(why) from error
        if not written:
            raise CallerError(f"the object {region.key!r} was cut: the output {what!r} has no room in it any more")


def _check_inside(place: SharedRange, region: _Region) -> None:
    """Raise CallerError, in the words that clients of Triton know, unless a range lies inside its region."""
    if place.offset >= region.nbytes:
        raise CallerError(
            f"Invalid offset for shared memory region: {region.name!r} has {region.nbytes} bytes, and {place.offset} "
            "is behind them"
        )
    if place.offset + place.nbytes > region.nbytes:
        raise CallerError(
            f"Invalid offset + byte size for shared memory region: {region.name!r} has {region.nbytes} bytes, not "
            f"{place.nbytes} from {place.offset} on"
        )


def _check_overlaps(places: Sequence[tuple[SharedRange, _Region]]) -> None:
    ends: list[tuple[tuple[int, int], int, int]] = []
    for each, region in places:
        begin = region.offset + each.offset
        ends.append((region.identity, begin, begin + each.nbytes))
    ends.sort()
    for (object_, _, end), (other, begin, _) in itertools.pairwise(ends):
        if object_ == other and begin < end:
            raise CallerError("two outputs of the request would be written to the same bytes of shared memory")


def _whose() -> str:
    tenant = caller()
    return "" if tenant is None else tenant.name


def _open(key: str, region: str) -> tuple[int, tuple[int, int], int]:
    """Open an object; returns its descriptor, device and inode, and length. Raises CallerError, CapacityError."""
    name = key.removeprefix("/")
    if not name.isprintable() or "/" in name or name in ("", ".", "..") or len(name) > _MOST_LETTERS:
        why = f"cannot register shared memory region {region!r} - invalid shm key {key!r:.80}"
        raise CallerError(f"{why}; keys are like '/input_data'")
    if name.startswith(_OWN_PREFIX):
        raise CallerError(f"the object {key!r:.80} is trims's own; make one of another name")
    try:
        fd = os.open(f"{_FOLDER}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if lacks_descriptors(error):
            raise explained(error, f"the object {key!r:.80} cannot be opened") from error
        raise CallerError(f"the object {key!r:.80} cannot be opened: {error.strerror}") from error
    found = os.fstat(fd)
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "it is no shared memory"
    elif found.st_uid != os.geteuid():
        why = "it belongs to another user than the endpoint's"
    elif found.st_nlink != 1 or not found.st_mode & stat.S_IWUSR:
        why = "it has two names, or its user may not write to it"
    if why:
        os.close(fd)
        raise CallerError(f"the object {key!r:.80} cannot be registered: {why}")
    return fd, (found.st_dev, found.st_ino), found.st_size


def _read(fd: int, offset: int, nbytes: int) -> memoryview:
    """Read so many bytes, or fewer where the file ends."""
    if offset + nbytes > os.fstat(fd).st_size:  # before memory is taken for it
        return memoryview(b"")
    data = memoryview(bytearray(nbytes))
    done = 0
    while done < nbytes:
        count = os.preadv(fd, [data[done:]], offset + done)
        if not count:
            break
        done += count
    return data[:done].toreadonly()


def _write(fd: int, offset: int, data: bytes | memoryview) -> bool:
    """Write all; False where the file ends before it, which is not made longer."""
    view = memoryview(data).cast("B")
    if offset + len(view) > os.fstat(fd).st_size:
        return False
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
    return True
