"""Evaluations that clients of an endpoint order, watch, read, compare, cancel and remove."""

from __future__ import annotations

import json
import signal
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from endpoints import Endpoint, is_gone
from fleets import register
from looking import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
PATH = "/v1/evaluations"
SMALL = {"model": "m", "from": ["cpu"], "how": ["template", "hot"], "repeat": 2}


@pytest.fixture
def endpoint(daemon: Daemon, checkpoint: Callable[..., Path]) -> Iterator[Endpoint]:
    inputs = {"inputs": [{"name": "x", "dtype": "FP64", "shape": [-1]}]}
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"}, **inputs)
    started = Endpoint(daemon.config.runtime_dir)
    yield started
    if started.process.poll() is None:
        left = started.descendants()
        started.end(signal.SIGKILL)
        for pid in left:
            wait_until(lambda pid=pid: is_gone(pid), f"process {pid} ends with its endpoint")  # type: ignore[misc]


def asked(endpoint: Endpoint, method: str, path: str, body: object = None) -> Any:
    """Ask for what must be answered."""
    status, found = endpoint.ask(method, path, body)
    assert status in (200, 202), found
    return found


def made(endpoint: Endpoint, order: dict[str, Any]) -> dict[str, Any]:
    """Order an evaluation and return it when it has ended, in whatever way."""
    status, progress = endpoint.ask("POST", PATH, order)
    assert (status, progress["state"]) == (202, "running"), progress
    found: dict[str, Any] = {}

    def ended() -> bool:
        nonlocal found
        status, found = endpoint.ask("GET", f"{PATH}/{progress['id']}")
        assert status == 200, found
        return bool(found["state"] != "running")

    wait_until(ended, "the evaluation ends")
    return found


def test_an_evaluation_is_ordered_watched_read_compared_and_removed(endpoint: Endpoint) -> None:
    one = made(endpoint, SMALL)
    assert (one["state"], one["ended"], one["discarded"]) == ("ended", True, {})
    assert [(row["tier"], row["way"], row["seconds"]["samples"]) for row in one["rows"]] == [
        ("cpu", "template", 2), ("-", "hot", 2),
    ]  # fmt: skip
    request = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [2], "data": [1.0, 2.0]}]}
    other = made(endpoint, {**SMALL, "how": ["hot"], "batch": [1, 2], "request": request})
    assert [row["batch"] for row in other["rows"]] == [1, 2]
    listed = asked(endpoint, "GET", f"{PATH}?model=m")
    assert ([each["id"] for each in listed["evaluations"]], listed["running"]) == ([one["id"], other["id"]], None)
    explained = asked(endpoint, "GET", f"{PATH}/{one['id']}/explained/{other['id']}")
    assert [each["title"] for each in explained["changes"]] == ["- hot"]
    trace = asked(endpoint, "GET", f"/v1/traces/{one['rows'][0]['trace_id']}")
    assert {"predictor", "evaluation"} <= {each["role"] for each in trace["lines"]}
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}{PATH}/{one['id']}/report", timeout=50) as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
        assert answer.read().startswith(b"<!doctype html>")
    assert endpoint.ask("DELETE", f"{PATH}/{one['id']}")[0] == 200
    assert endpoint.ask("GET", f"{PATH}/{one['id']}")[0] == 400


def test_a_request_that_asks_for_its_trace_is_listed_and_opened(endpoint: Endpoint) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    assert endpoint.ask("GET", "/v2/health/ready")[0] == 200
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "tracestate": "trims=1"}
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1.5]}]}).encode()
    url = f"http://127.0.0.1:{endpoint.port}/v2/models/m/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as answer:
        assert answer.status == 200

    def is_whole() -> bool:
        status, found = endpoint.ask("GET", f"/v1/traces/{trace}")
        return status == 200 and {"endpoint", "predictor"} <= {each["role"] for each in found["lines"]}

    wait_until(is_whole, "all processes have written their spans")
    (listed,) = asked(endpoint, "GET", "/v1/traces?limit=1")["traces"]
    assert (listed["trace_id"], listed["name"]) == (trace, "POST /v2/models/{model}/infer")
    assert endpoint.ask("GET", "/v1/traces?limit=501")[0] == 400


def test_one_runs_at_a_time_can_be_cancelled_and_goes_on(endpoint: Endpoint) -> None:
    order = {**SMALL, "how": ["hot"], "repeat": 2000}
    identity = asked(endpoint, "POST", PATH, order)["id"]
    assert endpoint.ask("POST", PATH, SMALL)[0] == 503

    def done() -> int:
        return int(asked(endpoint, "GET", f"{PATH}/{identity}")["done"])

    wait_until(lambda: done() > 0, "a sample is taken")
    listed = asked(endpoint, "GET", PATH)
    assert listed["running"]["id"] == identity, listed
    assert asked(endpoint, "DELETE", f"{PATH}/{identity}")["state"] == "cancelled"
    wait_until(lambda: asked(endpoint, "GET", PATH)["running"] is None, "it ends")
    found = asked(endpoint, "GET", f"{PATH}/{identity}")
    assert (found["state"], found["ended"]) == ("cancelled", False)
    assert found["rows"][0]["seconds"]["samples"] >= 1
    assert endpoint.ask("POST", PATH, {"resume": identity})[0] == 202
    assert asked(endpoint, "DELETE", f"{PATH}/{identity}")["state"] == "cancelled"
    wait_until(lambda: asked(endpoint, "GET", PATH)["running"] is None, "it ends once more")


def test_a_load_is_ordered_and_kept(endpoint: Endpoint) -> None:
    order = {"model": "m", "scenario": {"name": "poisson", "rate": 50, "requests": 10}}
    found = made(endpoint, order)
    assert found["state"] == "ended", found
    (load,) = found["documents"]["workload"]
    assert (load["scenario"], load["answered"], load["errors"]) == ("poisson", 10, {})
    assert asked(endpoint, "GET", PATH)["evaluations"][-1]["scenario"] == "poisson"
    assert endpoint.ask("POST", PATH, {"model": "m", "scenario": {"name": "poisson"}})[0] == 400


def test_an_endpoint_that_ends_ends_its_evaluation(endpoint: Endpoint) -> None:
    endpoint.ask("POST", PATH, {**SMALL, "how": ["hot"], "repeat": 2000})
    wait_until(lambda: len(endpoint.descendants()) > 1, "the evaluation's process is there")
    left = endpoint.descendants()
    assert endpoint.end() == 0
    for pid in left:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} ends with its endpoint")  # type: ignore[misc]


def test_an_evaluation_that_cannot_begin_says_why(endpoint: Endpoint) -> None:
    found = made(endpoint, {**SMALL, "model": "no-such"})
    assert (found["state"], found["code"]) == ("failed", "model_not_found")
    for wrong in (
        {}, {"model": "m", "moon": 1}, {"model": "m", "from": "cpu"}, {"model": "m", "repeat": "2"},
        {"model": "m", "resume": "1"}, {"model": ["m"]},
    ):  # fmt: skip
        assert endpoint.ask("POST", PATH, wrong)[0] == 400, wrong
    assert endpoint.ask("GET", f"/v1/traces/{'0' * 32}")[0] == 400
    assert endpoint.ask("GET", f"{PATH}/--help")[0] == 400
