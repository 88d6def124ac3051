"""Versions side by side, with real processes: blue and green behind one name, and the way back by one command."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from endpoints import Endpoint, is_gone
from looking import wait_until
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc import inference_pb2_grpc

import trims
from trims.daemon import control_door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.control import Admin
    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
#: Requests that are under way at once while an alias is switched.
_CLIENTS = 6


@pytest.fixture
def admin(daemon: Daemon) -> Iterator[Admin]:
    with trims.admin(daemon.config.runtime_dir) as made:
        yield made


@pytest.fixture
def add(admin: Admin, checkpoint: Callable[..., Path]) -> Callable[..., None]:
    """Register a version of `m` that multiplies by its number."""

    def register(version: int, **predictor: object) -> None:
        path = checkpoint(f"m{version}", {"factor": np.array([float(version)])})
        admin.add(
            {
                "name": "m",
                "version": str(version),
                "artifact": {"path": str(path)},
                "predictor": {"call": "own_predictors:Scaler", **predictor},
            }
        )

    return register


@pytest.fixture
def endpoint(daemon: Daemon, add: Callable[..., None]) -> Iterator[Endpoint]:
    """An endpoint of a daemon that has two versions; the name leads to 1."""
    for version in (1, 2):
        add(version)
    made = Endpoint(daemon.config.runtime_dir)
    yield made
    left = made.descendants()
    made.end(signal.SIGTERM)
    for pid in left:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} ends with its endpoint")  # type: ignore[misc]


def version_of(endpoint: Endpoint, model: str = "m") -> str:
    """Ask for 1 times the model's factor, which must be the number of the version that the answer names."""
    status, answer = endpoint.infer(model, [1.0])
    assert status == 200, answer
    assert answer["outputs"][0]["data"] == [float(answer["model_version"])]
    return str(answer["model_version"])


def predictors(endpoint: Endpoint) -> dict[str, int]:
    """Return how many predictors each version has."""
    versions = endpoint.ask("GET", "/state")[1]["versions"]
    return {name: sum(counts.values()) for name, counts in versions.items()}


def test_each_version_and_label_answers_over_both_protocols(endpoint: Endpoint, admin: Admin) -> None:
    admin.alias("m@stable", "2")
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        for text, version in (("", "1"), ("1", "1"), ("2", "2"), ("stable", "2")):
            assert version_of(endpoint, f"m/versions/{text}" if text else "m") == version
            tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP64", shape=[1])
            request = pb.ModelInferRequest(
                model_name="m", model_version=text, inputs=[tensor], raw_input_contents=[np.float64(3).tobytes()]
            )
            answer = stub.ModelInfer(request, timeout=120)
            assert answer.model_version == version
            assert list(np.frombuffer(answer.raw_output_contents[0])) == [3.0 * int(version)]
    assert version_of(endpoint, "m@stable") == "2"
    status, answer = endpoint.infer("m/versions/9", [1.0])
    assert (status, "'m' has no version or label '9'; it has the versions 1, 2" in answer["error"]) == (404, True)
    assert endpoint.infer("m@1/versions/1", [1.0])[0] == 404


def test_metadata_index_and_statistics_have_all_versions(endpoint: Endpoint, add: Callable[..., None]) -> None:
    version_of(endpoint, "m/versions/2")
    assert endpoint.ask("GET", "/v2/models")[1] == {"models": ["m"]}
    assert endpoint.ask("GET", "/v2/models/m")[1]["versions"] == ["1", "2"]
    index = endpoint.ask("POST", "/v2/repository/index", {})[1]
    assert [(each["name"], each["version"], each["state"]) for each in index] == [
        ("m", "1", "READY"), ("m", "2", "READY"),
    ]  # fmt: skip
    (counted,) = endpoint.ask("GET", "/v2/models/m/versions/2/stats")[1]["model_stats"]
    assert (counted["version"], counted["inference_count"]) == ("2", 1)
    assert endpoint.ask("GET", "/v2/models/m/stats")[1]["model_stats"][0]["inference_count"] == 0
    add(3)
    known = "the endpoint does not know a version that was registered"
    wait_until(lambda: endpoint.ask("GET", "/v2/models/m")[1]["versions"] == ["1", "2", "3"], known)
    assert endpoint.ask("POST", "/v2/repository/models/m@3/load", {})[0] == 200
    assert predictors(endpoint) == {"m@2": 1, "m@3": 1}
    assert endpoint.ask("POST", "/v2/repository/models/m@3/unload", {})[0] == 200
    wait_until(lambda: predictors(endpoint) == {"m@2": 1}, "the predictor of an unloaded version does not end")


# fault (daemon): a name is switched, twice at once or back, under opens and requests
def test_no_request_fails_while_a_name_is_switched_under_load_and_switched_back(
    endpoint: Endpoint, admin: Admin
) -> None:
    assert version_of(endpoint) == "1"
    over, seen, failed = threading.Event(), list[str](), list[object]()

    def ask() -> None:
        while not over.is_set():
            try:
                seen.append(version_of(endpoint))
            except BaseException as error:
                failed.append(error)
                return

    clients = [threading.Thread(target=ask) for _ in range(_CLIENTS)]
    for each in clients:
        each.start()
    try:
        for order, now in (({"version": "2"}, "2"), ({"back": True}, "1"), ({"back": True}, "2")):
            admin.alias("m", **order)  # type: ignore[arg-type]
            assert version_of(endpoint) == now, "a switch is not noticed"
    finally:
        over.set()
        for each in clients:
            each.join(120)
    assert failed == []
    assert {"1", "2"} <= set(seen)
    wait_until(lambda: predictors(endpoint).keys() == {"m@2"}, "predictors of the version before do not end")


def test_no_request_after_an_answered_switch_gets_the_version_before(
    endpoint: Endpoint, daemon: Daemon, admin: Admin
) -> None:
    other = Endpoint(daemon.config.runtime_dir)
    over, failed, stale = threading.Event(), list[object](), list[tuple[str, str]]()
    leads_to = ["1"]  # changed once a switch was answered; None while it is not known

    def ask(which: Endpoint) -> None:
        while not over.is_set():
            expected = leads_to[0]
            try:
                seen = version_of(which)
            except BaseException as error:
                failed.append(error)
                return
            if expected and seen != expected and leads_to[0] == expected:
                stale.append((expected, seen))

    try:
        for each in (endpoint, other):
            version_of(each)
        clients = [threading.Thread(target=ask, args=(each,)) for each in (endpoint, other) * (_CLIENTS // 2)]
        for client in clients:
            client.start()
        for number in range(20):
            version = "21"[number % 2]
            leads_to[0] = ""
            assert admin.alias("m", version).unconfirmed == ()
            leads_to[0] = version
            for each in (endpoint, other):
                assert version_of(each) == version
    finally:
        over.set()
        for client in clients:
            client.join(120)
        other.end()
    assert (failed, stale) == ([], [])


def test_a_model_that_was_replaced_or_removed_answers_no_request_any_more(
    endpoint: Endpoint, admin: Admin, checkpoint: Callable[..., Path]
) -> None:
    for factor in (1.0, 3.0, 4.0):
        path = checkpoint(f"n{factor}", {"factor": np.array([factor])})
        manifest = {"name": "n", "artifact": {"path": str(path)}, "predictor": {"call": "own_predictors:Scaler"}}
        assert admin.add(manifest, replace=True).unconfirmed == ()
        assert endpoint.infer("n", [1.0])[1]["outputs"][0]["data"] == [factor]
    assert admin.remove("n") == ()
    assert endpoint.infer("n", [1.0])[0] == 404


# fault (daemon): a stopped endpoint while a name is switched -> the order takes two seconds, once, and names it; it
# catches up later
def test_a_stopped_endpoint_holds_up_one_switch_for_a_while_and_is_named(
    endpoint: Endpoint, daemon: Daemon, admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_door, "CONFIRMED_S", 0.2)
    assert version_of(endpoint) == "1"
    endpoint.process.send_signal(signal.SIGSTOP)
    try:
        name = f"the endpoint with process {endpoint.process.pid}"
        assert admin.alias("m", "2").unconfirmed == (name,)
        assert f"not confirmed by {name}" in caplog.text
        monkeypatch.setattr(control_door, "CONFIRMED_S", 3600.0)  # no order waits for it again
        assert admin.alias("m", "1").unconfirmed == (name,)
        assert admin.remove("m@2") == (name,)
        command = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir)]
        done = subprocess.run([*command, "alias", "m@blue", "1"], capture_output=True, text=True, check=True)
        assert f"not confirmed by {name}" in done.stderr
    finally:
        endpoint.process.send_signal(signal.SIGCONT)
    wait_until(lambda: admin.alias("m", "1").unconfirmed == (), "it does not catch up")
    assert version_of(endpoint) == "1"


def test_a_run_of_the_version_before_is_finished_and_its_predictor_ends(
    daemon: Daemon, admin: Admin, add: Callable[..., None]
) -> None:
    add(1, call="own_predictors:Slow")
    add(2)
    endpoint = Endpoint(daemon.config.runtime_dir, "--isolation", "process")  # in a namespace it has no name to give
    try:
        answers: list[tuple[int, Any]] = []
        asking = threading.Thread(target=lambda: answers.append(endpoint.infer("m", [2.0])))
        asking.start()
        busy = lambda: endpoint.ask("GET", "/state")[1]["versions"].get("m@1", {}).get("busy")  # noqa: E731
        wait_until(busy, "the request does not run")
        admin.alias("m", "2")
        assert version_of(endpoint) == "2"
        asking.join(120)
        ((status, answer),) = answers
        assert (status, answer["model_version"]) == (200, "1")
        wait_until(lambda: "m@1" not in predictors(endpoint), "the predictor of the version before does not end")
    finally:
        endpoint.end()


def test_a_version_that_requests_still_name_keeps_its_predictors_after_a_switch(
    endpoint: Endpoint, admin: Admin
) -> None:
    for model in ("m", "m/versions/1"):
        assert version_of(endpoint, model) == "1"
    admin.alias("m", "2")
    assert version_of(endpoint) == "2"
    assert version_of(endpoint, "m/versions/1") == "1"
    assert predictors(endpoint) == {"m@1": 1, "m@2": 1}


def test_a_version_that_is_made_ready_before_the_switch_answers_without_a_start(
    endpoint: Endpoint, admin: Admin
) -> None:
    assert version_of(endpoint) == "1"
    assert endpoint.ask("POST", "/v2/repository/models/m@2/load", {})[0] == 200
    admin.alias("m", "2")
    assert version_of(endpoint) == "2"
    assert not endpoint.infer("m", [1.0])[1]["parameters"]["cold"]
    assert predictors(endpoint)["m@2"] == 1


def test_commands_take_references(endpoint: Endpoint, daemon: Daemon, folder: Path) -> None:
    np.save(folder / "x.npy", np.array([3.0]))

    def run(*words: str) -> str:
        line = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("alias", "m@stable", "2")
    url = f"http://127.0.0.1:{endpoint.port}"
    for model, result in (("m", "3."), ("m@1", "3."), ("m@2", "6."), ("m@stable", "6.")):
        assert result in run("run", model, f"x={folder / 'x.npy'}", "--endpoint", url)
    assert "m@stable" in run("list", "--names").split()
    assert run("alias", "m", "2") == "m leads to 2\n"
    assert run("rm", "m@1") == "m@1 is forgotten\n"
