"""A server of the protocol over gRPC with a stand-in for the service, and a client of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.grpc import inference_pb2_grpc
from trims_predictors.endpoint.grpc.health import Health
from trims_predictors.endpoint.grpc.service import start_server
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.endpoint.observe.metrics import Metrics
from trims_predictors.endpoint.principals import Principals
from trims_predictors.endpoint.requests.outputs import arrange
from trims_predictors.endpoint.requests.shared_memory import SharedMemory
from trims_predictors.endpoint.service import Answered

from trims.core.errors import ModelNotFoundError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Report of a pool in which nothing runs, for the page of metrics.
NO_FLEET: Any = {"models": {}, "spares": {}, "hot": {}, "device_spares": [], "counters": {}, "templates": {}}
MIB = 1 << 20


class StandIn:
    """A service with the model `m`."""

    def __init__(self, error: TrimsError | None = None) -> None:
        self.repository = self
        self.error = error
        self.metrics = Metrics()
        self.exporter = None
        self.shared_memory = SharedMemory()
        #: Awaited by each request; and how many run, ran at most, and were cancelled.
        self.hold: Callable[[list[Any]], Awaitable[None]] | None = None
        self.running = self.most = self.cancelled = 0
        self.seen: list[list[Any]] = []

    def metadata(self) -> dict[str, Any]:
        return {"name": "trims", "version": "0", "extensions": ["statistics"]}

    async def is_ready(self) -> bool:
        return True

    async def deployment(self, model: str, version: str = "") -> Any:
        if model != "m":
            raise ModelNotFoundError("no model")
        return SimpleNamespace(model="m", version="1.0.0")

    async def why_not_ready(self, model: str, version: str = "") -> str:
        await self.deployment(model, version)
        return str(self.error or "")

    async def infer(self, model: str, version: str, asked: Any, shared: Any, **given: Any) -> Answered:
        deployment, tensors = await self.deployment(model), asked.inputs
        if self.error is not None:
            raise self.error
        self.running += 1
        self.most = max(self.most, self.running)
        self.seen.append(tensors)
        try:
            if self.hold is not None:
                await self.hold(tensors)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        answer = Answer(tensors, cold=False, how="running", place="cpu", warm=True, batch=1, stages={})
        outputs = await arrange(asked, tensors, batches=False, shared=shared)
        return Answered(deployment, answer, outputs)

    async def load(self, model: str) -> None:
        await self.deployment(model)

    unload = load


def call(
    service: StandIn,
    work: Callable[[Any], Awaitable[Any]],
    token: str | None = None,
    most_connections: int | None = None,
    most_bytes: int = 10_000,
    tenants: Any = None,
) -> Any:
    async def run() -> Any:
        workers = JsonWorkers(most_bytes)
        health = Health(service.is_ready)
        await health.start()
        server, port = await start_server(
            service,
            health,
            "127.0.0.1:0",
            most_body_bytes=most_bytes,
            callers=Principals(token, tenants),
            workers=workers,
            most_connections=most_connections,
        )
        try:
            unbounded = [("grpc.max_receive_message_length", -1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=unbounded) as channel:
                stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
                stub.port, stub.channel = port, channel
                stub.raw = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                stub.raw_stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
                return await work(stub)
        finally:
            health.drain()
            await server.stop(0)
            await workers.close()

    return asyncio.run(run())


def refusal(
    service: StandIn, work: Callable[[Any], Awaitable[Any]], token: str | None = None, **given: Any
) -> tuple[grpc.StatusCode, str]:
    """Code and message; not the error itself, which keeps gRPC's threads."""

    async def told(stub: Any) -> tuple[grpc.StatusCode, str]:
        try:
            await work(stub)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError("the call was answered")

    found: tuple[grpc.StatusCode, str] = call(service, told, token, **given)
    return found
