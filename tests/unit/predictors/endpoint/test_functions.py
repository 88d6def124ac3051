"""Functions of a service: events as requests of their predictors. What they do in real processes is in tests/e2e."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from trims_client.events import CloudEvent
from trims_predictors.endpoint.functions import Functions, check_function, event_request
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.tensors import to_array

from trims.core.errors import CallerError, NotSupportedError


def elements(request: Any) -> list[bytes]:
    (tensor,) = request.inputs
    return [bytes(each) for each in to_array(tensor).ravel()]


def test_an_event_is_the_one_element_and_headers_are_options() -> None:
    headers = [("trims-deadline", "1.5"), ("trims-keep-alive", "0"), ("trims-priority", "2"), ("trims-place", "cpu")]
    made = event_request(memoryview(b'{"a": 1}'), headers)
    assert elements(made) == [b'{"a": 1}']
    assert (made.queue_deadline_s, made.keep_alive_s, made.priority, made.places) == (1.5, 0.0, 2, ("cpu",))
    assert elements(event_request(memoryview(b""), [])) == [b""]


def test_a_cloud_event_is_its_attributes_and_its_data() -> None:
    made = event_request(CloudEvent({"id": "1"}, "bytes", b"\xff"), [])
    assert elements(made) == [b'{"id": "1"}', b"bytes", b"\xff"]


@pytest.mark.parametrize(
    ("event", "headers"),
    [
        (memoryview(b"{"), []),
        (CloudEvent({"id": "1"}, "json", b"{"), []),
        (memoryview(b"1"), [("trims-priority", "1.5")]),
        (memoryview(b"1"), [("trims-deadline", "nan")]),
        (memoryview(b"1"), [("trims-deadline", "1_0")]),
        (memoryview(b"1"), [("trims-deadline", "1"), ("trims-deadline", "2")]),
        (memoryview(b"1"), [("trims-place", "moon")]),
    ],
)
def test_what_is_wrong_is_refused_before_a_process_is_had(event: Any, headers: Any) -> None:
    with pytest.raises(CallerError):
        event_request(event, headers)


def test_a_large_event_is_left_to_the_process_of_the_function() -> None:
    assert len(elements(event_request(memoryview(b"{" * (SMALL_BYTES + 1)), []))[0]) > SMALL_BYTES


def test_a_model_is_no_function() -> None:
    deployment: Any = SimpleNamespace(how="class", model="m")
    with pytest.raises(CallerError, match=r"POST /v2/models/m/infer.*trims add FILE.py --model m"):
        check_function(deployment)


class Service:
    """A service with a model that nothing runs, and a function whose environment is missing."""

    async def models(self) -> list[Any]:
        predictor = {"handler": "/x/f.py:handler", "options": {"as": "torch"}}
        function = {"artifact": {"model": "m"}, "predictor": predictor}
        return [
            SimpleNamespace(name="m", manifest={"artifact": {}}, description=""),
            SimpleNamespace(name="f", manifest=function, description="about"),
        ]

    async def deployment_now(self, name: str) -> Any:
        raise NotSupportedError(f"nothing runs {name}")


def test_a_model_that_nothing_runs_is_no_function_either() -> None:
    service: Any = Service()
    functions, asked = Functions(service), event_request(memoryview(b"1"), [])
    with pytest.raises(CallerError, match="'m' is a model, and no function"):
        asyncio.run(functions.call("m", asked, None))
    with pytest.raises(NotSupportedError, match="nothing runs f"):
        asyncio.run(functions.call("f", asked, None))
    assert asyncio.run(functions.listed()) == [
        {"name": "f", "model": "m", "as": "torch", "handler": "f.py:handler", "description": "about"}
    ]
