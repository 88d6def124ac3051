"""`trims trace --level` below the model: layers, operators and calls of real predictors, as parts of their runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet_files
import pytest
from endpoints import Endpoint
from fleets import register
from repository import ROOT
from trims_bench.evaluation.leveled import Leveled

from trims.cli.main import main
from trims.control import admin
from trims.testing import torch_modules
from trims.trace import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))


@pytest.fixture(autouse=True)
def _off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TRIMS_TRACE", "TRIMS_TRACE_DIR", "TRIMS_TRACE_LEVEL", "TRACEPARENT"):
        monkeypatch.delenv(name, raising=False)
    yield
    spans.stop()


def traced(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], *arguments: str, flags: tuple[str, ...] = ()
) -> tuple[Any, str]:
    """Trace a request to a new endpoint; what is printed, and what is noted."""
    endpoint = Endpoint(daemon.config.runtime_dir, *flags)
    try:
        assert main(["--runtime-dir", str(daemon.config.runtime_dir), "trace", *arguments, "--json"]) == 0
    finally:
        endpoint.end()
    told = capsys.readouterr()
    return json.loads(told.out), told.err


def below(told: Any, kind: str) -> list[dict[str, Any]]:
    return [line for line in told["lines"] if line.get("attributes", {}).get("kind") == kind]


def named(told: Any, name: str) -> dict[str, Any]:
    (found,) = [line for line in told["lines"] if line["name"] == name]
    return found  # type: ignore[no-any-return]


def descends(told: Any, line: dict[str, Any], whole: dict[str, Any]) -> bool:
    by_id = {each["span_id"]: each for each in told["lines"] if "span_id" in each}
    while line["parent_id"] in by_id:
        line = by_id[line["parent_id"]]
        if line is whole:
            return True
    return False


@pytest.fixture
def conv_net(daemon: Daemon, folder: Path) -> str:
    import torch

    torch.save(torch_modules.conv_net().state_dict(), folder / "m.pt")
    options = {"module": "trims.testing.torch_modules:conv_net"}
    manifest = {
        "name": "net", "artifact": {"path": str(folder / "m.pt"), "options": options}, "framework": {"name": "torch"},
        "inputs": [{"name": "image", "dtype": "FP32", "shape": [-1, 3, -1, -1]}],
    }  # fmt: skip
    with admin(daemon.config.runtime_dir) as control:
        control.add(manifest, lazy=True)
    return "net"


IMAGE = f"image={json.dumps([[[[0.5] * 8] * 8] * 3])}"


def test_modules_and_operators_of_torch_are_parts_of_the_run(
    daemon: Daemon, conv_net: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    export = tmp_path / "t.json"
    told, noted = traced(daemon, capsys, conv_net, IMAGE, "--level", "framework", "--export", str(export))
    predict, layers = named(told, "predict"), below(told, "layer")
    assert [(each["name"], each["attributes"]["type"]) for each in layers] == [
        ("ConvNet", "ConvNet"), ("body", "Sequential"), ("body.0", "Conv2d"), ("body.1", "BatchNorm2d"),
        ("body.2", "ReLU"), ("head", "Linear"),
    ]  # fmt: skip
    assert all(descends(told, each, predict) for each in layers)
    assert {"aten::conv2d", "aten::mean", "aten::linear"} <= {each["name"] for each in below(told, "operator")}
    assert {each["level"] for each in (*layers, *below(told, "operator"))} == {"framework"}
    assert layers[2]["attributes"]["input_shapes"] == [[1, 3, 8, 8]]
    assert named(told, "read profile")["attributes"]["joined_share"] == 1.0
    assert noted.startswith("wrote ")
    assert len(noted.splitlines()) == 1, "nothing lacks"
    exported = {each["name"]: each for each in json.loads(export.read_text())["traceEvents"] if each["ph"] == "X"}
    assert (exported["body.0"]["cat"], exported["body.0"]["args"]["type"]) == ("framework", "Conv2d")


def test_deeper_levels_of_torch_add_inner_operators_and_samples_of_the_process(
    daemon: Daemon, conv_net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told, noted = traced(daemon, capsys, conv_net, IMAGE, "--level", "hardware")
    inner = [each for each in below(told, "operator") if each["level"] == "library"]
    assert "aten::convolution" in {each["name"] for each in inner}
    assert named(told, "predict")["attributes"]["system.rss_bytes"] > 1 << 20
    assert "torch uses no GPU here" in noted


def test_nodes_of_onnx_runtime_are_parts_of_the_run(
    daemon: Daemon, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx_files

    with admin(daemon.config.runtime_dir) as control:
        manifest = {
            "name": "m",
            "artifact": {"path": str(onnx_files.linear(folder))},
            "framework": {"name": "onnxruntime"},
        }
        control.add(manifest, lazy=True)
    told, noted = traced(daemon, capsys, "m", f"x={json.dumps([[1.0] * 32])}", "--level", "library")
    (node,) = below(told, "operator")
    assert node["parent_id"] == named(told, "predict")["span_id"]
    assert node["attributes"]["type"] == "Gemm"
    assert node["attributes"]["input_shapes"][0] == [1, 32]
    whole = named(told, "predict")
    assert (
        whole["begin_s"] <= node["begin_s"] <= node["begin_s"] + node["seconds"] <= whole["begin_s"] + whole["seconds"]
    )
    assert "nothing below the level framework" in noted


@pytest.mark.mxnet
@pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="no MXNet environment: make mxnet-env")
def test_nodes_of_mxnet_are_parts_of_the_run(daemon: Daemon, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    symbol = {
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {"op": "null", "name": "w", "inputs": []},
            {"op": "FullyConnected", "name": "fc", "attrs": {"num_hidden": "2", "no_bias": "True"},
             "inputs": [[0, 0, 0], [1, 0, 0]]},
            {"op": "abs", "name": "y", "inputs": [[2, 0, 0]]},
        ],
        "arg_nodes": [0, 1],
        "heads": [[3, 0, 0]],
    }  # fmt: skip
    path = mxnet_files.save(folder, {"arg:w": mxnet_files.array("F32", (2, 3), fill=0x3F)}, symbol)
    with admin(daemon.config.runtime_dir) as control:
        manifest = {"name": "m", "artifact": {"path": str(path)}, "framework": {"name": "mxnet"}}
        control.add(manifest, lazy=True)
    flags = ("--environments", f"mxnet={MXNET_PYTHON}")
    told, noted = traced(
        daemon,
        capsys,
        "m",
        f"data={json.dumps([[1.0] * 3])}",
        "--dtype",
        "data=FP32",
        "--level",
        "library",
        flags=flags,
    )
    nodes = below(told, "operator")
    assert [(each["name"], each["attributes"]["type"]) for each in nodes] == [("fc", "FullyConnected"), ("y", "abs")]
    assert {each["parent_id"] for each in nodes} == {named(told, "predict")["span_id"]}
    assert "MXExecutorForward" in {each["name"] for each in below(told, "call")}
    assert not noted


@pytest.mark.usefixtures("own_starts")
def test_a_function_without_a_framework_says_that_it_has_no_layers(
    daemon: Daemon, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = [{"name": "x", "dtype": "FP64", "shape": [-1]}]
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"}, inputs=inputs)
    told, noted = traced(daemon, capsys, "m", "[1.5]", "--level", "framework", flags=("--isolation", "process"))
    assert not below(told, "layer") + below(told, "operator")
    assert "there are no layers to show" in noted
    assert named(told, "run")["attributes"]["batch_size"] == 1


def test_an_evaluation_at_a_level_has_its_layers_and_what_each_level_costs(
    daemon: Daemon, conv_net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["--runtime-dir", str(daemon.config.runtime_dir), "eval", conv_net, IMAGE]
    some = ["--repeat", "1", "--from", "cpu", "--how", "template", "--level", "library"]
    assert main([*start, *some, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    leveled = Leveled.from_json(found["documents"]["layers"][0])
    assert [each.level for each in leveled.levels] == ["model", "framework", "library"]
    assert [each.overhead_s is None for each in leveled.levels] == [True, False, False]
    assert {"body.0", "head"} <= {each.name for each in leveled.layers.layers}
    assert leveled.layers.accounted >= 0.99
    assert not leveled.answers_differ
    assert main([*start, *some]) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("accounted by id: ", "deepest level", "body.0", "BatchNorm2d"))


def own(daemon: Daemon, checkpoint: Callable[..., Path], name: str) -> None:
    inputs = [{"name": "x", "dtype": "FP64", "shape": [-1]}]
    register(daemon, checkpoint, predictor={"call": f"own_predictors:{name}"}, inputs=inputs)


def test_a_profile_that_is_longer_than_a_message_arrives_and_is_cut_with_a_count(
    daemon: Daemon, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    own(daemon, checkpoint, "ManyLayers")
    told, noted = traced(daemon, capsys, "m", "[1.5]", "--level", "framework", flags=("--isolation", "process"))
    layers = below(told, "layer")
    assert (len(layers), layers[-1]["name"]) == (10_000, "layer10000")
    assert {each["parent_id"] for each in layers} == {named(told, "predict")["span_id"]}
    assert "5 spans of the profile were left out" in noted


def test_a_profiler_that_does_not_start_is_said_and_the_request_answered(
    daemon: Daemon, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    own(daemon, checkpoint, "Unprofiled")
    told, noted = traced(daemon, capsys, "m", "[1.5]", "--level", "framework", flags=("--isolation", "process"))
    assert named(told, "predict")["seconds"] > 0
    assert "the profiler did not start: OSError: it is busy" in noted


@pytest.mark.usefixtures("own_starts")
def test_an_evaluation_of_a_function_says_that_it_has_no_layers(
    daemon: Daemon, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    inputs = [{"name": "x", "dtype": "FP64", "shape": [-1]}]
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"}, inputs=inputs)
    start = ["--runtime-dir", str(daemon.config.runtime_dir), "eval", "m", "--from", "cpu", "--how", "hot"]
    assert main([*start, "--repeat", "1", "--level", "framework"]) == 0
    printed = capsys.readouterr().out
    assert "lacks: FunctionPredictor computes with no framework" in printed
    assert "accounted by id" not in printed
    assert main([*start, "--level", "deep"]) == 1
    assert "--level" in capsys.readouterr().err


def test_an_open_has_no_layers_and_says_so(
    daemon: Daemon, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    own(daemon, checkpoint, "Scaler")
    assert main(["--runtime-dir", str(daemon.config.runtime_dir), "trace", "m", "--level", "framework"]) == 0
    assert "an open runs no layers" in capsys.readouterr().err
