"""Loaders of vLLM and SGLang read from the store: with what is recorded of the engines, and with their own modules.

Neither engine runs on a host without a device. `make others-tests` fetches their wheels, whose Python modules do: the
registry, the configuration, and the loader that ours is one of. What only a device shows is left out.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from engine_side import RECORDED
from repository import SUPPORT
from trims_client.frameworks.engines import EngineOptions, read_options, weights_of

from trims.core.errors import DaemonAwayError

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.main import Daemon

torch = pytest.importorskip("torch", reason="missing framework: torch")
safetensors = pytest.importorskip("safetensors.torch", reason="missing framework: safetensors")
DEADLINE_S = 300.0
#: Wheels of the engines, and what their loaders' modules import.
WHEELS = {
    "vllm": ("vllm==0.33.0", (
        "aiohttp", "aiohappyeyeballs", "aiosignal", "apache-tvm-ffi", "cachetools", "cbor2", "einops", "frozenlist",
        "llguidance", "multidict", "openai", "openai-harmony", "partial-json-parser", "propcache", "py-cpuinfo",
        "pybase64", "sniffio", "xgrammar", "yarl",
    )),
    "sglang": ("sglang==0.5.23", (
        "aiohttp", "aiohappyeyeballs", "aiosignal", "apache-tvm-ffi", "compressed-tensors", "dill", "frozenlist",
        "gguf", "loguru", "multidict", "orjson", "propcache", "pybase64", "sentencepiece",
        "triton", "yarl",
    )),
}  # fmt: skip


@pytest.fixture
def model(folder: Path) -> Path:
    """Folder of a model of 2 MiB, as publishers have them."""
    (made := folder / "model").mkdir()
    torch.manual_seed(3)
    safetensors.save_file(dict(torch.nn.Linear(512, 1024).state_dict()), made / "model.safetensors")
    return made


def check(engine: str, way: str, model: Path, daemon: Daemon, *path: str) -> None:
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(path), "TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir)
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, str(SUPPORT / "engine_side.py"), engine, way, str(model)], env=environment,
        capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    state = safetensors.load_file(model / "model.safetensors")
    assert found["sums"] == [{name: float(tensor.double().sum()) for name, tensor in state.items()}] * 2
    assert (found["is_one"], found["external"]) == (True, 0)
    assert "unknown options of the loader trims: nme" in found["refused"][0]
    assert found["refused"][1].startswith("ModelNotFoundError")
    assert found["parameters"] == RECORDED[engine]
    (replica,) = daemon.store.read.replicas()
    assert replica.leases == 0


@pytest.mark.parametrize("engine", RECORDED)
def test_a_loader_fits_what_is_recorded_of_its_engine(engine: str, model: Path, daemon: Daemon) -> None:
    check(engine, "recorded", model, daemon)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", RECORDED)
def test_a_loader_works_with_the_modules_of_its_engine(engine: str, model: Path, daemon: Daemon, folder: Path) -> None:
    wheel, needed = WHEELS[engine]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    target = ["--root-user-action=ignore", "--target", str(folder / "packages")]
    subprocess.run([*pip, *target, wheel, *needed], check=True, timeout=DEADLINE_S)
    check(engine, "wheel", model, daemon, str(folder / "packages"))


def test_vllm_finds_the_loader_by_its_entry_point() -> None:
    (found,) = [
        each for each in importlib.metadata.distribution("trims").entry_points if each.group == "vllm.general_plugins"
    ]
    assert (found.name, found.value) == ("trims", "trims.vllm:register")


@pytest.mark.parametrize(
    "files", [[], ["model.safetensors", "adapter.safetensors"], ["weights.safetensors"], ["x.bin"]]
)
def test_a_folder_of_other_files_is_refused(files: list[str], folder: Path, daemon: Daemon) -> None:
    for name in files:
        (folder / name).touch()
    with pytest.raises(ValueError, match="state the model's name in the store"):
        next(weights_of(EngineOptions(runtime_dir=str(daemon.config.runtime_dir)), str(folder)))


def test_without_a_daemon_an_engine_is_refused_its_weights(model: Path, folder: Path) -> None:
    with pytest.raises(DaemonAwayError):
        next(weights_of(EngineOptions(runtime_dir=str(folder / "none")), str(model)))


def test_weights_that_an_engine_keeps_and_writes_change_no_other_loads(model: Path, daemon: Daemon) -> None:
    options = EngineOptions(runtime_dir=str(daemon.config.runtime_dir))
    kept = dict(weights_of(options, str(model)))
    kept["weight"].zero_()
    again = dict(weights_of(options, str(model)))
    assert torch.equal(again["weight"], safetensors.load_file(model / "model.safetensors")["weight"])
    (model / "model.safetensors").unlink()
    assert float(kept["weight"].sum()) == 0
    assert kept["bias"].equal(again["bias"])


def test_no_options_are_the_usual_ones() -> None:
    assert read_options(None) == read_options({}) == EngineOptions(None, None)
