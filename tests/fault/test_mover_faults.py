"""Bad days of a mover: killed, poisoned, without a context; each costs an order at most, and no resident byte."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import blake3
import pytest
from looking import wait_until
from served_keeper import KEY, TOTAL, UUID, Served

from trims.core.errors import CapacityError, DeviceLostError, LostPeerError, TrimsError
from trims.image.checksum import stamp
from trims.keeper.client import KeeperConnection
from trims.keeper.launch import find_keeper
from trims.keeper.mover_process import MoverProcess
from trims.memory.cuda.api import Device
from trims.process.ends import ProcessEnd
from trims.testing.fake_cuda import (
    CONTEXT_BYTES,
    FakeCuda,
    contexts_refused,
    copies_held,
    lose_device,
    make_devices,
    poison_context,
)
from trims.testing.tiers import an_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def stamped(data: bytes) -> bytes:
    made = bytearray(data)
    stamp(memoryview(made))
    return bytes(made)


DATA = stamped(an_image(40 << 20))
DIGEST = blake3.blake3(DATA).hexdigest()


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    make_devices(folder, [Device(UUID, "Fake", TOTAL)])
    made = Served(folder)
    yield made
    made.end()
    assert free_bytes(folder) == TOTAL, "bytes of the device are left"


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("image")
    os.write(fd, DATA)
    yield fd
    os.close(fd)


def free_bytes(folder: Path) -> int:
    cuda = FakeCuda(str(folder))
    return cuda.free_bytes(cuda.devices()[0])


def put(keeper: KeeperConnection, file: int) -> int:
    number = keeper.create(len(DATA))
    keeper.fill(number, file)
    keeper.seal(number, KEY, DIGEST)
    return number


def mover_pid(served: Served) -> int:
    assert isinstance(served.keeper.mover, MoverProcess)
    return served.keeper.mover.pid


class Order:
    """An order that runs in a thread, and the error that it ended with.

    Args:
        order: Given what to call when there is progress.
    """

    def __init__(self, order: Callable[[Callable[[int], None]], object]) -> None:
        self._order = order
        self._begun = threading.Event()
        self.error: TrimsError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._order(lambda _: self._begun.set())
        except TrimsError as error:
            self.error = error

    def end(self) -> TrimsError | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


def begin(op: str, keeper: KeeperConnection, image: int, draft: int, file: int) -> Order:
    orders: dict[str, Callable[[Callable[[int], None]], object]] = {
        "fill": lambda progress: keeper.fill(draft, file, progress),
        "read": lambda progress: keeper.read(image, file, progress),
        "digest": lambda _: keeper.digest(image),
        "verify": lambda _: keeper.verify(image),
    }
    return Order(orders[op])


# fault (gpus): a mover is killed or loses its context -> waiting clients get `lost_peer`; the next order starts
# another
@pytest.mark.parametrize("op", ["fill", "read", "digest", "verify"])
@pytest.mark.parametrize("way", ["killed", "poisoned"])
def test_a_mover_that_is_lost_in_an_order_costs_that_order_only(
    served: Served, folder: Path, file: int, op: str, way: str
) -> None:
    with KeeperConnection(served.path) as keeper:
        image, draft = put(keeper, file), keeper.create(len(DATA))
        with copies_held(folder):
            order = begin(op, keeper, image, draft, file)
            wait_until(lambda: served.keeper._busy and mover_pid(served) and has_context(folder), "no mover works")
            pid = mover_pid(served)
            if way == "killed":
                os.kill(pid, signal.SIGKILL)
                error = order.end()
            else:
                poison_context(folder, pid)
        error = order.end()
        assert type(error) is LostPeerError, "the device is there, and what it holds"
        assert error.retryable
        assert ("was ended by SIGKILL" if way == "killed" else "was lost during a") in str(error)
        assert not Path(f"/proc/{pid}").exists(), "it was waited for"
        assert [kept.image for kept in keeper.hello().images] == [image]
        assert keeper.digest(image) == DIGEST
        assert keeper.verify(image).way == "products"
        keeper.fill(draft, file)
        keeper.seal(draft, "c" * 64, DIGEST)
        assert keeper.digest(draft) == DIGEST
        assert mover_pid(served) != pid


def has_context(folder: Path) -> bool:
    """Return whether a mover has made its context."""
    return any(folder.glob(f"memory.{UUID}.context.*"))


# fault (gpus): a device is lost under a mover or a hanging copy -> `device_lost` within a minute; the next keeper
# looks again
def test_a_device_that_is_lost_under_a_mover_ends_the_keeper(served: Served, folder: Path, file: int) -> None:
    with KeeperConnection(served.path) as lifeline, KeeperConnection(served.path) as keeper:
        draft = keeper.create(len(DATA))
        with copies_held(folder):
            order = begin("fill", keeper, 0, draft, file)
            wait_until(lambda: has_context(folder), "no mover works")
            lose_device(folder, UUID)
        assert isinstance(order.end(), DeviceLostError)
        assert lifeline.wait_for_end(60)
    (folder / f"lost.{UUID}").unlink()


# fault (gpus): the keeper or daemon is killed while a mover works
def test_a_daemon_that_goes_during_a_fill_stops_it_and_its_draft_is_freed(
    served: Served, folder: Path, file: int
) -> None:
    with KeeperConnection(served.path) as keeper:
        put(keeper, file)
        resident = served.keeper.held()[0].allocation.size_bytes
    with copies_held(folder):
        daemon = KeeperConnection(served.path)
        order = begin("fill", daemon, 0, daemon.create(len(DATA)), file)
        taken_bytes = 2 * resident + CONTEXT_BYTES
        wait_until(lambda: served.keeper._busy and TOTAL - free_bytes(folder) == taken_bytes, "no mover works")
        daemon.close()
        assert isinstance(order.end(), DeviceLostError), "to the daemon the keeper is gone"
        assert len(served.keeper.held()) == 2, "the mover still writes there"
    wait_until(lambda: len(served.keeper.held()) == 1, "the draft was not freed")
    with KeeperConnection(served.path) as keeper:
        assert keeper.digest(keeper.hello().images[0].image) == DIGEST


# fault (gpus): no memory for a context, or the device is exclusive to others -> `capacity` with the remedy; sealed
# images are served
@pytest.mark.parametrize("cause", ["full", "exclusive"])
def test_a_mover_that_gets_no_context_says_why_and_the_next_order_works(
    served: Served, folder: Path, file: int, cause: str
) -> None:
    with KeeperConnection(served.path) as keeper:
        image = put(keeper, file)
        wait_until(lambda: not keeper.hello().awake, "the mover does not rest")
        if cause == "full":
            stranger = FakeCuda(str(folder))
            stranger.select(UUID)
            taken = stranger.vmm_create(free_bytes(folder) // (2 << 20) * (2 << 20))
            with pytest.raises(CapacityError, match="the device has no memory left"):
                keeper.digest(image)
            stranger.vmm_release(taken)
        else:
            with contexts_refused(folder, UUID), pytest.raises(CapacityError, match="nvidia-smi -c DEFAULT"):
                keeper.digest(image)
        assert keeper.digest(image) == DIGEST


def test_after_rest_a_device_is_used_for_weights_alone(served: Served, folder: Path, file: int) -> None:
    with KeeperConnection(served.path) as keeper:
        number = keeper.create(len(DATA))
        weights_bytes = TOTAL - free_bytes(folder)
        with copies_held(folder):
            order = begin("fill", keeper, 0, number, file)
            wait_until(lambda: TOTAL - free_bytes(folder) == weights_bytes + CONTEXT_BYTES, "no mover works")
            with KeeperConnection(served.path) as other:
                assert other.hello().awake
        assert order.end() is None
        keeper.seal(number, KEY, DIGEST)
        wait_until(lambda: not keeper.hello().awake, "the mover does not rest")
        assert TOTAL - free_bytes(folder) == weights_bytes


# fault (gpus): the keeper or daemon is killed while a mover works -> the mover ends; its draft is freed
def test_a_keeper_that_is_killed_takes_its_mover_with_it(folder: Path, file: int) -> None:
    kind = make_devices(folder, [Device(UUID, "Fake", TOTAL)])
    with KeeperConnection(find_keeper(folder, UUID, cuda=kind)) as keeper:
        pid, draft = keeper.hello().pid, keeper.create(len(DATA))
        with copies_held(folder):
            order = begin("fill", keeper, 0, draft, file)
            wait_until(lambda: has_context(folder), "no mover works")
            (mover,) = children(pid)
            with ProcessEnd(mover) as ended:
                os.kill(pid, signal.SIGKILL)
                assert ended.wait(30), "it outlives its keeper"
            assert isinstance(order.end(), DeviceLostError)
    assert free_bytes(folder) == TOTAL


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_a_device_without_descriptors_is_served_by_the_keeper_alone(folder: Path, file: int) -> None:
    make_devices(folder, [Device(UUID, "Fake", TOTAL, vmm=False)])
    served = Served(folder, "auto")
    with KeeperConnection(served.path) as keeper:
        image = put(keeper, file)
        assert keeper.digest(image) == DIGEST
        assert keeper.hello().driver == "ipc"
        assert keeper.hello().awake, "the memory lives in the context"
    assert not isinstance(served.keeper.mover, MoverProcess)
    served.end()
    assert free_bytes(folder) == TOTAL
