"""Every call over gRPC: how many at once, how large its message is, and what is wrong with it as a status."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import grpc
import pytest
from nursing import until
from served_grpc import MIB, NO_FLEET, StandIn, call, refusal
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.grpc import calls
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.json.workers import JsonWorkers

from trims.core.errors import BusyError, CallerError
from trims.tenants import Tenant, Tenants

pytestmark = pytest.mark.usefixtures("grpc_poller")
REQUEST = pb.ModelInferRequest(model_name="m")


SMALL_METHODS = {
    "ModelReady": pb.ModelReadyRequest(name="x" * 70_000),
    "ModelMetadata": pb.ModelMetadataRequest(name="x" * 70_000),
    "RepositoryIndex": pb.RepositoryIndexRequest(repository_name="x" * 70_000),
    "RepositoryModelLoad": pb.RepositoryModelLoadRequest(model_name="x" * 70_000),
    "ServerLive": pb.ModelReadyRequest(name="x" * 70_000),
}


@pytest.mark.parametrize("method", SMALL_METHODS)
def test_a_large_message_of_a_method_whose_messages_are_small_is_refused(method: str) -> None:
    async def work(stub: Any) -> None:
        called = stub.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        await called(SMALL_METHODS[method].SerializeToString())

    code, text = refusal(StandIn(), work, most_bytes=MIB)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "65536 are the most" in text


@pytest.mark.parametrize(
    ("method", "why"), [("TraceSetting", "the extension trace is not offered"), ("Nonsense", "there is no method")]
)
def test_a_method_that_is_not_there_is_refused_with_a_reason(method: str, why: str) -> None:
    async def work(stub: Any) -> None:
        await stub.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(b"")

    code, text = refusal(StandIn(), work)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert text.startswith(why)


@pytest.mark.parametrize("method", ["ModelReady", "RepositoryIndex", "ServerReady"])
def test_bytes_that_are_no_protobuf_of_another_method_are_the_caller_s_error(method: str) -> None:
    async def work(stub: Any) -> None:
        await stub.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(b"\xff\xff")

    assert refusal(StandIn(), work)[0] is grpc.StatusCode.INVALID_ARGUMENT


# fault (endpoint): thousands of calls over gRPC -> UNAVAILABLE with `grpc-retry-pushback-ms` beyond the bound
def test_thousands_of_calls_at_once_are_answered_or_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_CALLS", 500)
    service = StandIn()
    service.metrics.register("m")
    refused: list[tuple[str, str]] = []

    async def hold(_: list[Any]) -> None:
        async with asyncio.timeout(60.0):
            await until(lambda: len(refused) >= 3500)

    service.hold = hold

    async def work(stub: Any) -> list[str]:
        async def one() -> str:
            try:
                await stub.ModelInfer(REQUEST)
            except grpc.aio.AioRpcError as error:
                trailing = dict(error.trailing_metadata() or ())
                refused.append((error.code().name, str(trailing.get("grpc-retry-pushback-ms"))))
                return error.code().name
            return "OK"

        found = await asyncio.gather(*[one() for _ in range(4000)])
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        return [*found, (await stub.ModelInfer(REQUEST)).model_name]  # there is room again

    found = call(service, work)
    assert (found.count("OK"), found.count("UNAVAILABLE"), found[-1]) == (500, 3500, "m")
    assert set(refused) == {("UNAVAILABLE", "1000")}
    page = service.metrics.page(NO_FLEET, []).decode()
    assert 'code="busy",model="(other)",protocol="grpc"} 3500.0' in page
    assert 'code="ok",model="m",protocol="grpc"} 501.0' in page


# fault (endpoint): a tenant with a thousand waiting streams -> its next is UNAVAILABLE
def test_streams_that_wait_and_other_tenants_take_no_room_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_CALLS", 4)
    tenants = {name: Tenant(name, tokens=frozenset({hashlib.sha256(name.encode()).hexdigest()})) for name in ("a", "b")}
    as_a, as_b = ([("authorization", f"Bearer {name}")] for name in tenants)

    async def work(stub: Any) -> None:
        streams = [stub.ModelStreamInfer(metadata=as_a) for _ in range(4)]
        for each in streams:
            await each.write(REQUEST)
            assert (await each.read()).infer_response.model_name == "m"
        one_more = stub.ModelStreamInfer(metadata=as_a)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await one_more.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        caught.value.__traceback__ = None
        assert (await stub.ModelInfer(REQUEST, metadata=as_a)).model_name == "m"
        other = stub.ModelStreamInfer(metadata=as_b)
        await other.write(REQUEST)
        assert (await other.read()).infer_response.model_name == "m"
        for each in (*streams, other):
            each.cancel()

    call(StandIn(), work, token="operator", tenants=Tenants(list(tenants.values())))


def test_whether_a_model_is_ready_is_answered_however_many_calls_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_CALLS", 0)

    async def work(stub: Any) -> None:
        assert (await stub.ModelReady(pb.ModelReadyRequest(name="m"))).ready

    call(StandIn(), work)


def test_a_full_queue_says_when_to_come_again() -> None:
    async def work(stub: Any) -> Any:
        try:
            await stub.ModelInfer(REQUEST)
        except grpc.aio.AioRpcError as error:
            return dict(error.trailing_metadata() or ())

    assert call(StandIn(BusyError("why")), work)["grpc-retry-pushback-ms"] == "1000"
    assert "grpc-retry-pushback-ms" not in call(StandIn(CallerError("why")), work)


def test_large_texts_over_grpc_that_cannot_be_counted_in_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(*_: object) -> None:
        raise TooLargeBodyError("too long to count")

    monkeypatch.setattr(JsonWorkers, "check", check)
    told = refusal(StandIn(), lambda stub: stub.ModelInfer(REQUEST))
    assert told == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too long to count")


def test_metadata_up_to_one_bound_is_taken_and_more_is_refused() -> None:
    async def work(stub: Any) -> None:
        for _ in range(20):
            await stub.ModelInfer(REQUEST, metadata=[("x", "a" * 15_000)])
        await stub.ModelInfer(REQUEST, metadata=[("x", "a" * 17_000)])

    service = StandIn()
    assert refusal(service, work)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(service.seen) == 20


def test_metadata_of_ours_that_nothing_reads_is_refused_by_name() -> None:
    async def work(stub: Any) -> None:
        await stub.ModelInfer(REQUEST, metadata=[("trims-deadline", "3")])

    code, text = refusal(StandIn(), work)
    assert (code, "trims-deadline" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
