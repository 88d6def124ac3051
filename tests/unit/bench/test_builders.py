"""Builders make the real architectures, the same bytes from the same seed; workloads agree with frameworks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from repository import ROOT
from trims_bench import workloads
from trims_bench.answers import Answer, compare
from trims_bench.builders import resnet50, vgg16_mxnet
from trims_bench.stages import Stages

from trims.formats.base import Artifact
from trims.manifests.manifest import parse_manifest

MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def resnet50_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    from trims_bench.builders import resnet50_onnx

    folder = tmp_path_factory.mktemp("resnet50")
    return folder / resnet50_onnx.build(folder, seed=7)


@pytest.fixture(scope="module")
def resnet50_image(resnet50_file: Path) -> Path:
    pytest.importorskip("onnxruntime")
    from trims.formats.onnx.converter import OnnxConverter

    plan = OnnxConverter().plan(Artifact("onnx", (resnet50_file,)))
    path = resnet50_file.with_name("image")
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, plan.nbytes)
        plan.write(file.fileno())
    return path


def test_vgg16_of_torch_has_the_published_number_of_parameters() -> None:
    torch = pytest.importorskip("torch")
    from trims_bench.builders import vgg16_torch

    with torch.device("meta"):
        made = vgg16_torch.build_module()
        assert sum(parameter.numel() for parameter in made.parameters()) == 138_357_544
        assert made(torch.empty(2, 3, 224, 224)).shape == (2, 1000)


def test_a_stack_of_linear_layers_is_as_large_as_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from trims_bench.builders import linears_torch

    state = torch.load(tmp_path / linears_torch.build(tmp_path, layers=3, nbytes=1 << 16), weights_only=True)
    assert sum(tensor.nbytes for tensor in state.values()) == 3 << 16
    monkeypatch.setenv(linears_torch.VARIABLE, f"3x{1 << 16}")
    made = linears_torch.build_module()
    made.load_state_dict(state)
    assert made(torch.ones(1, 128)).shape == (1, 128)


def test_resnet50_has_the_published_number_of_parameters() -> None:
    state = resnet50.state(1)
    parameters = {name: array for name, array in state.items() if name.rpartition(".")[2] in ("weight", "bias")}
    assert sum(array.size for array in parameters.values()) == 25_557_032
    assert len(state) == 320


def test_vgg16_has_the_published_number_of_parameters() -> None:
    assert sum(math.prod(shape) + shape[0] for _, shape in vgg16_mxnet.shapes()) == 138_357_544


@pytest.mark.bench_smoke
def test_the_same_seed_gives_the_same_bytes(resnet50_file: Path, tmp_path: Path) -> None:
    from trims_bench.builders import resnet50_onnx

    again = tmp_path / resnet50_onnx.build(tmp_path, seed=7)
    assert digest(again) == digest(resnet50_file)
    other = tmp_path / resnet50_onnx.build(tmp_path, seed=8)
    assert digest(other) != digest(resnet50_file)


def test_resnet50_is_one_model_in_onnx_and_in_torch(
    resnet50_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch = pytest.importorskip("torch")
    from trims_bench.builders import resnet50_torch
    from trims_bench.workloads.resnet50 import image

    module = resnet50_torch.build_module()
    name = resnet50_torch.build(tmp_path, seed=7)
    module.load_state_dict(torch.load(tmp_path / name, weights_only=True))
    with torch.inference_mode():
        ours = module(torch.from_numpy(image())).numpy()
    session = onnxruntime.InferenceSession(resnet50_file, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"image": image()})
    assert 1 < np.abs(theirs).max() < 100
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_a_model_of_transformers_is_made_by_its_names() -> None:
    pytest.importorskip("transformers")
    from trims_bench.builders.transformers_torch import build_module

    made = build_module("BertModel", "BertConfig", hidden_size=24, intermediate_size=48, num_hidden_layers=1)
    assert type(made).__name__ == "BertModel"
    assert not made.training
    assert made.config.hidden_size == 24


@pytest.mark.bench_smoke
@pytest.mark.timeout(600)
def test_bert_base_is_the_same_from_the_same_seed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from trims_bench.builders import bert_base_torch

    digests = set()
    for _ in range(2):
        path = tmp_path / bert_base_torch.build(tmp_path, seed=3)
        digests.add(digest(path))
    assert len(digests) == 1
    state = torch.load(path, weights_only=True)
    assert sum(tensor.numel() for tensor in state.values()) == 109_482_240


@pytest.mark.bench_smoke
@pytest.mark.timeout(600)
@pytest.mark.mxnet
def test_vgg16_is_the_same_from_the_same_seed(tmp_path: Path) -> None:
    if not MXNET_PYTHON.exists():
        pytest.skip(f"no MXNet environment at {MXNET_PYTHON}: make mxnet-env")
    code = (
        "import sys, pathlib; from trims_bench.builders.vgg16_mxnet import build;"
        "print(build(pathlib.Path(sys.argv[1]), seed=11))"
    )
    digests = set()
    for _ in range(2):
        done = subprocess.run(
            [MXNET_PYTHON, "-c", code, tmp_path],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.fspath(ROOT / "bench")},
        )
        assert done.stdout.splitlines()[-1] == "vgg16-symbol.json"
        digests.add(digest(tmp_path / "vgg16-0000.params") + digest(tmp_path / "vgg16-symbol.json"))
    assert len(digests) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "manifests").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_manifest_is_valid_and_named_as_its_file(path: Path) -> None:
    manifest = parse_manifest(yaml.safe_load(path.read_text()), os.fspath(path.parent))
    assert manifest.name == path.stem
    assert manifest.framework is not None
    assert manifest.license


def test_a_shipped_manifests_functions_are_where_it_says() -> None:
    for path in (ROOT / "manifests").glob("*.yaml"):
        manifest = parse_manifest(yaml.safe_load(path.read_text()), os.fspath(path.parent))
        calls = [manifest.artifact.builder.call] if manifest.artifact.builder else []
        calls += [call for key, call in manifest.artifact.options.items() if key == "module"]
        for call in calls:
            module, _, function = call.partition(":")
            assert f"def {function}(" in (ROOT / "bench" / f"{module.replace('.', '/')}.py").read_text()


@pytest.mark.parametrize("name", workloads.NAMES)
def test_every_workload_has_the_functions_of_one(name: str) -> None:
    found = workloads.workload(name)
    for function in ("prepare", "framework_alone", "with_trims", "same"):
        assert callable(getattr(found, function))


def test_an_unknown_workload_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no workload 'gpt'"):
        workloads.workload("gpt")


def run_worker(how: str) -> dict[str, dict[str, float]]:
    """ResNet-50 in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "trims_bench.worker", "--workload", "resnet50", "--how", how],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return dict(json.loads(done.stdout))


def test_a_worker_tells_stages_answer_and_memory(resnet50_file: Path, resnet50_image: Path) -> None:
    alone, shared = run_worker(f"alone:{resnet50_file}"), run_worker(f"file:{resnet50_image}")
    assert list(alone["stages_s"]) == ["start", "import", "load", "first inference"]
    assert list(shared["stages_s"]) == ["start", "import", "open", "load", "first inference"]
    assert sum(shared["stages_s"].values()) <= shared["total_s"]
    assert shared["memory_bytes"]["pss"] > 0
    found, expected = (Answer.from_json(report["answer"]) for report in (shared, alone))
    assert workloads.workload("resnet50").same(expected, found).equal
    assert found.digest == shared["answer"]["digest"]


@pytest.mark.parametrize("how", ["alone", "trims:", "by magic:x"])
def test_a_worker_refuses_what_it_cannot_do(how: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_worker(how)
    assert how in failed.value.stderr


def test_answers_compare_by_bits_then_by_distance() -> None:
    one = Answer.of(np.array([1.0, -4.0], np.float32), "a", None)
    near = Answer.of(np.array([1.0, -4.0001], np.float32), "b", None)
    shorter = Answer.of(np.array([1.0], np.float32), "c", None)
    assert compare(one, Answer(one.values, "other words")).identical
    assert compare(one, near, tolerance=1e-3).equal
    assert not compare(one, near, tolerance=1e-3).identical
    assert not compare(one, near).equal
    assert "DIFFERENT" in str(compare(one, near))
    assert not compare(one, shorter, tolerance=9).equal


def test_answers_survive_the_process_border() -> None:
    answer = Answer.of(np.array([0.1, -0.0], np.float32), "a\nb", None)
    assert Answer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_not_a_number_is_never_equal_to_a_number() -> None:
    nothing = Answer.of(np.array([np.nan], np.float32), "", None)
    assert not compare(Answer.of(np.array([1.0], np.float32), "", None), nothing, tolerance=9).equal


def test_stages_keep_their_order_and_add_up() -> None:
    trace = Stages()
    for name in ("b", "a", "b"):
        with trace.stage(name):
            pass
    with pytest.raises(KeyError), trace.stage("failed"):
        raise KeyError
    assert list(trace.seconds) == ["b", "a", "failed"]
    assert all(seconds >= 0 for seconds in trace.seconds.values())
