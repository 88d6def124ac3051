"""Program in the environment of other people's clients: tritonclient with its default settings.

Checks whose names begin with grpc get gRPC's port.
"""

from __future__ import annotations

import asyncio
import queue
from functools import partial
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from forked_checks import answer_checks
from tritonclient.utils import InferenceServerException


def _inputs(module: Any, values: Any, *, binary: bool | None = None) -> list[Any]:
    array = np.asarray(values, dtype=np.float64)
    given = module.InferInput("x", list(array.shape), "FP64")
    if binary is None:
        given.set_data_from_numpy(array)
    else:
        given.set_data_from_numpy(array, binary_data=binary)
    return [given]


def check_http(port: str) -> None:
    with http.InferenceServerClient(f"localhost:{port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("m")
        assert client.is_model_ready("m", "0.0.0")
        assert not client.is_model_ready("unknown")
        assert client.get_server_metadata()["name"] == "trims"
        result = client.infer("m", _inputs(http, [1.0, 2.0]), request_id="7")
        assert result.as_numpy("y").tolist() == [2.0, 4.0]
        assert result.get_response()["id"] == "7"
        assert [each["name"] for each in client.get_model_metadata("m")["inputs"]] == ["x"]
        assert client.get_model_config("m")["input"][0]["data_type"] == "TYPE_FP64"
        assert client.get_inference_statistics("m")["model_stats"][0]["inference_count"] >= 1
        assert "m" in [each["name"] for each in client.get_model_repository_index()]
        client.unload_model("m")
        client.load_model("m")
        assert client.infer("m", _inputs(http, [3.0])).as_numpy("y").tolist() == [6.0]


def check_http_binary(port: str) -> None:
    with http.InferenceServerClient(f"localhost:{port}") as client:
        for given in (True, False):
            for wanted in (None, True, False):
                outputs = None if wanted is None else [http.InferRequestedOutput("y", binary_data=wanted)]
                result = client.infer("m", _inputs(http, [1.0, 2.0], binary=given), outputs=outputs)
                assert result.as_numpy("y").tolist() == [2.0, 4.0], (given, wanted)
        for packing in ("gzip", "deflate"):
            result = client.infer(
                "m",
                _inputs(http, [1.0]),
                request_compression_algorithm=packing,
                response_compression_algorithm=packing,
            )
            assert result.as_numpy("y").tolist() == [2.0]


def check_http_errors(port: str) -> None:
    with http.InferenceServerClient(f"localhost:{port}") as client:
        assert client.infer("m", _inputs(http, np.zeros(0))).as_numpy("y").tolist() == []
        for model, values, status, message in (
            ("unknown", [1.0], "404", "no model 'unknown' is registered"),
            ("m", [[1.0]], "400", "the input 'x' of 'm' is FP64 of shape [-1]"),
        ):
            told = _refusal(client, model, _inputs(http, values))
            assert status in str(told.status()), told
            assert message in told.message(), told


def _refusal(client: Any, model: str, inputs: list[Any]) -> InferenceServerException:
    try:
        client.infer(model, inputs)
    except InferenceServerException as error:
        return error
    raise AssertionError(f"{model} has answered")


def check_http_threads(port: str) -> None:
    with http.InferenceServerClient(f"localhost:{port}", concurrency=8) as client:
        asked = [client.async_infer("m", _inputs(http, [float(index)])) for index in range(64)]
        assert [each.get_result().as_numpy("y").tolist() for each in asked] == [[2.0 * i] for i in range(64)]


def check_http_aio(port: str) -> None:
    async def run() -> None:
        async with http_aio.InferenceServerClient(f"localhost:{port}") as client:
            assert await client.is_server_live()
            asked = [client.infer("m", _inputs(http_aio, [float(index)])) for index in range(32)]
            found = [each.as_numpy("y").tolist() for each in await asyncio.gather(*asked)]
            assert found == [[2.0 * index] for index in range(32)]

    asyncio.run(run())


def check_grpc(port: str) -> None:
    with grpc.InferenceServerClient(f"localhost:{port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("m")
        assert not client.is_model_ready("unknown")
        assert client.get_server_metadata().name == "trims"
        client.unload_model("m")
        result = client.infer("m", _inputs(grpc, [1.0, 2.0]), request_id="7")
        assert result.as_numpy("y").tolist() == [2.0, 4.0]
        assert result.get_response().id == "7"
        assert result.get_response().parameters["cold"].bool_param is True
        assert [each.name for each in client.get_model_metadata("m").inputs] == ["x"]
        assert client.get_model_config("m").config.input[0].name == "x"
        assert client.get_inference_statistics("m").model_stats[0].inference_count >= 1
        assert "m" in [each.name for each in client.get_model_repository_index().models]
        client.unload_model("m")
        client.load_model("m")
        outputs = [grpc.InferRequestedOutput("y")]
        result = client.infer("m", _inputs(grpc, [3.0]), outputs=outputs, compression_algorithm="gzip")
        assert result.as_numpy("y").tolist() == [6.0]


def check_grpc_errors(port: str) -> None:
    with grpc.InferenceServerClient(f"localhost:{port}") as client:
        assert client.infer("m", _inputs(grpc, [1.0])).as_numpy("y").tolist() == [2.0]
        for model, values, status in (("unknown", [1.0], "NOT_FOUND"), ("m", [[1.0]], "INVALID_ARGUMENT")):
            told = _refusal(client, model, _inputs(grpc, values))
            assert status in str(told.status()), told


def check_grpc_stream(port: str) -> None:
    with grpc.InferenceServerClient(f"localhost:{port}") as client:
        found: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: found.put(error or result.as_numpy("y").tolist()))
        for index in range(8):
            client.async_stream_infer("m", _inputs(grpc, [float(index)]))
        client.async_stream_infer("unknown", _inputs(grpc, [1.0]))
        client.async_stream_infer("m", _inputs(grpc, [9.0]))
        told = [found.get(timeout=60) for _ in range(10)]
        assert told[:8] == [[2.0 * index] for index in range(8)], told
        assert "no model" in str(told[8])
        assert told[9] == [18.0]
        client.stop_stream()


def check_grpc_aio(port: str) -> None:
    async def run() -> None:
        async with grpc_aio.InferenceServerClient(f"localhost:{port}") as client:
            asked = [client.infer("m", _inputs(grpc_aio, [float(index)])) for index in range(32)]
            found = [each.as_numpy("y").tolist() for each in await asyncio.gather(*asked)]
            assert found == [[2.0 * index] for index in range(32)]

    asyncio.run(run())


def _refused(call: Any, words: str) -> None:
    """Return whether a call is refused with these words."""
    try:
        call()
    except InferenceServerException as error:
        message = error.message()
    else:
        raise AssertionError(f"this is not refused: {words}")
    assert words in message, message


def _check_extensions(module: Any, port: str) -> None:
    """Extensions that are offered do what they say, others are refused by name."""
    with module.InferenceServerClient(f"localhost:{port}") as client:
        outputs = [module.InferRequestedOutput("y", class_count=2)]
        result = client.infer("m", _inputs(module, [1.0, 3.0, 2.0]), outputs=outputs, timeout=60_000_000)
        assert result.as_numpy("y").tolist() == [b"6.000000:1", b"4.000000:2"], result.as_numpy("y")
        for given, words in (
            ({"sequence_id": 7, "sequence_start": True}, "the extension sequence is not offered"),
            ({"priority": 1}, "has no priority levels"),
            ({"parameters": {"temperature": 1}}, "the parameter 'temperature'"),
        ):
            _refused(partial(client.infer, "m", _inputs(module, [1.0]), **given), words)
        for call, extension in (
            (client.get_trace_settings, "trace"), (client.get_log_settings, "logging"),
            (partial(client.get_cuda_shared_memory_status, "r"), "cuda_shared_memory"),
            (partial(client.register_cuda_shared_memory, "r", b"aGFuZGxl", 0, 8), "cuda_shared_memory"),
        ):  # fmt: skip
            _refused(call, f"the extension {extension} is not offered")
        client.unregister_cuda_shared_memory()
        assert not client.get_cuda_shared_memory_status(**({"as_json": True} if module is grpc else {}))


def check_http_extensions(port: str) -> None:
    _check_extensions(http, port)


def check_grpc_extensions(port: str) -> None:
    _check_extensions(grpc, port)


def _check_shared_memory(module: Any, port: str) -> None:
    """Use system shared memory as Triton's examples do."""
    given = np.array([1.0, 2.0])
    handles = [shm.create_shared_memory_region(f"r{index}", f"/trims_test_{port}_{index}", 64) for index in range(2)]
    try:
        with module.InferenceServerClient(f"localhost:{port}") as client:
            client.unregister_system_shared_memory()
            shm.set_shared_memory_region(handles[0], [given])
            for index in range(2):
                client.register_system_shared_memory(f"r{index}", f"/trims_test_{port}_{index}", 64)
            told = client.get_system_shared_memory_status()
            assert len(told if isinstance(told, list) else told.regions) == 2, told
            inputs = [module.InferInput("x", [2], "FP64")]
            inputs[0].set_shared_memory("r0", 16)
            output = module.InferRequestedOutput("y")
            output.set_shared_memory("r1", 16, 8)
            told = client.infer("m", inputs, outputs=[output]).get_output("y")
            assert list(told["shape"] if isinstance(told, dict) else told.shape) == [2]
            assert shm.get_contents_as_numpy(handles[1], np.float64, [2], 8).tolist() == [2.0, 4.0]
            mixed = client.infer("m", inputs)
            assert mixed.as_numpy("y").tolist() == [2.0, 4.0]
            output.set_shared_memory("r1", 8)
            words = "has 16 bytes; its place in shared memory has 8"
            _refused(partial(client.infer, "m", inputs, outputs=[output]), words)
            client.unregister_system_shared_memory("r0")
            client.unregister_system_shared_memory()
    finally:
        for handle in handles:
            shm.destroy_shared_memory_region(handle)


def check_http_shared_memory(port: str) -> None:
    _check_shared_memory(http, port)


def check_grpc_shared_memory(port: str) -> None:
    _check_shared_memory(grpc, port)


if __name__ == "__main__":
    answer_checks(lambda name, port: globals()[f"check_{name}"](port))
