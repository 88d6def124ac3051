"""Bad days of predictors on a device, and of the spares that wait there; on the fake device."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import device_cases
import pytest
from device_spares import answered, ask, conv_net_artifact, spares, waiting
from endpoints import Endpoint, is_gone
from looking import leases, restart, wait_until
from on_device import OTHER_UUID, UUID

from trims.control import admin
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import FakeCuda, lose_device, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

torch = pytest.importorskip("torch", reason="missing framework: torch")
# Spares give way to whatever else computes: beside other tests they may wait for minutes.
pytestmark = [pytest.mark.usefixtures("forked_starts"), pytest.mark.timeout(240)]
TOTAL_BYTES = 512 << 20
SETTINGS = {"gpus": "auto", "gpu_share": 0.5, "gpu_reserve_bytes": "64MiB"}


@pytest.fixture
def cuda(folder: Path) -> str:
    """Two devices."""
    (folder / "cuda").mkdir()
    return make_devices(folder / "cuda", [Device(each, "Fake", TOTAL_BYTES) for each in (UUID, OTHER_UUID)])


@pytest.fixture
def daemon(serve: Callable[..., Daemon], cuda: str) -> Daemon:
    return serve(**SETTINGS, cuda=cuda)


@pytest.fixture
def endpoint(daemon: Daemon) -> Iterator[Endpoint]:
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process", "--keep-alive-s", "0")
    yield made
    made.end()


@pytest.fixture
def register(daemon: Daemon, folder: Path) -> Callable[..., str]:
    """Register a model of torch on the first device; with `fails` its predictor fails on order."""
    artifact = conv_net_artifact(folder)

    def put(name: str, *, fails: bool = False) -> str:
        fields = device_cases.manifest(folder) if fails else {"artifact": artifact, "framework": {"name": "torch"}}
        daemon.registry.put({"name": name, "residency": {"place": "gpu:0"}, **fields}, str(folder))
        return name

    return put


def kill(spare: dict[str, Any]) -> None:
    os.kill(spare["pid"], signal.SIGKILL)
    wait_until(lambda: is_gone(spare["pid"]), "it was killed and is there")


# fault (gpus): a spare on a device dies -> nothing; another is made
def test_a_spare_that_is_killed_costs_no_request(endpoint: Endpoint, register: Callable[..., str]) -> None:
    answered(endpoint, register("m"))
    (spare,) = waiting(endpoint, "m")
    kill(spare)
    assert answered(endpoint, "m")["predictor"] != "device_spare"
    assert waiting(endpoint, "m")[0]["pid"] != spare["pid"], "another one is made"
    assert answered(endpoint, "m")["predictor"] == "device_spare"


# fault (gpus): a model is evicted between a spare's choice and its open -> nothing; loaded again
def test_a_spare_holds_no_lease_and_its_model_can_be_evicted(
    daemon: Daemon, endpoint: Endpoint, register: Callable[..., str]
) -> None:
    answered(endpoint, register("m"))
    waiting(endpoint, "m")
    wait_until(lambda: not leases(daemon), "something holds a lease")
    with admin(daemon.config.runtime_dir) as door:
        assert door.evict("m", "gpu:0").freed == ("gpu:0",)
    found = answered(endpoint, "m")
    assert (found["predictor"], found["place"], found["resident"]) == ("device_spare", "gpu:0", False)


# fault (gpus): a predictor dies on a device -> 500 for its own requests
@pytest.mark.parametrize("when", ["load", "run"])
def test_a_process_that_dies_on_a_device_costs_its_own_request(
    endpoint: Endpoint, register: Callable[..., str], folder: Path, when: str
) -> None:
    answered(endpoint, register("f", fails=True))
    waiting(endpoint, "f")
    device_cases.order(folder, f"die in {when}")
    status, answer = ask(endpoint, "f")
    assert (status, "SIGKILL" in answer["error"]) == (500, True)
    assert answered(endpoint, "f")["place"] == "gpu:0"


# fault (gpus): a load or a run finds no memory on the device -> the next place allowed, else 503 with the figures
@pytest.mark.parametrize("when", ["load", "run"])
def test_a_run_without_device_memory_is_answered_at_the_next_place(
    endpoint: Endpoint, register: Callable[..., str], folder: Path, when: str
) -> None:
    answered(endpoint, register("m"))
    register("f", fails=True)
    device_cases.order(folder, f"lack memory in {when}")
    status, answer = ask(endpoint, "f", place="gpu:0")
    assert (status, "2.00 GiB" in answer["error"]) == (503, True)
    device_cases.order(folder, "")
    assert answered(endpoint, "f", place="gpu:0")["place"] == "gpu:0"


def test_a_request_goes_on_to_the_next_place_that_it_allows(
    endpoint: Endpoint, register: Callable[..., str], folder: Path
) -> None:
    register("m")
    device_cases.order(folder, "lack memory in run")
    assert answered(endpoint, "m", place="gpu:7,gpu:1,cpu")["place"] == "gpu:1", "there is no gpu:7"
    status, answer = ask(endpoint, "m", place="gpu:7")
    assert (status, "gpu:7" in answer["error"]) == (501, True)
    for wrong in ("gpu,gpu", "gpu,tape"):
        assert ask(endpoint, "m", place=wrong)[0] == 400


# fault (gpus): devices of waiting spares fill up or are lost -> the spares end; they come back with room
def test_spares_are_given_up_when_other_programs_take_the_device(
    endpoint: Endpoint, register: Callable[..., str], folder: Path
) -> None:
    answered(endpoint, register("m"))
    waiting(endpoint, "m")
    other = FakeCuda(str(folder / "cuda"))
    other.use(UUID)
    free, _ = other.memory()
    address = other.allocate(free - (64 << 20))
    waiting(endpoint)
    assert answered(endpoint, "m")["place"] == "gpu:0"
    other.free(address)
    other.leave()
    answered(endpoint, "m")
    waiting(endpoint, "m")


def test_code_of_one_model_reaches_no_request_of_another(
    daemon: Daemon, endpoint: Endpoint, register: Callable[..., str], folder: Path
) -> None:
    """The module of an artifact is code of a user as well: it may change what all modules compute."""
    (folder / "own_evil.py").write_text(
        "import torch\nfrom trims.testing.torch_modules import conv_net\n\n\ndef net():\n    made = conv_net()\n"
        "    torch.nn.Linear.forward = lambda self, x: torch.full((1, self.out_features), 777.0)\n    return made\n"
    )
    artifact = {"path": str(folder / "m.safetensors"), "options": {"module": "own_evil:net"}}
    register("m")
    evil = {"name": "evil", "artifact": artifact, "framework": {"name": "torch"}, "residency": {"place": "gpu:0"}}
    daemon.registry.put(evil, str(folder))
    right = ask(endpoint, "m")[1]["outputs"][0]["data"]
    for _ in range(2):
        answered(endpoint, "evil")
        waiting(endpoint, "evil")
        status, answer = ask(endpoint, "m")
        assert (status, answer["outputs"][0]["data"]) == (200, right)
        assert answer["parameters"]["predictor"] != "device_spare"
        waiting(endpoint, "m")


def test_edited_code_is_not_answered_by_a_spare_that_has_run_it_before(
    daemon: Daemon, endpoint: Endpoint, folder: Path
) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2, 4)}, folder / "w.safetensors")

    def write(factor: int) -> None:
        (folder / "own_line.py").write_text(
            "import torch\n\n\nclass Line(torch.nn.Linear):\n    def __init__(self):\n"
            "        super().__init__(4, 2, bias=False)\n\n    def forward(self, x):\n"
            f"        return x[:, 0] * {factor}\n"
        )

    artifact = {"path": str(folder / "w.safetensors"), "options": {"module": "own_line:Line"}}
    manifest = {"name": "e", "artifact": artifact, "framework": {"name": "torch"}, "residency": {"place": "gpu:0"}}
    write(1)
    daemon.registry.put(manifest, str(folder))
    tensor = {"name": "input", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}

    def value() -> float:
        found = endpoint.ask("POST", "/v2/models/e/infer", {"inputs": [tensor]})
        assert found[0] == 200, found
        return float(found[1]["outputs"][0]["data"][0])

    assert value() == 1.0
    waiting(endpoint, "e")
    write(20)
    wait_until(lambda: value() == 20.0, "the old code answers")
    assert value() == 20.0


def test_a_host_is_served_from_the_disk_when_the_device_is_lost(
    daemon: Daemon, endpoint: Endpoint, register: Callable[..., str], folder: Path
) -> None:
    answered(endpoint, register("m"))
    wait_until(lambda: not leases(daemon), "something holds a lease")
    endpoint.ask("POST", "/ui/models/m/evict", {"place": "cpu"})
    lose_device(folder / "cuda", UUID)
    assert answered(endpoint, "m", place="cpu")["place"] == "cpu"


# fault (gpus): devices of waiting spares fill up or are lost
def test_a_lost_device_ends_its_spares_and_the_other_one_answers(
    endpoint: Endpoint, register: Callable[..., str], folder: Path
) -> None:
    answered(endpoint, register("m"))
    (spare,) = waiting(endpoint, "m")
    lose_device(folder / "cuda", UUID)
    assert answered(endpoint, "m", place="gpu:0,gpu:1")["place"] == "gpu:1"
    wait_until(lambda: is_gone(spare["pid"]), "its device is lost, and it waits")


# fault (gpus): the daemon restarts while spares wait -> nothing
def test_spares_that_wait_serve_the_next_daemon(
    daemon: Daemon, serve: Callable[..., Daemon], endpoint: Endpoint, register: Callable[..., str], cuda: str
) -> None:
    answered(endpoint, register("m"))
    (spare,) = waiting(endpoint, "m")
    restart(daemon, serve, **SETTINGS, cuda=cuda)
    assert answered(endpoint, "m")["place"] == "gpu:0"
    assert not is_gone(spare["pid"]) or waiting(endpoint, "m")


def test_an_endpoint_without_device_spares_has_none(daemon: Daemon, register: Callable[..., str]) -> None:
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process", "--device-spares", "0")
    try:
        assert answered(made, register("m"))["place"] == "gpu:0"
        assert answered(made, "m")["place"] == "gpu:0"
        assert spares(made) == []
    finally:
        made.end()
