"""Many models behind an endpoint, memory for a part of them: no request fails, and none loads a framework."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from trims_bench import endpoint_clients
from trims_bench.child import call
from trims_bench.endpoint import EndpointError, EndpointProcess, tokens
from trims_bench.figures import Bar, Comparison, Figure, Samples
from trims_bench.scenarios.predictor import answer_alone
from trims_bench.scenarios.pressure import QUICK_SHAPE, zoo_daemon
from trims_bench.zoo import TOKENS, Load, chosen, clients, make_models

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trims_bench.scenarios.base import Setup
    from trims_bench.zoo import Model

TITLE = "30 models of 87 MiB behind the endpoint, memory for 12, Zipf 1.0, 8 clients: requests over a load for each"
_MODELS, _ROOM = 30, 0.4
_CLIENTS, _ZIPF = 8, 1.0
#: Requests, each by a fresh process; as many at once as there are clients.
_FRESH = 32
_SOONER = Bar(">=", 8.0)
_NOTE = (
    "Eight processes ask without pause, 16 tokens each time, one thread for each model, and check all answers. The "
    "template of PyTorch has learned what the models need before. The other sides have the same clients and the same "
    "models, in the page cache: a fresh process for each request, which imports transformers, loads the model by "
    "from_pretrained and runs it; and processes that have imported it, and load the model for each request."
)


def run(setup: Setup) -> Figure:
    """Ours for minutes, then both other sides."""
    shape: dict[str, Any] = QUICK_SHAPE if setup.quick else {}
    seconds = 1.0 if setup.quick else 60.0
    with setup.scratch() as folder:
        models = make_models(folder / "models", setup.size(_MODELS, 3), shape)
        load = Load(_ZIPF, setup.size(_CLIENTS, 2), seconds * setup.repeats(5))
        with zoo_daemon(setup, folder, models, shape, _ROOM, predictor={"threads": 1}) as daemon:
            told = _ours(daemon.runtime_dir, models, load)
            with clients("transformers", models, load.clients, daemon.runtime_dir) as processes:
                imported = processes.take(Load(load.zipf, load.clients, seconds))
        fresh = _fresh(models, load.clients, setup.size(_FRESH, 2))
    return Figure("many_models", TITLE, _compared(told, fresh, imported), [_NOTE, _counts(told)])


def _ours(runtime_dir: Path, models: Sequence[Model], load: Load) -> dict[str, list[Any]]:
    with EndpointProcess(runtime_dir, "--preload", "torch") as endpoint:
        for _ in range(2):
            endpoint.infer(models[0].name, tokens("input_ids", count=len(TOKENS)), keep_alive=0)
            endpoint.await_spare("torch", models[0].name)
        told = endpoint_clients.take(endpoint.port, models, load)
    if not told["warm"] and not told["cold"]:
        raise EndpointError(f"all {len(told['failed'])} requests failed, the first: {told['failed'][0]}")
    return told


def _fresh(models: Sequence[Model], at_once: int, count: int) -> list[int]:
    """Nanoseconds of so many requests, each by a process of its own."""
    told = [{"folder": str(model.folder)} for model in models]

    def ask(model: dict[str, Any]) -> int:
        began = time.perf_counter_ns()
        call(answer_alone, {"names": ("BertModel", "BertConfig"), "shape": {}, "side": 0, "threads": 1, **model})
        return time.perf_counter_ns() - began

    following = chosen(told, _ZIPF, seed=0)
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, [next(following) for _ in range(count)]))


def _compared(told: dict[str, list[Any]], fresh: list[int], imported: list[int]) -> list[Comparison]:
    """Ratios of 99th percentiles, which the sides show, and of all requests."""
    taken = [*told["warm"], *told["cold"]]
    counts = [Samples(kind, [len(told[kind])], "requests") for kind in ("warm", "cold")]
    answered = len(taken) / (len(taken) + len(told["failed"]))
    compared = [Comparison("answered right, of all (warm; cold)", answered, "x", Bar(">=", 1.0), counts)]
    ours, others = Samples("trims", taken), [Samples("fresh process", fresh), Samples("imported", imported)]
    for other, bar in zip(others, (_SOONER, None), strict=True):
        p99 = [Samples(f"{side.of}, p99", [side.percentile(0.99)]) for side in (ours, other)]
        compared.append(Comparison(f"p99, times sooner than {other.of}", p99[1].median / p99[0].median, "x", bar, p99))
        ratio = other.median / ours.median
        compared.append(Comparison(f"median, times sooner than {other.of}", ratio, "x", None, (ours, other)))
    return compared


def _counts(told: dict[str, list[Any]]) -> str:
    warm, cold, failed = (len(told[kind]) for kind in ("warm", "cold", "failed"))
    first = f", the first: {told['failed'][0]}" if failed else ""
    return f"{warm} requests met a predictor that ran, {cold} started one, {failed} failed{first}."
