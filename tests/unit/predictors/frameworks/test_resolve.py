from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from own_handlers import NUMBER, answer_bytes, handler, later
from trims_predictors.api import Context, Predictor
from trims_predictors.frameworks.resolve import HandlerPredictor

from trims.core.errors import CallerError, NotSupportedError, PredictorError

# A handler as a predictor.

WEIGHTS: Any = {"factor": np.array(2.0)}


def event(value: object) -> dict[str, Any]:
    return {"event": np.array([json.dumps(value).encode()], dtype=object)}


def loaded(function: Any, form: str = "weights") -> HandlerPredictor:
    predictor = HandlerPredictor(function, "f.py:name")
    predictor.load(WEIGHTS, Context("m", options={"as": form}))
    return predictor


def test_the_handler_gets_model_and_event_and_its_answer_is_json() -> None:
    predictor = loaded(handler)
    assert isinstance(predictor, Predictor)
    assert json.loads(predictor.predict(event({"x": 3}))["answer"][0])["y"] == 6.0
    predictor.unload()
    assert not hasattr(predictor, "_model")


def test_an_answer_that_json_cannot_hold_is_the_handler_s_fault() -> None:
    with pytest.raises(PredictorError, match="Object of type bytes is not JSON serializable"):
        loaded(answer_bytes).predict(event(None))


@pytest.mark.parametrize(("function", "message"), [(NUMBER, "f.py:name is no function"), (later, "is `async def`")])
def test_what_is_no_handler_is_told(function: Any, message: str) -> None:
    with pytest.raises(NotSupportedError, match=message):
        HandlerPredictor(function, "f.py:name")


def test_a_form_that_there_is_not_is_told() -> None:
    with pytest.raises(CallerError, match="as_ is 'tensorflow'"):
        loaded(handler, "tensorflow")


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [("json", b"[1]", [1]), ("json", b"", None), ("text", b"a", "a"), ("bytes", b"a", b"a")],
)
def test_a_cloud_event_is_its_attributes_with_its_data(kind: str, data: bytes, expected: object) -> None:
    seen: list[Any] = []
    parts = np.array([b'{"id": "1"}', kind.encode(), data], dtype=object)
    loaded(lambda model, event: seen.append(event)).predict({"event": parts})
    assert seen == [{"id": "1", "data": expected}]


@pytest.mark.parametrize(
    "parts",
    [[b"{"], [b"1", b"2"], [b"{}", b"json", b"{"], [b"{}", b"text", b"\xff"], [b"1", b"text", b""], [b"{}", b"x", b""]],
)
def test_an_event_that_is_none_is_the_caller_s_fault(parts: list[bytes]) -> None:
    with pytest.raises(CallerError):
        loaded(handler).predict({"event": np.array(parts, dtype=object)})


def test_a_request_without_an_event_is_the_caller_s_fault() -> None:
    with pytest.raises(CallerError, match="event"):
        loaded(handler).predict({"input": np.array([b"x"], dtype=object)})


def test_input_and_output_are_stated() -> None:
    predictor = loaded(handler)
    assert [each.name for each in (*predictor.inputs(), *predictor.outputs())] == ["event", "answer"]
