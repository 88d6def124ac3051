"""Tenants at the endpoint: real requests with tokens, predictors apart, and what one cannot do to another."""

from __future__ import annotations

import ast
import asyncio
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from endpoints import Endpoint
from fleets import SUPPORT, register
from in_namespaces import namespaces
from looking import wait_until
from trims_predictors.deployment.deployment import Settings
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc import inference_pb2_grpc
from trims_predictors.endpoint.settings import EndpointSettings

from trims.control import admin
from trims.core.errors import ConfigError
from trims.tenants import hash_of, read_tenants
from trims.wire.messages import _PARSERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
OPERATOR, BLUE, RED = (f"the long token of {name}" for name in ("the operator", "blue", "red"))
TENANTS = f"""
blue:
  tokens: ["{hash_of(BLUE)}"]
  models: ["blue-*", shared]
  predictors: 1
red:
  tokens: ["{hash_of(RED)}"]
  models: ["red-*", shared]
  leases: 1
"""


@pytest.fixture
def shared(folder: Path, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]) -> Daemon:
    """A daemon with two tenants; each has models of its own, and they have one in common."""
    (folder / "tenants.yaml").write_text(TENANTS)
    (folder / "token").write_text(OPERATOR)
    (folder / "token").chmod(0o600)
    daemon = serve(tenants=folder / "tenants.yaml")
    for name, call in (
        ("blue-1", "Echo"),
        ("blue-2", "Echo"),
        ("red-1", "Echo"),
        ("red-2", "Echo"),
        ("shared", "Echo"),
    ):
        register(daemon, checkpoint, name, predictor={"call": f"own_predictors:{call}"})
    register(daemon, checkpoint, "blue-slow", predictor={"call": "own_predictors:Slow"})
    return daemon


@pytest.fixture
def endpoint(shared: Daemon, folder: Path) -> Iterator[Endpoint]:
    files = ("--tenants", str(folder / "tenants.yaml"), "--token-file", str(folder / "token"))
    made = Endpoint(shared.config.runtime_dir, *files, "--isolation", "process")  # processes have the numbers seen here
    yield made
    made.end()


def accounts(daemon: Daemon) -> dict[str, Any]:
    return {each.name: each for each in daemon.store.read.accounts()}


def pid_of(answer: Any) -> int:
    return next(int(each["data"][0]) for each in answer["outputs"] if each["name"] == "pid")


def test_a_token_opens_its_tenants_models_and_no_others(shared: Daemon, endpoint: Endpoint) -> None:
    assert endpoint.infer("blue-1", [1.0], BLUE)[0] == 200
    status, answer = endpoint.infer("red-1", [1.0], BLUE)
    assert status == 403
    assert "tenant 'blue' may not open 'red-1'" in answer["error"]
    assert endpoint.infer("no-such-model", [1.0], BLUE)[0] == 403
    for token in ("", "x" * 20, BLUE[:-1]):
        assert endpoint.infer("blue-1", [1.0], token)[0] == 401
    assert endpoint.infer("red-1", [1.0], OPERATOR)[0] == 200
    assert accounts(shared)["blue"].leases == 1
    assert accounts(shared)["red"].leases == 0, "the operator's predictors are not the tenant's"


def test_a_tenant_sees_its_models_only_and_gives_no_orders(endpoint: Endpoint) -> None:
    assert sorted(endpoint.ask("GET", "/v2/models", token=RED)[1]["models"]) == ["red-1", "red-2", "shared"]
    found = endpoint.ask("POST", "/v2/repository/index", {}, BLUE)[1]
    assert {model["name"] for model in found} == {"blue-1", "blue-2", "blue-slow", "shared"}
    for path in ("/v2/models/red-1", "/v2/models/red-1/config", "/v2/models/red-1/stats", "/v2/models/red-1/ready"):
        assert endpoint.ask("GET", path, token=BLUE)[0] == 403
    for order in ("load", "unload"):
        status, answer = endpoint.ask("POST", f"/v2/repository/models/blue-1/{order}", {}, BLUE)
        assert (status, "only the operator of this endpoint may" in answer["error"]) == (403, True)
        assert endpoint.ask("POST", f"/v2/repository/models/blue-1/{order}", {}, OPERATOR)[0] == 200
    for path in ("/state", "/metrics", "/ui/state"):
        assert endpoint.ask("GET", path, token=BLUE)[0] == 403
    assert endpoint.ask("GET", "/v2/health/ready")[0] == 200


def test_a_tenant_calls_its_functions_by_processes_of_its_own(
    shared: Daemon, endpoint: Endpoint, checkpoint: Callable[..., Path]
) -> None:
    register(shared, checkpoint, "of-the-operator")
    with admin(shared.config.runtime_dir) as control:
        for name in ("blue-function", "red-function"):
            predictor = {"handler": f"{SUPPORT}/own_handlers.py:handler"}
            control.add({"name": name, "artifact": {"model": "of-the-operator"}, "predictor": predictor}, lazy=True)
    listed = endpoint.ask("GET", "/functions", token=BLUE)[1]["functions"]
    assert [each["name"] for each in listed] == ["blue-function"]
    status, answer = endpoint.ask("POST", "/functions/blue-function", {"x": 1}, BLUE)
    assert (status, answer["y"]) == (200, 2.0), "its model is another name, which the tenant may not open"
    assert endpoint.ask("POST", "/functions/red-function", {"x": 1}, BLUE)[0] == 403
    own = endpoint.ask("POST", "/functions/blue-function", {"x": 1}, OPERATOR)[1]["pid"]
    assert own != answer["pid"]
    assert accounts(shared)["blue"].leases == 1


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_tenants_are_answered_by_predictors_of_templates_of_their_own(endpoint: Endpoint) -> None:
    pids = {token: pid_of(endpoint.infer("shared", [1.0], token)[1]) for token in (BLUE, RED, OPERATOR)}
    assert len(set(pids.values())) == 3
    assert {token: pid_of(endpoint.infer("shared", [1.0], token)[1]) for token in pids} == pids
    assert len({parent_of(pid) for pid in pids.values()}) == 3
    models = endpoint.ask("GET", "/state", token=OPERATOR)[1]["models"]
    assert {name: line["idle"] for name, line in models.items()} == {"shared": 1, "shared/blue": 1, "shared/red": 1}


def test_a_tenant_has_as_many_predictors_as_it_may(endpoint: Endpoint) -> None:
    for name in ("blue-1", "blue-2", "blue-1"):
        assert endpoint.infer(name, [1.0], BLUE)[0] == 200
        lines = endpoint.ask("GET", "/state", token=OPERATOR)[1]["models"]
        assert sum(line["idle"] + line["starting"] for name, line in lines.items() if "/blue" in name) <= 1


def test_a_tenant_without_leases_left_has_its_own_idle_predictor_end(endpoint: Endpoint) -> None:
    assert endpoint.infer("shared", [1.0], BLUE)[0] == 200
    for name in ("red-1", "red-2", "red-1"):
        assert endpoint.infer(name, [1.0], RED)[0] == 200
        lines = endpoint.ask("GET", "/state", token=OPERATOR)[1]["models"]
        idle = {model for model, line in lines.items() if line["idle"]}
        assert idle == {f"{name}/red", "shared/blue"}, "red has one lease, and another tenant's predictor stays"


def test_a_tenant_that_floods_its_queue_does_not_hold_up_another(endpoint: Endpoint) -> None:
    done: list[int] = []

    def flood() -> None:
        done.append(endpoint.infer("blue-slow", [1.0], BLUE)[0])

    threads = [threading.Thread(target=flood) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:

        def waiting() -> int:
            lines = endpoint.ask("GET", "/state", token=OPERATOR)[1]["models"]
            return int(lines.get("blue-slow/blue", {"queued": 0})["queued"])

        wait_until(lambda: waiting() >= 8, "requests of the blue tenant wait")
        for _ in range(3):
            assert endpoint.infer("shared", [1.0], RED)[0] == 200
        assert waiting() > 0, "the red tenant was answered before them"
    finally:
        for thread in threads:
            thread.join()
    assert done == [200] * 12


def test_statistics_of_a_tenant_are_of_its_own_requests(endpoint: Endpoint) -> None:
    for token, times in ((BLUE, 1), (RED, 2), (OPERATOR, 1)):
        for _ in range(times):
            assert endpoint.infer("shared", [1.0], token)[0] == 200

    def count(token: str) -> int:
        (told,) = endpoint.ask("GET", "/v2/models/shared/stats", token=token)[1]["model_stats"]
        return int(told["inference_count"])

    assert [count(token) for token in (BLUE, RED, OPERATOR)] == [1, 2, 4]


def test_a_model_that_is_registered_again_ends_the_predictors_of_all(
    shared: Daemon, endpoint: Endpoint, checkpoint: Callable[..., Path]
) -> None:
    before = [pid_of(endpoint.infer("shared", [1.0], token)[1]) for token in (BLUE, RED)]
    register(shared, checkpoint, "shared", predictor={"call": "own_predictors:Echo", "options": {"bias": 1}})

    def changed() -> bool:
        return not set(before) & {pid_of(endpoint.infer("shared", [1.0], token)[1]) for token in (BLUE, RED)}

    wait_until(changed, "new predictors")


def test_over_grpc_a_token_means_the_same(endpoint: Endpoint) -> None:
    async def infer(model: str, token: str) -> str:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
            stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            request = pb.ModelInferRequest(model_name=model)
            tensor = request.inputs.add(name="x", datatype="FP64", shape=[1])
            tensor.contents.fp64_contents.append(1.0)
            metadata = (("authorization", f"Bearer {token}"),)
            try:
                await stub.ModelInfer(request, metadata=metadata)
                streamed = [each async for each in stub.ModelStreamInfer(iter([request]), metadata=metadata)]
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return streamed[0].error_message or "OK"

    told = [
        asyncio.run(infer(model, token)) for model, token in (("blue-1", BLUE), ("red-1", BLUE), ("red-1", "x" * 20))
    ]
    assert told == ["OK", "PERMISSION_DENIED", "UNAUTHENTICATED"]


@namespaces
def test_a_predictor_in_a_namespace_opens_the_models_of_its_tenant_only(
    shared: Daemon, folder: Path, checkpoint: Callable[..., Path]
) -> None:
    register(shared, checkpoint, "blue-probe", predictor={"call": "own_predictors:Prober"})
    files = ("--tenants", str(folder / "tenants.yaml"), "--token-file", str(folder / "token"))
    endpoint = Endpoint(shared.config.runtime_dir, *files, "--isolation", "namespaces")
    try:
        told = [_probe(endpoint, code.format(str_run=str(shared.config.runtime_dir))) for code in _PROBES]
    finally:
        endpoint.end()
    assert "PermissionDeniedError: tenant 'blue' may not open 'red-1'" in told[0]
    assert told[1] == "'cpu'"
    assert told[2] == "['attach.sock']"
    assert told[3].startswith("FileNotFoundError")


#: What each message of the attach door comes to in the blue tenant's predictor: the error's code, or what is answered.
_ASKED = {
    "hello": ({"protocol": 1, "agent": "x"}, "bad_message"),
    "open": ({"id": 1, "model": "red-1"}, "permission_denied"),
    "prefetch": ({"id": 1, "model": "red-1"}, "permission_denied"),
    "close": ({"id": 1, "lease": 1}, "closed"),  # of its own session only, which has none of this number
    "resume": ({"id": 1, "key": "0" * 64, "place": "cpu"}, "permission_denied"),
    "attach": ({"id": 1, "lease": 1}, "device_lost"),  # not its own either
    "workspace": ({"id": 1, "lease": 1, "nbytes": 1}, "permission_denied"),
    "program": ({"id": 1, "key": "0" * 32, "name": "x"}, "permission_denied"),
    "template": (
        {"id": 1, "key": "0" * 32, "address": "x", "pid": 1, "nbytes": 1 << 40, "modules": 1},
        "bad_request",
    ),
    "templates": ({"id": 1}, "permission_denied"),
    "forget": ({"id": 1, "template": None}, "permission_denied"),
}
_ASKS = """
from trims.core.errors import TrimsError
from trims.programs.door import Door
value = {{}}
for op, message in {asked!r}.items():
    door = Door.open({str_run!r} + "/attach.sock")
    try:
        answer = door._exchange({{"op": op, **message}})
        value[op] = next(name for name in answer if name != "id")
    except TrimsError as error:
        value[op] = error.code
    door.close()
"""


# fault (exec): a tenant's predictor asks for templates or programs of others -> `permission_denied`
@namespaces
def test_each_message_of_the_attach_door_from_a_tenants_predictor_reaches_no_other(
    shared: Daemon, folder: Path, checkpoint: Callable[..., Path]
) -> None:
    assert _ASKED.keys() == _PARSERS.keys()
    register(shared, checkpoint, "blue-probe", predictor={"call": "own_predictors:Prober"})
    files = ("--tenants", str(folder / "tenants.yaml"), "--token-file", str(folder / "token"))
    run = str(shared.config.runtime_dir)
    endpoint = Endpoint(shared.config.runtime_dir, *files, "--isolation", "namespaces")
    try:
        asked = {op: message for op, (message, _) in _ASKED.items()}
        told = ast.literal_eval(_probe(endpoint, _ASKS.format(asked=asked, str_run=run)))
        doors = _probe(endpoint, f"import os\nvalue = sorted(os.listdir({run!r}))")
    finally:
        endpoint.end()
    assert told == {op: outcome for op, (_, outcome) in _ASKED.items()}
    assert doors == "['attach.sock']", "the control door, all of whose calls are the operator's, is not there"


#: Attempts of the blue tenant's predictor: another tenant's model, a common one, to look round, another's door.
_PROBES = (
    "import trims\nvalue = trims.connect({str_run!r}).open('red-1')",
    "import trims\nvalue = trims.connect({str_run!r}).open('shared').place",
    "import os\nvalue = os.listdir({str_run!r})",
    "import os\nvalue = os.listdir({str_run!r} + '/tenants/red')",
)


def _probe(endpoint: Endpoint, code: str) -> str:
    inputs = [{"name": "code", "datatype": "BYTES", "shape": [1], "data": [code]}]
    status, answer = endpoint.ask("POST", "/v2/models/blue-probe/infer", {"inputs": inputs}, BLUE)
    assert status == 200, answer
    return str(answer["outputs"][0]["data"][0])


def test_a_tenants_token_cannot_be_the_operators(folder: Path) -> None:
    (folder / "tenants.yaml").write_text(TENANTS)
    settings = EndpointSettings(Settings(str(folder)), token=BLUE, tenants=read_tenants(folder / "tenants.yaml"))
    with pytest.raises(ConfigError, match="the operator's token is that of tenant 'blue' as well"):
        settings.validate()


def test_a_client_that_hangs_up_in_its_request_leaves_no_traceback(endpoint: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=60) as client:
        head = f"POST /v2/models/shared/infer HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {BLUE}\r\n"
        client.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            continue  # the endpoint ends the connection once it has seen that no more comes
    assert endpoint.infer("shared", [1.0], BLUE)[0] == 200
    assert "Traceback" not in "".join(endpoint.said)


def test_tenants_need_a_token_of_the_operator(folder: Path) -> None:
    (folder / "tenants.yaml").write_text(TENANTS)
    settings = EndpointSettings(pool=Settings(str(folder)), tenants=read_tenants(folder / "tenants.yaml"))
    with pytest.raises(ConfigError, match="needs a token of the operator as well"):
        settings.validate()
