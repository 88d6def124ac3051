"""grpc.health.v1 with Google's own stub: checks, watchers, and what both get when the endpoint ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc
from trims_predictors.endpoint.grpc.health import SERVICES, Health
from trims_predictors.endpoint.grpc.service import start_server
from trims_predictors.endpoint.principals import Principals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module", autouse=True)
def _poller() -> Iterator[None]:
    """gRPC keeps its thread for asyncio as long as it likes; have it there before leaks are counted."""

    async def begin() -> Any:
        return grpc.aio.insecure_channel("127.0.0.1:1"), grpc.aio.server()

    kept = asyncio.run(begin())
    yield
    del kept


class Asked:
    def __init__(self) -> None:
        self.ready = True

    async def is_ready(self) -> bool:
        return self.ready


def serve(work: Callable[[Any, Health, Asked], Awaitable[Any]], grace_s: float = 0) -> Any:
    """A server that needs a token, which health does not."""

    async def run() -> Any:
        asked = Asked()
        health = Health(asked.is_ready, 0.01)
        await health.start()
        inference: Any = SimpleNamespace()
        server, port = await start_server(
            inference, health, "127.0.0.1:0", most_body_bytes=1000, callers=Principals("t")
        )
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                return await asyncio.wait_for(work(health_pb2_grpc.HealthStub(channel), health, asked), 60)
        finally:
            health.drain()
            await server.stop(grace_s)

    return asyncio.run(run())


def test_server_and_service_are_checked_without_a_token() -> None:
    async def work(stub: Any, health: Health, asked: Asked) -> None:
        for service in SERVICES:
            assert (await stub.Check(pb.HealthCheckRequest(service=service))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await stub.Check(pb.HealthCheckRequest(service="another"))
        assert told.value.code() is grpc.StatusCode.NOT_FOUND
        health.drain()
        for service in SERVICES:
            assert (await stub.Check(pb.HealthCheckRequest(service=service))).status == NOT_SERVING

    serve(work)


def test_the_service_has_the_name_that_the_protocol_gives_it() -> None:
    from trims_predictors.endpoint.grpc import inference_pb2

    assert inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name == SERVICES[1]


def test_a_watcher_is_told_when_the_daemon_goes_and_comes_and_the_endpoint_ends() -> None:
    async def work(stub: Any, health: Health, asked: Asked) -> None:
        call = stub.Watch(pb.HealthCheckRequest())
        assert (await call.read()).status == SERVING
        asked.ready = False
        assert (await call.read()).status == NOT_SERVING
        asked.ready = True
        assert (await call.read()).status == SERVING
        health.drain()
        assert (await call.read()).status == NOT_SERVING
        assert await call.read() is grpc.aio.EOF, "a watcher keeps no server from ending"

    serve(work, grace_s=3600)


def test_a_watcher_of_an_unknown_service_waits_for_it() -> None:
    async def work(stub: Any, health: Health, asked: Asked) -> None:
        call = stub.Watch(pb.HealthCheckRequest(service="another"))
        assert (await call.read()).status == pb.HealthCheckResponse.SERVICE_UNKNOWN
        health.drain()
        assert await call.read() is grpc.aio.EOF

    serve(work)


def test_each_check_asks_and_watchers_learn_what_it_found() -> None:
    async def work(stub: Any, health: Health, asked: Asked) -> None:
        health._looking.cancel()  # type: ignore[union-attr]  # nothing looks but the checks
        watch = stub.Watch(pb.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        for ready, status in ((False, NOT_SERVING), (True, SERVING)):
            asked.ready = ready
            assert (await stub.Check(pb.HealthCheckRequest())).status == status
            assert (await watch.read()).status == status
        watch.cancel()

    serve(work)
