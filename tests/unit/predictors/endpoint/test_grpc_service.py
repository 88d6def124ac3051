"""The protocol over gRPC: status codes and tokens; other people's clients are in tests/e2e/test_endpoint.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from trims_predictors.endpoint import inference_pb2 as pb
from trims_predictors.endpoint import inference_pb2_grpc
from trims_predictors.endpoint.grpc_service import code_of, start_server
from trims_predictors.endpoint.health import Health
from trims_predictors.endpoint.metrics import Metrics
from trims_predictors.records import Answer

from trims.core.errors import BusyError, CallerError, ModelNotFoundError, PredictorError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


@pytest.fixture(scope="module", autouse=True)
def _poller() -> Iterator[None]:
    """gRPC keeps its thread for asyncio as long as it likes; have it there before leaks are counted."""

    async def begin() -> Any:
        return grpc.aio.insecure_channel("127.0.0.1:1"), grpc.aio.server()

    kept = asyncio.run(begin())
    yield
    del kept


class StandIn:
    """A service with the model `m`."""

    def __init__(self, error: TrimsError | None = None) -> None:
        self.error = error
        self.metrics = Metrics()
        self.tracing = None

    def metadata(self) -> dict[str, Any]:
        return {"name": "trims", "version": "0", "extensions": ["statistics"]}

    async def is_ready(self) -> bool:
        return True

    async def plan(self, model: str, version: str = "") -> Any:
        if model != "m":
            raise ModelNotFoundError("no model")
        return SimpleNamespace(model="m", version="1.0.0")

    async def infer(self, model: str, version: str, tensors: list[Any], **given: Any) -> tuple[Any, Answer]:
        plan = await self.plan(model)
        if self.error is not None:
            raise self.error
        return plan, Answer(tensors, cold=False, how="running", place="cpu", warm=True, batch=1, stages={})

    async def load(self, model: str) -> None:
        await self.plan(model)

    unload = load


def call(
    service: StandIn,
    work: Callable[[Any], Awaitable[Any]],
    token: str | None = None,
    most_connections: int | None = None,
) -> Any:
    async def run() -> Any:
        health = Health(service.is_ready)
        await health.start()
        server, port = await start_server(
            service,
            health,
            "127.0.0.1:0",
            most_body_bytes=10_000,
            token=token,
            certificate=None,
            private_key=None,  # type: ignore[arg-type]
            most_connections=most_connections,
        )
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
                stub.port = port
                stub.raw = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                return await work(stub)
        finally:
            health.drain()
            await server.stop(0)

    return asyncio.run(run())


def refusal(
    service: StandIn, work: Callable[[Any], Awaitable[Any]], token: str | None = None
) -> tuple[grpc.StatusCode, str]:
    """Code and message; not the error itself, which keeps gRPC's threads."""

    async def told(stub: Any) -> tuple[grpc.StatusCode, str]:
        try:
            await work(stub)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError("the call was answered")

    found: tuple[grpc.StatusCode, str] = call(service, told, token)
    return found


def test_a_connection_too_many_is_closed_and_the_others_go_on() -> None:
    async def is_taken(reader: asyncio.StreamReader) -> bool:
        """Whether the server greets: its settings come first in HTTP/2."""
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
        async for _ in stub.ModelStreamInfer(iter([REQUEST]), metadata=wrong):
            pass

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
