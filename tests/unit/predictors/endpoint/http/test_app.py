"""The protocol over HTTP: routes, status, guards; the service behind is a stand-in."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asgi import Reply, call
from nursing import until
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.http.app import build_app, raw_request
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.endpoint.observe.metrics import Metrics
from trims_predictors.endpoint.requests.outputs import arrange
from trims_predictors.endpoint.requests.shared_memory import SharedMemory
from trims_predictors.endpoint.service import Answered
from trims_predictors.tensors import Tensor, from_array, to_array

from trims.core.errors import CallerError, ModelNotFoundError, PredictorError
from trims.manifests.serving import TensorType

# Bodies that are one input's data and nothing else: their shape follows from the model, or they are refused.


@pytest.mark.parametrize(
    ("stated", "batches", "nbytes", "shape"),
    [
        (TensorType("x", "FP32", (2, 2)), False, 16, (2, 2)),
        (TensorType("x", "FP32", (-1, 2)), False, 24, (3, 2)),
        (TensorType("x", "FP32", (-1, 2)), False, 0, (0, 2)),
        (TensorType("x", "INT8", (-1, 3, -1)), True, 12, (1, 3, 4)),
        (TensorType("x", "FP64", ()), False, 8, ()),
        (TensorType("x", "BYTES", (1,)), False, 5, (1,)),
        (TensorType("x", "BYTES", (-1, 1)), True, 5, (1, 1)),
        (TensorType("x", "BYTES", (-1,)), False, 0, (1,)),
    ],
)
def test_a_raw_body_has_the_shape_that_its_bytes_make(
    stated: TensorType, batches: bool, nbytes: int, shape: tuple[int, ...]
) -> None:
    (tensor,) = raw_request(memoryview(bytes(nbytes)), [stated], batches=batches, model="m").inputs
    assert (tensor.name, tensor.dtype, tensor.shape) == ("x", stated.dtype, shape)
    Tensor(tensor.name, tensor.dtype, tensor.shape, tensor.data).check()
    if stated.dtype == "BYTES":
        assert to_array(tensor).ravel().tolist() == [bytes(nbytes)]


X_ANY = TensorType("x", "FP32", (-1,))


@pytest.mark.parametrize(
    ("stated", "nbytes", "why"),
    [
        ([], 4, "has not told its inputs yet"),
        ([X_ANY, TensorType("y", "FP32", (1,))], 4, "2 inputs"),
        ([X_ANY], 5, "multiple of 4"),
        ([TensorType("x", "FP32", (2,))], 4, "has 8"),
        ([TensorType("x", "FP32", (-1, -1))], 4, "leaves one length open"),
        ([TensorType("x", "FP32", (-1, 0))], 4, "has 4 bytes"),
        ([TensorType("x", "BYTES", (2,))], 4, "brings one element"),
    ],
)
def test_a_raw_body_that_cannot_be_the_input_is_refused(stated: list[TensorType], nbytes: int, why: str) -> None:
    with pytest.raises(CallerError, match=why):
        raw_request(memoryview(bytes(nbytes)), stated, batches=False, model="m")


REQUEST = {"id": "7", "inputs": [{"name": "x", "datatype": "FP64", "shape": [2], "data": [1, 2]}]}


class StandIn:
    """A service with the model `m`."""

    pool = SimpleNamespace(report=lambda: {"models": {}})

    def __init__(self) -> None:
        self.repository = self
        self.metrics = Metrics()
        self.exporter = None
        self.shared_memory = SharedMemory()
        self.error: Exception | None = None
        self.asked: list[tuple[Any, ...]] = []
        self.ready = True
        self.hangs = False
        self.cancelled = asyncio.Event()

    def metadata(self) -> dict[str, Any]:
        return {"name": "trims", "version": "0", "extensions": []}

    async def is_ready(self) -> bool:
        return self.ready

    @property
    def was_ready(self) -> bool:
        return self.ready

    async def why_not_ready(self, model: str, version: str = "") -> str:
        await self.deployment(model, version)
        return str(self.error or "")

    async def metrics_page(self) -> bytes:
        return b"trims_daemon_up 1.0\n"

    async def models(self) -> list[Any]:
        return [SimpleNamespace(name="m")]

    async def deployment(self, model: str, version: str = "") -> Any:
        self.asked.append(("deployment", model, version))
        if model != "m":
            raise ModelNotFoundError(f"no model {model!r} is registered")
        return SimpleNamespace(model="m", version="1.0.0")

    async def describe(self, model: str, version: str = "") -> dict[str, Any]:
        return {"name": (await self.deployment(model, version)).model}

    configuration = describe

    async def inputs_of(self, model: str, version: str = "") -> tuple[tuple[TensorType, ...], bool]:
        await self.deployment(model, version)
        return (TensorType("x", "FP64", (-1,)),), False

    async def statistics(self, model: str = "", version: str = "") -> list[Any]:
        return []

    async def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        return [{"name": "m", "ready": str(ready)}]

    async def load(self, model: str) -> None:
        self.asked.append(("load", model))

    async def unload(self, model: str) -> None:
        self.asked.append(("unload", model))

    async def infer(
        self, model: str, version: str, asked: Any, shared: Any, *, binary: bool, span: Any = None
    ) -> Answered:
        deployment = await self.deployment(model, version)
        self.asked.append(("infer", asked.places, asked.queue_deadline_s, asked.keep_alive_s, asked.priority))
        if self.error is not None:
            raise self.error
        if self.hangs:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        outputs = [from_array("y", to_array(asked.inputs[0]) * 2)]
        answer = Answer(outputs, cold=False, how="running", place="cpu", warm=True, batch=1, stages={})
        arranged = await arrange(asked, outputs, batches=False, shared=shared, binary=binary)
        return Answered(deployment, answer, arranged)


def ask(
    method: str, path: str, body: object = b"", service: StandIn | None = None, token: str | None = None, **headers: str
) -> Reply:
    async def run() -> Reply:
        app = build_app(service or StandIn(), most_body_bytes=10_000, token=token, loopback=True)  # type: ignore[arg-type]
        return await call(app, method, path, body, **headers)

    return asyncio.run(run())


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_the_server_says_what_it_is_with_and_without_a_slash(path: str) -> None:
    assert ask("GET", path).json()["name"] == "trims"


def test_health_is_told_in_both_words_that_clients_look_for() -> None:
    service = StandIn()
    assert ask("GET", "/v2/health/live").json() == {"live": True, "ready": True}
    assert ask("GET", "/v2/health/ready").json() == {"live": True, "ready": True}
    service.ready = False
    reply = ask("GET", "/v2/health/ready", service=service)
    assert (reply.status, reply.json()) == (503, {"live": True, "ready": False})
    assert ask("GET", "/v2/health/live", service=service).json() == {"live": True, "ready": False}


def test_a_model_that_could_not_be_loaded_is_not_ready_and_the_reason_is_told() -> None:
    service = StandIn()
    assert ask("GET", "/v2/models/m/ready", service=service).json() == {"name": "m", "ready": True}
    service.error = PredictorError("its code raised")
    for path in ("/v2/models/m/ready", "/v2/models/m/versions/1.0.0/ready"):
        reply = ask("GET", path, service=service)
        assert (reply.status, reply.json()) == (503, {"name": "m", "ready": False, "reason": "its code raised"})


GETS = ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/m", "/v2/models/stats", "/state",
        "/metrics", "/openapi.json", "/", "/ui/files/tensors.js", "/ui/files/none.js", "/v2/models/other",
        "/nowhere")  # fmt: skip


@pytest.mark.parametrize("path", GETS)
def test_whatever_is_got_can_be_asked_for_its_head(path: str) -> None:
    head, whole = ask("HEAD", path), ask("GET", path)
    assert head.status == whole.status
    assert head.headers == whole.headers
    assert "content-length" in head.headers


def test_every_route_that_is_got_takes_head() -> None:
    paths = build_app(StandIn(), most_body_bytes=1, token=None, loopback=True).openapi()["paths"]  # type: ignore[arg-type]
    assert [path for path, methods in paths.items() if ("get" in methods) != ("head" in methods)] == []


def test_a_check_by_options_tells_health_and_elsewhere_the_methods() -> None:
    service = StandIn()
    service.ready = False
    assert ask("OPTIONS", "/v2/health/ready", service=service).status == 503
    assert ask("OPTIONS", "/v2/health/live").status == 200
    reply = ask("OPTIONS", "/")
    assert (reply.status, reply.body, set(reply.headers["allow"].split(", "))) == (200, b"", {"GET", "HEAD"})


@pytest.mark.parametrize("path", ["", "/ready", "/config", "/stats"])
@pytest.mark.parametrize("version", ["", "/versions/1.0.0"])
def test_every_question_of_a_model_is_answered_with_and_without_a_version(path: str, version: str) -> None:
    service = StandIn()
    assert ask("GET", f"/v2/models/m{version}{path}", service=service).status == 200
    if path != "/stats":
        assert service.asked == [("deployment", "m", version.rpartition("/")[2])]


def test_models_and_statistics_of_all_are_listed() -> None:
    assert ask("GET", "/v2/models").json() == {"models": ["m"]}
    assert ask("GET", "/v2/models/stats").json() == {"model_stats": []}
    assert ask("GET", "/state").json() == {"models": {}}


def test_an_inference_is_answered_in_json_if_it_was_asked_in_json() -> None:
    service = StandIn()
    message = {**REQUEST, "parameters": {"deadline": 2, "keep_alive": 0, "place": "disk"}}
    reply = ask("POST", "/v2/models/m/infer", message, service)
    assert reply.headers["content-type"] == "application/json"
    told = reply.json()
    assert (told["id"], told["outputs"][0]["data"]) == ("7", [2.0, 4.0])
    assert service.asked[-1] == ("infer", ("disk",), 2.0, 0.0, 0)


@pytest.mark.parametrize("binary", [None, False, True])
def test_an_inference_with_binary_inputs_is_answered_in_binary_only_if_it_asks_so(binary: bool | None) -> None:
    inputs = [{"name": "x", "datatype": "FP64", "shape": [2], "parameters": {"binary_data_size": 16}}]
    parameters = {} if binary is None else {"parameters": {"binary_data_output": binary}}
    header = json.dumps({"inputs": inputs, **parameters}).encode()
    body = header + np.array([1.0, 2.0]).tobytes()
    reply = ask("POST", "/v2/models/m/infer", body, inference_header_content_length=str(len(header)))
    if not binary:
        assert reply.json()["outputs"][0]["data"] == [2.0, 4.0]
        assert "inference-header-content-length" not in reply.headers
        return
    length = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert np.frombuffer(reply.body[length:]).tolist() == [2.0, 4.0]


@pytest.mark.parametrize("packed", [False, True])
def test_a_body_of_nothing_but_data_is_the_one_input_and_is_answered_in_binary(packed: bool) -> None:
    body = np.array([1.0, 2.0]).tobytes()
    headers = {"inference_header_content_length": "0", **({"content_encoding": "gzip"} if packed else {})}
    reply = ask("POST", "/v2/models/m/infer", gzip.compress(body) if packed else body, **headers)
    length = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.body[:length])["outputs"][0]["shape"] == [2]
    assert np.frombuffer(reply.body[length:]).tolist() == [2.0, 4.0]
    reply = ask("POST", "/v2/models/m/infer", body[:-1], inference_header_content_length="0")
    assert (reply.status, "15 bytes" in reply.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/other", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("GET", "/nowhere", 404),
        ("GET", "/v2/models/..%2F..%2Fetc/ready", 404),
        ("DELETE", "/v2", 405),
        ("POST", "/v2/models/m/infer", 400),
    ],
)
def test_what_is_not_there_or_not_right_is_an_error_object(method: str, path: str, status: int) -> None:
    reply = ask(method, path, REQUEST if "other" in path else b"")
    assert reply.status == status
    assert list(reply.json()) == ["error"]


def test_a_body_that_is_too_large_has_a_status_of_its_own() -> None:
    reply = ask("POST", "/v2/models/m/infer", b"x" * 10_001)
    assert reply.status == 413
    assert reply.headers["connection"] == "close"


def test_a_client_that_hangs_up_cancels_its_request() -> None:
    async def run() -> None:
        service = StandIn()
        service.hangs = True
        app = build_app(service, most_body_bytes=10_000, token=None, loopback=True)  # type: ignore[arg-type]
        gone = asyncio.Event()
        calling = asyncio.ensure_future(call(app, "POST", "/v2/models/m/infer", REQUEST, gone))
        await until(lambda: any(asked[0] == "infer" for asked in service.asked))
        gone.set()
        await asyncio.wait_for(service.cancelled.wait(), 30)
        assert (await calling).status == 499

    asyncio.run(run())


def test_health_and_small_requests_are_answered_while_a_large_one_is_read() -> None:
    large = {**REQUEST, "inputs": [{"name": "x", "datatype": "INT64", "shape": [50_000], "data": [7] * 50_000}]}

    async def run() -> None:
        workers = JsonWorkers()
        limits = {"most_body_bytes": 1 << 20, "token": None, "loopback": True}
        app = build_app(StandIn(), workers=workers, **limits)  # type: ignore[arg-type]
        try:
            await call(app, "POST", "/v2/models/m/infer", large)
            (pid,) = [each.pid for each in workers._processes if each.pid is not None]
            os.kill(pid, signal.SIGSTOP)
            reading = asyncio.ensure_future(call(app, "POST", "/v2/models/m/infer", large))
            for _ in range(100):
                await asyncio.sleep(0)
            assert (await call(app, "GET", "/v2/health/live")).status == 200
            assert (await call(app, "POST", "/v2/models/m/infer", REQUEST)).json()["outputs"][0]["data"] == [2.0, 4.0]
            assert not reading.done()
            os.kill(pid, signal.SIGCONT)
            assert (await reading).json()["outputs"][0]["data"] == [14] * 50_000
        finally:
            await workers.close()

    asyncio.run(run())


def test_the_repository_lists_loads_and_unloads() -> None:
    service = StandIn()
    assert ask("POST", "/v2/repository/index", {"ready": True}).json() == [{"name": "m", "ready": "True"}]
    assert ask("POST", "/v2/repository/index").json() == [{"name": "m", "ready": "False"}]
    assert ask("POST", "/v2/repository/models/m/load", {}, service).json() == {}
    assert (
        ask("POST", "/v2/repository/models/m/unload", {"parameters": {"unload_dependents": True}}, service).json() == {}
    )
    assert service.asked == [("load", "m"), ("unload", "m")]
    reply = ask("POST", "/v2/repository/models/m/load", {"parameters": {"config": "{}"}})
    assert (reply.status, "trims add --replace" in reply.json()["error"]) == (400, True)
    for wrong in (b"{", [], b"\xff", {"ready": {}}, {"ready": 1}):
        assert ask("POST", "/v2/repository/index", wrong).status == 400


@pytest.mark.parametrize("wrong", [[], "all", 0])
def test_parameters_that_are_no_object_are_refused(wrong: object) -> None:
    for verb in ("load", "unload"):
        reply = ask("POST", f"/v2/repository/models/m/{verb}", {"parameters": wrong})
        assert (reply.status, reply.json()["error"]) == (400, f"'parameters' must be an object, not {wrong!r}")
        assert ask("POST", f"/v2/repository/models/m/{verb}", {"parameters": None}).status == 200


def test_metrics_are_told_as_text_and_need_the_token() -> None:
    reply = ask("GET", "/metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert ask("GET", "/metrics", token="secret").status == 401


def test_every_inference_is_counted_also_one_that_is_wrong() -> None:
    service = StandIn()
    service.metrics.register("m")
    for path, body in (("m", REQUEST), ("m", b"{"), ("m", b"x" * 10_001), ("made-up", REQUEST)):
        ask("POST", f"/v2/models/{path}/infer", body, service)
    counted = {
        (sample.labels["model"], sample.labels["code"]): sample.value
        for metric in service.metrics._requests.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    assert counted == {
        ("m", "ok"): 1, ("m", "bad_request"): 1, ("m", "too_large_body"): 1, ("(other)", "model_not_found"): 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "extension"),
    [
        ("GET", "/v2/cudasharedmemory/region/r/status", "cuda_shared_memory"),
        ("POST", "/v2/cudasharedmemory/region/r/register", "cuda_shared_memory"),
        ("GET", "/v2/trace/setting", "trace"),
        ("POST", "/v2/logging", "logging"),
    ],
)
def test_a_route_of_an_extension_that_is_not_offered_names_it(method: str, path: str, extension: str) -> None:
    reply = ask(method, path)
    assert reply.status == 400
    assert reply.json()["error"].startswith(f"the extension {extension} is not offered")


def test_regions_of_cuda_memory_are_none_and_may_be_forgotten() -> None:
    assert ask("GET", "/v2/cudasharedmemory/status").json() == []
    for path in ("/v2/cudasharedmemory/unregister", "/v2/cudasharedmemory/region/r/unregister"):
        assert ask("POST", path).json() == {}


def test_a_path_or_method_that_is_not_there_is_named() -> None:
    missing, wrong = ask("GET", "/v2/nothing"), ask("DELETE", "/v2/models/m")
    assert (missing.status, wrong.status) == (404, 405)
    assert "'/v2/nothing'" in missing.json()["error"]
    assert "DELETE is not taken at '/v2/models/m'" in wrong.json()["error"]


def test_a_parameter_of_an_extension_that_is_not_offered_is_refused_first() -> None:
    service = StandIn()
    reply = ask("POST", "/v2/models/m/infer", {**REQUEST, "parameters": {"sequence_id": 3}}, service)
    assert (reply.status, service.asked) == (400, [])
    assert "the extension sequence is not offered" in reply.json()["error"]


def test_a_classification_is_texts_in_json_and_in_binary() -> None:
    for binary in (False, True):
        wanted = {"name": "y", "parameters": {"classification": 1, "binary_data": binary}}
        reply = ask("POST", "/v2/models/m/infer", {**REQUEST, "outputs": [wanted]})
        assert b"4.000000:1" in reply.body
        assert b'"datatype":"BYTES","shape":[1]' in reply.body


def test_regions_of_shared_memory_are_registered_and_forgotten_over_http() -> None:
    service = StandIn()
    assert ask("GET", "/v2/systemsharedmemory/status", service=service).json() == []
    off = ask("POST", "/v2/systemsharedmemory/unregister", service=service)
    assert (off.status, "--shared-memory system" in off.json()["error"]) == (400, True)
    service.shared_memory = SharedMemory(offered=True)
    path = Path(f"/dev/shm/test-{os.getpid()}")
    path.write_bytes(np.array([3.0, 4.0]).tobytes() + bytes(16))
    region = "/v2/systemsharedmemory/region/r"
    try:
        message = {"key": f"/{path.name}", "offset": 0, "byte_size": 32}
        assert ask("POST", f"{region}/register", message, service).json() == {}
        assert ask("POST", f"{region}/register", {**message, "byte_size": "32"}, service).status == 400
        assert ask("GET", f"{region}/status", service=service).json() == [{"name": "r", **message}]
        given = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
        inputs = [{"name": "x", "datatype": "FP64", "shape": [2], "parameters": given}]
        outputs = [{"name": "y", "parameters": {**given, "shared_memory_offset": 16}}]
        told = ask("POST", "/v2/models/m/infer", {"inputs": inputs, "outputs": outputs}, service).json()
        assert told["outputs"] == [{"name": "y", "datatype": "FP64", "shape": [2]}]
        assert np.frombuffer(path.read_bytes()[16:]).tolist() == [6.0, 8.0]
        both = [{**inputs[0], "data": [1, 2]}]
        assert ask("POST", "/v2/models/m/infer", {"inputs": both}, service).status == 400
        assert ask("POST", f"{region}/unregister", service=service).json() == {}
        assert ask("GET", "/v2/systemsharedmemory/status", service=service).json() == []
        assert ask("POST", "/v2/models/m/infer", {"inputs": inputs}, service).status == 400
    finally:
        service.shared_memory.close()
        path.unlink()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/repository/index", {"foo": 1}),
        ("/v2/repository/models/m/load", {"foo": 1}),
        ("/v2/repository/models/m/unload", {"parameters": {"foo": True}}),
    ],
)
def test_a_field_of_an_order_that_is_not_known_is_refused(path: str, body: dict[str, Any]) -> None:
    reply = ask("POST", path, body)
    assert (reply.status, "has the field 'foo'" in reply.json()["error"]) == (400, True)


def test_what_unloading_means_to_other_servers_is_accepted() -> None:
    path = "/v2/repository/models/m/unload"
    assert ask("POST", path, {"parameters": {"unload_dependents": False}}).json() == {}


@pytest.mark.parametrize(("name", "status"), [("m", 200), ("other", 400), (7, 400)])
def test_a_name_beside_the_path_is_the_same_model(name: object, status: int) -> None:
    assert ask("POST", "/v2/models/m/infer", {**REQUEST, "model_name": name}).status == status
