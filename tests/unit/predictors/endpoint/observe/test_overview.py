"""Overview that the web page polls: one JSON object, from one look at the daemon for all pages."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from trims_predictors.endpoint.observe.overview import Overview

from trims.control import Device, Health, Model, Replica, Stats, Status, Tier
from trims.control.answers import Transfer
from trims.core.errors import DaemonAwayError, NotSupportedError

HEALTH = Health("serving", "0", 1, "boot", 1, "/state")
DEVICE = Device("gpu:0", "uuid", "H100", "vmm", 0, False, 1, 200, None, None, 1, "its keeper is gone")
STATS = Stats(
    counters={}, tiers=(Tier("gpu:0", 200, 1, 1, "lru"), Tier("cpu", 100, 40, 2, "lru"), Tier("file", 0, 9, 1, "lru")),
    sessions=3, leases=4, uptime_s=5.55, devices=(DEVICE,), gpu_off="", unverified_bytes=0, max_files=1, max_sessions=1,
    max_images=8, images=2,
)  # fmt: skip
REPORT = {
    "models": {"m": {"queued": 2, "starting": 0, "idle": 1, "busy": 1}},
    "versions": {"m@1": {"queued": 2, "starting": 0, "idle": 1, "busy": 1}},
    "spares": {"torch": 1},
    "templates": {},
    "hot": {"m": 1},
    "device_spares": [],
}


def replica(place: str = "cpu", *, pinned: bool = False, keep_left_s: float | None = None) -> Replica:
    return Replica(
        key="k", place=place, state="sealed", nbytes=40, leases=1, waiters=0, pinned=pinned, keep_left_s=keep_left_s,
        cost_s=1.0, uses=1, idle_s=0.0, digest="d", location="/secret/path", generation=1, names=("m",), holders=(),
        story=(), device="",
    )  # fmt: skip


def model(name: str, *replicas: Replica) -> Model:
    return Model(
        name=name, version="1.0.0", description="<b>", framework="torch", format="", key="k", replicas=replicas,
        manifest_json="{}", image_bytes=40, license="", origin="", in_memory="",
    )  # fmt: skip


class Daemon:
    def __init__(self, *models: Model) -> None:
        self.known = list(models)
        self.asked = 0
        self.away = False
        self.running: list[Transfer] | None = []

    async def models(self) -> list[Model]:
        self.asked += 1
        if self.away:
            raise DaemonAwayError("no daemon answers at /run")
        return self.known

    async def status(self) -> Status:
        return Status(HEALTH, STATS)

    async def transfers(self) -> list[Transfer]:
        if self.running is None:
            raise NotSupportedError("a daemon of before")
        return self.running


def trouble(model: Model) -> str:
    return "nothing runs it" if model.name == "odd" else ""


def failure(model: Model) -> str:
    return "its code raised" if model.name == "broken" else ""


def page(daemon: Daemon) -> Any:
    async def run() -> Any:
        overview = Overview(daemon, trouble, failure)  # type: ignore[arg-type]
        found = await overview.page(lambda: REPORT)
        await overview.close()
        return json.loads(found)

    return asyncio.run(run())


def test_places_are_told_with_their_capacity_and_what_is_wrong_with_their_device() -> None:
    gpu, cpu, file = page(Daemon())["places"]
    assert (cpu["place"], cpu["used_bytes"], cpu["capacity_bytes"]) == ("cpu", 40, 100)
    assert file["capacity_bytes"] is None
    assert (gpu["device"], gpu["trouble"]) == ("H100", "its keeper is gone")


def test_models_are_told_in_order_with_their_replicas_and_predictors() -> None:
    odd, m = page(Daemon(model("odd"), model("m", replica(keep_left_s=7.5), replica("disk", pinned=True))))["models"][
        ::-1
    ]
    assert m["replicas"][0] == {
        "place": "cpu", "state": "sealed", "bytes": 40, "leases": 1, "waiters": 0, "pinned": False, "keep_left_s": 7.5,
    }  # fmt: skip
    assert m["replicas"][1]["pinned"]
    assert m["predictors"] == {"queued": 2, "starting": 0, "idle": 1, "busy": 1, "hot": 1}
    assert odd["predictors"] == {"starting": 0, "idle": 0, "busy": 0, "queued": 0, "hot": 0}
    assert (m["trouble"], odd["trouble"]) == ("", "nothing runs it")


def test_a_model_that_could_not_be_loaded_shows_why_and_can_be_tried() -> None:
    (broken,) = page(Daemon(model("broken")))["models"]
    assert (broken["failure"], broken["trouble"]) == ("its code raised", "")


def test_paths_of_the_machine_are_not_told() -> None:
    assert "secret" not in json.dumps(page(Daemon(model("m", replica()))))


def test_a_daemon_that_is_away_is_told_with_its_reason() -> None:
    daemon = Daemon(model("m"))
    daemon.away = True
    found = page(daemon)
    assert found["daemon"]["status"] == "away"
    assert found["daemon"]["trouble"] == "no daemon answers at /run"
    assert (found["places"], found["models"]) == ([], [])


def test_many_pages_cost_one_look_and_an_order_has_the_next_one_look_again() -> None:
    async def run() -> None:
        daemon = Daemon(model("m"))
        overview = Overview(daemon, trouble, failure)  # type: ignore[arg-type]
        await asyncio.gather(*(overview.page(lambda: REPORT) for _ in range(9)))
        assert daemon.asked == 1
        overview.expire()
        await overview.page(lambda: REPORT)
        assert daemon.asked == 2
        await overview.close()

    asyncio.run(run())


def test_a_daemon_that_hangs_is_told_as_away() -> None:
    async def run() -> Any:
        daemon = Daemon()
        overview = Overview(daemon, trouble, failure)  # type: ignore[arg-type]
        overview._look._patience_s = 0.001
        daemon.status = asyncio.Event().wait  # type: ignore[assignment,method-assign]
        found = json.loads(await overview.page(lambda: SimpleNamespace(**REPORT).__dict__))
        await overview.close()
        return found

    assert "has not answered within" in asyncio.run(run())["daemon"]["trouble"]


def test_transfers_are_shown_and_a_daemon_of_before_has_none() -> None:
    daemon = Daemon()
    daemon.running = [Transfer("s3://bucket/m", 5, 10, 5, 2.5, 2.0, "fetch")]
    assert page(daemon)["transfers"] == [
        {"address": "s3://bucket/m", "done_bytes": 5, "total_bytes": 10, "fetched_bytes": 5, "bytes_per_s": 2.5,
         "left_s": 2.0, "what": "fetch", "trouble": ""}
    ]  # fmt: skip
    daemon.running = None
    assert page(daemon)["transfers"] == []
