"""Routes of functions: status, headers and bodies; the service behind is a stand-in."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asgi import Reply, call
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.http.app import build_app
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.endpoint.observe.metrics import Metrics
from trims_predictors.endpoint.requests.shared_memory import SharedMemory
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import BusyError, DeadlineError, ModelNotFoundError, PredictorError
from trims.core.functions import Raised
from trims.manifests.serving import NO_SIGNATURE

EVENT = {"ce_id": "1", "ce_source": "/a", "ce_type": "t", "ce_specversion": "1.0", "content_type": "text/plain"}
MOST_BYTES = 200_000


class StandIn:
    """A service with the function `f`, which answers as the test says."""

    def __init__(self, answer: bytes | Exception = b'{"y": 1}', *, hangs: bool = False) -> None:
        self.metrics, self.exporter, self.shared_memory = Metrics(), None, SharedMemory()
        self._answer, self._hangs = answer, hangs
        self.cancelled = asyncio.Event()
        self.begun = asyncio.Event()
        self.found = NO_SIGNATURE

    async def models(self) -> list[Any]:
        return [
            SimpleNamespace(name="f", manifest={"artifact": {}, "predictor": {"handler": "f.py:h"}}, description="")
        ]

    async def deployment_now(self, name: str) -> Any:
        if name not in ("f", "m"):
            raise ModelNotFoundError(f"no model {name!r} is registered")
        return SimpleNamespace(how="handler" if name == "f" else "class", model=name)

    async def answer(self, model: str, version: str, asked: Any, span: Any) -> tuple[Any, Answer]:
        self.asked = asked
        if self._hangs:
            try:
                self.begun.set()
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if isinstance(self._answer, Exception):
            raise self._answer
        outputs = [from_array("answer", np.array([self._answer], dtype=object))]
        return None, Answer(outputs, cold=False, how="running", place="cpu", warm=True, batch=1, stages={})


def ask(path: str, body: bytes = b"1", service: StandIn | None = None, method: str = "POST", **headers: str) -> Reply:
    async def run() -> Reply:
        stand_in: Any = service or StandIn()
        workers = JsonWorkers(MOST_BYTES)
        app = build_app(stand_in, most_body_bytes=MOST_BYTES, token=None, loopback=True, workers=workers)
        try:
            return await call(app, method, path, body, **headers)
        finally:
            await workers.close()

    return asyncio.run(run())


def test_the_answer_of_a_handler_goes_out_as_it_is() -> None:
    reply = ask("/functions/f")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b'{"y": 1}', "application/json")
    packed = ask("/functions/f", accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"


def test_a_cloud_event_is_answered_by_an_event_or_by_nothing() -> None:
    reply = ask("/functions/f", **EVENT)
    assert (reply.status, reply.headers["ce-type"], reply.headers["ce-source"]) == (200, "t.response", "/functions/f")
    nothing = ask("/functions/f", service=StandIn(b"null"), **EVENT)
    assert (nothing.status, nothing.body) == (204, b"")
    assert ask("/functions/f", service=StandIn(b"null")).body == b"null"


@pytest.mark.parametrize("length", [1, 100_000])
def test_an_event_in_structured_mode_goes_on_as_one_in_binary_mode(length: int) -> None:
    in_body = {"id": "1", "source": "/a", "type": "t", "specversion": "1.0", "data": "a" * length}
    body = json.dumps({**in_body, "datacontenttype": "text/plain"}).encode()
    one, other = StandIn(), StandIn()
    ask("/functions/f", in_body["data"].encode(), one, **EVENT)
    reply = ask("/functions/f", body, other, content_type="application/cloudevents+json")
    assert (reply.status, reply.headers["ce-type"]) == (200, "t.response")
    parts, others = (to_array(each.asked.inputs[0]).tolist() for each in (one, other))
    assert (json.loads(parts[0]), parts[1:]) == (json.loads(others[0]), others[1:])


def test_functions_are_listed_and_models_are_not() -> None:
    assert ask("/functions", method="GET").json() == {
        "functions": [{"name": "f", "model": "f", "as": "weights", "handler": "f.py:h", "description": ""}]
    }


RAISED = Raised("KeyError", "'x'", "/folder/f.py", 3, "h")


@pytest.mark.parametrize(
    ("path", "body", "error", "status"),
    [
        ("/functions/f", b"{", None, 400),
        ("/functions/f", b"1" * (MOST_BYTES + 1), None, 413),
        ("/functions/m", b"1", None, 400),
        ("/functions/unknown", b"1", None, 404),
        ("/functions/f", b"1", BusyError("full"), 503),
        ("/functions/f", b"1", DeadlineError("late"), 504),
        ("/functions/f", b"1", PredictorError("died"), 500),
    ],
)
def test_what_goes_wrong_has_its_status_and_words(path: str, body: bytes, error: Any, status: int) -> None:
    reply = ask(path, body, StandIn(error) if error else None)
    assert (reply.status, list(reply.json())) == (status, ["error"])
    assert ("retry-after" in reply.headers) == (status == 503)


def test_what_a_handler_raised_is_beside_the_message_without_its_folder() -> None:
    reply = ask("/functions/f", service=StandIn(PredictorError("words", raised=RAISED)))
    assert reply.status == 500
    assert reply.json() == {
        "error": "words",
        "raised": {"type": "KeyError", "message": "'x'", "file": "f.py", "line": 3, "function": "h"},
    }


def test_a_call_ends_with_the_client_that_hangs_up() -> None:
    async def run() -> StandIn:
        stand_in, gone = StandIn(hangs=True), asyncio.Event()
        service: Any = stand_in
        app = build_app(service, most_body_bytes=1000, token=None, loopback=True)
        calling = asyncio.ensure_future(call(app, "POST", "/functions/f", b"1", gone))
        await stand_in.begun.wait()
        gone.set()
        await calling
        return stand_in

    assert asyncio.run(asyncio.wait_for(run(), 60)).cancelled.is_set()
