"""Processes that wait on a device with a context: made, taken, shown, given up, on the fake device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from device_spares import answered, conv_net_artifact, spares, waiting
from endpoints import Endpoint
from looking import wait_until
from on_device import UUID, starter

from trims.cli.main import main
from trims.memory.cuda import api
from trims.testing.fake_cuda import CONTEXT_BYTES, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

torch = pytest.importorskip("torch", reason="missing framework: torch")
# Spares give way to whatever else computes: beside other tests they may wait for minutes.
pytestmark = [pytest.mark.usefixtures("forked_starts"), pytest.mark.timeout(240)]
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
    artifact = conv_net_artifact(folder)
    for name in ("m", "n"):
        manifest = {"name": name, "artifact": artifact, "framework": {"name": "torch"}, "residency": {"place": "gpu"}}
        daemon.registry.put(manifest, str(folder))
    return ["m", "n"]


def test_a_request_without_a_process_takes_a_spare_that_has_a_context(endpoint: Endpoint, names: list[str]) -> None:
    first = answered(endpoint, names[0])
    assert first["predictor"] != "device_spare"
    (spare,) = waiting(endpoint, "m")
    assert (spare["place"], spare["framework"], spare["model"]) == ("gpu:0", "torch", "m")
    assert spare["bytes"] == CONTEXT_BYTES
    second = answered(endpoint, names[0])
    assert (second["predictor"], second["place"]) == ("device_spare", "gpu:0")
    waiting(endpoint, "m")
    assert answered(endpoint, names[1])["predictor"] != "device_spare", "code of the other model was in it"


def test_spares_are_shown_with_their_bytes(
    daemon: Daemon, endpoint: Endpoint, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answered(endpoint, names[0])
    (spare,) = waiting(endpoint, "m")
    labels = '{framework="torch",place="gpu:0"}'
    metrics = endpoint.metrics()
    assert metrics[f"trims_device_spares{labels}"] == 1
    assert metrics[f"trims_device_spare_bytes{labels}"] == CONTEXT_BYTES
    overview = endpoint.ask("GET", "/ui/state")[1]
    assert overview["device_spares"] == [spare]
    assert main(["--runtime-dir", str(daemon.config.runtime_dir), "ps"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"process {spare['pid']} waits on gpu:0 for models of torch: 16.0 MiB of the device, no weights" in said


def test_text_is_rehearsed_and_a_spare_of_its_library_answers(daemon: Daemon, endpoint: Endpoint, folder: Path) -> None:
    pytest.importorskip("transformers", reason="missing framework: transformers")
    from tiny_models import named, save

    for name, architecture in (("bert", "BertForSequenceClassification"), ("gpt", "GPT2LMHeadModel")):
        save(named(architecture), folder / name)
        manifest = {
            "name": name, "artifact": {"path": str(folder / name), "format": "transformers"},
            "framework": {"name": "transformers"}, "residency": {"place": "gpu"},
        }  # fmt: skip
        daemon.registry.put(manifest, str(folder))
    text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the film is good"]}
    found = []
    for name in ("bert", "gpt", "bert"):
        status, answer = endpoint.ask("POST", f"/v2/models/{name}/infer", {"inputs": [text]})
        assert status == 200, answer
        found.append(answer["parameters"]["predictor"])
        wait_until(lambda: len(spares(endpoint)) == 1, "there is not one spare on the device")
    assert found[1:] == ["device_spare", "device_spare"], found
