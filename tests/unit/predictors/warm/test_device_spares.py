"""Which spares wait on which device: decisions over stand-ins for the pool, its processes and the daemon's devices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.deployment.deployment import Deployment, Settings
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.warm.device_spares import ASSUMED_BYTES, DEVICE_SPARE, DeviceSpares
from trims_predictors.warm.spares import Rehearsals

from trims.control import Device
from trims.core.errors import DaemonAwayError, DeviceLostError, NoSpaceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trims.core.errors import TrimsError

GIB = 1 << 30
OURS = Deployment(DeploymentKey("m", "1"), "m", "1", "call", Environment("torch"), is_plain=True, runs_own_code=False)


def own(name: str) -> Deployment:
    """A model whose module is code of its user."""
    return replace(OURS, key=DeploymentKey(name, "1"), model=name, runs_own_code=True)


def device(place: str = "gpu:0", **facts: Any) -> Device:
    """40 GiB, of which the tier may use 30 and has used none; 38 are free."""
    given = {"free_bytes": 38 * GIB, "reserve_bytes": 1 * GIB, "process_bytes": {}, "trouble": "", **facts}
    return Device(place, "GPU-0", "A", "vmm", 1, False, 0, 30 * GIB, given.pop("free_bytes"), 40 * GIB, 0, **given)


class Process:
    """Stand-in for a predictor's process."""

    numbers = iter(range(100, 10_000))

    def __init__(self, pool: Pool) -> None:
        self.pid = next(self.numbers)
        self.how = "forked"
        self.dying = False
        self._pool = pool
        loop = asyncio.get_running_loop()
        self.going, self.ended = loop.create_future(), loop.create_future()

    async def ask(self, message: dict[str, Any], *, deadline_s: float | None) -> dict[str, Any]:
        del deadline_s
        self._pool.asked.append(message)
        if (error := self._pool.errors.get(message["op"])) is not None:
            raise error
        return {"free": self._pool.gives_up, "imported": []}

    def kill(self, why: str) -> None:
        self._pool.killed.append(why)
        self.dying = True
        if not self.going.done():
            self.going.set_result(None)
            self.ended.set_result(why)


class Pool:
    """Stand-in for the warm pool."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.killed: list[str] = []
        self.errors: dict[str, TrimsError] = {}
        self.gives_up = True
        self.shelved: list[Process] = []

    async def make(self, environment: Environment) -> Process:
        del environment
        return Process(self)

    async def calm(self) -> None:
        await asyncio.sleep(0)

    def shelve(self, process: Process) -> None:
        self.shelved.append(process)

    def unshelve(self, process: Process) -> bool:
        return process in self.shelved and not self.shelved.remove(process)  # type: ignore[func-returns-value]

    def has_room_for_hot(self, environment: Environment) -> bool:
        return bool(environment)

    def identities(self) -> tuple[()]:
        return ()

    def teach(self, environment: Environment, modules: list[str]) -> None:
        del environment, modules


class Rig:
    """Spares over the stand-ins, in a running loop."""

    def __init__(self, spares: int = 1) -> None:
        self.pool = Pool()
        self.images: dict[DeploymentKey, list[str]] = {}
        self.there: list[Device] = [device()]
        self.away = False
        made = DeviceSpares(self.pool, Settings("run", device_spares=spares), Rehearsals(), self.images)  # type: ignore[arg-type]
        made.devices = self._devices
        self.spares = made

    async def _devices(self) -> list[Device]:
        if self.away:
            raise DaemonAwayError("away")
        return self.there

    async def load(self, deployment: Deployment, place: str = "gpu:0") -> None:
        """A predictor loads the model there, and answers."""
        self.images[deployment.key] = ["key", place]
        self.spares.loaded(deployment, Process(self.pool))  # type: ignore[arg-type]
        await self.look()

    async def look(self) -> None:
        self.spares.tend()
        await self.spares._background.wait()

    @property
    def models(self) -> list[str]:
        return sorted(each["model"] for each in self.spares.report())


def in_a_loop(body: Callable[[Rig], Awaitable[None]], **given: Any) -> None:
    async def run() -> None:
        rig = Rig(**given)
        await body(rig)
        await rig.spares.close()

    asyncio.run(run())


def test_a_model_on_a_device_has_a_spare_that_its_next_request_takes() -> None:
    async def body(rig: Rig) -> None:
        await rig.load(OURS)
        assert rig.models == ["m"]
        process = await rig.spares.take(OURS)
        assert (process is not None and process.how, rig.models) == (DEVICE_SPARE, [])
        await rig.load(OURS, "cpu")
        assert await rig.spares.take(OURS) is None, "its weights lie on the host now"

    in_a_loop(body)


@pytest.mark.parametrize(
    ("facts", "number"),
    [
        ({"free_bytes": 31 * GIB + ASSUMED_BYTES}, 1),
        ({"free_bytes": 31 * GIB + ASSUMED_BYTES - 1}, 0),
        ({"free_bytes": None}, 0),
        ({"trouble": "its keeper has ended"}, 0),
    ],
)
def test_spares_take_what_weights_and_runs_leave(facts: dict[str, Any], number: int) -> None:
    async def body(rig: Rig) -> None:
        rig.there = [device(**facts)]
        await rig.load(OURS)
        assert len(rig.models) == number

    in_a_loop(body)


@pytest.mark.parametrize("facts", [{"free_bytes": 31 * GIB - 1}, {"trouble": "lost"}])
def test_spares_end_where_room_is_short_or_the_device_lost(facts: dict[str, Any]) -> None:
    async def body(rig: Rig) -> None:
        await rig.load(OURS)
        rig.there = [device(**facts)]
        await rig.look()
        assert (rig.models, len(rig.pool.killed)) == ([], 1)
        rig.there = []
        await rig.look()

    in_a_loop(body)


def test_bytes_of_a_process_count_once_the_driver_says_them() -> None:
    async def body(rig: Rig) -> None:
        rig.there = [device(free_bytes=32 * GIB, process_bytes=dict.fromkeys(range(100, 10_000), GIB + 1))]
        await rig.load(OURS)
        assert rig.models == [], "a predictor of it has more than what is left"
        rig.there = [device(free_bytes=33 * GIB, process_bytes=dict.fromkeys(range(100, 10_000), GIB))]
        await rig.load(OURS)
        await rig.look()
        assert [each["bytes"] for each in rig.spares.report()] == [GIB]

    in_a_loop(body)


def test_models_of_ours_share_spares_and_those_with_own_code_do_not() -> None:
    async def body(rig: Rig) -> None:
        other = replace(OURS, key=DeploymentKey("n", "1"), model="n")
        await rig.load(OURS)
        await rig.load(other)
        assert len(rig.models) == 1
        assert await rig.spares.take(own("f")) is None, "where its weights lie is not known"
        await rig.load(own("f"))
        await rig.load(own("g"))
        assert rig.models == ["f", "g"], "the two latest kinds"
        assert await rig.spares.take(OURS) is None
        assert await rig.spares.take(own("f")) is not None

    in_a_loop(body, spares=2)


def test_stated_ones_come_first_and_the_rest_by_their_last_load() -> None:
    async def body(rig: Rig) -> None:
        await rig.load(replace(own("stated"), hot=1))
        for name in "fgh":
            await rig.load(own(name))
        assert rig.models == ["h", "stated"]
        rig.spares.retire(own("h").key)
        await rig.look()
        assert rig.models == ["g", "stated"]

    in_a_loop(body, spares=2)


@pytest.mark.parametrize("error", [NoSpaceError("no context"), DeviceLostError("lost")])
def test_a_spare_that_cannot_be_warmed_is_tried_again_after_the_next_load(error: TrimsError) -> None:
    async def body(rig: Rig) -> None:
        rig.pool.errors["warm"] = error
        await rig.load(OURS)
        await rig.look()
        assert (rig.models, len(rig.pool.asked)) == ([], 1)
        rig.pool.errors.clear()
        await rig.load(OURS)
        assert rig.models == ["m"]

    in_a_loop(body)


def test_code_that_keeps_weights_has_no_spares() -> None:
    async def body(rig: Rig) -> None:
        rig.pool.gives_up = False
        await rig.load(OURS)
        assert (rig.models, len(rig.pool.killed)) == ([], 1)

    in_a_loop(body)


def test_a_spare_whose_context_is_lost_is_not_used() -> None:
    async def body(rig: Rig) -> None:
        await rig.load(OURS)
        rig.pool.errors["check"] = DeviceLostError("lost")
        assert await rig.spares.take(OURS) is None
        assert len(rig.pool.killed) == 1

    in_a_loop(body)


def test_a_load_without_room_ends_the_spares_of_its_device_one_by_one() -> None:
    async def body(rig: Rig) -> None:
        rig.there = [device("gpu:0"), device("gpu:1")]
        await rig.load(own("f"), "gpu:0")
        await rig.load(own("g"), "gpu:1")
        assert not await rig.spares.make_way("gpu:2")
        assert await rig.spares.make_way("gpu:1")
        assert rig.models == ["f"]
        assert await rig.spares.make_way("gpu")
        assert not await rig.spares.make_way()

    in_a_loop(body)


def test_spares_outlive_a_daemon_that_is_away() -> None:
    async def body(rig: Rig) -> None:
        await rig.load(OURS)
        rig.away = True
        await rig.look()
        assert rig.models == ["m"]

    in_a_loop(body)
