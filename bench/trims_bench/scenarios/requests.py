"""Requests to the endpoint: what it adds to a predictor's call, and what one waits for that no predictor runs yet."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from trims_bench.child import call, environment, started
from trims_bench.endpoint import EndpointClient, EndpointProcess, as_inputs, environment_of
from trims_bench.measuring import Bar, Comparison, Figure, Samples, measure, more
from trims_bench.models import MXNET, ONNX, TORCH, inputs, manifest
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup


# Servers of the endpoint's libraries with nothing behind them: what the protocol, its library and its client take.
#
# HTTP by uvicorn without a framework, gRPC by grpc.aio. They read each request as a whole and answer ten zeros.

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


_ADDED = "a request of one tensor 1x3x224x224 to the endpoint, over a call of the predictor in one process"
_SPARES = "a request for a resident model that no process runs, by a spare or a hot spare, over its compute"
_NAME = "pooled"
_HTTP, _GRPC = Bar("<=", 2.0), Bar("<=", 1.5)
#: Bars by client: the wait of the usual clients' users; and, with minimal clients, the time that the endpoint adds.
_BARS = {
    "HTTP by tritonclient": _HTTP,
    "HTTP by http.client": _HTTP,
    "gRPC by tritonclient": _GRPC,
    "gRPC by a stub": _GRPC,
}
#: Rows of the same clients with nothing behind the protocol: time in which the endpoint has no part.
_EMPTY = {"HTTP by tritonclient": "HTTP, an empty server", "gRPC by tritonclient": "gRPC, an empty server"}
_IN_PROCESS = "in one process"
_WARM_UP, _BURST = 20, 50
#: Variables of a client whose allocator does not give each buffer back to the kernel.
_KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(16 << 20)}
_NOTE = (
    "From one numpy array to another, with binary tensors over connections that are kept; float32, 602 kB. The "
    "predictor runs already; it means over the pixels and multiplies a small matrix, one thread. The other side opens "
    "the same weights, and calls the same predictor. More than the call: the median over all requests of the "
    "difference. An empty server: tritonclient asks one of the same library (uvicorn, grpc.aio) that reads the request "
    "and answers zeros."
)
_NOTE_ON_ROWS = (
    "In a row: requests follow each other, and the ways take turns by 50. Memory kept: the same by a client whose "
    "environment has MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_; without them its allocator gives the buffers "
    "of each request back to the kernel and takes them again. One at a time: between two requests of one way there is "
    "one of each other way, and the client collects garbage; caches are cold and threads asleep."
)
_IN_A_ROW, _KEPT, _ALONE = "in a row", "in a row, memory kept", "one at a time"


def added(setup: Setup) -> Figure:
    """Measure each client in a process of its own: as it is, with memory that it keeps, and with others between."""
    from trims_bench.repository import clients_python, packages_path
    from trims_bench.small import manifest as small_manifest
    from trims_bench.small import write_weights

    python = clients_python()
    figure = Figure("endpoint", _ADDED, [], [_NOTE, _NOTE_ON_ROWS])
    with setup.scratch() as folder, setup.daemon() as daemon:
        daemon.load(
            daemon.register(small_manifest(_NAME, write_weights(folder / "small.npz"), "pooled", [-1, 3, -1, -1]))
        )
        with (
            EndpointProcess(daemon.runtime_dir, "--grpc-port", "0", "--hot-spares", "0") as endpoint,
            started(serve, {}) as empty,
        ):
            empty_ports = empty.result()
            given = {
                "runtime_dir": str(daemon.runtime_dir),
                "ports": [endpoint.port, endpoint.grpc_port],
                "empty_ports": [empty_ports["http"], empty_ports["grpc"]],
            }
            env = {**environment(), "PYTHONPATH": packages_path()}
            for how, more, count in ((_IN_A_ROW, {}, 1000), (_KEPT, _KEEPING, 1000), (_ALONE, {}, 300)):
                asked = {**given, "count": setup.repeats(count), "in_bursts": how != _ALONE}
                figure.comparisons += _compared(how, call(ask_all, asked, python=python, env={**env, **more}))
    return figure


def _compared(how: str, found: dict[str, list[int]]) -> Iterator[Comparison]:
    called = Samples(_IN_PROCESS, found[_IN_PROCESS])
    for way, bar in _BARS.items():
        asked = Samples(way, found[way])
        limit = None if how == _ALONE else bar
        yield more(f"{how}: {way}, more than the call", asked, called, limit)
    for way, name in _EMPTY.items():
        yield more(
            f"{how}: {way}, more than an empty server", Samples(way, found[way]), Samples(name, found[name]), None
        )


def ask_all(
    *, runtime_dir: str, ports: list[int], empty_ports: list[int], count: int, in_bursts: bool
) -> dict[str, list[int]]:
    """Nanoseconds of each way, in the environment of clients by others; the endpoint's answers are compared."""
    import numpy as np

    image = np.random.default_rng(1).random((1, 3, 224, 224), dtype=np.float32)
    ways = {
        _IN_PROCESS: _in_process(runtime_dir),
        "HTTP by tritonclient": _by_http(ports[0]),
        "HTTP by http.client": _by_standard_library(ports[0]),
        "gRPC by tritonclient": _by_grpc(ports[1]),
        "gRPC by a stub": _by_stub(ports[1]),
        "HTTP, an empty server": _by_http(empty_ports[0]),
        "gRPC, an empty server": _by_grpc(empty_ports[1]),
    }
    expected = ways[_IN_PROCESS](image)

    def keep(way: str, answer: Any) -> None:
        np.testing.assert_array_equal(answer, expected if way not in _EMPTY.values() else 0, err_msg=way)

    turns = {way: partial(ask, image) for way, ask in ways.items()}
    if in_bursts:
        return measure(turns, count, burst=min(count, _BURST), warm_up=5, keep=keep)
    return measure(turns, count, warm_up=_WARM_UP, keep=keep)


def _in_process(runtime_dir: str) -> Callable[[Any], Any]:
    from trims_predictors.api import Context
    from trims_predictors.frameworks.function import FunctionPredictor

    import trims
    from trims_bench.small import pooled

    predictor = FunctionPredictor(pooled)
    predictor.load(trims.connect(runtime_dir).open(_NAME), Context(_NAME))
    return lambda image: predictor.predict({"x": image})["y"]


def _by_http(port: int) -> Callable[[Any], Any]:
    import tritonclient.http as triton

    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    wanted = [triton.InferRequestedOutput("y", binary_data=True)]

    def ask(image: Any) -> Any:
        given = triton.InferInput("x", list(image.shape), "FP32")
        given.set_data_from_numpy(image)
        return client.infer(_NAME, [given], outputs=wanted).as_numpy("y")

    return ask


def _by_grpc(port: int) -> Callable[[Any], Any]:
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(f"127.0.0.1:{port}")

    def ask(image: Any) -> Any:
        given = triton.InferInput("x", list(image.shape), "FP32")
        given.set_data_from_numpy(image)
        return client.infer(_NAME, [given]).as_numpy("y")

    return ask


def _by_standard_library(port: int) -> Callable[[Any], Any]:
    import numpy as np

    client = EndpointClient(port)

    def ask(image: Any) -> Any:
        answer, content = client.infer(_NAME, {"x": ("FP32", image.shape, image.tobytes())})
        return np.frombuffer(content, np.float32).reshape(answer["outputs"][0]["shape"])

    return ask


def _by_stub(port: int) -> Callable[[Any], Any]:
    """Return a call by the stub of the protocol's own description, with nothing around it."""
    import grpc
    import numpy as np
    from tritonclient.grpc.service_pb2 import ModelInferRequest
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

    stub = GRPCInferenceServiceStub(grpc.insecure_channel(f"127.0.0.1:{port}"))

    def ask(image: Any) -> Any:
        request = ModelInferRequest(model_name=_NAME, raw_input_contents=[image.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=image.shape)
        answer = stub.ModelInfer(request)
        return np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(answer.outputs[0].shape)

    return ask


# -- models that no process runs -----------------------------------------------------------------------------------

#: Models by title: architecture, framework, and the bars of a spare and of a hot spare, in ms beside computing.
_MODELS = {
    "MiniLM": ("minilm", TORCH, 30.0, 15.0),
    "BERT-base": ("bert-base", TORCH, 30.0, 15.0),
    "GPT-2": ("gpt2", TORCH, 30.0, 15.0),
    "ResNet-50": ("resnet50", TORCH, 30.0, 15.0),
    "ResNet-50, ONNX Runtime": ("resnet50", ONNX, 30.0, 15.0),
    "ResNet-50, MXNet": ("resnet50-mxnet", MXNET, 120.0, 120.0),
    "VGG-16, MXNet": ("vgg16-mxnet", MXNET, 120.0, 120.0),
}
_SPARES_NOTE = (
    "An HTTP request (binary tensors) for a model that is in shared memory and that no predictor runs. More than "
    "compute: its time less `predict_s` of the next request, which the same predictor answers. Two threads. After each "
    "turn the predictor ends and a spare is made again, which is not timed. Hot: with `predictor: {hot: 1}` in the "
    "manifest. Against a fresh process of the framework: see `starts`."
)


def spares(setup: Setup) -> Figure:
    """Ask for each model by a spare, and by a hot spare."""
    figure = Figure("spares", _SPARES, [], [_SPARES_NOTE])
    models = {title: of for title, of in _MODELS.items() if of[1] != MXNET or setup.has_mxnet}
    if setup.quick:
        models = {"ResNet-50, ONNX Runtime": models["ResNet-50, ONNX Runtime"]}
    frameworks = ",".join(dict.fromkeys(of[1] for of in models.values()))
    flags = ["--preload", frameworks, "--hot-spares", "8", *environment_of(setup.mxnet if setup.has_mxnet else None)]
    with setup.daemon() as daemon, EndpointProcess(daemon.runtime_dir, *flags) as endpoint:
        for title, (architecture, framework, bar, bar_hot) in models.items():
            given = manifest(f"spare-{architecture}-{framework}", architecture, framework, small=setup.quick, threads=2)
            asked = as_inputs(inputs(architecture, framework))
            if architecture == "gpt2":
                del asked["attention_mask"]
            spare = _Spare(daemon, endpoint, framework, given, asked)
            for what, hot, limit in (("", 0, bar), (", hot", 1, bar_hot)):
                whole, compute = spare.taken(hot, setup.repeats(9))
                figure.comparisons.append(more(f"{title}{what}, more than compute", whole, compute, Bar("<=", limit)))
            daemon.evict(given["name"])
    return figure


class _Spare:
    """Requests for one model, each of which finds no predictor."""

    def __init__(
        self, daemon: DaemonProcess, endpoint: EndpointProcess, framework: str, given: dict[str, Any], asked: Any
    ) -> None:
        self._daemon = daemon
        self._endpoint = endpoint
        self._framework = framework
        self._given = given
        self._asked = asked

    def taken(self, hot: int, count: int) -> tuple[Samples, Samples]:
        """Return the times of requests, and what they computed."""
        name = self._given["name"]
        self._daemon.register({**self._given, "predictor": {**self._given["predictor"], "hot": hot}})
        self._daemon.load(name, place="cpu")
        for _ in range(2):  # the template learns what the model needs
            self._endpoint.infer(name, self._asked, keep_alive=0)
            self._endpoint.await_spare(self._framework, name)
        found: tuple[list[int], list[int]] = ([], [])
        for number in range(hot + count):
            if hot:
                self._endpoint.await_hot_spare(name)
            began = time.perf_counter_ns()
            answer, _ = self._endpoint.infer(name, self._asked)
            taken = time.perf_counter_ns() - began
            told = answer["parameters"]
            assert told["cold"] or told["predictor"] == "hot", f"{name} had no spare of that kind: {told}"
            again, _ = self._endpoint.infer(name, self._asked, keep_alive=0)
            if number >= hot:  # the first hot one knew no request's shapes to rehearse
                found[0].append(taken)
                found[1].append(round(again["parameters"]["predict_s"] * 1e9))
            if not hot:
                self._endpoint.await_spare(self._framework, name)
        return Samples("request", found[0]), Samples("compute", found[1])


PARTS = {"endpoint": Part(_ADDED, added), "spares": Part(_SPARES, spares)}
