"""Images read on a device that was lost are loaded again: repeatedly, not for ever, and only while they are wanted."""

# fault (gpus): every fill of an image loses its device -> `device_lost`; after 20 tries only an open loads it

from __future__ import annotations

import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import CapacityError, DeviceLostError
from trims.core.lease import Waiter
from trims.core.place import CPU, GPU, Place
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.residency.events import Adopted, Event, Freed, PinChanged, Requested
from trims.core.residency.residency import Residency
from trims.store.device_leases import REFILL_TRIES, DeviceLeases

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.store.pending_requests import Outcome

LOST = DeviceLostError("the keeper has ended")


class Bench:
    """The leases of one device over a real residency; the test says how each load went."""

    def __init__(self) -> None:
        places = {CPU: 100, GPU: 100}
        self.residency = Residency(places, {place: LeastRecentlyUsed() for place in places})
        self.asked: list[tuple[str, Callable[[Outcome], None]]] = []
        shell: Any = SimpleNamespace(lock=threading.Lock(), feed=self.feed)
        workspace: Any = None
        self.leases = DeviceLeases(
            [],
            shell,
            self.residency,
            workspace,
            counters=Counter(),
            have=self._have,
            lease=lambda *_: None,
            clock=time.monotonic,
        )

    def _have(self, key: str, place: Place, keep_alive_s: float | None, answer: Callable[[Outcome], None]) -> None:
        assert (place, keep_alive_s) == (GPU, None)
        self.asked.append((key, answer))

    def feed(self, event: Event) -> None:
        self.residency.handle(event)
        self.residency.validate()

    def resident(self, key: str) -> None:
        self.feed(Adopted(at_s=0.0, key=key, place=GPU, nbytes=10))

    def read(self, key: str) -> None:
        self.feed(Requested(at_s=0.0, key=key, place=GPU, waiter=Waiter(1, 1, True, None)))

    def pin(self, key: str, *, pinned: bool) -> None:
        self.feed(PinChanged(at_s=0.0, key=key, place=GPU, pinned=pinned))

    def lose(self) -> None:
        self.leases.lost(GPU)
        for replica in list(self.residency.replicas.values()):
            self.feed(Freed(at_s=0.0, key=replica.key, place=GPU, generation=replica.generation))


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    for key in ("read", "pinned", "idle"):
        made.resident(key)
    made.read("read")
    made.pin("pinned", pinned=True)
    made.lose()
    assert made.asked == [], "there is nowhere to"
    return made


def test_what_was_read_or_pinned_is_asked_for_once_when_the_device_is_back(bench: Bench) -> None:
    for _ in range(2):
        bench.leases.back(GPU)
        assert [key for key, _ in bench.asked] == ["read", "pinned"]


def test_what_is_pinned_no_more_is_left_alone(bench: Bench) -> None:
    bench.pin("pinned", pinned=False)
    bench.leases.back(GPU)
    assert [key for key, _ in bench.asked] == ["read"]


def test_a_device_that_is_lost_again_is_asked_again_when_it_is_back(bench: Bench) -> None:
    bench.leases.back(GPU)
    for _, answer in list(bench.asked):
        answer(LOST)
    assert len(bench.asked) == 2
    bench.lose()
    bench.leases.back(GPU)
    assert [key for key, _ in bench.asked] == ["read", "pinned"] * 2


def test_a_loss_that_is_told_after_the_next_keeper_serves_is_asked_again_at_once(bench: Bench) -> None:
    bench.leases.back(GPU)
    bench.lose()
    bench.leases.back(GPU)
    bench.asked[0][1](LOST)
    assert [key for key, _ in bench.asked] == ["read", "pinned", "read"]


def test_another_error_is_the_end_of_it(bench: Bench) -> None:
    bench.leases.back(GPU)
    for _, answer in list(bench.asked):
        answer(CapacityError("full"))
    bench.leases.back(GPU)
    assert len(bench.asked) == 2


def test_an_image_whose_every_fill_loses_the_device_is_given_up(bench: Bench) -> None:
    bench.leases.back(GPU)
    for _ in range(2 * REFILL_TRIES):
        bench.asked[-1][1](LOST)
        bench.lose()
        bench.leases.back(GPU)
    assert [key for key, _ in bench.asked].count("pinned") == REFILL_TRIES
