"""Frameworks' own load functions in programs that nothing was changed in, with `trims.transparent` and without it."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any

from trims_bench.child import call, environment, started
from trims_bench.measuring import Bar, Comparison, Figure, Samples, faster, measure, more, share
from trims_bench.models import MXNET, ONNX, TORCH, artifact_of, inputs, manifest
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

_TITLE = "load functions of frameworks, unmodified: from shared memory, against alone"
_MEMORY_TITLE = "8 unmodified processes that load one file: shared memory of its weights, over what one of them maps"
_MXNET = "mx.model.load_checkpoint, VGG-16"
_ORT, _ORT_ANSWER = "onnxruntime.InferenceSession, BERT-base", "the same to its first answer"
_CAST, _MAPPED = "from_pretrained, BERT-base, float32 to float16", "from_pretrained, BERT-base, as it is"
#: Bars by what is loaded.
_BARS = {
    "torch.load, BERT-base": 20.0, "numpy.load, 256 MiB": None, _ORT: 10.0, _ORT_ANSWER: None, _CAST: 3.0, _MAPPED: 1.0,
}  # fmt: skip
_IN_MEMORY_S = 60.0


def loaders(setup: Setup) -> Figure:
    """Measure loads of a file that lies in memory, of one that the store has never seen, and of none."""
    figure = Figure("loaders", _TITLE, [])
    with setup.daemon() as daemon:
        path = _checkpoint(setup, daemon)
        given = {"path": str(path), "work": str(setup.work), "count": setup.repeats(20)}
        taken = call(loads, given, env=_environment(daemon))
        taken |= call(onnxruntime_loads, given | {"path": _onnx_path(setup, daemon)}, env=_environment(daemon))
        taken |= call(transformers_loads, given, env=_environment(daemon))
        if setup.has_mxnet:
            given = {"prefix": _mxnet_prefix(setup, daemon), "count": setup.repeats(20)}
            taken |= call(mxnet_loads, given, python=setup.mxnet, env=_environment(daemon))
    for name, bar in [*_BARS.items(), *[(_MXNET, 20.0)] * setup.has_mxnet]:
        ours, alone = (Samples(side, taken[f"{name}: {side}"]) for side in ("from shared memory", "alone"))
        figure.comparisons.append(faster(name, ours, alone, None if bar is None else Bar(">=", bar)))
    first, alone = (Samples(side, taken[f"first: {side}"]) for side in ("the store has never seen it", "alone"))
    figure.comparisons.append(share("torch.load of a copy that is new", first, alone, Bar("<=", 1.02)))
    imported, nothing = (Samples(side, taken[f"start: {side}"]) for side in ("import trims.transparent", "pass"))
    figure.comparisons.append(
        more("a program that loads no model, more than without", imported, nothing, Bar("<=", 2.0))
    )
    figure.notes.append(
        "One process, sides in turns, page cache warm; what a load returns is dropped outside of the time. A load from "
        "shared memory touches no page of the weights: their first use costs a page fault each."
    )
    return figure


def memory(setup: Setup) -> Figure:
    """Sum what processes hold of a file, once each has read all of it or answered."""
    figure = Figure("loaders-memory", _MEMORY_TITLE, [])
    with setup.daemon() as daemon:
        held = {"torch.load, BERT-base": _held(setup, daemon, hold, {"path": str(_checkpoint(setup, daemon))})}
        held[_ORT] = _held(setup, daemon, hold_session, {"path": _onnx_path(setup, daemon)})
        if setup.has_mxnet:
            given = {"prefix": _mxnet_prefix(setup, daemon)}
            held[_MXNET] = _held(setup, daemon, hold_parameters, given, python=setup.mxnet)
    for name, (proportional, resident) in held.items():
        one, shared = Samples("one process", resident, "bytes"), Samples("its share of 8", proportional, "bytes")
        times = sum(proportional) / one.median
        figure.comparisons.append(Comparison(name, times, "x", Bar("<=", 1.05), (shared, one)))
    return figure


def _held(
    setup: Setup, daemon: DaemonProcess, hold: Any, given: dict[str, str], **how: Any
) -> tuple[list[int], list[int]]:
    """Return the bytes of shared memory that count for each process that holds a file, and those that it has mapped."""
    from trims_bench.smaps import of_weights

    with contextlib.ExitStack() as stack:
        ways = [started(hold, given, env=_environment(daemon), **how) for _ in range(1 + setup.size(8, 2))]
        with ways.pop() as first:  # brings the file to memory
            assert first.result()["shared"], "a load did not come from shared memory"
        holders = [stack.enter_context(way) for way in ways]
        found = [holder.result() for holder in holders]
        assert all(each["shared"] for each in found), "a load did not come from shared memory"
        weights = [of_weights(each["pid"], "trims-") for each in found]
        for holder in holders:
            holder.end()
    return [each.pss for each in weights], [each.rss for each in weights]


def _checkpoint(setup: Setup, daemon: DaemonProcess) -> Path:
    given = manifest("loaded", "minilm" if setup.quick else "bert-base", TORCH, artifact_format=TORCH)
    daemon.add(given)
    return artifact_of(given, setup.state_dir)


def _onnx_path(setup: Setup, daemon: DaemonProcess) -> str:
    given = manifest("loaded-onnx", "minilm" if setup.quick else "bert-base", ONNX)
    daemon.add(given)
    return str(artifact_of(given, setup.state_dir))


def _mxnet_prefix(setup: Setup, daemon: DaemonProcess) -> str:
    given = manifest("loaded-mxnet", "vgg16-mxnet", MXNET, small=setup.quick)
    daemon.add(given)
    return str(artifact_of(given, setup.state_dir)).removesuffix("-symbol.json")


def _environment(daemon: DaemonProcess) -> dict[str, str]:
    return {**environment(), "TRIMS_RUNTIME_DIR": str(daemon.runtime_dir)}


def bring(path: str) -> None:
    """Load a checkpoint until it comes from shared memory."""
    import torch

    import trims.transparent

    assert trims.transparent.install()
    _load_until_shared("torch.load", lambda: torch.load(path))


def _load_until_shared(loader: str, load: Callable[[], object]) -> None:
    import trims.transparent

    until_s = time.monotonic() + _IN_MEMORY_S
    while loader not in trims.transparent.report().shared:
        load()
        assert time.monotonic() < until_s, trims.transparent.report()


def hold(path: str) -> Generator[dict[str, Any], Any, None]:
    """Load a checkpoint by torch, read all of it, and keep it."""
    import torch

    import trims.transparent

    assert trims.transparent.install()
    _load_until_shared("torch.load", lambda: torch.load(path))
    found = torch.load(path)
    yield _kept(sum(float(each.double().sum()) for each in found.values()))
    yield {}


def hold_session(path: str) -> Generator[dict[str, Any], Any, None]:
    """Have a session of ONNX Runtime answer, and keep it."""
    import onnxruntime

    import trims.transparent

    assert trims.transparent.install()
    _load_until_shared("onnxruntime.InferenceSession", lambda: onnxruntime.InferenceSession(path))
    session = onnxruntime.InferenceSession(path)
    yield _kept(float(session.run(None, inputs("bert-base", ONNX))[0].sum()))
    yield {}


def hold_parameters(prefix: str) -> Generator[dict[str, Any], Any, None]:
    """Load a checkpoint of MXNet, read all of it, and keep it."""
    import mxnet as mx

    import trims.transparent

    assert trims.transparent.install()
    _load_until_shared("mxnet.nd.load", lambda: mx.model.load_checkpoint(prefix, 0))
    _, arguments, states = mx.model.load_checkpoint(prefix, 0)
    yield _kept(sum(float(each.asnumpy().sum()) for each in {**arguments, **states}.values()))
    yield {}


def _kept(read: float) -> dict[str, Any]:
    import os

    import trims.transparent

    return {"pid": os.getpid(), "shared": bool(trims.transparent.report().shared), "sum": read}


def loads(path: str, work: str, count: int) -> dict[str, list[int]]:
    """Time loads, each side in turns."""
    import os
    import shutil
    import subprocess
    import sys

    import numpy as np
    import torch

    plain, plain_numpy = torch.load, np.load
    import trims.transparent

    assert trims.transparent.install()
    array = os.path.join(work, "loaded.npy")
    np.save(array, np.ones(64 << 20, "f4"))
    time.sleep(2.1)  # a file that was just written is the framework's
    bring(path)
    _load_until_shared("numpy.load", lambda: np.load(array))
    found = measure(
        {
            "torch.load, BERT-base: from shared memory": lambda: torch.load(path),
            "torch.load, BERT-base: alone": lambda: plain(path),
            "numpy.load, 256 MiB: from shared memory": lambda: np.load(array),
            "numpy.load, 256 MiB: alone": lambda: plain_numpy(array),
        },
        count,
    )
    os.unlink(array)
    for number in range(max(1, count // 2)):
        new = os.path.join(work, f"new-{number}.bin")
        shutil.copyfile(path, new)
        time.sleep(2.1)
        sides = [("alone", plain), ("the store has never seen it", torch.load)]
        for side, load in sides if number % 2 else sides[::-1]:
            began = time.perf_counter_ns()
            load(new)
            found.setdefault(f"first: {side}", []).append(time.perf_counter_ns() - began)
        os.unlink(new)
    for _ in range(count):
        for side in ("pass", "import trims.transparent"):
            began = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", side], check=True)
            found.setdefault(f"start: {side}", []).append(time.perf_counter_ns() - began)
    return found


def onnxruntime_loads(path: str, count: int, work: str) -> dict[str, list[int]]:
    """Time sessions, alone and to their first answer, each side in turns."""
    del work
    import onnxruntime

    import trims.transparent

    feeds = inputs("bert-base", ONNX)

    def load() -> Any:
        return onnxruntime.InferenceSession(path)

    assert trims.transparent.install()
    _load_until_shared("onnxruntime.InferenceSession", load)
    sessions, adapter = onnxruntime.InferenceSession, onnxruntime.InferenceSession.__init__

    def alone() -> Any:
        sessions.__init__ = adapter.__wrapped__
        try:
            return load()
        finally:
            sessions.__init__ = adapter

    sides = {"from shared memory": load, "alone": alone}
    found = measure({f"{_ORT}: {side}": make for side, make in sides.items()}, count)
    answers = {f"{_ORT_ANSWER}: {side}": functools.partial(_answer, make, feeds) for side, make in sides.items()}
    return found | measure(answers, count)


def _answer(make: Callable[[], Any], feeds: dict[str, Any]) -> Any:
    return make().run(None, feeds)


def transformers_loads(path: str, count: int, work: str) -> dict[str, list[int]]:
    """Time `from_pretrained` with a cast and without one, each side in turns."""
    del path
    import os

    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    import trims.transparent

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    folder = os.path.join(work, "bert-base")
    BertModel(BertConfig()).save_pretrained(folder)
    time.sleep(2.1)  # a file that was just written is the framework's

    def load(dtype: Any) -> Any:
        return BertModel.from_pretrained(folder, dtype=dtype)

    assert trims.transparent.install()
    _load_until_shared("transformers.from_pretrained", lambda: load(torch.float16))
    adapter = BertModel._load_pretrained_model

    def alone(dtype: Any) -> Any:
        BertModel._load_pretrained_model = staticmethod(adapter.__wrapped__)
        try:
            return load(dtype)
        finally:
            del BertModel._load_pretrained_model

    sides = {"from shared memory": load, "alone": alone}
    found: dict[str, list[int]] = {}
    for row, dtype in {_CAST: torch.float16, _MAPPED: torch.float32}.items():  # a cast leaves memory to be given back
        found |= measure({f"{row}: {side}": functools.partial(make, dtype) for side, make in sides.items()}, count)
    return found


def mxnet_loads(prefix: str, count: int) -> dict[str, list[int]]:
    """Time loads of a checkpoint in MXNet's environment, each side in turns."""
    import mxnet as mx

    import trims.transparent

    def load() -> object:
        return mx.model.load_checkpoint(prefix, 0)

    assert trims.transparent.install()
    _load_until_shared("mxnet.nd.load", load)
    adapter, plain = mx.nd.load, mx.nd.load.__wrapped__

    def alone() -> object:
        mx.nd.load = plain
        try:
            return load()
        finally:
            mx.nd.load = adapter

    return measure({f"{_MXNET}: from shared memory": load, f"{_MXNET}: alone": alone}, count)


PARTS = {"loaders": Part(_TITLE, loaders), "loaders-memory": Part(_MEMORY_TITLE, memory)}
