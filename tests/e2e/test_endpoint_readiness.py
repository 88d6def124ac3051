"""Readiness as clients and probes see it: of models that cannot run, and of an endpoint that is ending."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from fleets import register
from grpc_health.v1 import health_pb2, health_pb2_grpc
from looking import wait_until
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc import inference_pb2_grpc

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from endpoints import Endpoint

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
WAIT_S = 60.0


class Doors:
    """Everything that says whether an endpoint or its model `m` is ready."""

    def __init__(self, endpoint: Endpoint, channel: grpc.Channel) -> None:
        self._endpoint = endpoint
        self._stub: Any = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        self._health: Any = health_pb2_grpc.HealthStub(channel)

    def live(self) -> list[bool]:
        """Return what both doors say of the endpoint's life."""
        status, told = self._endpoint.ask("GET", "/v2/health/live")
        return [status == 200 and told["live"], self._stub.ServerLive(pb.ServerLiveRequest(), timeout=WAIT_S).live]

    def ready(self) -> list[bool]:
        """Return what all doors say of the endpoint's readiness."""
        live = self._endpoint.ask("GET", "/v2/health/live")[1]
        status, told = self._endpoint.ask("GET", "/v2/health/ready")
        assert (status == 200) == told["ready"]
        check = self._health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
        return [
            told["ready"],
            live["ready"],
            self._stub.ServerReady(pb.ServerReadyRequest(), timeout=WAIT_S).ready,
            check.status == health_pb2.HealthCheckResponse.SERVING,
        ]

    def model_ready(self) -> list[bool]:
        """Return what both doors say of the model."""
        status, told = self._endpoint.ask("GET", "/v2/models/m/ready")
        assert (status, told["ready"], "reason" in told) in ((200, True, False), (503, False, True))
        return [told["ready"], self._stub.ModelReady(pb.ModelReadyRequest(name="m"), timeout=WAIT_S).ready]

    def reasons(self) -> list[str]:
        """Return why the model is not ready, from everything that has room for a reason."""
        (index,) = self._endpoint.ask("POST", "/v2/repository/index", {})[1]
        (indexed,) = self._stub.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=WAIT_S).models
        (page,) = self._endpoint.ask("GET", "/ui/state")[1]["models"]
        metadata = self._stub.ModelMetadata(pb.ModelMetadataRequest(name="m"), timeout=WAIT_S)
        return [
            self._endpoint.ask("GET", "/v2/models/m/ready")[1].get("reason", ""),
            self._endpoint.ask("GET", "/v2/models/m")[1].get("properties", {}).get("reason", ""),
            metadata.properties["reason"],
            index["reason"] if index["state"] == "UNAVAILABLE" else "",
            indexed.reason if indexed.state == "UNAVAILABLE" else "",
            page["failure"],
        ]

    def load(self) -> None:
        """Have the model loaded over gRPC. Raises grpc.RpcError."""
        self._stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="m"), timeout=WAIT_S)


def test_a_model_that_cannot_run_is_ready_nowhere_until_it_is_mended(
    daemon: Daemon, checkpoint: Callable[..., Path], start: Callable[..., Endpoint]
) -> None:
    register(daemon, checkpoint, predictor={"call": "nosuchmodule:f"})
    endpoint = start()
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        doors = Doors(endpoint, channel)
        assert doors.model_ready() == [True, True], "it was not tried yet"
        status, told = endpoint.ask("POST", "/v2/repository/models/m/load", {})
        assert (status, "nosuchmodule" in told["error"]) == (501, True)
        assert doors.model_ready() == [False, False]
        wait_until(lambda: endpoint.ask("GET", "/ui/state")[1]["models"][0]["failure"] != "", "the page looks again")
        assert all("nosuchmodule" in reason for reason in doors.reasons())
        assert endpoint.infer("m", [1.0])[0] == 501, "a request tries it again"
        with pytest.raises(grpc.RpcError) as error:
            doors.load()
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert doors.ready() == [True] * 4, "the endpoint itself is ready all the time"
        register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})
        wait_until(lambda: doors.model_ready() == [True, True], "the new manifest is known")
        doors.load()
        assert endpoint.infer("m", [1.0])[1]["parameters"]["cold"] is False


def test_a_crash_while_loading_is_remembered_until_a_request_is_answered(
    daemon: Daemon, checkpoint: Callable[..., Path], start: Callable[..., Endpoint], folder: Path
) -> None:
    switch = folder / "switch"
    switch.write_text("die")
    register(daemon, checkpoint, predictor={"call": "own_predictors:Switched", "options": {"switch": str(switch)}})
    endpoint = start("--isolation", "process")
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        doors = Doors(endpoint, channel)
        assert endpoint.infer("m", [1.0])[0] == 500
        assert doors.model_ready() == [False, False]
        assert "status 3" in doors.reasons()[0]
        switch.write_text("load")
        assert endpoint.infer("m", [1.0])[0] == 200
        assert doors.model_ready() == [True, True]


@pytest.mark.parametrize(
    ("damage", "words"),
    [(Path.unlink, "is not a file"), (lambda path: os.truncate(path, 40), "truncated"),
     (lambda path: path.write_bytes(b"xx" * 100), "header")],
    ids=["gone", "cut", "other bytes"],
)  # fmt: skip
def test_a_model_whose_file_is_damaged_is_not_ready_before_its_first_load(
    daemon: Daemon, checkpoint: Callable[..., Path], start: Callable[..., Endpoint], damage: Any, words: str
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})
    endpoint = start()
    with (
        grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel,
        admin(daemon.config.runtime_dir) as control,
    ):
        doors = Doors(endpoint, channel)
        assert doors.model_ready() == [True] * 2
        damage(Path(control.show("m").manifest["artifact"]["path"]))
        assert doors.model_ready() == [False] * 2
        assert words in endpoint.ask("GET", "/v2/models/m/ready")[1]["reason"]
        assert endpoint.ask("POST", "/v2/repository/models/m/load", {})[0] == 500
        assert doors.model_ready() == [False] * 2
        assert doors.ready() == [True] * 4


def test_a_model_that_a_predictor_has_loaded_is_ready_without_its_file(
    daemon: Daemon, checkpoint: Callable[..., Path], start: Callable[..., Endpoint]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})
    endpoint = start()
    with (
        grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel,
        admin(daemon.config.runtime_dir) as control,
    ):
        assert endpoint.infer("m", [1.0])[0] == 200
        Path(control.show("m").manifest["artifact"]["path"]).unlink()
        assert Doors(endpoint, channel).model_ready() == [True] * 2
        assert endpoint.infer("m", [1.0])[0] == 200


# fault (endpoint): the daemon drains or hangs -> 503 with the reason on readiness; live throughout
def test_while_the_daemon_drains_the_endpoint_is_live_and_no_model_is_ready(
    daemon: Daemon, checkpoint: Callable[..., Path], start: Callable[..., Endpoint]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})
    endpoint = start()
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        doors = Doors(endpoint, channel)
        assert endpoint.infer("m", [1.0])[0] == 200
        assert (doors.live(), doors.ready(), doors.model_ready()) == ([True] * 2, [True] * 4, [True] * 2)
        with admin(daemon.config.runtime_dir) as control:
            control.drain()
        assert doors.model_ready() == [False] * 2
        assert endpoint.ask("GET", "/v2/health/ready")[0] == 503
        assert (doors.live(), doors.ready()) == ([True] * 2, [False] * 4)
        (index,) = endpoint.ask("POST", "/v2/repository/index", {})[1]
        assert (index["state"], "draining" in index["reason"]) == ("UNAVAILABLE", True)


def test_while_the_endpoint_ends_it_is_live_and_not_ready_at_every_door(
    daemon: Daemon, checkpoint: Callable[..., Path], start: Callable[..., Endpoint], folder: Path
) -> None:
    switch = folder / "switch"
    switch.write_text("wait")
    register(daemon, checkpoint, predictor={"call": "own_predictors:Switched", "options": {"switch": str(switch)}})
    endpoint = start("--isolation", "process")
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(endpoint.infer("m", [1.0])))
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        doors = Doors(endpoint, channel)
        assert (doors.live(), doors.ready(), doors.model_ready()) == ([True] * 2, [True] * 4, [True] * 2)
        asking.start()
        try:
            wait_until(
                lambda: endpoint.ask("GET", "/state")[1]["models"].get("m", {}).get("starting"), "the request waits"
            )
            endpoint.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not endpoint.ask("GET", "/v2/health/ready")[1]["ready"], "the signal has come")
            assert (doors.live(), doors.ready(), doors.model_ready()) == ([True] * 2, [False] * 4, [False] * 2)
            status, told = endpoint.infer("m", [1.0])
            assert (status, "takes no new requests" in told["error"]) == (503, True)
            assert not (daemon.config.runtime_dir / "endpoint.json").exists()
        finally:
            switch.write_text("load")
            asking.join()
    assert endpoint.process.wait(WAIT_S) == 0
    assert answers[0][0] == 200, "what ran has finished"
    assert endpoint.end() == 0
