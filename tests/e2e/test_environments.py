"""`trims env` against a daemon and its endpoint: two versions of one framework serve side by side."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from endpoints import Endpoint
from made_environments import write_wheel, write_wheel_of

from trims.cli.main import main
from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

#: Lie beside the manifests: they say which version of its framework a predictor has met.
TOLD = """
import sys
import numpy as np

def text(value):
    return np.array([value.encode()], dtype=object)

class Told:
    def load(self, weights, context):
        import torch
        self.factor, self.version = weights["factor"], torch.__version__

    def predict(self, inputs):
        return {"y": inputs["x"] * self.factor, "version": text(self.version), "python": text(sys.executable)}

    def unload(self):
        del self.factor
"""
TOLD_ONNX = """
import numpy as np
import onnxruntime
from trims_predictors.frameworks.onnxruntime import OnnxPredictor

class ToldOnnx(OnnxPredictor):
    def predict(self, inputs):
        return {**super().predict(inputs), "version": np.array([onnxruntime.__version__.encode()], dtype=object)}
"""


class Trims:
    """The command, with the folders of a daemon; returns (status, standard output, standard error)."""

    def __init__(self, daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
        self.runtime_dir = daemon.config.runtime_dir
        self.folder = daemon.config.environments_dir
        self.capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        status = main(["--runtime-dir", str(self.runtime_dir), *words])
        told = self.capsys.readouterr()
        return status, told.out, told.err

    def json(self, *words: str) -> Any:
        status, out, err = self(*words, "--json")
        assert status == 0, err
        return json.loads(out)


@pytest.fixture
def trims(daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Trims:
    monkeypatch.setenv("TRIMS_ENVIRONMENTS_DIR", str(daemon.config.environments_dir))
    return Trims(daemon, capsys)


@pytest.fixture
def endpoint(daemon: Daemon, trims: Trims) -> Iterator[Endpoint]:
    made = Endpoint(daemon.config.runtime_dir)
    yield made
    made.end()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags for a folder with two versions of what stands for torch, and with the real numpy."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")  # a machine may allow no such version
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("900.0", "901.0"):
        write_wheel(folder, "torch", version)
    for name in ("numpy", "ml_dtypes"):
        write_wheel_of(folder, name)
    return ["--find-links", str(folder), "--no-index"]


def register(daemon: Daemon, folder: Path, name: str, artifact: Path, framework: dict[str, str], call: str) -> None:
    (folder / "told.py").write_text(TOLD)
    (folder / "told_onnx.py").write_text(TOLD_ONNX)
    dtype, shape = ("FP32", [-1, 32]) if "onnx" in call else ("FP64", [-1])
    manifest = {
        "name": name, "artifact": {"path": str(artifact)}, "framework": framework, "predictor": {"call": call},
        "inputs": [{"name": "x", "dtype": dtype, "shape": shape}],
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(json.dumps(manifest))
    with admin(daemon.config.runtime_dir) as control:
        control.add(folder / f"{name}.yaml", lazy=True)


def outputs(answer: Any) -> dict[str, Any]:
    return {each["name"]: each["data"] for each in answer["outputs"]}


@pytest.mark.timeout(300)
def test_two_versions_answer_side_by_side_and_come_and_go_without_a_restart(
    daemon: Daemon, trims: Trims, endpoint: Endpoint, wheels: list[str], checkpoint: Callable[..., Path], folder: Path
) -> None:
    path = checkpoint("m", {"factor": np.array(2.0)})
    for version in ("900", "901"):
        register(daemon, folder, f"m{version}", path, {"name": "torch", "version": f"=={version}.*"}, "told:Told")
    status, told = endpoint.infer("m900", [1.0])
    assert status == 501
    assert "m900 needs torch ==900.*, and " in told["error"]
    assert told["error"].endswith("make an environment that has it: trims env create 'torch==900.*'")

    made = {version: trims.json("env", "create", f"torch=={version}.*", *wheels) for version in ("900", "901")}
    for version, each in made.items():
        status, told = endpoint.infer(f"m{version}", [3.0])
        assert status == 200, told
        found = outputs(told)
        assert (found["y"], found["version"], found["python"]) == ([6.0], [f"{version}.0"], [each["python"]])
    assert "900.0" in trims("run", "m900", "[1.5]", "--endpoint", "none")[1]
    assert "901.0" in trims("run", "m901", "x=[1.5]")[1]

    old, new = made["900"]["name"], made["901"]["name"]
    assert {each["name"]: each["used_by"] for each in trims.json("env", "list")} == {old: ["m900"], new: ["m901"]}
    assert trims("env", "check")[:2] == (0, f"ok    {new}\nok    {old}\n")
    status, _, err = trims("env", "rm", old)
    assert (status, f"the environment {old} is the only one for m900; remove these models" in err) == (1, True)
    assert trims("rm", "m900")[0] == 0
    status, _, err = trims("env", "rm", old)
    assert (status, f"{old} is in use by process {endpoint.process.pid} (trims endpoint)" in err) == (1, True)
    assert trims("env", "rm", "--force", old)[0] == 0
    assert endpoint.infer("m901", [3.0])[0] == 200
    assert os.listdir(trims.folder) == [new]


def test_a_configured_interpreter_comes_before_a_made_environment(
    daemon: Daemon, trims: Trims, wheels: list[str], checkpoint: Callable[..., Path], folder: Path
) -> None:
    made = [trims.json("env", "create", f"torch=={version}", *wheels)["python"] for version in ("900.0", "901.0")]
    register(daemon, folder, "m", checkpoint("m", {"factor": np.array(2.0)}), {"name": "torch"}, "told:Told")
    words = ["run", "m", "[1.0]", "--endpoint", "none"]
    status, out, err = trims(*words, "--environments", f"torch={made[0]}")
    assert status == 0, err
    assert "  900.0\n" in out


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_real_versions_of_onnxruntime_convert_and_answer_side_by_side(
    daemon: Daemon, trims: Trims, endpoint: Endpoint, folder: Path
) -> None:
    pytest.importorskip("onnx")
    from onnx_files import linear

    versions = ("1.22.0", "1.23.2")
    for version in versions:
        status, _, err = trims("env", "create", f"onnxruntime=={version}")
        if "no versions can be found" in err:
            pytest.skip(f"no package index here has onnxruntime {version}: {err[-500:]}")
        assert status == 0, err
    path = linear(folder)
    for version in versions:
        name = f"m-{version}"
        register(daemon, folder, name, path, {"name": "onnxruntime", "version": f"=={version}"}, "told_onnx:ToldOnnx")
    answers = {}
    for version in versions:
        status, out, err = trims("run", f"m-{version}", json.dumps([[1.0] * 32]), "--json")
        assert status == 0, err
        answers[version] = outputs(json.loads(out))
        assert answers[version].pop("version") == [version]
    assert answers[versions[0]] == answers[versions[1]]
    with admin(daemon.config.runtime_dir) as control:
        keys = {control.show(f"m-{version}").key for version in versions}
    assert len(keys) == 2  # each version has optimized the graph for itself
    assert trims("env", "check")[0] == 0
