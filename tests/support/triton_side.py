"""What runs in the environment of other people's clients: tritonclient with its default settings.

python triton_side.py CHECK PORT: prints `fine` if all holds. Checks whose names begin with grpc get gRPC's port.
"""

from __future__ import annotations

import asyncio
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
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
        assert client.get_inference_statistics("m")["model_stats"][0]["inference_count"] == 1
        assert [each["name"] for each in client.get_model_repository_index()] == ["m"]
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
        result = client.infer("m", _inputs(grpc, [1.0, 2.0]), request_id="7")
        assert result.as_numpy("y").tolist() == [2.0, 4.0]
        assert result.get_response().id == "7"
        assert result.get_response().parameters["cold"].bool_param is True
        assert [each.name for each in client.get_model_metadata("m").inputs] == ["x"]
        assert client.get_model_config("m").config.input[0].name == "x"
        assert client.get_inference_statistics("m").model_stats[0].inference_count == 1
        assert [each.name for each in client.get_model_repository_index().models] == ["m"]
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


if __name__ == "__main__":
    globals()[f"check_{sys.argv[1]}"](sys.argv[2])
    sys.stdout.write("fine\n")
