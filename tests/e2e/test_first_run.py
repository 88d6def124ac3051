"""The first run of a model: what it takes is known from its graph, else the error says how to state it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import onnx_models
import pytest
from endpoints import Endpoint
from fleets import SUPPORT

from trims.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

    Command = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.usefixtures("forked_starts")


@pytest.fixture
def trims(daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """A command; returns (status, standard output, standard error)."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH")))))

    def once(*words: str) -> tuple[int, str, str]:
        status = main(["--runtime-dir", str(daemon.config.runtime_dir), *words])
        told = capsys.readouterr()
        return status, told.out, told.err

    return once


def a_linear_module(folder: Path) -> Path:
    """The manifest of a model that PyTorch runs, whose weights are of FP32."""
    torch = pytest.importorskip("torch")
    (folder / "linear_module.py").write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(3, 1)\n")
    torch.save(torch.nn.Linear(3, 1).state_dict(), folder / "m.pt")
    artifact = {"path": "m.pt", "format": "torch", "options": {"module": "linear_module:make"}}
    path = folder / "m.yaml"
    path.write_text(json.dumps({"name": "m", "artifact": artifact, "framework": {"name": "torch"}}))
    return path


def test_what_an_onnx_model_takes_is_known_before_anything_has_loaded_it(
    daemon: Daemon, trims: Command, folder: Path
) -> None:
    assert trims("add", str(onnx_models.classifier(folder / "c.onnx")))[0] == 0
    _, out, _ = trims("show", "c")
    assert "inputs     X (FP32 [-1, 2])\noutputs    label (INT64 [-1])\n" in out
    endpoint = Endpoint(daemon.config.runtime_dir)
    try:
        _, told = endpoint.ask("GET", "/v2/models/c")
        assert told["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 2]}]
        assert told["outputs"] == [{"name": "label", "datatype": "INT64", "shape": [-1]}]
        status, out, err = trims("run", "c", "[[2, 1], [0, 1]]", "--json")
        answer = json.loads(out)
        assert (status, err, answer["outputs"][0]["data"], answer["parameters"]["cold"]) == (0, "", [3, 7], True)
    finally:
        endpoint.end()


def test_whole_numbers_are_those_of_the_graph_in_the_first_run_without_an_endpoint(
    trims: Command, folder: Path
) -> None:
    trims("add", str(onnx_models.classifier(folder / "c.onnx")))
    status, out, _ = trims("run", "c", "X=[[2, 1]]", "--json")
    assert (status, json.loads(out)["outputs"][0]["data"]) == (0, [3])


@pytest.mark.parametrize("endpoints", [True, False])
def test_the_first_run_of_a_module_names_the_flag_and_is_remembered(
    daemon: Daemon, trims: Command, folder: Path, endpoints: bool
) -> None:
    assert trims("add", str(a_linear_module(folder)))[0] == 0
    made = [Endpoint(daemon.config.runtime_dir)] if endpoints else []
    numbers = "input=[[1, 2, 3]]"
    try:
        status, _, err = trims("run", "m", numbers)
        assert status == 1
        assert "input as INT64 was sent" in err
        assert "--dtype input=TYPE" in err
        assert trims("run", "m", numbers, "--dtype", "input=FP32")[0] == 0
        if made:
            known: Any = made[0].ask("GET", "/v2/models/m")[1]
            assert known["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, -1]}]
            assert known["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, -1]}]
            made.pop().end()
            made.append(Endpoint(daemon.config.runtime_dir))
            assert made[0].ask("GET", "/v2/models/m")[1] == known
        assert "input (FP32 [-1, -1]), as the first run had them" in trims("show", "m")[1]
        assert trims("run", "m", numbers)[0] == 0
        body = {"inputs": [{"name": "other", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}]}
        if made:
            assert made[0].ask("POST", "/v2/models/m/infer", body)[0] == 200, "what a run had refuses nothing"
    finally:
        for each in made:
            each.end()


def test_what_a_run_had_is_forgotten_with_its_image(trims: Command, folder: Path) -> None:
    manifest = a_linear_module(folder)
    trims("add", str(manifest))
    trims("run", "m", "input=[[1, 2, 3]]", "--dtype", "FP32")
    assert "as the first run had them" in trims("show", "m")[1]
    a_linear_module(folder)
    trims("add", str(manifest), "--replace")
    assert "as the first run had them" not in trims("show", "m")[1]


def test_a_graph_that_was_exchanged_takes_its_own_inputs_at_once(daemon: Daemon, trims: Command, folder: Path) -> None:
    """Facts about the files that were there before refuse no request for those that are there now."""
    value, kind = onnx_models.value, onnx_models.TensorProto
    path = onnx_models.classifier(folder / "c.onnx")
    trims("add", str(path))
    node = onnx_models.helper.make_node("Neg", ["a"], ["b"])
    onnx_models.save(path, [node], [value("a", kind.INT64, ["n"])], [value("b", kind.INT64, ["n"])], {})
    endpoint = Endpoint(daemon.config.runtime_dir)
    try:
        endpoint.ask("GET", "/v2/models/c")  # which may know the files of before, or those of now
        body = {"inputs": [{"name": "a", "datatype": "INT64", "shape": [1], "data": [5]}]}
        status, answer = endpoint.ask("POST", "/v2/models/c/infer", body)
        assert (status, answer["outputs"][0]["data"]) == (200, [-5])
        assert [each["name"] for each in endpoint.ask("GET", "/v2/models/c")[1]["inputs"]] == ["a"]
    finally:
        endpoint.end()
