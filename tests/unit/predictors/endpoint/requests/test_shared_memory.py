"""Regions of system shared memory: whose they are, what they may be part of, and what is read and written there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_predictors.endpoint import principals
from trims_predictors.endpoint.requests import shared_memory
from trims_predictors.endpoint.requests.infer_request import InferRequest, SharedRange, Wanted
from trims_predictors.endpoint.requests.shared_memory import MOST_REGIONS, SharedMemory
from trims_predictors.tensors import Tensor, to_array

from trims.core.errors import CallerError, CapacityError, NotOfferedError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NBYTES = 4096


class Object:
    """A shared memory object of the test's user."""

    def __init__(self, nbytes: int = NBYTES) -> None:
        self.key = f"/test-{secrets.token_hex(8)}"
        self.path = Path("/dev/shm") / self.key[1:]
        self.path.write_bytes(bytes(nbytes))

    def write(self, data: bytes, offset: int = 0) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def read(self, offset: int, nbytes: int) -> bytes:
        return self.path.read_bytes()[offset : offset + nbytes]


@pytest.fixture
def shm() -> Iterator[Callable[..., Object]]:
    made: list[Object] = []

    def make(nbytes: int = NBYTES) -> Object:
        made.append(Object(nbytes))
        return made[-1]

    yield make
    for each in made:
        each.path.unlink(missing_ok=True)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory(offered=True, most_bytes=1 << 20)
    yield made
    made.close()


def register(memory: SharedMemory, name: str, key: str, offset: int = 0, nbytes: int = NBYTES) -> None:
    asyncio.run(memory.register(name, key, offset, nbytes))


@contextlib.contextmanager
def as_tenant(name: str) -> Iterator[None]:
    token = principals._caller.set(SimpleNamespace(name=name))  # type: ignore[arg-type]
    try:
        yield
    finally:
        principals._caller.reset(token)


def refused(error: type[TrimsError], why: str, memory: SharedMemory, *given: Any) -> None:
    with pytest.raises(error, match=why):
        register(memory, *given)


def test_regions_are_registered_listed_and_forgotten(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    one, two = shm(), shm()
    register(memory, "one", one.key)
    register(memory, "two", two.key.removeprefix("/"), 1024, 512)
    first = {"name": "one", "key": one.key, "offset": 0, "byte_size": NBYTES}
    assert memory.status() == [first, {"name": "two", "key": two.key[1:], "offset": 1024, "byte_size": 512}]
    assert memory.status("one") == [first]
    refused(CallerError, "shared memory region 'one' already in manager", memory, "one", two.key)
    memory.unregister("one")
    memory.unregister("never was")
    with pytest.raises(CallerError, match="there is no region 'one'"):
        memory.status("one")
    memory.unregister()
    assert memory.status() == []


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, NBYTES + 1), (NBYTES, 1), (1, NBYTES), (-1, 8), (0, 0), (0, -1), (1 << 63, 1)]
)
def test_a_region_lies_inside_its_object(
    offset: int, nbytes: int, memory: SharedMemory, shm: Callable[..., Object]
) -> None:
    refused(
        CallerError,
        f"invalid args: {nbytes} bytes from {offset} on; the object .* has {NBYTES}",
        memory,
        "r",
        shm().key,
        offset,
        nbytes,
    )
    assert memory.status() == []


@pytest.mark.parametrize("key", ["", "/", "..", "/..", "/a/b", "a/../b", "//etc/passwd", "x" * 300, "a\0b"])
def test_what_is_no_key_is_refused(key: str, memory: SharedMemory) -> None:
    refused(CallerError, "cannot register shared memory region 'r' - invalid shm key", memory, "r", key)


def test_an_object_that_is_not_there_is_named(memory: SharedMemory) -> None:
    refused(CallerError, "'/absent' cannot be opened: No such file", memory, "r", "/absent")


def test_segments_of_trims_are_never_registered(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    refused(CallerError, "is trims's own", memory, "r", "/trims-cpu.0")
    sealed = shm()
    os.chmod(sealed.path, 0o400)
    refused(CallerError, "may not write to it|Permission denied", memory, "r", sealed.key)
    hidden = shm()
    second = hidden.path.with_name(hidden.path.name + "-second")
    os.link(hidden.path, second)
    try:
        refused(CallerError, "it has two names", memory, "r", f"/{second.name}")
    finally:
        second.unlink()


def test_links_folders_and_pipes_are_no_objects(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    there = shm()
    for make in (lambda: there.path.symlink_to("/etc/passwd"), there.path.mkdir, lambda: os.mkfifo(there.path)):
        there.path.unlink()
        make()
        try:
            refused(CallerError, "cannot be opened|it is no shared memory", memory, "r", there.key)
        finally:
            if there.path.is_dir() and not there.path.is_symlink():
                there.path.rmdir()
                there.path.touch()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_objects_of_another_user_are_refused(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    theirs = shm()
    os.chown(theirs.path, pwd.getpwnam("nobody").pw_uid, -1)
    refused(CallerError, "it belongs to another user", memory, "r", theirs.key)


def test_a_tenant_sees_its_own_regions_and_no_object_of_another(
    memory: SharedMemory, shm: Callable[..., Object]
) -> None:
    mine, theirs = shm(), shm()
    register(memory, "r", mine.key)
    with as_tenant("blue"):
        assert memory.status() == []
        refused(CallerError, "is registered by another caller", memory, "stolen", mine.key)
        register(memory, "r", theirs.key)
        assert memory.status()[0]["key"] == theirs.key
        memory.unregister()
    assert [each["key"] for each in memory.status()] == [mine.key]
    register(memory, "again", theirs.key)


def test_regions_are_bounded(memory: SharedMemory, shm: Callable[..., Object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MOST_REGIONS", 2)
    key = shm().key
    for name in ("a", "b"):
        register(memory, name, key)
    refused(CapacityError, "2 regions are registered", memory, "c", key)
    assert MOST_REGIONS >= 64


def test_where_it_is_off_every_use_says_how_to_switch_it_on(shm: Callable[..., Object]) -> None:
    off = SharedMemory()
    refused(NotOfferedError, "start the endpoint with `--shared-memory system`", off, "r", shm().key)
    assert off.status() == []
    for use in (off.unregister, lambda: off.status("r")):
        with pytest.raises(NotOfferedError, match="is disabled here"):
            use()
    with pytest.raises(NotOfferedError, match="is disabled here"):
        fill(off, {0: SharedRange("r", 0, 8)})


def fill(memory: SharedMemory, shared: dict[int, SharedRange], **outputs: SharedRange) -> InferRequest:
    inputs = [Tensor(f"x{index}", "FP64", (place.nbytes // 8,), b"") for index, place in shared.items()]
    wanted = {name: Wanted(shared=place) for name, place in outputs.items()} or None
    request = InferRequest(inputs, wanted=wanted, shared=shared)
    with memory.lend(request) as lent:
        assert asyncio.run(lent.fill(request)) is bool(shared)
    return request


def write(memory: SharedMemory, place: SharedRange, data: bytes) -> None:
    with memory.lend(InferRequest([], wanted={"y": Wanted(shared=place)})) as lent:
        asyncio.run(lent.write("y", place, data))


def test_inputs_are_read_where_they_lie_and_are_copies(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    there = shm()
    there.write(np.arange(4.0).tobytes(), 1024)
    register(memory, "r", there.key, 1000, 1000)
    request = fill(memory, {0: SharedRange("r", 24, 32)})
    there.write(bytes(NBYTES))
    memory.unregister()
    assert to_array(request.inputs[0]).tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("place", [SharedRange("r", 0, 1001), SharedRange("r", 1000, 1), SharedRange("r", 1 << 62, 1)])
def test_a_range_lies_inside_its_region(place: SharedRange, memory: SharedMemory, shm: Callable[..., Object]) -> None:
    register(memory, "r", shm().key, 0, 1000)
    for given in ({"shared": {0: place}}, {"shared": {}, "y": place}):
        with pytest.raises(CallerError, match=r"Invalid offset.* for shared memory region: 'r' has 1000 bytes"):
            fill(memory, **given)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="there is no region 's'; register it first"):
        fill(memory, {0: SharedRange("s", 0, 1)})


def test_two_outputs_may_not_overlap_through_whatever_regions(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    key, other = shm().key, shm().key
    register(memory, "low", key, 0, 100)
    register(memory, "high", key, 50, 100)
    register(memory, "other", other)
    fill(memory, {}, a=SharedRange("low", 0, 50), b=SharedRange("high", 0, 50), c=SharedRange("other", 0, 50))
    with pytest.raises(CallerError, match="would be written to the same bytes"):
        fill(memory, {}, a=SharedRange("low", 0, 51), b=SharedRange("high", 0, 50))


def test_inputs_of_one_request_are_bounded_as_a_body_is(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    register(memory, "r", shm(2 << 20).key, 0, 2 << 20)
    with pytest.raises(CallerError, match="have 1048584 bytes together; 1048576 are the most"):
        fill(memory, {0: SharedRange("r", 0, 1 << 20), 1: SharedRange("r", 0, 8)})


def test_outputs_are_written_where_they_fit(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    there = shm()
    register(memory, "r", there.key, 100, 1000)
    write(memory, SharedRange("r", 10, 8), b"12345678")
    assert there.read(109, 10) == b"\x0012345678\0"
    with pytest.raises(CallerError, match="the output 'y' has 9 bytes; its place in shared memory has 8"):
        write(memory, SharedRange("r", 10, 8), b"123456789")


# fault (endpoint): a shared memory object is cut -> `bad_request`
@pytest.mark.parametrize("nbytes", [64, 2 << 20])
def test_an_object_that_was_cut_is_an_error_and_not_the_end_of_the_endpoint(
    nbytes: int, memory: SharedMemory, shm: Callable[..., Object]
) -> None:
    memory._most_bytes = nbytes
    there = shm(nbytes)
    register(memory, "r", there.key, 0, nbytes)
    os.truncate(there.path, nbytes - 1)
    with pytest.raises(CallerError, match="was cut: the input 'x0' is not in it any more"):
        fill(memory, {0: SharedRange("r", 0, nbytes)})
    with pytest.raises(CallerError, match="was cut: the output 'y' has no room in it any more"):
        write(memory, SharedRange("r", 0, nbytes), bytes(nbytes))
    assert there.path.stat().st_size == nbytes - 1, "it is not made longer"


def test_a_region_that_is_forgotten_while_a_request_runs_is_its_to_the_end(
    memory: SharedMemory, shm: Callable[..., Object]
) -> None:
    there = shm()
    there.write(np.arange(4.0).tobytes())
    register(memory, "r", there.key)
    wanted = {"y": Wanted(shared=SharedRange("r", 1024, 8))}
    request = InferRequest([Tensor("x", "FP64", (4,), b"")], wanted=wanted, shared={0: SharedRange("r", 0, 32)})
    with memory.lend(request) as lent:
        memory.unregister()
        assert memory.status() == []
        assert asyncio.run(lent.fill(request))
        asyncio.run(lent.write("y", SharedRange("r", 1024, 8), b"12345678"))
    assert to_array(request.inputs[0]).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert there.read(1024, 8) == b"12345678"


def test_an_input_has_as_many_bytes_as_its_type_and_shape(memory: SharedMemory, shm: Callable[..., Object]) -> None:
    register(memory, "r", shm().key)
    request = InferRequest([Tensor("x", "FP64", (4,), b"")], shared={0: SharedRange("r", 0, 64)})
    with memory.lend(request) as lent, pytest.raises(CallerError, match="mismatch for input 'x': expected 32, got 64"):
        asyncio.run(lent.fill(request))
