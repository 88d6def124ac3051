"""Clients of an endpoint that ask for many models: how long each request takes, and which fail. Without frameworks."""

from __future__ import annotations

import array
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from trims_bench.child import started
from trims_bench.endpoint import EndpointClient, EndpointError, tokens
from trims_bench.zoo import TOKENS, TOLERANCE, chosen

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from trims_bench.zoo import Load, Model

#: Seconds between the start of the last client and the first request.
_AHEAD_S = 0.2


def take(port: int, models: Sequence[Model], load: Load) -> dict[str, list[Any]]:
    """Return the results of all requests of a load: see `serve`. Each client is a process."""
    told = [{"name": model.name, "answer": model.answer} for model in models]
    with ExitStack() as stack:
        given = {"port": port, "models": told, "zipf": load.zipf, "seconds": load.seconds}
        processes = [stack.enter_context(started(serve, {**given, "seed": seed})) for seed in range(load.clients)]
        for process in processes:
            process.result()
        begin_ns = time.monotonic_ns() + int(_AHEAD_S * 1e9)
        for process in processes:
            process.ask({"begin_ns": begin_ns})
        parts = [process.result() for process in processes]
    return {what: [each for part in parts for each in part[what]] for what in ("warm", "cold", "failed")}


def serve(
    *, port: int, models: list[dict[str, Any]], zipf: float, seconds: float, seed: int
) -> Generator[dict[str, list[Any]], dict[str, int], None]:
    """Run a client that begins when asked. Yields nanoseconds of `warm` and `cold` requests, words of `failed`."""
    told: dict[str, list[Any]] = {"warm": [], "cold": [], "failed": []}
    begin_ns = (yield told)["begin_ns"]
    time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9))
    following, asked = chosen(models, zipf, seed), 0
    with closing(EndpointClient(port)) as client:
        while time.monotonic_ns() < begin_ns + seconds * 1e9 or not asked:
            _ask(client, next(following), told)
            asked += 1
    yield told
    yield {}


def _ask(client: EndpointClient, model: dict[str, Any], told: dict[str, list[Any]]) -> None:
    began = time.perf_counter_ns()
    try:
        answer, content = client.infer(model["name"], tokens("input_ids", count=len(TOKENS)))
    except (EndpointError, OSError) as error:
        client.close()
        told["failed"].append(f"{model['name']}: {error}")
        return
    taken = time.perf_counter_ns() - began
    found = _mean(answer["outputs"], content)
    if abs(found - model["answer"]) > TOLERANCE:
        told["failed"].append(f"{model['name']} gave {found}, not {model['answer']}")
    else:
        told["cold" if answer["parameters"]["cold"] else "warm"].append(taken)


def _mean(outputs: list[dict[str, Any]], content: bytes) -> float:
    """Return the mean magnitude of the last hidden state, float32."""
    at = 0
    for output in outputs:
        end = at + output["parameters"]["binary_data_size"]
        if output["name"] == "last_hidden_state":
            values = array.array("f", content[at:end])
            return sum(map(abs, values)) / len(values)
        at = end
    raise AssertionError(f"no hidden state in {[output['name'] for output in outputs]}")
