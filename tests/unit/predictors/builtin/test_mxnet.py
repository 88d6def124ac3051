"""The predictor of MXNet models, in MXNet's own environment, forked from a template that has imported it."""

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
from trims.core.errors import CallerError

if TYPE_CHECKING:
    from trims.daemon.main import Daemon

MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
SYMBOL = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "w", "inputs": []},
        {
            "op": "FullyConnected",
            "name": "y",
            "attrs": {"num_hidden": "2", "no_bias": "True"},
            "inputs": [[0, 0, 0], [1, 0, 0]],
        },
    ],
    "arg_nodes": [0, 1],
    "heads": [[2, 0, 0]],
}
pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="no MXNet environment: make mxnet-env"),
]


def test_a_graph_is_bound_for_the_shapes_of_each_request(daemon: Daemon, folder: Path) -> None:
    path = mxnet_files.save(folder, {"arg:w": mxnet_files.array("F32", (2, 3), fill=0x3F)}, SYMBOL)
    weight = np.frombuffer(bytes([0x3F] * 4), "f4")[0]
    with admin(daemon.config.runtime_dir) as control:
        manifest = {"name": "m", "artifact": {"path": str(path)}, "framework": {"name": "mxnet"}}
        control.add(manifest, lazy=True)

    async def work(driver: Driver) -> None:
        for rows in (1, 4, 1):
            answer = await driver.ask(data=np.ones((rows, 3), "f4"))
            (found,) = arrays(answer).values()
            assert found.shape == (rows, 2)
            assert np.allclose(found, 3 * weight)
        plan = await driver.plan()
        driver.fleet.retire(plan.line)
        assert (await driver.ask(data=np.ones((1, 3), "f4"))).how == "forked", "the template can be forked again"
        for wrong in ({"data": np.array([[b"a"] * 3], dtype=object)}, {"other": np.ones((1, 3), "f4")}):
            with pytest.raises(CallerError):
                await driver.ask(**wrong)

    settings: dict[str, Any] = {"environments": {"mxnet": Path(MXNET_PYTHON)}}
    drive(daemon, work, **settings)
