"""Many models of one kind and the processes that use them: who asks for which, how often, and how long each waits.

A request is what a function does that keeps no model: load one, run it once, drop it. The client processes are there
before, with their framework imported, so only loading and running are timed.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trims_bench.child import started
from trims_bench.evaluation import page_cache
from trims_bench.models import TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trims_bench.child import Started

Side = Literal["trims", "transformers"]
TOKEN_IDS = list(range(1000, 1000 + TOKENS))
#: Seconds between the signal to the clients and their first request.
_AHEAD_S = 0.2
#: Largest difference between answers of one model by different ways.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Model:
    """Model that client processes ask for.

    Attributes:
        folder: Folder that `save_pretrained` wrote.
    """

    name: str
    folder: Path
    answer: float
    nbytes: int

    def manifest(self, shape: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest for `trims add`."""
        options = {"module": "trims_bench.models:torch_module", "module_args": {"architecture": "minilm", **shape}}
        return {"name": self.name, "artifact": {"path": str(self.folder / "model.safetensors"), "options": options}}


def make_models(folder: Path, count: int, shape: dict[str, Any]) -> list[Model]:
    """Write models with seeded random weights."""
    from trims_bench.models import build_safetensors, torch_module

    found = []
    for number in range(count):
        path = folder / f"model-{number}"
        weights = path / build_safetensors(path, architecture="minilm", seed=number, **shape)
        module = type(torch_module("minilm", **shape)).from_pretrained(path)
        found.append(Model(f"zoo-{number}", path, _run(module), weights.stat().st_size))
    return found


def drop_pages(folder: Path) -> None:
    """Have the kernel forget the pages of all files in a folder, as far as they are not mapped."""
    page_cache.drop(str(path) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@dataclass(frozen=True, slots=True)
class Load:
    """Load that the clients make for a while.

    Attributes:
        zipf: Exponent: model number n is asked for as often as 1 / n ** zipf; 0 for all alike.
    """

    zipf: float
    clients: int
    seconds: float


class Clients:
    """Processes of one side. Use `clients`."""

    def __init__(self, processes: Sequence[Started]) -> None:
        self._processes = processes

    def take(self, load: Load) -> list[int]:
        """Nanoseconds of each request of all clients, in no order."""
        busy = self._processes[: load.clients]
        begin_ns = time.monotonic_ns() + int(_AHEAD_S * 1e9)
        for number, process in enumerate(busy):
            process.ask({"begin_ns": begin_ns, "seconds": load.seconds, "zipf": load.zipf, "seed": number})
        return [taken for process in busy for taken in process.result()]


@contextmanager
def clients(side: Side, models: Sequence[Model], count: int, runtime_dir: Path) -> Iterator[Clients]:
    """Processes that are ready, for the length of a `with` block."""
    told = [{"name": model.name, "folder": str(model.folder), "answer": model.answer} for model in models]
    given = {"side": side, "models": told, "runtime_dir": str(runtime_dir)}
    with ExitStack() as stack:
        processes = [stack.enter_context(started(serve, given)) for _ in range(count)]
        for process in processes:
            process.result()
        yield Clients(processes)


def serve(*, side: Side, models: list[dict[str, Any]], runtime_dir: str) -> Iterator[Any]:
    """Run a client that yields the nanoseconds of its requests, for each load that it gets."""
    import torch

    torch.set_num_threads(1)
    build = _loader(side, runtime_dir)
    _request(build, models[0])
    load = yield None
    while load is not None:
        load = yield _requests(build, models, **load)
    yield None


def _loader(side: Side, runtime_dir: str) -> Callable[[dict[str, Any]], Any]:
    """Return a function by which this side makes a module."""
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    if side == "transformers":
        return lambda model: BertModel.from_pretrained(model["folder"])
    import trims

    session = trims.connect(runtime_dir)

    def attach(model: dict[str, Any]) -> Any:
        with session.open(model["name"]) as weights:
            return trims.torch.module(weights)

    return attach


def _requests(
    build: Callable[[dict[str, Any]], Any],
    models: list[dict[str, Any]],
    *,
    begin_ns: int,
    seconds: float,
    zipf: float,
    seed: int,
) -> list[int]:
    following = chosen(models, zipf, seed)
    time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9))
    taken: list[int] = []
    while time.monotonic_ns() < begin_ns + seconds * 1e9 or not taken:
        taken.append(_request(build, next(following)))
    return taken


def chosen(models: Sequence[dict[str, Any]], zipf: float, seed: int) -> Iterator[dict[str, Any]]:
    """Models as a client asks for them; see `Load`."""
    chance = random.Random(seed)  # noqa: S311 - a load, not a secret
    likely = [1 / rank**zipf for rank in range(1, len(models) + 1)]
    while True:
        yield chance.choices(models, likely)[0]


def _request(build: Callable[[dict[str, Any]], Any], model: dict[str, Any]) -> int:
    began = time.perf_counter_ns()
    answer = _run(build(model))
    taken = time.perf_counter_ns() - began
    assert abs(answer - model["answer"]) < TOLERANCE, f"{model['name']} gave {answer}, not {model['answer']}"
    return taken


def _run(module: Any) -> float:
    import torch

    with torch.inference_mode():
        hidden = module(torch.tensor([TOKEN_IDS])).last_hidden_state
    return float(hidden.abs().mean())


def answer_alone(*, folder: str) -> float:
    """Answer as a process that has the framework alone: import it, load the model, run it once."""
    import torch

    torch.set_num_threads(1)
    return _run(_loader("transformers", "")({"folder": folder}))


def mean_of(answer: dict[str, Any], content: bytes) -> float:
    """Return the mean magnitude of the last hidden state, float32, of an endpoint's answer in binary."""
    import numpy as np

    at = 0
    for output in answer["outputs"]:
        end = at + output["parameters"]["binary_data_size"]
        if output["name"] == "last_hidden_state":
            return float(np.abs(np.frombuffer(content[at:end], np.float32)).mean())
        at = end
    raise AssertionError(f"no hidden state in {answer['outputs']}")
