"""The protocol over gRPC: status codes and tokens; other people's clients are in tests/e2e/test_endpoint.py."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from served_grpc import MIB, NO_FLEET, StandIn, call, refusal
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc.service import code_of
from trims_predictors.tensors import to_array

from trims.core.errors import BusyError, CallerError, ModelNotFoundError, PredictorError, TrimsError

pytestmark = pytest.mark.usefixtures("grpc_poller")


def test_a_connection_too_many_is_closed_and_the_others_go_on() -> None:
    async def is_taken(reader: asyncio.StreamReader) -> bool:
        """Return whether the server greets: its settings come first in HTTP/2."""
        try:
            return bool(await reader.read(1))
        except ConnectionError:
            return False

    async def work(stub: Any) -> None:
        await stub.ServerLive(pb.ServerLiveRequest())
        opened = [await asyncio.open_connection("127.0.0.1", stub.port) for _ in range(4)]
        assert sorted([await is_taken(reader) for reader, _ in opened]) == [False, False, True, True]
        for _, writer in opened:
            writer.close()
        while True:  # once their ends are noticed, the next one is taken
            reader, writer = await asyncio.open_connection("127.0.0.1", stub.port)
            taken = await is_taken(reader)
            writer.close()
            if taken:
                break
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live

    call(StandIn(), work, most_connections=3)


REQUEST = pb.ModelInferRequest(model_name="m")
CODES: list[tuple[TrimsError, grpc.StatusCode]] = [
    (CallerError("why"), grpc.StatusCode.INVALID_ARGUMENT),
    (BusyError("why"), grpc.StatusCode.UNAVAILABLE),
    (PredictorError("why"), grpc.StatusCode.INTERNAL),
    (ModelNotFoundError("why"), grpc.StatusCode.NOT_FOUND),
]


@pytest.mark.parametrize(("error", "code"), CODES)
def test_errors_are_status_codes_with_their_message(error: TrimsError, code: grpc.StatusCode) -> None:
    assert code_of(error) is code
    told = refusal(StandIn(error), lambda stub: stub.ModelInfer(REQUEST))
    assert told == (code, "why")


@pytest.mark.parametrize("sent", [b"\xff\xff", b"\x0a\x05ab", b"\x0a\x01\xff"])
def test_bytes_that_are_not_the_request_s_protobuf_are_the_caller_s_error(sent: bytes) -> None:
    code, text = refusal(StandIn(), lambda stub: stub.raw(sent))
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "the request is not the protobuf of its method")


def test_a_long_message_is_cut_to_what_a_header_holds() -> None:
    told = refusal(StandIn(CallerError("x" * 100_000)), lambda stub: stub.ModelInfer(REQUEST))
    assert len(told[1]) == 1000


def test_an_unknown_model_is_not_ready_and_not_an_error() -> None:
    async def work(stub: Any) -> Any:
        return [(await stub.ModelReady(pb.ModelReadyRequest(name=name))).ready for name in ("m", "other")]

    assert call(StandIn(), work) == [True, False]


def test_a_model_that_could_not_be_loaded_is_not_ready() -> None:
    request = pb.ModelReadyRequest(name="m")
    service = StandIn(PredictorError("its code raised"))
    assert not call(service, lambda stub: stub.ModelReady(request)).ready


def test_an_error_in_a_stream_is_told_and_the_stream_goes_on() -> None:
    async def work(stub: Any) -> Any:
        requests = [pb.ModelInferRequest(model_name=name, id=name) for name in ("m", "other", "m")]
        answers = [each async for each in stub.ModelStreamInfer(iter(requests))]
        return [(each.infer_response.id, each.error_message) for each in answers]

    assert call(StandIn(), work) == [("m", ""), ("other", "no model"), ("m", "")]


def test_every_call_but_health_needs_the_token() -> None:
    right, wrong = [("authorization", "Bearer secret")], [("authorization", "Bearer other")]
    service = StandIn()
    assert call(service, lambda stub: stub.ServerLive(pb.ServerLiveRequest()), "secret").live
    assert call(service, lambda stub: stub.ModelInfer(REQUEST, metadata=right), "secret").model_name == "m"

    async def stream(stub: Any) -> None:
        await stub.ModelStreamInfer(metadata=wrong).read()  # nothing is written: that may fail first in gRPC's client

    for work in (
        lambda stub: stub.ModelInfer(REQUEST),
        lambda stub: stub.ModelInfer(REQUEST, metadata=wrong),
        stream,
    ):
        assert refusal(service, work, "secret")[0] is grpc.StatusCode.UNAUTHENTICATED


def test_a_load_with_a_configuration_of_its_own_is_refused() -> None:
    request = pb.RepositoryModelLoadRequest(model_name="m")
    assert call(StandIn(), lambda stub: stub.RepositoryModelLoad(request)) == pb.RepositoryModelLoadResponse()
    request.parameters["config"].string_param = "{}"
    told = refusal(StandIn(), lambda stub: stub.RepositoryModelLoad(request))
    assert told[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_message_that_is_too_large_is_refused() -> None:
    large = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(20_000)])
    told = refusal(StandIn(), lambda stub: stub.ModelInfer(large))
    assert told[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_message_of_a_million_inputs_is_refused_before_it_is_parsed() -> None:
    service = StandIn()
    service.metrics.register("m")
    sent = REQUEST.SerializeToString() + b"\x2a\x00" * 1_000_000
    code, text = refusal(service, lambda stub: stub.raw(sent), most_bytes=4 * MIB)
    assert (code, text) == (
        grpc.StatusCode.INVALID_ARGUMENT, "the request has more than 1024 inputs; 1024 are the most",
    )  # fmt: skip
    assert 'code="bad_request",model="m",protocol="grpc"} 1.0' in service.metrics.page(NO_FLEET, []).decode()


def test_large_contents_are_packed_by_another_process() -> None:
    service = StandIn()
    made = pb.ModelInferRequest(model_name="m")
    made.inputs.add(name="x", datatype="FP64", shape=[20_000]).contents.fp64_contents.extend([0.5] * 20_000)
    made.inputs.add(name="y", datatype="INT8", shape=[1]).contents.int_contents.append(7)
    call(service, lambda stub: stub.ModelInfer(made), most_bytes=MIB)
    ((x, y),) = service.seen
    assert to_array(x).tolist() == [0.5] * 20_000
    assert to_array(y).tolist() == [7]
    made.inputs[0].shape[:] = [20_001]
    assert refusal(service, lambda stub: stub.ModelInfer(made), most_bytes=MIB)[0] is grpc.StatusCode.INVALID_ARGUMENT
