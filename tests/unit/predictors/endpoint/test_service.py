"""Service of the endpoint over any protocol, with a daemon and a pool that are stand-ins."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from nursing import until
from trims_predictors.deployment.deployment import Answer, Deployment
from trims_predictors.endpoint.requests.infer_request import InferRequest
from trims_predictors.endpoint.requests.shared_memory import Lent
from trims_predictors.endpoint.service import Service
from trims_predictors.pool.load_failures import Failures

from trims.control.answers import Model, ModelChange
from trims.core.errors import (
    ArtifactError,
    CapacityError,
    DaemonAwayError,
    InUseError,
    ModelNotFoundError,
    PredictorError,
)
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.manifests.serving import TensorType

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


def model(name: str, *states: str, also: tuple[str, ...] = (), **fields: Any) -> Model:
    manifest = {"name": name, "version": "1.0.0", "artifact": {"path": "/m.safetensors"}, **fields}
    replicas: Any = tuple(
        SimpleNamespace(
            place="cpu",
            state=state,
            pinned=state == "pinned",
            names=(name, *also),
            nbytes=1,
            leases=0,
            waiters=0,
            keep_left_s=None,
        )
        for state in states
    )
    return Model(
        name=name, version="1.0.0", description="", framework="", format="", key="", replicas=replicas,
        manifest_json=json.dumps(manifest), image_bytes=0, license="", origin="", in_memory="",
    )  # fmt: skip


NONE_SHARED = Lent({}, 0)
REPORT: Any = {"models": {}, "versions": {}, "spares": {}, "templates": {}, "hot": {}, "device_spares": []}


class Daemon:
    BUSY = "'m' is filling at cpu; evict it once its load has ended"

    def __init__(self, *models: Model) -> None:
        self.known = {each.name: each for each in models}
        self.health: str | None = "serving"
        self.busy = False
        self.error: Exception | None = None
        self.damage = ""
        self.did: list[tuple[str, ...]] = []

    async def models(self) -> list[Model]:
        return list(self.known.values())

    async def show(self, name: str, *, look: bool = False) -> Model:
        if name not in self.known:
            raise ModelNotFoundError(f"no model {name!r}")
        if look and self.damage:
            raise ArtifactError(self.damage)
        return self.known[name]

    async def status(self) -> Any:
        if self.health is None:
            raise DaemonAwayError("no daemon")
        stats = SimpleNamespace(uptime_s=1.0, sessions=0, leases=0, devices=(), tiers=())
        return SimpleNamespace(health=SimpleNamespace(status=self.health, state_dir="/state"), stats=stats)

    async def transfers(self) -> list[Any]:
        return []

    async def load(self, name: str, *place: str | None, deadline_s: float | None = None) -> None:
        del deadline_s
        if self.error is not None:
            raise self.error
        self.did.append(("load", name, *filter(None, place)))

    async def evict(self, name: str, *place: str, drain: bool) -> None:
        assert drain, "leases run out"
        if self.busy:
            raise InUseError(self.BUSY)
        self.did.append(("evict", name, *place))

    async def pin(self, name: str, place: str) -> None:
        self.did.append(("pin", name, place))

    async def unpin(self, name: str, place: str) -> None:
        self.did.append(("unpin", name, place))

    async def watch_models(self, watcher: str = "") -> AsyncGenerator[ModelChange, None]:
        yield ModelChange((), all=False, outside=False)
        await asyncio.sleep(60)


class WorkerPool:
    def __init__(self) -> None:
        self.retired: list[str] = []
        self.expected: list[str] = []
        self.error: Exception | None = None
        self.hidden: list[str] = []
        self.failures = Failures()
        self.loaded: list[str] = []
        self.runs = False
        self.hot = self.ahead = SimpleNamespace(want=lambda _: None, prepare=lambda _: None)
        self.on_devices = SimpleNamespace()

    async def load(self, deployment: Deployment) -> None:
        if self.error is not None:
            raise self.error
        self.loaded.append(deployment.key)

    def has_loaded(self, deployment: Deployment) -> bool:
        return self.runs

    async def make_way(self, _place: str | None = None) -> bool:
        return False

    def hide(self, path: str) -> None:
        self.hidden.append(path)

    def retire(self, line: str) -> None:
        self.retired.append(line)

    def expect(self, deployment: Deployment, tensors: Any) -> None:
        del tensors
        self.expected.append(deployment.model)

    @property
    def signatures(self) -> Any:
        return SimpleNamespace(stated=self._signature, described=self._signature)

    def _signature(self, deployment: Deployment) -> Any:
        return deployment.inputs or (TensorType("told", "BYTES", (-1, 2)),), deployment.outputs

    async def infer(self, deployment: Deployment, tensors: Any, **given: Any) -> Answer:
        del deployment, tensors, given
        if self.error is not None:
            raise self.error
        return Answer([], cold=True, how="spare", place="cpu", warm=True, batch=1, stages={})


@pytest.fixture
def daemon() -> Daemon:
    inputs = [{"name": "x", "dtype": "FP32", "shape": [-1, 3]}]
    return Daemon(
        model("m", "sealed", framework={"name": "torch"}, inputs=inputs, predictor={"max_batch_size": 4}),
        model("plain", framework={"name": "onnxruntime"}),
        model("odd"),
    )


@pytest.fixture
def pool() -> WorkerPool:
    return WorkerPool()


@pytest.fixture
def service(daemon: Daemon, pool: WorkerPool) -> Service:
    return Service(daemon, pool, InterpreterSelection())  # type: ignore[arg-type]


def test_it_is_ready_while_the_daemon_serves(service: Service, daemon: Daemon) -> None:
    for health, ready in (("serving", True), ("draining", False), (None, False)):
        daemon.health = health
        assert asyncio.run(service.is_ready()) is ready


def test_a_model_is_described_by_its_manifest_or_its_predictor(service: Service) -> None:
    told = asyncio.run(service.describe("m", "1.0.0"))
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert (told["platform"], told["versions"]) == ("pytorch_module", ["1.0.0"])
    assert asyncio.run(service.describe("plain"))["inputs"][0]["name"] == "told"
    (known,), batches = asyncio.run(service.inputs_of("m"))
    assert (known.name, known.shape, batches) == ("x", (-1, 3), bool(asyncio.run(service.deployment("m")).batch))


def test_a_configuration_leaves_out_the_batch_dimension_of_models_that_have_one(service: Service) -> None:
    told = asyncio.run(service.configuration("m"))
    assert (told["max_batch_size"], told["input"]) == (4, [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}])
    told = asyncio.run(service.configuration("plain"))
    assert (told["max_batch_size"], told["input"][0]["dims"]) == (0, [-1, 2])
    assert told["input"][0]["data_type"] == "TYPE_STRING"


def test_requests_and_failures_are_counted(service: Service, pool: WorkerPool) -> None:
    async def run() -> None:
        await service.infer("m", "", InferRequest([]), NONE_SHARED)
        pool.error = PredictorError("broken")
        with pytest.raises(PredictorError):
            await service.infer("m", "", InferRequest([]), NONE_SHARED)
        with pytest.raises(ModelNotFoundError):
            await service.infer("unknown", "", InferRequest([]), NONE_SHARED)
        (told,) = await service.statistics("m")
        assert (told["inference_stats"]["success"]["count"], told["inference_stats"]["fail"]["count"]) == (1, 1)
        assert [each["name"] for each in await service.statistics()] == ["m"]

    asyncio.run(run())


def test_a_predictor_is_expected_for_a_model_that_was_asked_for_before(service: Service, pool: WorkerPool) -> None:
    async def run() -> None:
        await service.infer("m", "", InferRequest([]), NONE_SHARED)
        await service.infer("m", "", InferRequest([]), NONE_SHARED)
        assert pool.expected == [], "nothing changed: the deployment is there at once"
        service._deployments._mark(None)
        await service.infer("m", "", InferRequest([]), NONE_SHARED)
        assert pool.expected == ["m"]
        with pytest.raises(ModelNotFoundError):
            await service.infer("m", "9.9.9", InferRequest([]), NONE_SHARED)
        assert pool.expected == ["m"], "not of another version"

    asyncio.run(run())


def test_a_model_that_was_removed_is_not_among_the_statistics(service: Service, daemon: Daemon) -> None:
    async def run() -> None:
        await service.infer("m", "", InferRequest([]), NONE_SHARED)
        del daemon.known["m"]
        service._deployments.forget("m")
        assert await service.statistics() == []

    asyncio.run(run())


def test_the_index_says_why_a_model_is_not_ready(service: Service) -> None:
    found = {each["name"]: (each["state"], each["reason"]) for each in asyncio.run(service.repository.index())}
    assert found["m"] == ("READY", "")
    assert found["plain"] == ("UNAVAILABLE", "not loaded; the first request loads it")
    assert found["odd"][0] == "UNAVAILABLE"
    assert "nothing says what runs 'odd'" in found["odd"][1]
    assert [each["name"] for each in asyncio.run(service.repository.index(ready=True))] == ["m"]


def test_a_model_that_could_not_be_loaded_is_ready_nowhere_until_it_changes(
    service: Service, daemon: Daemon, pool: WorkerPool
) -> None:
    async def told() -> list[str]:
        (page,) = [each for each in json.loads(await service.repository.overview.page(lambda: REPORT))["models"]
                   if each["name"] == "m"]  # fmt: skip
        index = {each["name"]: (each["state"], each["reason"]) for each in await service.repository.index()}
        state, reason = index["m"]
        assert state == ("UNAVAILABLE" if reason else "READY")
        assert [each["name"] for each in await service.repository.index(ready=True)] == ([] if reason else ["m"])
        properties = (await service.describe("m")).get("properties")
        assert properties == ({"ready": "false", "reason": reason} if reason else None)
        return [
            reason,
            page["failure"],
            await service.why_not_ready("m"),
            await service.why_not_ready("m", "1.0.0"),
        ]

    async def run() -> None:
        assert await told() == [""] * 4, "a model that was not tried is ready"
        for error, kept in ((CapacityError("no room"), ""), (ArtifactError("it is cut"), "it is cut")):
            daemon.error = error
            with pytest.raises(type(error)):
                await service.repository.load("m")
            assert await told() == [kept] * 4
        daemon.error = None
        await service.repository.bring("m", None)
        assert await told() == ["it is cut"] * 4, "weights alone do not show that it runs"
        daemon.known["m"] = model("m", "sealed", framework={"name": "torch"}, description="changed")
        service._deployments.forget("m")
        service.repository.overview.expire()
        assert await told() == [""] * 4
        await service.close()

    asyncio.run(run())


def test_while_the_endpoint_ends_neither_it_nor_any_model_is_ready(service: Service) -> None:
    async def run() -> None:
        assert (await service.is_ready(), service.was_ready, await service.why_not_ready("m")) == (True, True, "")
        service.drain()
        assert (await service.is_ready(), service.was_ready) == (False, False)
        assert await service.why_not_ready("m") == "the endpoint is ending"

    asyncio.run(run())


@pytest.mark.parametrize("health", ["draining", None])
def test_while_the_daemon_takes_no_opens_no_model_is_ready(
    service: Service, daemon: Daemon, health: str | None
) -> None:
    async def run() -> None:
        assert await service.why_not_ready("m") == ""
        daemon.health = health
        assert "the daemon takes no opens" in await service.why_not_ready("m")
        assert {each["state"] for each in await service.repository.index()} == {"UNAVAILABLE"}
        daemon.health = "serving"
        assert await service.why_not_ready("m") == ""

    asyncio.run(run())


def test_a_model_whose_file_is_damaged_is_not_ready_unless_a_predictor_runs(
    service: Service, daemon: Daemon, pool: WorkerPool
) -> None:
    daemon.damage = "the file is cut"
    assert asyncio.run(service.why_not_ready("m")) == "the file is cut"
    pool.runs = True
    assert asyncio.run(service.why_not_ready("m")) == ""
    pool.runs = False
    daemon.damage = ""
    assert asyncio.run(service.why_not_ready("m")) == ""


def test_a_model_that_nothing_runs_is_not_ready_with_the_reason(service: Service, daemon: Daemon) -> None:
    daemon.known["odd"] = model("odd")
    assert "odd" in asyncio.run(service.why_not_ready("odd"))


def test_a_failure_of_a_model_that_is_removed_is_forgotten(service: Service, daemon: Daemon, pool: WorkerPool) -> None:
    async def run() -> None:
        deployment = await service.deployment("m")
        pool.failures.learn(deployment, PredictorError("its code raised"))
        removed = daemon.known.pop("m")
        service._deployments.forget("m")
        with pytest.raises(ModelNotFoundError):
            await service.why_not_ready("m")
        daemon.known["m"] = removed
        assert await service.why_not_ready("m") == ""

    asyncio.run(run())


def test_load_and_unload_are_the_daemon_s_and_unload_ends_predictors_first(
    service: Service, daemon: Daemon, pool: WorkerPool
) -> None:
    async def run() -> None:
        await service.repository.load("m")
        await service.repository.unload("m")
        assert daemon.did == [("load", "m"), ("evict", "m")]
        assert pool.loaded == pool.retired
        assert len(pool.retired) == 1
        for work in (service.repository.load, service.repository.unload):
            with pytest.raises(ModelNotFoundError):
                await work("unknown")

    asyncio.run(run())


def test_a_refusal_of_the_daemon_is_passed_on_in_its_words(service: Service, daemon: Daemon) -> None:
    daemon.busy = True
    for work in (service.repository.unload("m"), service.repository.evict("m", "cpu")):
        with pytest.raises(InUseError, match=f"^{re.escape(Daemon.BUSY)}$"):
            asyncio.run(work)


def test_unload_ends_predictors_of_all_names_of_the_image(pool: WorkerPool) -> None:
    torch = {"name": "torch"}
    daemon = Daemon(model("a", "sealed", also=("b",), framework=torch), model("b", framework=torch))
    service = Service(daemon, pool, InterpreterSelection())  # type: ignore[arg-type]

    async def run() -> None:
        lines = {(await service.deployment(name)).key for name in ("a", "b")}
        await service.repository.unload("a")
        assert set(pool.retired) == lines

    asyncio.run(run())


def test_models_have_labels_for_as_long_as_they_are_registered(service: Service, daemon: Daemon) -> None:
    async def run() -> None:
        await service.deployment("m")
        with pytest.raises(ModelNotFoundError):
            await service.deployment("m", "another version")
        assert service.metrics._registered == {"m"}
        with pytest.raises(ModelNotFoundError):
            await service.deployment("made-up")
        assert service.metrics._registered == {"m"}
        del daemon.known["m"]
        service._deployments.forget("m")
        with pytest.raises(ModelNotFoundError):
            await service.deployment("m")
        assert service.metrics._registered == set()
        await service.close()

    asyncio.run(run())


def test_a_model_is_brought_and_pinned_without_an_end_of_its_predictors(
    service: Service, daemon: Daemon, pool: WorkerPool
) -> None:
    async def run() -> None:
        await service.deployment("m")
        await service.repository.bring("m", "gpu:0")
        await service.repository.bring("m", None)
        await service.repository.pin("m", "cpu", pinned=True)
        await service.repository.pin("m", "cpu", pinned=False)

    asyncio.run(run())
    assert daemon.did == [("load", "m", "gpu:0"), ("load", "m"), ("pin", "m", "cpu"), ("unpin", "m", "cpu")]
    assert pool.retired == []


def test_an_eviction_ends_the_predictors_but_not_if_a_pin_will_refuse_it(
    service: Service, daemon: Daemon, pool: WorkerPool
) -> None:
    async def run() -> None:
        await service.deployment("m")
        daemon.known["m"] = model("m", "pinned")
        await service.repository.evict("m", "cpu")
        assert pool.retired == []
        await service.repository.evict("m", "disk")
        assert len(pool.retired) == 1
        with pytest.raises(ModelNotFoundError):
            await service.repository.evict("abcdef", "cpu")

    asyncio.run(run())
    assert daemon.did == [("evict", "m", "cpu"), ("evict", "m", "disk")]


def test_the_daemon_s_files_are_hidden_before_the_first_predictor_wherever_they_are(
    service: Service, daemon: Daemon, pool: WorkerPool
) -> None:
    async def work() -> None:
        daemon.health = None
        await service.deployment("m")
        assert pool.hidden == []
        daemon.health = "serving"
        for _ in range(3):
            await service.deployment("m")
        assert pool.hidden == ["/state"]
        watching = asyncio.ensure_future(service.watch())
        await until(lambda: service._deployments._watch.is_complete)
        for _ in range(2):
            await service.deployment("m")
        assert len(pool.hidden) == 2, "another daemon may answer, which has its files elsewhere"
        watching.cancel()

    asyncio.run(work())
