"""The Open Inference Protocol over gRPC, in the endpoint's event loop.

Errors are status codes, as at the daemon's control door (`trims.wire.status`), but a full queue is UNAVAILABLE, which
clients know to try again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc

from trims.core.errors import BusyError, CallerError, ModelNotFoundError, TrimsError
from trims.wire.status import status_of
from trims_predictors.endpoint import inference_pb2 as pb
from trims_predictors.endpoint import inference_pb2_grpc
from trims_predictors.endpoint.callers import Callers, UnknownCallerError, caller
from trims_predictors.endpoint.grpc_requests import parse_request, write_answer
from trims_predictors.endpoint.json_workers import JsonWorkers
from trims_predictors.endpoint.tracing import grpc_span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from trims.tenants import Tenants
    from trims_predictors.endpoint.health import Health
    from trims_predictors.endpoint.service import Service

#: What needs no token.
_OPEN_METHODS = ("/ServerLive", "/ServerReady", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
#: Of an error: it travels in HTTP/2 headers, whose room is small.
_MOST_LETTERS = 1000


class InferenceServicer(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Handlers; their names are the protocol's."""

    def __init__(self, service: Service, workers: JsonWorkers) -> None:
        self._service = service
        self._workers = workers
        #: Address and port, once they are known.
        self.server = ("", 0)

    async def ServerLive(self, request: Any, context: Any) -> Any:
        """Whether the endpoint runs."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Whether the daemon serves."""
        return pb.ServerReadyResponse(ready=await self._service.is_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Whether a model can be asked; its first request may load it."""
        try:
            await self._service.plan(request.name, request.version)
        except ModelNotFoundError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """What the endpoint is."""
        return pb.ServerMetadataResponse(**self._service.metadata())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """What a model takes and gives."""
        return pb.ModelMetadataResponse(**await self._service.describe(request.name, request.version))

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Answer one request."""
        return await self._infer(request, context, "ModelInfer")

    async def _infer(self, request: Any, context: Any, method: str) -> Any:
        service, model = self._service, request.model_name
        with (
            service.metrics.request(model, "grpc") as counting,
            grpc_span(service.tracing, context, method, model=model, server=self.server, code_of=code_of) as span,
        ):
            asked = parse_request(request)
            tenant = caller()
            await self._workers.check("" if tenant is None else tenant.name, asked.inputs)
            plan, answer = await service.infer(
                model,
                request.model_version,
                asked.inputs,
                place=asked.place,
                queue_deadline_s=asked.number("deadline"),
                keep_alive_s=asked.number("keep_alive"),
                span=span,
            )
            written = write_answer(asked, answer, plan.model, plan.version)
            counting.answer = answer
            return written

    async def ModelStreamInfer(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer requests one after the other."""
        async for request in request_iterator:
            try:
                answer = await self._infer(request, context, "ModelStreamInfer")
            except TrimsError as error:
                failed = pb.ModelStreamInferResponse(error_message=str(error)[:_MOST_LETTERS])
                failed.infer_response.id = request.id
                yield failed
            else:
                yield pb.ModelStreamInferResponse(infer_response=answer)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        """What load generators ask before they begin."""
        told = await self._service.configuration(request.name, request.version)
        told.pop("instance_group")
        return pb.ModelConfigResponse(config=pb.ModelConfig(**told))

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        """What was counted of a model, or of all."""
        answer = pb.ModelStatisticsResponse()
        for told in await self._service.statistics(request.name, request.version):
            fields = {name: value for name, value in told.items() if name not in ("batch_stats", "cold_count")}
            answer.model_stats.add(**fields)
        return answer

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        """All models."""
        return pb.RepositoryIndexResponse(models=await self._service.index(ready=request.ready))

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        """Have a model's weights in memory."""
        if request.parameters:
            raise CallerError("a model is loaded as its manifest says; register it again with `trims add --replace`")
        await self._service.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        """Free a model's weights and end its predictors."""
        await self._service.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()


class ErrorsAsStatus(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Turns errors into status codes, and refuses calls without a token.

    Args:
        callers: Who may call.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(details)
        if handler is None or handler.response_streaming:
            return handler if handler is None or self._admits(details) else _refusing_stream()
        admitted, answer = self._admits(details), handler.unary_unary

        async def behaviour(request: Any, context: Any) -> Any:
            if not admitted:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, _NEEDS_TOKEN)
            if request is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not the protobuf of its method")
            try:
                return await answer(request, context)
            except TrimsError as error:
                await context.abort(code_of(error), str(error)[:_MOST_LETTERS])

        return grpc.unary_unary_rpc_method_handler(
            behaviour, _lenient(handler.request_deserializer), handler.response_serializer
        )

    def _admits(self, details: grpc.HandlerCallDetails) -> bool:
        if details.method.endswith(_OPEN_METHODS):
            return True
        given = dict(details.invocation_metadata or ()).get("authorization", "")
        try:
            self._callers.enter(str(given))  # each call has a task of its own, which goes on with the handler
        except UnknownCallerError:
            return False
        return True


def _lenient(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """As `read`, but None for what it cannot read: gRPC tells no client of an error there."""

    def read_or_none(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return None

    return read_or_none


_NEEDS_TOKEN = "this endpoint needs `authorization: Bearer TOKEN`"  # noqa: S105 - no token, but where it goes


def _refusing_stream() -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, _NEEDS_TOKEN)

    return grpc.stream_unary_rpc_method_handler(refuse)


def code_of(error: TrimsError) -> grpc.StatusCode:
    """gRPC's status for an error."""
    return grpc.StatusCode.UNAVAILABLE if isinstance(error, BusyError) else status_of(error)


async def start_server(
    service: Service,
    health: Health,
    address: str,
    *,
    most_body_bytes: int,
    token: str | None,
    certificate: Path | None,
    private_key: Path | None,
    tenants: Tenants | None = None,
    workers: JsonWorkers | None = None,
    most_connections: int | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Listen on an address; returns the server and its port. Raises RuntimeError if the address is taken.

    A connection beyond `most_connections` is closed at once, and its client sees UNAVAILABLE.
    """
    options = [("grpc.max_receive_message_length", most_body_bytes), ("grpc.max_send_message_length", -1)]
    options.append(("grpc.so_reuseport", 0))  # or a second endpoint would share the port in silence
    if most_connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", most_connections))
    server = grpc.aio.server(interceptors=[ErrorsAsStatus(Callers(token, tenants))], options=options)
    servicer = InferenceServicer(service, workers or JsonWorkers(most_body_bytes))
    inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(  # type: ignore[no-untyped-call] # generated
        servicer, server
    )
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if certificate is not None and private_key is not None:
        credentials = grpc.ssl_server_credentials([(private_key.read_bytes(), certificate.read_bytes())])
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    servicer.server = (address.rpartition(":")[0].strip("[]"), port)
    await server.start()
    return server, port
