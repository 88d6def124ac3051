"""Program in the environment of other people's clients: KServe's inference clients with their default settings.

python kserve_side.py CHECK PORT: prints `fine` if all holds. Checks whose names begin with grpc get gRPC's port.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


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
        answer = await client.infer(_request([1.0, 2.0]))
        assert answer.outputs[0].as_numpy().tolist() == [2.0, 4.0]
        told = await _refusal(client.infer(_request([1.0], model="unknown")))
        assert "no model 'unknown' is registered" in told, told


if __name__ == "__main__":
    asyncio.run(globals()[f"check_{sys.argv[1]}"](sys.argv[2]))
    sys.stdout.write("fine\n")
