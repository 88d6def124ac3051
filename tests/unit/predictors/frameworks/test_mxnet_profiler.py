"""MXNet's profiler in MXNet's own environment, within a predictor that answers other requests before and after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet_files
import numpy as np
import pytest
from fleets import Driver, arrays, drive
from repository import ROOT

from trims.control import admin
from trims.trace import spans
from trims.trace.levels import Level
from trims.trace.reader import read_traces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.daemon.main import Daemon

MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="no MXNet environment: make mxnet-env"),
]
SYMBOL = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "w", "inputs": []},
        {"op": "FullyConnected", "name": "fc_1", "attrs": {"num_hidden": "2", "no_bias": "True"},
         "inputs": [[0, 0, 0], [1, 0, 0]]},
        {"op": "abs", "name": "fc", "inputs": [[2, 0, 0]]},
        {"op": "abs", "name": "y", "inputs": [[3, 0, 0]]},
    ],
    "arg_nodes": [0, 1],
    "heads": [[4, 0, 0]],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    spans.stop()


def test_profiled_requests_and_others_take_turns_in_one_predictor(daemon: Daemon, folder: Path, tmp_path: Path) -> None:
    path = mxnet_files.save(folder, {"arg:w": mxnet_files.array("F32", (2, 3), fill=0x3F)}, SYMBOL)
    with admin(daemon.config.runtime_dir) as control:
        manifest = {"name": "m", "artifact": {"path": str(path)}, "framework": {"name": "mxnet"}}
        control.add(manifest, lazy=True)
    spans.configure(tmp_path, "tester", everything=True)
    levels = [Level.MODEL, Level.FRAMEWORK, Level.MODEL, Level.LIBRARY, Level.FRAMEWORK]

    async def work(driver: Driver) -> list[Any]:
        found = []
        for number, level in enumerate(levels):
            with spans.span("asked", Level.APPLICATION), spans.down_to(level):
                answer = await driver.ask(data=np.ones((1 + number % 2, 3), "f4"))
            found.append(next(iter(arrays(answer).values())))
        return found

    settings: dict[str, Any] = {"environments": {"mxnet": MXNET_PYTHON}}
    answers = drive(daemon, work, **settings)
    assert [len(each) for each in answers] == [1, 2, 1, 2, 1]
    assert {float(each) for answer in answers for each in answer.ravel()} == {float(answers[0][0, 0])}
    spans.stop()
    traces = [each for each in read_traces(tmp_path) if each.roots[0].name == "asked"]
    nodes = [[each.name for each in trace.spans if each.attributes.get("kind") == "operator"] for trace in traces]
    named = ["fc_1", "fc", "y"]
    assert nodes == [[], named, [], named, named]
    calls = [any(each.attributes.get("kind") == "call" for each in trace.spans) for trace in traces]
    assert calls[3]
    assert not calls[1]
