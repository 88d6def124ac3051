"""Requests as large as the limit allows: no route and no method reads or writes them in the endpoint's event loop.

Held by counts: what JSON and protobuf read and write in this process is measured, whatever the route. A new route is
walked because the routes are the application's own.
"""

# fault (endpoint): the largest body to any route -> its answer or 413; others are answered meanwhile

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import served_grpc
from asgi import Reply, call
from generating import Generator
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc import requests as grpc_requests
from trims_predictors.endpoint.grpc import service as grpc_service
from trims_predictors.endpoint.http.app import build_app
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.endpoint.requests.shared_memory import SharedMemory
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BYTES = 1 << 20
WORDS = ["word"] * (MOST_BYTES // 8 - 64)
TEXT = "x" * (MOST_BYTES // 4 - 256)
NUMBERS = list(range(100_000, 100_000 + MOST_BYTES // 8 - 32))
#: Bodies of up to the largest size, each of which is right for some route.
STRUCTURED = "a CloudEvent in structured mode"
BODIES: dict[str, object] = {
    "texts to embed": {"model": "m", "input": WORDS},
    "texts to continue": {"model": "m", "prompt": WORDS, "echo": True},
    "a text to continue in parts": {"model": "m", "prompt": TEXT, "stream": True},
    "a conversation": {"model": "m", "messages": [{"role": "user", "content": TEXT}]},
    "a field that is refused": {"model": "m", "input": "a", "prompt": "a", "metadata": {"a": TEXT}},
    "numbers": {"inputs": [{"name": "x", "datatype": "INT64", "shape": [len(NUMBERS)], "data": NUMBERS}]},
    "a text to generate from": {"text_input": TEXT},
    "an event": NUMBERS,
    STRUCTURED: {"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "data": NUMBERS},
    "a path": {"path": f"/{TEXT}", "place": TEXT, "parameters": {"a": TEXT}, "key": TEXT},
}
HEADERS = {STRUCTURED: {"content_type": "application/cloudevents+json"}}


class Large(Generator):
    """A service whose answers are as large as what they are asked; without the rest of a service."""

    def __init__(self) -> None:
        super().__init__()
        self.shared_memory = SharedMemory(offered=True)

    async def run(self, model: str, version: str, asked: Any, *, on_part: Any = None, span: Any = None) -> Any:
        del span
        deployment, texts = await self.deployment(model, version), to_array(asked.inputs[0])
        if texts.dtype != object:
            texts = np.array([b"text"], dtype=object)
        outputs = {
            "generated_text": texts, "finish_reason": np.array([b"stop"] * len(texts), dtype=object),
            "prompt_tokens": np.ones(len(texts), np.int64), "completion_tokens": np.ones(len(texts), np.int64),
            "embedding": np.ones((len(texts), 8), np.float32),
        }  # fmt: skip
        made = [from_array(name, outputs[name]) for name in asked.wanted or outputs]
        if on_part is not None:
            on_part([from_array("generated_text", texts)])
        return deployment, Answer(made, cold=False, how="running", place="cpu", warm=True, batch=1, stages={})

    async def infer(self, model: str, version: str, asked: Any, shared: Any, **given: Any) -> Any:
        del shared, given
        outputs = [SimpleNamespace(tensor=each, in_json=True, binary=False, shared=None) for each in asked.inputs]
        answer = Answer(asked.inputs, cold=False, how="running", place="cpu", warm=True, batch=1, stages={})
        return await self.deployment(model, version), answer, outputs

    @property
    def repository(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        async def missing(*_: object, **__: object) -> Any:
            raise ModelNotFoundError(f"{name} is not part of this test")

        return missing


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that JSON reads or writes in this process, and bytes that protobuf packs."""
    found: list[int] = []
    decode, encode, packed = json.JSONDecoder.decode, json.JSONEncoder.encode, grpc_requests._packed

    def decoding(self: Any, text: str, *more: Any) -> Any:
        found.append(len(text))
        return decode(self, text, *more)

    def encoding(self: Any, value: Any) -> str:
        found.append(len(made := encode(self, value)))
        return made

    def packing(name: str, dtype: str, contents: Any) -> bytes:
        found.append(contents.ByteSize())
        return packed(name, dtype, contents)

    monkeypatch.setattr(json.JSONDecoder, "decode", decoding)
    monkeypatch.setattr(json.JSONEncoder, "encode", encoding)
    monkeypatch.setattr(grpc_requests, "_packed", packing)
    return found


def routes_of(routes: Any) -> Iterator[tuple[str, str]]:
    """Yield method and path of each route that takes a body, those of included routers as well."""
    for each in routes:
        inner = getattr(each, "original_router", None)
        if inner is not None:
            yield from routes_of(inner.routes)
            continue
        for method in (getattr(each, "methods", None) or set()) - {"GET", "HEAD", "OPTIONS", "DELETE"}:
            yield method, each.path


def filled(path: str) -> str:
    """The path with a name for each variable."""
    parts = ["m" if part.startswith("{") else part for part in path.split("/")]
    return "/".join(parts).replace("versions/m", "versions/1.0.0")


def walked(bodies: dict[str, bytes]) -> dict[tuple[str, str], Reply]:
    """The reply of each route to each body: (path, body) -> reply."""

    async def run() -> dict[tuple[str, str], Reply]:
        service: Any = Large()
        workers = JsonWorkers(MOST_BYTES)
        app = build_app(service, most_body_bytes=MOST_BYTES, token=None, loopback=True, workers=workers)
        try:
            return {
                (path, what): await call(app, method, filled(path), body, **HEADERS.get(what, {}))
                for method, path in sorted(routes_of(app.routes))
                for what, body in bodies.items()
            }
        finally:
            await workers.close()

    return asyncio.run(run())


def test_no_route_reads_or_writes_a_large_body_in_the_event_loop(sizes: list[int]) -> None:
    bodies = {what: json.dumps(body).encode() for what, body in BODIES.items()}
    assert all(3 * SMALL_BYTES < len(body) <= MOST_BYTES for body in bodies.values())
    del sizes[:]
    replies = walked(bodies)
    assert max(sizes) <= SMALL_BYTES
    assert len({path for path, _ in replies}) > 25
    for path, what in (
        ("/v1/embeddings", "texts to embed"), ("/v1/completions", "texts to continue"),
        ("/openai/v1/completions", "a text to continue in parts"), ("/v1/chat/completions", "a conversation"),
        ("/v2/models/{model}/infer", "numbers"),
    ):  # fmt: skip
        assert replies[path, what].status == 200, replies[path, what].body[:500]
        assert len(replies[path, what].body) > 3 * SMALL_BYTES
    refused = replies["/v1/completions", "a field that is refused"]
    assert (refused.status, "'input'" in refused.json()["error"]["message"]) == (400, True)
    assert {reply.status for reply in replies.values()} <= {200, 400, 403, 404, 413}


#: List of elements of a message over gRPC -> data type, and an element.
ELEMENTS: dict[str, tuple[str, object]] = {
    "bool_contents": ("BOOL", True), "int_contents": ("INT32", 1 << 20), "int64_contents": ("INT64", 1 << 40),
    "uint_contents": ("UINT32", 1 << 20), "uint64_contents": ("UINT64", 1 << 40), "fp32_contents": ("FP32", 0.5),
    "fp64_contents": ("FP64", 0.5), "bytes_contents": ("BYTES", b"ab"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [each.name for each in pb.InferTensorContents.DESCRIPTOR.fields])
def test_no_elements_of_a_large_message_are_packed_in_the_event_loop(sizes: list[int], kind: str) -> None:
    dtype, element = ELEMENTS[kind]
    count = 4 * SMALL_BYTES
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype=dtype, shape=[count])
    getattr(tensor.contents, kind).extend([element] * count)
    service = served_grpc.StandIn()

    async def work(stub: Any) -> Any:
        return await stub.ModelInfer(pb.ModelInferRequest(model_name="m", inputs=[tensor]))

    answer = served_grpc.call(service, work, most_bytes=16 << 20)
    assert list(answer.outputs[0].shape) == [count]
    assert all(size <= SMALL_BYTES for size in sizes)


def test_a_large_answer_over_grpc_is_put_together_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    write = grpc_service.write_answer

    def writing(*given: Any, **how: Any) -> Any:
        made.append((answer := write(*given, **how)).ByteSize())
        return answer

    monkeypatch.setattr(grpc_service, "write_answer", writing)
    data = np.arange(2 << 20).astype("<i4").tobytes()
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT32", shape=[2 << 20])

    async def work(stub: Any) -> Any:
        return await stub.ModelInfer(pb.ModelInferRequest(model_name="m", inputs=[tensor], raw_input_contents=[data]))

    answer = served_grpc.call(served_grpc.StandIn(), work, most_bytes=16 << 20)
    assert list(answer.raw_output_contents) == [data]
    assert max(made) < 1000


METHODS = [each.name for each in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]


@pytest.mark.parametrize("method", [each for each in METHODS if each not in ("ModelInfer", "ModelStreamInfer")])
def test_every_other_method_over_grpc_refuses_a_large_message(method: str) -> None:
    async def work(stub: Any) -> None:
        await stub.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(bytes(MOST_BYTES))

    code, _ = served_grpc.refusal(served_grpc.StandIn(), work, most_bytes=2 * MOST_BYTES)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
