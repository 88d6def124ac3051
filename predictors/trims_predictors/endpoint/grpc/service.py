"""The Open Inference Protocol over gRPC, in the endpoint's event loop.

Tokens, bounds of messages, and errors as status codes are in `grpc_calls`. Requests of ModelInfer and ModelStreamInfer
arrive here as bytes, because reading them is work that needs bounds (`grpc_wire`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from trims.core.errors import BadMessageError, CallerError, ModelNotFoundError
from trims.logs import about
from trims.wire.keepalive import PING_S, ping_options
from trims_predictors.endpoint.extensions import check_repository, check_unload, not_offered
from trims_predictors.endpoint.generate.generation import wants_parts
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc import inference_pb2_grpc
from trims_predictors.endpoint.grpc.calls import Calls, code_of
from trims_predictors.endpoint.grpc.requests import (
    parse_request,
    plain_outputs,
    raw_bytes,
    wire_parts,
    write_answer,
    write_part,
)
from trims_predictors.endpoint.grpc.streams import AnswerStream
from trims_predictors.endpoint.grpc.wire import Received, receive
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.endpoint.observe.tracing import grpc_span
from trims_predictors.endpoint.principals import caller_name
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from trims_predictors.endpoint.credentials import ServerCertificate
    from trims_predictors.endpoint.grpc.health import Health
    from trims_predictors.endpoint.grpc.streams import Part
    from trims_predictors.endpoint.observe.metrics import Counting
    from trims_predictors.endpoint.observe.tracing import RequestSpan
    from trims_predictors.endpoint.principals import Principals
    from trims_predictors.endpoint.requests.infer_request import InferRequest
    from trims_predictors.endpoint.service import Service
    from trims_predictors.tensors import Tensor

#: Calls that have come and were neither taken nor refused yet: far more than come before the event loop's next turn.
_MOST_PENDING = 100_000
#: Letters of a model's name in the log.
_MOST_NAME = 500
#: Bytes of a call's metadata, as HTTP/2 counts them.
_MOST_METADATA_BYTES = 16 << 10


class InferenceServicer(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Handlers; their names are the protocol's."""

    def __init__(self, service: Service, workers: JsonWorkers) -> None:
        self._service = service
        self._workers = workers
        #: Address and port, once they are known.
        self.server = ("", 0)

    async def ServerLive(self, request: Any, context: Any) -> Any:
        """Return whether the endpoint runs."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Return whether the daemon serves."""
        return pb.ServerReadyResponse(ready=await self._service.is_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Return whether a model can be asked; its first request may load it."""
        try:
            reason = await self._service.why_not_ready(request.name, request.version)
        except ModelNotFoundError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=not reason)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """Return name, version and extensions of the endpoint."""
        return pb.ServerMetadataResponse(**self._service.metadata())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Return the inputs and outputs of a model."""
        return pb.ModelMetadataResponse(**await self._service.describe(request.name, request.version))

    async def ModelInfer(self, request: bytes, context: Any) -> Any:
        """Answer one request."""
        return await self._infer(self._receive(request), context, "ModelInfer")

    def _receive(self, data: bytes) -> Received:
        try:
            return receive(data)
        except BadMessageError as error:
            self._service.metrics.refused("grpc", error)
            raise

    async def _infer(self, received: Received, context: Any, method: str, part: Part | None = None) -> Any:
        """Answer one request: a message, or its bytes if they are many and no stream wants parts.

        A stream's parts are given to `part`, and what `_stream` returns is returned.
        """
        service, request = self._service, received.message
        model = request.model_name
        with (
            about(model=model[:_MOST_NAME]),
            service.metrics.request(model, "grpc") as counting,
            grpc_span(service.exporter, context, method, model=model, server=self.server, code_of=code_of) as span,
        ):
            if received.trouble:
                raise CallerError(received.trouble)
            asked = parse_request(request, received)
            whose = caller_name()
            await self._workers.pack(whose, asked.inputs, received.contents)
            if part is not None and wants_parts(asked):
                return await self._stream(asked, request, counting, span, part)
            with service.shared_memory.lend(asked) as shared:
                await shared.fill(asked)
                await self._workers.check(whose, asked.inputs)
                deployment, answer, outputs = await service.infer(
                    model, request.model_version, asked, shared, span=span
                )
            whole = part is not None or raw_bytes(outputs) <= COPIED_AT_ONCE_BYTES
            written = write_answer(asked, answer, deployment.model, deployment.version, outputs, raw=whole)
            counting.answer = answer
            return written if whole else await asyncio.to_thread(b"".join, wire_parts(written, outputs))

    async def _stream(
        self, asked: InferRequest, request: Any, counting: Counting, span: RequestSpan | None, part: Part
    ) -> Any:
        """Answer a request in parts. Return an empty last answer if the request wants one, else None."""
        model, parts = request.model_name, 0
        version = (await self._service.deployment(model, request.model_version)).version

        def take(tensors: Sequence[Tensor]) -> None:
            nonlocal parts
            parts += 1
            part(write_part(asked, model, version, tensors))

        deployment, answer = await self._service.run(model, version, asked, on_part=take, span=span)
        counting.answer = answer
        if not parts:  # no predictor that has parts, or nothing came
            return write_answer(asked, answer, deployment.model, deployment.version, plain_outputs(answer.outputs))
        if asked.parameters.get("triton_enable_empty_final_response"):
            return write_answer(asked, answer, deployment.model, deployment.version, [])
        return None

    async def ModelStreamInfer(self, request_iterator: AsyncIterator[bytes], context: Any) -> None:
        """Answer requests as they come, and send each answer when it is ready."""

        async def answer(received: Received, part: Part) -> Any:
            return await self._infer(received, context, "ModelStreamInfer", part)

        await AnswerStream(self._receive, answer, context.write).run(request_iterator)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        """Return the configuration of a model, which load generators ask for before they begin."""
        told = await self._service.configuration(request.name, request.version)
        for name in ("instance_group", "dynamic_batching"):  # not in our part of the protocol
            told.pop(name, None)
        return pb.ModelConfigResponse(config=pb.ModelConfig(**told))

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        """Return the counts of a model, or of all models."""
        answer = pb.ModelStatisticsResponse()
        for told in await self._service.statistics(request.name, request.version):
            fields = {name: value for name, value in told.items() if name != "cold_count"}
            answer.model_stats.add(**fields)
        return answer

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        """Return all models."""
        check_repository(request.repository_name)
        return pb.RepositoryIndexResponse(models=await self._service.repository.index(ready=request.ready))

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        """Have a model's weights in memory, and a predictor that has loaded it."""
        check_repository(request.repository_name)
        if request.parameters:
            raise CallerError("a model is loaded as its manifest says; register it again with `trims add --replace`")
        await self._service.repository.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def CudaSharedMemoryStatus(self, request: Any, context: Any) -> Any:
        """No region: none can be registered. Raises NotOfferedError for one by its name."""
        if request.name:
            raise not_offered("cuda_shared_memory")
        return pb.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryUnregister(self, request: Any, context: Any) -> Any:
        """Do nothing: clients forget all regions before they begin, whichever extensions they use."""
        return pb.CudaSharedMemoryUnregisterResponse()

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:
        """The caller's regions of shared memory."""
        answer = pb.SystemSharedMemoryStatusResponse()
        for told in self._service.shared_memory.status(request.name):
            answer.regions[told["name"]].CopyFrom(pb.SystemSharedMemoryStatusResponse.RegionStatus(**told))
        return answer

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:
        """Register a region."""
        await self._service.shared_memory.register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:
        """Forget one region, or all of the caller."""
        self._service.shared_memory.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        """Free a model's weights and end its predictors."""
        check_repository(request.repository_name)
        check_unload(request.parameters)
        await self._service.repository.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()


async def start_server(
    service: Service,
    health: Health,
    address: str,
    *,
    most_body_bytes: int,
    callers: Principals,
    certificate: ServerCertificate | None = None,
    workers: JsonWorkers | None = None,
    most_connections: int | None = None,
    access_log: bool = False,
    ping_s: float = PING_S,
) -> tuple[grpc.aio.Server, int]:
    """Listen on an address; returns the server and its port. Raises RuntimeError if the address is taken.

    A connection beyond `most_connections` is closed at once, and its client sees UNAVAILABLE.
    """
    options = [("grpc.max_receive_message_length", most_body_bytes), ("grpc.max_send_message_length", -1)]
    options += ping_options(ping_s)
    options.append(("grpc.so_reuseport", 0))  # or a second endpoint would share the port in silence
    if most_connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", most_connections))
    # One bound for metadata: between its two gRPC refuses some calls at random.
    options += [(f"grpc.{each}max_metadata_size", _MOST_METADATA_BYTES) for each in ("", "absolute_")]
    # Calls that the event loop has not taken yet: gRPC cancels some of them at random beyond these bounds.
    options += [(f"grpc.server.max_pending_requests{each}", _MOST_PENDING) for each in ("", "_hard_limit")]
    calls = Calls(callers, lambda error: service.metrics.refused("grpc", error), lines=access_log)
    server = grpc.aio.server(interceptors=[calls], options=options)
    servicer = InferenceServicer(service, workers or JsonWorkers(most_body_bytes))
    inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(  # type: ignore[no-untyped-call] # generated
        servicer, server
    )
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if certificate is not None:
        port = server.add_secure_port(address, certificate.for_grpc())
    else:
        port = server.add_insecure_port(address)
    servicer.server = (address.rpartition(":")[0].strip("[]"), port)
    await server.start()
    return server, port
