"""Servers of the endpoint's libraries with nothing behind them: what the protocol, its library and its client take.

HTTP by uvicorn without a framework, gRPC by grpc.aio. They read each request as a whole and answer ten zeros.
"""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHAPE, _ZEROS = [1, 10], bytes(40)
_HEADER = json.dumps(
    {
        "model_name": "empty",
        "model_version": "1",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": _SHAPE, "parameters": {"binary_data_size": len(_ZEROS)}}
        ],
    }
).encode()
_HEADERS = [
    (b"inference-header-content-length", str(len(_HEADER)).encode()),
    (b"content-length", str(len(_HEADER) + len(_ZEROS)).encode()),
]


def serve() -> Iterator[dict[str, int]]:
    """Serve HTTP and gRPC until the second step. Yields the ports `http` and `grpc` (`trims_bench.child.started`)."""
    import uvicorn
    from trims_predictors.malloc import keep_memory

    keep_memory()  # as the endpoint does
    listening = socket.create_server(("127.0.0.1", 0))
    http = uvicorn.Server(uvicorn.Config(_answer, log_level="error", lifespan="off"))
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=http.run, args=([listening],)),
        threading.Thread(target=lambda: asyncio.run(_serve_grpc(told.put)), daemon=True),
    ]
    for thread in threads:
        thread.start()
    yield {"http": int(listening.getsockname()[1]), "grpc": told.get()}
    http.should_exit = True
    threads[0].join()
    yield {}


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    del scope
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    b"".join(parts)
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _HEADER + _ZEROS})


async def _serve_grpc(tell: Callable[[int], None]) -> None:
    import grpc
    from trims_predictors.endpoint.grpc import inference_pb2 as pb
    from trims_predictors.endpoint.grpc import inference_pb2_grpc

    class Empty(inference_pb2_grpc.GRPCInferenceServiceServicer):
        async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
            del request, context
            answer = pb.ModelInferResponse(model_name="empty", raw_output_contents=[_ZEROS])
            answer.outputs.add(name="y", datatype="FP32", shape=_SHAPE)
            return answer

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(  # type: ignore[no-untyped-call] # generated
        Empty(), server
    )
    tell(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()
