"""GPUs in the `trims` command, with a live daemon and its keeper on the fake driver."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from on_device import TOTAL_BYTES, UUID
from trims_client import connect

from trims.cli.main import main
from trims.keeper.client import KeeperConnection
from trims.testing.fake_cuda import CONTEXT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon


@pytest.fixture
def gpu_daemon(serve_gpu: Callable[..., Daemon]) -> Daemon:
    return serve_gpu()


@pytest.fixture
def trims(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Output of a command that succeeds."""

    def run(daemon: Daemon, *words: str) -> str:
        capsys.readouterr()
        assert main(["--runtime-dir", str(daemon.config.runtime_dir), *words]) == 0
        return capsys.readouterr().out

    return run


def test_status_and_ps_say_which_device_a_place_is_and_which_process_keeps_it(
    gpu_daemon: Daemon, checkpoint: Callable[..., Path], trims: Callable[..., str]
) -> None:
    with connect(gpu_daemon.config.runtime_dir) as session, session.open_file(checkpoint("m"), place="gpu"):
        stats = json.loads(trims(gpu_daemon, "status", "--json"))["stats"]
        with KeeperConnection(gpu_daemon.config.runtime_dir / f"{UUID}.sock") as keeper:
            pid = keeper.hello().pid
        (device,) = stats["devices"]
        weights = 2 << 20  # the fake's granularity, and less than that was asked for
        processes = device.pop("process_bytes")
        assert processes.pop(str(pid)) == weights
        assert processes.pop(str(os.getpid())) == CONTEXT_BYTES
        (mover_bytes,) = processes.values()
        assert mover_bytes >= CONTEXT_BYTES
        assert device == {
            "place": "gpu:0", "uuid": UUID, "name": "Fake", "driver": "vmm", "keeper_pid": pid, "keeper_awake": True,
            "weights_bytes": weights, "capacity_bytes": TOTAL_BYTES - (48 << 20), "total_bytes": TOTAL_BYTES,
            "free_bytes": TOTAL_BYTES - weights - 2 * CONTEXT_BYTES, "leases": 1, "trouble": "",
            "reserve_bytes": 48 << 20,
        }  # fmt: skip
        assert stats["gpu_off"] == ""
        for command in ("status", "ps"):
            out = trims(gpu_daemon, command)
            for text in (
                f"gpu:0 is Fake {UUID}, shared by vmm\n",
                " of 208.0 MiB, 1 leases; free on the device: 222.0 MiB of 256.0 MiB\n",
                f"keeper: process {pid}, with a context\n",
            ):
                assert text in out


def test_a_replica_on_a_device_says_on_which(
    gpu_daemon: Daemon, checkpoint: Callable[..., Path], trims: Callable[..., str], folder: Path
) -> None:
    checkpoint("m")
    (folder / "m.yaml").write_text(json.dumps({"name": "m", "artifact": {"path": "m.safetensors"}}))
    trims(gpu_daemon, "add", str(folder / "m.yaml"))
    trims(gpu_daemon, "load", "m", "--place", "gpu")
    replicas = {each["place"]: each for each in json.loads(trims(gpu_daemon, "show", "m", "--json"))["replicas"]}
    assert (replicas["gpu:0"]["device"], replicas["disk"]["device"]) == (UUID, "")
    assert f"of the keeper of {UUID}, shared by vmm" in trims(gpu_daemon, "show", "m")


def test_a_keeper_that_is_gone_and_cannot_be_replaced_is_said(
    gpu_daemon: Daemon, folder: Path, trims: Callable[..., str]
) -> None:
    def look() -> dict[str, Any]:
        (device,) = json.loads(trims(gpu_daemon, "status", "--json"))["stats"]["devices"]
        assert isinstance(device, dict)
        return device

    pid = look()["keeper_pid"]
    (folder / "cuda" / "devices.json").write_text("[]")
    os.kill(pid, signal.SIGKILL)
    until_s = time.monotonic() + 120
    while not (device := look())["trouble"]:
        assert time.monotonic() < until_s, "its end was not noticed"
    assert "keeper" in device["trouble"], "gone in the middle of an answer, or before it was asked"
    assert (device["uuid"], device["keeper_pid"]) == (UUID, 0), "what is known of it is still said"
    assert "free_bytes" not in device
    assert "not known" in trims(gpu_daemon, "status")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"gpus": "none"}, "gpus is none"),
        ({"gpus": "auto", "cuda": "fake:/nowhere"}, "/nowhere holds no fake devices"),
    ],
)
def test_a_daemon_without_a_tier_keeps_the_reason(
    serve: Callable[..., Daemon], trims: Callable[..., str], settings: dict[str, str], why: str
) -> None:
    daemon = serve(**settings)
    stats = json.loads(trims(daemon, "status", "--json"))["stats"]
    assert why in stats["gpu_off"]
    assert stats["devices"] == []
    assert f"no gpu tier: {why}" in trims(daemon, "status")


def test_too_little_free_memory_is_the_reason_that_is_kept_and_told_by_doctor(
    serve: Callable[..., Daemon], cuda: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = serve(gpus="auto", cuda=cuda, gpu_reserve_bytes="1GiB")
    monkeypatch.setenv("TRIMS_CUDA", cuda)
    assert main(["--runtime-dir", str(daemon.config.runtime_dir), "doctor", "--json"]) == 1
    findings = [each for each in json.loads(capsys.readouterr().out) if each["verdict"] == "bad"]
    told = " ".join(each["what"] for each in findings)
    assert "gpu_reserve_bytes 1.0 GiB leave nothing for weights" in told
    assert f"the daemon that runs has no gpu tier, though {UUID} is here: Fake" in told
    daemon.ask_to_end(purge=True)
    daemon.stop()


def test_doctor_knows_the_device_that_the_daemon_has(
    gpu_daemon: Daemon, cuda: str, trims: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMS_CUDA", cuda)
    findings = json.loads(trims(gpu_daemon, "doctor", "--json"))
    (device,) = [each for each in findings if UUID in each["what"]]
    assert (device["verdict"], device["what"][-61:]) == (
        "ok",
        "free of 256.0 MiB, shared by vmm, a tier of the daemon that runs"[-61:],
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"framework": {"name": "mxnet"}}, "MXNet cannot compute"),
        ({"framework": {"name": "onnxruntime"}, "options": {"optimize": "all"}}, "optimize: basic"),
    ],
    ids=["mxnet", "onnx"],
)
def test_a_model_that_a_device_cannot_run_is_refused_as_it_is_added(
    gpu_daemon: Daemon, folder: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], why: str
) -> None:
    pytest.importorskip("onnx", reason="missing framework: onnx")
    from onnx_files import linear

    artifact = {"path": "m.onnx", "options": fields.pop("options", {})}
    manifest = {"name": "m", "artifact": artifact, "residency": {"place": "gpu"}, **fields}
    linear(folder).rename(folder / "m.onnx")
    (folder / "m.yaml").write_text(json.dumps(manifest))
    assert main(["--runtime-dir", str(gpu_daemon.config.runtime_dir), "add", str(folder / "m.yaml")]) == 1
    assert why in " ".join(capsys.readouterr().err.split())
