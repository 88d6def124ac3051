"""Program in the environment of other people's clients: KServe's inference clients with their default settings.

Checks whose names begin with grpc get gRPC's port.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from forked_checks import answer_checks
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput


def _request(values: list[float], *, model: str = "m", binary: bool = False) -> Any:
    given = InferInput(name="x", shape=[len(values)], datatype="FP64")
    given.set_data_from_numpy(np.array(values), binary_data=binary)
    return InferRequest(model_name=model, infer_inputs=[given])


async def check_http(port: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    base = f"http://localhost:{port}"
    assert await client.is_server_live(base)
    assert await client.is_server_ready(base)
    assert await client.is_model_ready(base, "m")
    for binary in (False, True):
        answer = await client.infer(base, _request([1.0, 2.0], binary=binary), model_name="m")
        assert answer.outputs[0].as_numpy().tolist() == [2.0, 4.0], binary
    await client.close()


async def check_http_errors(port: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    request = _request([1.0], model="unknown")
    told = await _refusal(client.infer(f"http://localhost:{port}", request, model_name="unknown"))
    assert "no model 'unknown' is registered" in told, told
    await client.close()


async def _refusal(asking: Any) -> str:
    try:
        await asking
    except Exception as error:
        return str(error)
    raise AssertionError("it was answered")


async def check_grpc(port: str) -> None:
    async with InferenceGRPCClient(f"localhost:{port}", timeout=60) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("m")
        told = await _refusal(client.infer(_request([1.0], model="unknown")))
        assert "no model 'unknown' is registered" in told, told


def _given(data: Any, dtype: str = "FP64", **how: Any) -> Any:
    """One input as KServe's documentation makes it: from an array by default, which states binary_data_size."""
    if isinstance(data, list):
        return InferInput(name="x", shape=[len(data)], datatype=dtype, data=data)
    made = InferInput(name="x", shape=list(data.shape), datatype=dtype)
    made.set_data_from_numpy(data, **how)
    return made


async def check_grpc_inputs(port: str) -> None:
    """Every form in which the client sends an input: its default, others, and an input without elements."""
    array = np.array([1.0, 2.0])
    late = InferInput(name="x", shape=[2], datatype="FP64", data=array)  # the client packs it when it sends it
    async with InferenceGRPCClient(f"localhost:{port}", timeout=60) as client:
        for given in (
            _given(array), _given(array, binary_data=False), _given([1.0, 2.0]), late, _given(np.zeros(0)),
        ):  # fmt: skip
            expected = [] if given.shape == [0] else [2.0, 4.0]
            for _ in range(2):  # the same request once more
                answer = await client.infer(InferRequest(model_name="m", infer_inputs=[given]))
                assert answer.outputs[0].as_numpy().tolist() == expected, given


async def check_grpc_types(port: str) -> None:
    """Types that travel as raw bytes only, or have a length before each element."""
    texts = np.array([b"one", b"two"], dtype=np.object_)
    async with InferenceGRPCClient(f"localhost:{port}", timeout=60) as client:
        for data, dtype in ((np.array([0.5], np.float16), "FP16"), (np.array([7], np.int64), "INT64")):
            answer = await client.infer(InferRequest(model_name="echo", infer_inputs=[_given(data, dtype)]))
            assert answer.outputs[0].as_numpy().tolist() == data.tolist(), dtype
        for how in ({}, {"binary_data": False}):
            asked = InferRequest(model_name="echo", infer_inputs=[_given(texts, "BYTES", **how)])
            assert (await client.infer(asked)).outputs[0].as_numpy().tolist() == texts.tolist()


async def check_grpc_parameters(port: str) -> None:
    """What a request made for HTTP says over gRPC as well."""
    given = _given(np.array([1.0, 2.0]))
    async with InferenceGRPCClient(f"localhost:{port}", timeout=60) as client:
        for outputs in (None, [RequestedOutput("y")], [RequestedOutput("y", {"binary_data": True})]):
            asked = InferRequest(
                model_name="m", infer_inputs=[given], request_id="7", request_outputs=outputs,
                parameters={"binary_data_output": True},
            )  # fmt: skip
            answer = await client.infer(asked)
            assert answer.id == "7"
            assert answer.outputs[0].as_numpy().tolist() == [2.0, 4.0]
        no = InferRequest(model_name="m", infer_inputs=[given], parameters={"binary_data_output": False})
        assert "binary_data_output" in await _refusal(client.infer(no))


async def check_grpc_wrong_sizes(port: str) -> None:
    given = _given(np.array([1.0, 2.0]))
    given.parameters["binary_data_size"] = 8
    async with InferenceGRPCClient(f"localhost:{port}", timeout=60) as client:
        told = await _refusal(client.infer(InferRequest(model_name="m", infer_inputs=[given])))
        assert "'x' claims 8 binary bytes" in told, told


if __name__ == "__main__":
    answer_checks(lambda name, port: asyncio.run(globals()[f"check_{name}"](port)))
