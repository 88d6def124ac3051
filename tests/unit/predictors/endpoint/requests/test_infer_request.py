"""Parameters of a request: what they ask for is read, and what is not offered is refused by name."""

# fault (endpoint): an unknown parameter or extension -> 400 with its name; UNIMPLEMENTED, INVALID_ARGUMENT

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trims_predictors.endpoint.requests.infer_request import InferRequest, SharedRange, Wanted, make_request
from trims_predictors.endpoint.status import status_of
from trims_predictors.tensors import from_array

from trims.core.errors import CallerError, NotOfferedError

X = from_array("x", np.zeros(1))


def request(
    parameters: dict[str, Any] | None = None,
    of_input: dict[str, Any] | None = None,
    outputs: dict[str, dict[str, Any]] | None = None,
    *,
    http: bool = True,
) -> InferRequest:
    return make_request([X], "7", parameters or {}, [of_input or {}], (outputs or {}).items(), http=http)


def test_a_timeout_is_microseconds_to_wait_in_the_queue_and_0_none() -> None:
    assert request({"timeout": 1_500_000}).queue_deadline_s == 1.5
    assert request({"timeout": 0, "deadline": 3}).queue_deadline_s == 3.0
    assert request({"timeout": 0}).queue_deadline_s is None
    with pytest.raises(CallerError, match="'deadline' and 'timeout', which say the same"):
        request({"timeout": 1, "deadline": 3})


@pytest.mark.parametrize("name", ["timeout", "priority"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", True, 1 << 70])
def test_timeouts_and_priorities_are_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(CallerError, match=f"'{name}' of the request"):
        request({name: value})


def test_a_priority_is_a_level_and_0_the_default() -> None:
    assert (request({"priority": 2}).priority, request().priority, request({"priority": None}).priority) == (2, 0, 0)


@pytest.mark.parametrize("http", [True, False])
@pytest.mark.parametrize(
    ("name", "extension"),
    [
        ("sequence_id", "sequence"), ("sequence_start", "sequence"), ("sequence_end", "sequence"),
        ("headers", "parameters"),
    ],
)  # fmt: skip
def test_an_extension_that_is_not_offered_is_refused_by_name(name: str, extension: str, http: bool) -> None:
    for where in ("parameters", "of_input"):
        with pytest.raises(NotOfferedError, match=f"the extension {extension} is not offered") as caught:
            request(**{where: {name: 1}}, http=http)
        assert status_of(caught.value) == 400
        assert caught.value.code == "not_offered"


@pytest.mark.parametrize(
    ("given", "http", "named"),
    [
        ({"parameters": {"temperature": 0.5}}, True, "the request has the parameter 'temperature'"),
        ({"of_input": {"content_type": "np"}}, True, "the input 'x' has the parameter 'content_type'"),
        ({"outputs": {"y": {"class": 3}}}, True, "the output 'y' has the parameter 'class'"),
        ({"parameters": {"triton_unknown": 1}}, True, "'triton_unknown'"),
    ],
)
def test_a_parameter_that_is_not_known_is_refused_by_name(given: dict[str, Any], http: bool, named: str) -> None:
    with pytest.raises(CallerError, match=f"{named}, which this endpoint does not know; it takes "):
        request(**given, http=http)


@pytest.mark.parametrize(
    "given", [{"parameters": {"binary_data_output": False}}, {"outputs": {"y": {"binary_data": False}}}]
)
def test_outputs_over_grpc_may_be_asked_for_as_binary_and_no_otherwise(given: dict[str, Any]) -> None:
    with pytest.raises(CallerError, match="over gRPC outputs are binary"):
        request(**given, http=False)
    request(**given, http=True)
    request(parameters={"binary_data_output": True}, outputs={"y": {"binary_data": True}}, http=False)


def test_outputs_say_how_they_are_sent() -> None:
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 64, "shared_memory_offset": 8}
    found = request(outputs={"a": {"binary_data": True}, "b": {"classification": 3}, "c": shared, "d": {}}).wanted
    place = SharedRange("r", 8, 64)
    assert found == {"a": Wanted(True), "b": Wanted(None, 3), "c": Wanted(None, 0, place), "d": Wanted()}


def test_inputs_in_shared_memory_are_known_by_their_index() -> None:
    given = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    assert request(of_input=given).shared == {0: SharedRange("r", 0, 8)}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"shared_memory_byte_size": 8}, "without 'shared_memory_region'"),
        ({"shared_memory_region": "r"}, "lacks the parameter 'shared_memory_byte_size'"),
        ({"shared_memory_region": 7, "shared_memory_byte_size": 8}, "it must be a name"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": -8}, "must be a whole number"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": "0"}, "a whole number"),
    ],
)
def test_a_range_of_shared_memory_that_is_none_is_refused(parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(CallerError, match=why):
        request(of_input=parameters)
    with pytest.raises(CallerError, match=why):
        request(outputs={"y": parameters})


def test_a_classification_is_not_written_to_shared_memory() -> None:
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 64, "classification": 2}
    with pytest.raises(CallerError, match="cannot be written to shared memory as a classification"):
        request(outputs={"y": shared})
