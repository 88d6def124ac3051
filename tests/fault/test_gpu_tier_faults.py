"""The GPU tier against a keeper that refuses or is gone. The keeper serves from a thread of the test's process."""

# fault (gpus): keepers cannot start, or end at once -> `device_lost` with the reason; longer pauses, 10 s at most

from __future__ import annotations

import contextlib
import logging
import os
import resource
import threading
from typing import TYPE_CHECKING

import pytest
from looking import wait_until
from served_keeper import KEY, OTHER_KEY, TOTAL, UUID, Refusing, Served, put_on

from trims.core.errors import (
    CapacityError,
    CudaError,
    DeviceLostError,
    NotSupportedError,
)
from trims.keeper import watch
from trims.keeper.client import KeeperConnection
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import contexts_refused, make_devices
from trims.tiers.gpu import GpuTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.core.place import Place
    from trims.tiers.base import Extent


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    make_devices(folder, [Device(UUID, "Fake", TOTAL)])
    made = Served(folder)
    yield made
    made.end()


@pytest.fixture
def tier(served: Served) -> Iterator[GpuTier]:
    made = GpuTier(0, served.find, TOTAL)
    yield made
    made.close()


@pytest.fixture
def put(folder: Path) -> Callable[..., Extent]:
    return lambda tier, key=KEY: put_on(tier, folder, key)


# -- giving back -------------------------------------------------------------------------------------------------------


# fault (gpus): a full device cannot free or adopt an image -> a line in the log; tried again, or left in its keeper
def test_what_the_keeper_cannot_free_is_said_and_tried_again_before_the_next_image(
    served: Served,
    tier: GpuTier,
    put: Callable[..., Extent],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    extent, memory = put(tier), served.keeper.memory
    monkeypatch.setattr(memory, "free", Refusing(memory.free, CapacityError("no room for a context"), 2))
    tier.free(extent)
    for left in (1, 0):
        assert len(served.keeper.held()) == 1
        tier.abort(tier.create(OTHER_KEY, 1, 4096, allocate=True))
        assert len(served.keeper.held()) == left
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 2
    assert "was not freed, which is tried again: no room for a context" in caplog.text
    assert "went with its keeper" not in caplog.text


def test_what_cannot_be_freed_because_a_descriptor_is_missing_is_freed_later(
    served: Served, tier: GpuTier, put: Callable[..., Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    extent, keeper = put(tier), tier._keeper
    monkeypatch.setattr(keeper, "connect", Refusing(keeper.connect, CapacityError("too many open files"), 1))
    tier.free(extent)
    assert len(served.keeper.held()) == 1
    tier.abort(tier.create(OTHER_KEY, 1, 4096, allocate=True))
    assert served.keeper.held() == []


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Take all descriptors, so that this process may open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] <= highest:  # the gaps below
        taken.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_what_was_sealed_and_cannot_be_exported_is_not_left_with_the_keeper(
    served: Served, tier: GpuTier, put: Callable[..., Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = served.keeper
    monkeypatch.setattr(keeper, "export", Refusing(keeper.export, CudaError("refused"), 1))
    with pytest.raises(CudaError, match="refused"):
        put(tier)
    assert served.keeper.held() == []


# -- a context that cannot be had just now -----------------------------------------------------------------------------


# fault (gpus): no memory for a context, or the device is exclusive to others
@pytest.mark.parametrize("status", ["DEVICE_UNAVAILABLE", "MPS_MAX_CLIENTS_REACHED", "MPS_MAX_CONNECTIONS_REACHED"])
def test_a_keeper_at_rest_that_gets_no_context_refuses_and_keeps_what_it_holds(
    served: Served, tier: GpuTier, put: Callable[..., Extent], folder: Path, status: str
) -> None:
    """Another process has the device to itself, say: nothing is lost by that."""
    put(tier)
    wait_until(lambda: not served.keeper.awake, "it does not rest")
    with (
        contexts_refused(folder, UUID, f"CUDA_ERROR_{status}"),
        pytest.raises(CapacityError, match=f"no context just now; .*{status}"),
    ):
        put(tier, OTHER_KEY)
    with KeeperConnection(served.find()) as keeper:
        (kept,) = keeper.hello().images
        assert kept.key == KEY
        assert keeper.digest(kept.image) == kept.digest
    tier.abort(tier.create(OTHER_KEY, 2, 4096, allocate=True))


# -- a start beside a device that is not well --------------------------------------------------------------------------


# fault (gpus): a full device cannot free or adopt an image
@pytest.mark.parametrize("error", [CapacityError("full"), CudaError("refused")])
def test_an_image_that_cannot_be_had_is_left_out_and_the_others_are_taken_over(
    served: Served,
    tier: GpuTier,
    put: Callable[..., Extent],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    put(tier)
    put(tier, OTHER_KEY)
    tier.close()
    memory = served.keeper.memory
    monkeypatch.setattr(memory, "export", Refusing(memory.export, error, 1))
    assert [extent.key for extent in tier.scan()] == [OTHER_KEY]
    assert f"{KEY[:16]} stays in the keeper of gpu:0, unused: {error}" in caplog.text
    assert len(served.keeper.held()) == 2


def test_a_keeper_whose_device_is_lost_or_that_is_gone_is_found_empty(
    served: Served,
    tier: GpuTier,
    put: Callable[..., Extent],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(tier)
    tier.close()
    memory = served.keeper.memory
    monkeypatch.setattr(memory, "export", Refusing(memory.export, DeviceLostError("lost"), 1))
    assert list(tier.scan()) == []
    served.end()
    assert list(tier.scan()) == []
    assert "gpu:0 cannot be looked through" in caplog.text


# -- a keeper that ends ------------------------------------------------------------------------------------------------


class Away:
    """A way to find a keeper that fails for a while, and counts."""

    def __init__(self, served: Served, failures: int) -> None:
        self.served = served
        self.failures = failures
        self.tries = 0
        self.away = False
        self.back = threading.Event()

    def __call__(self) -> Path:
        if not self.away:
            return self.served.find()
        self.tries += 1
        if self.tries <= self.failures:
            raise NotSupportedError(f"the device is being reset ({self.tries})")
        self.back.set()
        return self.served.path


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_TRY_AGAIN_S", 0.0005)
    monkeypatch.setattr(watch, "_LONGEST_PAUSE_S", 0.002)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("failures", [0, 3, 100])
def test_another_keeper_is_looked_for_until_there_is_one_and_the_loss_is_told_once(
    served: Served, folder: Path, failures: int
) -> None:
    find = Away(served, failures)
    tier = GpuTier(0, find, TOTAL)
    told: list[tuple[str, Place, int]] = []
    heard = threading.Event()

    def back(place: Place) -> None:
        told.append(("back", place, find.tries))
        heard.set()

    tier.watch(lambda place: told.append(("lost", place, find.tries)), back)
    old = find.served
    find.away, find.served = True, Successor(folder)
    old.end()
    assert find.back.wait(30)
    assert heard.wait(30)
    wait_until(lambda: _serves(tier), "the keeper that was found is not used")
    tier.close()
    lost_after = min(failures + 1, watch._QUICK_TRIES)
    assert told == [("lost", tier.place, lost_after), ("back", tier.place, failures + 1)]
    find.served.end()


def _serves(tier: GpuTier) -> bool:
    try:
        return tier.describe().device == UUID
    except DeviceLostError:
        return False


class Successor(Served):
    """Another keeper, at a path of its own."""

    def __init__(self, folder: Path, driver: str = "vmm") -> None:
        self.folder = folder / "next"
        self.folder.mkdir()
        make_devices(self.folder, [Device(UUID, "Fake", TOTAL)])
        super().__init__(self.folder, driver)


@pytest.mark.usefixtures("hasty")
def test_while_no_keeper_starts_every_open_says_why_and_the_watch_can_be_ended(served: Served) -> None:
    find = Away(served, failures=1 << 30)
    tier = GpuTier(0, find, TOTAL)
    heard = threading.Event()
    came_back = threading.Event()
    tier.watch(lambda _: heard.set(), lambda _: came_back.set())
    find.away = True
    served.end()
    assert heard.wait(30)
    with pytest.raises(DeviceLostError, match=r"no other keeper starts: the device is being reset \(\d+\)"):
        tier.create(KEY, 1, 4096, allocate=True)
    tier.close()
    tries = find.tries
    assert not came_back.is_set()
    assert find.tries == tries, "none is started for a daemon that has ended"


# fault (gpus): no descriptor left to ask a keeper -> a line in the log; the keeper stays
@pytest.mark.usefixtures("hasty")
def test_a_moment_without_descriptors_is_nothing_to_the_watch(
    served: Served, tier: GpuTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "_ASK_EVERY_S", 0.01)
    monkeypatch.setattr(watch, "_MISSES", 2)
    killed, heard = threading.Event(), threading.Event()
    monkeypatch.setattr(KeeperConnection, "kill", lambda _: killed.set())
    tier.watch(lambda _: heard.set(), lambda _: None)
    with no_descriptors():
        wait_until(lambda: caplog.text.count("cannot be asked") > 5, "no keeper was asked")
    assert not killed.is_set(), "it was we who lacked something"
    served.end()
    assert heard.wait(30), "the watch has ended"


def test_a_tier_ends_at_once_though_its_keeper_is_being_asked(
    served: Served, tier: GpuTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_ASK_EVERY_S", 0.01)
    asked, answer = threading.Event(), threading.Event()

    def held() -> list[object]:
        asked.set()
        answer.wait(60)
        return []

    monkeypatch.setattr(served.keeper, "held", held)
    tier.watch(lambda _: None, lambda _: None)
    assert asked.wait(30)
    tier.close()
    assert not answer.is_set(), "it waited for the answer"
    assert "trims-gpu:0" not in [thread.name for thread in threading.enumerate()]
    monkeypatch.undo()
    answer.set()


@pytest.mark.usefixtures("hasty")
def test_how_the_next_keeper_shares_memory_counts_from_then_on(served: Served, folder: Path) -> None:
    find = Away(served, failures=0)
    tier = GpuTier(0, find, TOTAL)
    back = threading.Event()
    tier.watch(lambda _: None, lambda _: back.set())
    assert not tier.ends_with_session
    find.away, find.served = True, Successor(folder, "ipc")
    served.end()
    assert back.wait(30)
    assert tier.ends_with_session
    tier.close()
    find.served.end()


# fault (gpus): keepers cannot start, or end at once
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("short_s", "paused"), [(3600.0, [2, 3]), (0.0, [])])
def test_keepers_that_end_soon_are_replaced_with_growing_pauses(
    served: Served,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    short_s: float,
    paused: list[int],
) -> None:
    monkeypatch.setattr(watch, "_SHORT_LIFE_S", short_s)
    pauses: list[int] = []

    def pause_s(times: int) -> float:
        if times > 0:
            pauses.append(times)
            assert told[-1] == "lost", "they were left waiting"
        return 0.0

    monkeypatch.setattr(watch, "_pause_s", pause_s)
    told: list[str] = []
    find = Away(served, failures=0)
    tier = GpuTier(0, find, TOTAL)
    tier.watch(lambda _: told.append("lost"), lambda _: told.append("back"))
    find.away = True
    for ends in range(1, 4):
        old = find.served
        find.served = Successor(folder)
        folder = find.served.folder
        old.end()
        wait_until(lambda number=ends: told.count("back") == number, "it is not back")  # type: ignore[misc]
    tier.close()
    find.served.end()
    assert told == ["lost", "back"] * 3
    assert pauses == paused


# fault (gpus): the runtime folder or a keeper's socket is removed
def test_a_keeper_whose_sockets_name_was_taken_away_is_left_to_its_readers(
    served: Served, tier: GpuTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "_ASK_EVERY_S", 0.01)
    monkeypatch.setattr(watch, "_MISSES", 2)
    killed = threading.Event()
    monkeypatch.setattr(KeeperConnection, "kill", lambda _: killed.set())
    tier.watch(lambda _: None, lambda _: None)
    away = served.path.rename(served.path.with_suffix(".away"))
    wait_until(lambda: caplog.text.count("the keeper of gpu:0 cannot be reached") > 5, "no keeper was asked")
    away.rename(served.path)
    tier.close()
    assert not killed.is_set()
