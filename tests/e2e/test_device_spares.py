"""Processes that wait on a device with a context: made, taken, shown, given up, on the fake device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from endpoints import Endpoint
from looking import wait_until
from on_device import UUID, starter

from trims.memory.cuda import api
from trims.testing.fake_cuda import CONTEXT_BYTES, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

torch = pytest.importorskip("torch", reason="missing framework: torch")
IMAGE = np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4)
TOTAL_BYTES = 512 << 20


@pytest.fixture
def kind(folder: Path) -> str:
    (folder / "cuda").mkdir()
    return make_devices(folder / "cuda", [api.Device(UUID, "Fake", TOTAL_BYTES)])


@pytest.fixture
def daemon(serve: Callable[..., Daemon], kind: str) -> Daemon:
    return starter(serve, kind)()


@pytest.fixture
def endpoint(daemon: Daemon) -> Iterator[Endpoint]:
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process", "--keep-alive-s", "0")
    yield made
    made.end()


@pytest.fixture
def names(daemon: Daemon, folder: Path) -> list[str]:
    """Two models of torch on the device."""
    from safetensors.torch import save_file

    from trims.testing.torch_modules import conv_net

    save_file(conv_net().state_dict(), folder / "m.safetensors")
    artifact = {"path": str(folder / "m.safetensors"), "options": {"module": "trims.testing.torch_modules:conv_net"}}
    for name in ("m", "n"):
        manifest = {"name": name, "artifact": artifact, "framework": {"name": "torch"}, "residency": {"place": "gpu"}}
        daemon.registry.put(manifest, str(folder))
    return ["m", "n"]


def ask(endpoint: Endpoint, name: str = "m") -> tuple[int, dict[str, Any]]:
    tensor = {"name": "image", "shape": list(IMAGE.shape), "datatype": "FP32", "data": IMAGE.ravel().tolist()}
    status, answer = endpoint.ask("POST", f"/v2/models/{name}/infer", {"inputs": [tensor]})
    return status, answer


def answered(endpoint: Endpoint, name: str = "m") -> dict[str, Any]:
    status, answer = ask(endpoint, name)
    assert status == 200, answer
    found: dict[str, Any] = answer["parameters"]
    return found


def spares(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = endpoint.ask("GET", "/state")[1]["device_spares"]
    return found


def waiting(endpoint: Endpoint, number: int = 1) -> list[dict[str, Any]]:
    wait_until(lambda: len(spares(endpoint)) == number, f"there are not {number} spares on the device")
    return spares(endpoint)


def test_a_request_without_a_process_takes_a_spare_that_has_a_context(endpoint: Endpoint, names: list[str]) -> None:
    first = answered(endpoint, names[0])
    assert first["predictor"] != "device_spare"
    (spare,) = waiting(endpoint)
    assert (spare["place"], spare["framework"], spare["model"]) == ("gpu:0", "torch", "m")
    assert spare["bytes"] == CONTEXT_BYTES
    second = answered(endpoint, names[1])
    assert (second["predictor"], second["place"]) == ("device_spare", "gpu:0"), "models of a framework share spares"
