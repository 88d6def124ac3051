"""The predictor of MXNet models, in MXNet's own environment, forked from a template that has imported it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet_files
import numpy as np
import pytest
from endpoints import Endpoint
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
        deployment = await driver.deployment()
        driver.pool.retire(deployment.key)
        assert (await driver.ask(data=np.ones((1, 3), "f4"))).how == "forked", "the template can be forked again"
        for wrong in ({"data": np.array([[b"a"] * 3], dtype=object)}, {"other": np.ones((1, 3), "f4")}):
            with pytest.raises(CallerError):
                await driver.ask(**wrong)

    settings: dict[str, Any] = {"environments": {"mxnet": Path(MXNET_PYTHON)}}
    drive(daemon, work, **settings)


def graph(operator: str, *variables: str, **attributes: str) -> dict[str, Any]:
    """A symbol of one operator over variables."""
    nodes: list[dict[str, Any]] = [{"op": "null", "name": name, "inputs": []} for name in variables]
    inputs = [[index, 0, 0] for index in range(len(variables))]
    nodes.append({"op": operator, "name": "y", "attrs": attributes, "inputs": inputs})
    return {"nodes": nodes, "arg_nodes": list(range(len(variables))), "heads": [[len(variables), 0, 0]]}


def ask(daemon: Daemon, folder: Path, symbol: Any, weights: dict[str, bytes], *requests: dict[str, Any]) -> list[Any]:
    """The output for each request, or the error."""
    path = mxnet_files.save(folder, weights, symbol)
    with admin(daemon.config.runtime_dir) as control:
        manifest = {"name": "m", "artifact": {"path": str(path)}, "framework": {"name": "mxnet"}}
        control.add(manifest, lazy=True)
    found: list[Any] = []

    async def work(driver: Driver) -> None:
        for request in requests:
            try:
                (output,) = arrays(await driver.ask(**request)).values()
                found.append(output)
            except CallerError as error:
                found.append(error)

    settings: dict[str, Any] = {"environments": {"mxnet": Path(MXNET_PYTHON)}}
    drive(daemon, work, **settings)
    return found


#: Eight bytes of 1: a whole number that neither float32 nor float64 holds.
C = 0x0101010101010101


def test_whole_numbers_go_through_a_graph_of_whole_numbers_unrounded(daemon: Daemon, folder: Path) -> None:
    x = np.array([[16777217], [2**53 + 1]])
    weights = {"arg:c": mxnet_files.array("I64", (1, 1))}
    (found,) = ask(daemon, folder, graph("broadcast_add", "x", "c"), weights, {"x": x})
    assert (found.dtype, found.tolist()) == (np.int64, (x + C).tolist())


def test_doubles_go_through_a_graph_of_doubles_unrounded(daemon: Daemon, folder: Path) -> None:
    x = np.array([[0.1, 1 + 2.0**-50]])
    c = np.frombuffer(bytes([0x40] * 8))
    weights = {"arg:c": mxnet_files.array("F64", (1, 1), fill=0x40)}
    (found,) = ask(daemon, folder, graph("broadcast_mul", "x", "c"), weights, {"x": x})
    assert (found.dtype, found.tolist()) == (np.float64, (x * c).tolist())


def test_an_index_finds_its_row_of_a_table_and_is_not_rounded_on_the_way(daemon: Daemon, folder: Path) -> None:
    index = 16777217  # the first whole number that float32 lacks
    table = mxnet_files.array("U8", (index + 1,), fill=7)[:-1] + b"\x09"
    symbol = graph("take", "table", "x")
    (found,) = ask(daemon, folder, symbol, {"arg:table": table}, {"x": np.array([index, 0])})
    assert (found.dtype, found.tolist()) == (np.uint8, [9, 7])


def test_what_the_graph_s_type_would_round_is_refused_and_what_it_holds_is_taken(daemon: Daemon, folder: Path) -> None:
    weights = {"arg:c": mxnet_files.array("F32", (1, 1), fill=0)}
    kinds = ("u1", "i1", "f2", "f4", "i4", "i8", "f8", "i2", "u4")
    given = [{"x": np.array([[3]], kind)} for kind in kinds]
    found = dict(zip(kinds, ask(daemon, folder, graph("broadcast_add", "x", "c"), weights, *given), strict=True))
    for kind in ("u1", "i1", "f2", "f4"):
        assert (found[kind].dtype, found[kind].tolist()) == (np.float32, [[3.0]])
    for kind, name in (("i4", "int32"), ("i8", "int64"), ("f8", "float64")):
        assert isinstance(found[kind], CallerError), kind
        assert f"the input 'x' is {name} and the graph takes float32" in str(found[kind])
    for kind, name in (("i2", "int16"), ("u4", "uint32")):
        assert isinstance(found[kind], CallerError), kind
        assert f"the input 'x' is {name}; MXNet has arrays of float32" in str(found[kind])


def test_whole_numbers_of_json_come_back_in_json_as_they_are(daemon: Daemon, folder: Path) -> None:
    path = mxnet_files.save(folder, {"arg:c": mxnet_files.array("I64", (1, 1))}, graph("broadcast_add", "x", "c"))
    with admin(daemon.config.runtime_dir) as control:
        control.add({"name": "m", "artifact": {"path": str(path)}, "framework": {"name": "mxnet"}}, lazy=True)
    endpoint = Endpoint(daemon.config.runtime_dir, "--environments", f"mxnet={MXNET_PYTHON}")
    try:
        given = [16777217, 2**53 + 1]
        body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [2, 1], "data": given}]}
        status, answer = endpoint.ask("POST", "/v2/models/m/infer", body)
        assert (status, answer["outputs"][0]["data"]) == (200, [each + C for each in given])
        known = endpoint.ask("GET", "/v2/models/m")[1]
        assert known["inputs"] == [{"name": "x", "datatype": "INT64", "shape": [-1, -1]}]
    finally:
        endpoint.end()
