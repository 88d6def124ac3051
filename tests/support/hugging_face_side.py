"""Program in the environment of other people's clients: those that ask Hugging Face models, as they are.

python hugging_face_side.py CHECK PORT GRPC_PORT: prints `fine` if all holds. The models are `embedder` (a folder of
sentence-transformers), `classifier`, `speller` (fill-mask) and `writer` (text-generation with a chat template).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import sys
import time
from typing import Any

import numpy as np
import openai


def check_openai(port: str, _: str) -> None:
    with openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0) as client:
        assert "embedder" in {model.id for model in client.models.list()}
        assert client.models.retrieve("embedder").id == "embedder"
        found = client.embeddings.create(model="embedder", input=["hello world", "the cat"])
        plain = client.embeddings.create(model="embedder", input="hello world", encoding_format="float")
        assert np.allclose(found.data[0].embedding, plain.data[0].embedding)
        assert [each.index for each in found.data] == [0, 1]
        assert found.usage.total_tokens == found.usage.prompt_tokens > 4
        made = client.completions.create(model="writer", prompt="hello world", max_tokens=6)
        assert made.choices[0].finish_reason in ("stop", "length")
        assert made.usage is not None
        assert made.usage.completion_tokens <= 6
        parts = client.completions.create(model="writer", prompt="hello world", max_tokens=6, stream=True)
        assert "".join(part.choices[0].text for part in parts) == made.choices[0].text
        echo = client.completions.create(model="writer", prompt=["hello world", "the cat"], max_tokens=3, echo=True)
        assert [each.text[:5] for each in echo.choices] == ["hello", "the c"]
        echoed = client.completions.create(model="writer", prompt="hello world", max_tokens=6, echo=True, stream=True)
        assert "".join(part.choices[0].text for part in echoed) == "hello world" + made.choices[0].text


def check_openai_chat(port: str, _: str) -> None:
    with openai.OpenAI(base_url=f"http://localhost:{port}/openai/v1", api_key="none", max_retries=0) as client:
        messages: list[Any] = [
            {"role": "system", "content": "this is text"},
            {"role": "user", "content": [{"type": "text", "text": "hello world"}]},
        ]
        made = client.chat.completions.create(model="writer", messages=messages, max_tokens=6, temperature=0)
        text = made.choices[0].message.content
        assert made.choices[0].message.role == "assistant"
        parts = list(client.chat.completions.create(
            model="writer", messages=messages, max_completion_tokens=6, temperature=0, stream=True,
            stream_options={"include_usage": True},
        ))  # fmt: skip
        assert parts[-1].usage is not None
        assert parts[-1].usage.completion_tokens == made.usage.completion_tokens
        assert parts[-2].choices[0].finish_reason == made.choices[0].finish_reason
        assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]) == text
        seeded = [
            client.chat.completions.create(model="writer", messages=messages, max_tokens=12, temperature=2, seed=5)
            for _ in range(2)
        ]
        assert seeded[0].choices[0].message.content == seeded[1].choices[0].message.content


def check_openai_errors(port: str, _: str) -> None:
    with openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0) as client:
        for error, ask in (
            (openai.NotFoundError, lambda: client.embeddings.create(model="unknown", input="x")),
            (openai.NotFoundError, lambda: client.models.retrieve("unknown")),
            (openai.BadRequestError, lambda: client.embeddings.create(model="classifier", input="x")),
            (openai.BadRequestError, lambda: client.embeddings.create(model="embedder", input=[1, 2, 3])),
            (openai.BadRequestError, lambda: client.completions.create(model="writer", prompt="x", n=2)),
            (openai.BadRequestError, lambda: client.completions.create(model="writer", prompt="x", temperature=-1)),
            (openai.BadRequestError, lambda: client.chat.completions.create(model="writer", messages=[])),
            (
                openai.BadRequestError,
                lambda: client.completions.create(model="writer", prompt="x", max_tokens=10**9, stream=True),
            ),
        ):
            with contextlib.suppress(error):
                ask()  # type: ignore[no-untyped-call]
                raise AssertionError(error)


def _text(module: Any, name: str, *values: str) -> Any:
    given = module.InferInput(name, [len(values)], "BYTES")
    given.set_data_from_numpy(np.array([each.encode() for each in values], dtype=object))
    return given


def check_triton(port: str, _: str) -> None:
    import tritonclient.http as http

    with http.InferenceServerClient(f"localhost:{port}") as client:
        assert client.get_model_metadata("classifier")["inputs"][0]["name"] == "text"
        for name in ("text", "args", "anything"):
            answer = client.infer("classifier", [_text(http, name, "not good", "hello")])
            assert answer.as_numpy("label").shape == (2,)
            assert answer.as_numpy("score").dtype == np.float32
        vectors = client.infer("embedder", [_text(http, "text", "hello world")]).as_numpy("embedding")
        assert abs(np.linalg.norm(vectors[0]) - 1) < 1e-5
        asked = [http.InferRequestedOutput("output", binary_data=False)]
        rows = client.infer("speller", [_text(http, "array_inputs", "the [MASK] sat")], outputs=asked).as_numpy(
            "output"
        )
        assert json.loads(rows[0])[0]["token_str"]


def check_triton_stream(_: str, port: str) -> None:
    import tritonclient.grpc as grpc

    answers: queue.Queue[Any] = queue.Queue()
    with grpc.InferenceServerClient(f"localhost:{port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        flag = grpc.InferInput("stream", [1], "BOOL")
        flag.set_data_from_numpy(np.array([True]))
        most = grpc.InferInput("max_tokens", [1], "INT64")
        most.set_data_from_numpy(np.array([6]))
        whole = client.infer("writer", [_text(grpc, "text_input", "hello world"), most]).as_numpy("generated_text")[0]
        for empty in (False, True):
            client.async_stream_infer(
                "writer", [_text(grpc, "text_input", "hello world"), flag, most], enable_empty_final_response=empty
            )
            parts, final = [], False
            while not final:
                result, error = answers.get(timeout=60)
                assert error is None, error
                final = result.get_response().parameters["triton_final_response"].bool_param
                parts += [] if result.as_numpy("generated_text") is None else [result.as_numpy("generated_text")[0]]
            assert b"hello world" + b"".join(parts) == whole, (parts, whole)
        client.async_stream_infer("writer", [_text(grpc, "text_input", "hello world"), flag, _text(grpc, "x", "y")])
        _, error = answers.get(timeout=60)
        assert "'x'" in str(error)
        client.stop_stream()


async def check_kserve(port: str, _: str) -> None:
    import kserve  # its messages have the names of tritonclient's: one process has one of them
    from kserve.protocol.infer_type import RequestedOutput

    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2", timeout=60))
    given = kserve.InferInput(name="input-0", shape=[2], datatype="BYTES", data=["not good", "hello"])
    request = kserve.InferRequest(
        model_name="classifier", infer_inputs=[given], request_outputs=[RequestedOutput("output-0")]
    )
    answer = await client.infer(f"http://localhost:{port}", request, model_name="classifier")
    (output,) = answer.outputs
    assert (output.name, output.datatype, output.shape) == ("output-0", "INT64", [2])
    await client.close()


async def check_kserve_openai(port: str, _: str) -> None:
    """The clients that KServe's documentation shows for its Hugging Face runtime."""
    async with openai.AsyncOpenAI(base_url=f"http://localhost:{port}/openai/v1", api_key="none") as client:
        began = time.monotonic()
        found = await asyncio.gather(
            *(client.embeddings.create(model="embedder", input=f"text {index}") for index in range(8))
        )
        assert len(found) == 8
        assert time.monotonic() > began


def check_huggingface_hub(port: str, _: str) -> None:
    """Ask by the hub's own client, as its documentation shows it for servers that speak OpenAI's API."""
    from huggingface_hub import InferenceClient

    messages = [{"role": "user", "content": "hello world"}]
    with InferenceClient(base_url=f"http://localhost:{port}/v1", api_key="none") as client:
        made = client.chat.completions.create(model="writer", messages=messages, max_tokens=6)
        assert made.choices[0].message.role == "assistant"
        assert made.usage.completion_tokens <= 6
        parts = client.chat_completion(messages, model="writer", max_tokens=6, temperature=0, stream=True)
        whole = client.chat_completion(messages, model="writer", max_tokens=6, temperature=0)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content


if __name__ == "__main__":
    outcome = globals()[f"check_{sys.argv[1]}"](*sys.argv[2:])
    if asyncio.iscoroutine(outcome):
        asyncio.run(outcome)
    sys.stdout.write("fine\n")
