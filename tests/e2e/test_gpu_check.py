"""The experiments of `make gpu-check`, on the fake: they must work on the day when there is a device."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trims_bench.gpu_check import EXPERIMENTS, main

from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import CONTEXT_BYTES, make_devices

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

UUID = "GPU-00000000-0000-0000-0000-000000000001"


def check(folder: Path, most_bytes: int = 8 << 20) -> dict[str, dict[str, object]]:
    kind = make_devices(folder, [Device(UUID, "Fake", 256 << 20)])
    out = folder / "results" / "gpu.json"
    assert main(["--out", str(out), "--cuda", kind, "--most-bytes", str(most_bytes), "--no-tests"]) == 0
    experiments: dict[str, dict[str, object]] = json.loads(out.read_text())["experiments"]
    return experiments


def test_every_experiment_gives_a_result(folder: Path) -> None:
    found = check(folder)
    assert set(found) == {run.__name__ for run in EXPERIMENTS}
    assert not [result for result in found.values() if "error" in result]
    assert {name.partition(" ")[0] for name in found["open_cost"] if name != "seconds"} == {"vmm", "ipc"}
    assert found["parked_descriptor"]["bytes_intact"] is True
    assert found["context_cost"]["bytes"] == 2 * CONTEXT_BYTES + (2 << 20)
    assert set(found["host_to_device"]["bytes_per_s"]) == {"staged", "registered", "pinned copy"}  # type: ignore[call-overload]


def test_the_offender_and_everybody_elses_bytes_are_told_apart(folder: Path) -> None:
    found = check(folder)["write_to_read_only"]
    assert found["vmm"] == {"offender": "the borrower ended with status -11", "bytes_intact": True}
    assert found["ipc"] == {"offender": "it was not stopped", "bytes_intact": False}


def test_an_experiment_that_fails_is_named_and_the_others_are_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = make_devices(folder, [Device(UUID, "Fake", 256 << 20, vmm=False)])
    out = folder / "gpu.json"
    assert main(["--out", str(out), "--cuda", kind, "--most-bytes", str(4 << 20), "--no-tests"]) == 1
    assert "parked_descriptor: NotSupportedError: Fake" in capsys.readouterr().out
    assert set(json.loads(out.read_text())["experiments"]) == {run.__name__ for run in EXPERIMENTS}
