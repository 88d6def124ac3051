"""Every reason for which the GPU tier is off is said with its remedy: from made-up facts and stubs of packages."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from trims.cli.doctor_gpu import Facts, Running, explain, look
from trims.daemon.config import Config, build_config
from trims.memory.cuda.api import Device
from trims.memory.cuda.survey import Surveyed, Versions
from trims.process.packages import install_words
from trims.testing.fake_cuda import make_devices

if TYPE_CHECKING:
    from pathlib import Path

    from trims.cli.finding import Finding

UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
PART = "MIG-00000000-0000-0000-0000-00000000000a"
PACKAGES = {"nvidia-ml-py": "13.580", "cuda-bindings": "13.0.1", "cupy-cuda13x": "14.2.0"}
WELL = Facts(
    files=("nvidia0",),
    packages=PACKAGES,
    versions=Versions("580.65.06", 13),
    surveyed=[Surveyed(UUID, "H200", 100 << 30, 139 << 30)],
    seen=[Device(UUID, "H200", 139 << 30)],
)


def settings(**flags: object) -> Config:
    return build_config(flags, environment={})


def found(facts: Facts, daemon: Running | None = None, **flags: object) -> list[Finding]:
    return list(explain(facts, settings(**flags), daemon))


def the_only_fault(facts: Facts, daemon: Running | None = None, verdict: str = "bad", **flags: object) -> Finding:
    (fault,) = [each for each in found(facts, daemon, **flags) if each.verdict != "ok"]
    assert fault.verdict == verdict
    assert fault.advice, "a fault has a remedy"
    return fault


# -- explaining ----------------------------------------------------------------------------------------------------


def test_a_device_that_can_be_used_is_well_and_says_how_much_it_has_for_weights() -> None:
    driver, device = found(WELL)
    assert (driver.verdict, driver.what) == ("ok", "NVIDIA driver 580.65.06, for CUDA up to 13")
    assert (device.verdict, device.what) == (
        "ok",
        f"H200 {UUID}: 100.0 GiB free of 139.0 GiB, shared by vmm, up to 89.0 GiB for weights",
    )


def test_a_tier_that_is_turned_off_is_a_note_and_nothing_else_is_said() -> None:
    fault = the_only_fault(WELL, verdict="note", gpus="none")
    assert (fault.what, fault.advice) == ("the GPU tier is off: gpus is none", "trims serve --gpus auto")


def test_no_driver_at_all_is_a_note() -> None:
    fault = the_only_fault(Facts(library=False, no_survey="?", not_seen="?"), verdict="note")
    assert "no NVIDIA driver here (libcuda.so.1 cannot be loaded, no /dev/nvidia*)" in fault.what
    assert "models open at cpu" in fault.advice


def test_no_driver_in_a_container_asks_for_the_toolkit() -> None:
    fault = the_only_fault(Facts(library=False, container=True), verdict="note")
    assert "docker run --gpus all" in fault.advice


def test_a_device_without_the_library_asks_for_the_capabilities_in_a_container() -> None:
    fault = the_only_fault(Facts(library=False, files=("nvidia0",), container=True))
    assert "the device is here (/dev/nvidia0), libcuda.so.1 is not" in fault.what
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in fault.advice
    assert "LD_LIBRARY_PATH" in the_only_fault(Facts(library=False, files=("nvidia0",))).advice


def test_a_driver_without_a_device_in_a_container_names_the_variable_that_hides_it() -> None:
    hidden = Facts(container=True, variables={"NVIDIA_VISIBLE_DEVICES": "void"})
    fault = the_only_fault(hidden)
    assert "this container has no device (no /dev/nvidia0, NVIDIA_VISIBLE_DEVICES is 'void')" in fault.what
    assert "--gpus all" in fault.advice
    assert "modprobe nvidia" in the_only_fault(Facts()).advice


@pytest.mark.parametrize("package", ["nvidia-ml-py", "cuda-bindings"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(package: str) -> None:
    packages = {name: version for name, version in PACKAGES.items() if name != package}
    without = {
        "nvidia-ml-py": {"surveyed": (), "versions": None, "no_survey": "x"},
        "cuda-bindings": {"seen": (), "not_seen": "x"},
    }
    fault = the_only_fault(replace(WELL, packages=packages, **without[package]))
    assert f"the package {package} is not installed" in fault.what
    assert fault.advice == install_words("trims[gpu]")


def test_without_cupy_the_wheel_for_the_drivers_cuda_is_named_and_it_is_only_a_note() -> None:
    packages = {name: version for name, version in PACKAGES.items() if not name.startswith("cupy")}
    fault = the_only_fault(replace(WELL, packages=packages), verdict="note")
    assert "only programs that want cupy arrays" in fault.what
    assert fault.advice == "pip install cupy-cuda13x, if you use it"


def test_a_runtime_that_is_newer_than_the_driver_is_named_with_the_wheel_that_fits() -> None:
    older = replace(WELL, versions=Versions("570.10", 12), packages={**PACKAGES, "cuda-bindings": "12.9.1"})
    fault = the_only_fault(older)
    assert fault.what == "cupy-cuda13x is for CUDA 13, which is newer than the driver's CUDA 12"
    assert "pip install cupy-cuda12x" in fault.advice


def test_bindings_that_are_newer_than_the_driver_are_named_with_those_that_fit() -> None:
    packages = {**PACKAGES, "cupy-cuda12x": "14.2.0"}
    del packages["cupy-cuda13x"]
    fault = the_only_fault(replace(WELL, versions=Versions("570.10", 12), packages=packages))
    assert fault.what == "cuda-bindings 13.0.1 are newer than driver 570.10, which knows CUDA 12"
    assert "pip install 'cuda-bindings<13'" in fault.advice


def test_a_kernel_with_another_driver_than_the_libraries_needs_a_restart() -> None:
    said = "there is no NVIDIA driver here: Driver/library version mismatch"
    fault = the_only_fault(replace(WELL, surveyed=(), versions=None, no_survey=said, seen=()))
    assert said in fault.what
    assert "restart" in fault.advice


def test_what_the_driver_says_is_passed_on() -> None:
    fault = the_only_fault(replace(WELL, seen=(), not_seen="cuInit: CUDA_ERROR_NO_DEVICE"))
    assert "cuInit: CUDA_ERROR_NO_DEVICE" in fault.what
    assert "CUDA_VISIBLE_DEVICES" in fault.advice


def test_a_partitioned_gpu_names_its_parts_and_what_to_set() -> None:
    parts = [
        Surveyed(UUID, "H200", 0, 139 << 30, partitioned=True),
        Surveyed(PART, "H200 MIG 1g.18gb", 16 << 30, 18 << 30, parent=UUID),
    ]
    fault = the_only_fault(
        replace(WELL, surveyed=parts, seen=[Device(PART, "H200 MIG 1g.18gb", 18 << 30)]), verdict="note"
    )
    assert fault.what == f"H200 {UUID} is partitioned (MIG), of which CUDA sees parts: {PART}"
    assert f"CUDA_VISIBLE_DEVICES={PART} trims serve --gpus {PART} --gpu-driver vmm" in fault.advice
    assert "no CUDA IPC" in fault.advice


def test_a_part_that_cuda_does_not_see_says_how_to_show_it() -> None:
    other = PART.replace("a", "b")
    parts = [
        Surveyed(UUID, "H200", 0, 139 << 30, partitioned=True),
        Surveyed(PART, "H200 MIG", 16 << 30, 18 << 30, parent=UUID),
        Surveyed(other, "H200 MIG", 16 << 30, 18 << 30, parent=UUID),
    ]
    faults = found(replace(WELL, surveyed=parts, seen=[Device(PART, "H200 MIG", 18 << 30)]))
    (hidden,) = [each for each in faults if each.verdict == "bad"]
    assert f"CUDA does not see it; CUDA sees {PART}" in hidden.what
    assert f"CUDA_VISIBLE_DEVICES={other}" in hidden.advice


def test_a_partitioned_gpu_without_parts_cannot_be_used() -> None:
    fault = the_only_fault(replace(WELL, surveyed=[Surveyed(UUID, "H200", 0, 1, partitioned=True)], seen=()))
    assert "has no parts: CUDA cannot use it" in fault.what


def test_a_device_that_a_variable_hides_from_cuda_names_the_variable() -> None:
    two = [*WELL.surveyed, Surveyed(OTHER, "H200", 100 << 30, 139 << 30)]
    fault = the_only_fault(replace(WELL, surveyed=two, variables={"CUDA_VISIBLE_DEVICES": "0"}))
    assert f"{OTHER}: 100.0 GiB free of 139.0 GiB, and CUDA does not see it; CUDA sees {UUID}" in fault.what
    assert "CUDA_VISIBLE_DEVICES is '0'" in fault.advice
    assert "more devices than CUDA" in the_only_fault(replace(WELL, surveyed=two)).advice


def test_a_device_that_only_cuda_knows_is_a_mismatch() -> None:
    fault = the_only_fault(replace(WELL, seen=[*WELL.seen, Device(OTHER, "H200", 1)]))
    assert fault.what == f"CUDA sees H200 {OTHER}, NVML knows no such UUID: {UUID}"


def test_a_device_that_can_share_nothing_is_bad() -> None:
    fault = the_only_fault(replace(WELL, seen=[Device(UUID, "H200", 1, vmm=False, ipc=False)]))
    assert "by neither vmm nor ipc" in fault.what


def test_a_driver_setting_that_the_device_cannot_have_names_the_one_it_can() -> None:
    fault = the_only_fault(replace(WELL, seen=[Device(UUID, "H200", 1, vmm=False)]), gpu_driver="vmm")
    assert "cannot share memory by vmm" in fault.what
    assert fault.advice == "trims serve --gpu-driver ipc"


def test_too_little_free_memory_names_the_settings_that_take_it() -> None:
    full = replace(WELL, surveyed=[Surveyed(UUID, "H200", 1 << 30, 139 << 30)])
    fault = the_only_fault(full)
    assert "gpu_share 0.9 and gpu_reserve_bytes 1.0 GiB leave nothing for weights" in fault.what
    assert "lower gpu_reserve_bytes" in fault.advice
    held = found(full, Running([UUID]))
    assert "a tier of the daemon that runs" in held[-1].what, "it is the daemon that has filled it"


def test_a_device_that_is_named_and_not_there_is_bad_and_those_there_are_named() -> None:
    fault = the_only_fault(WELL, gpus=f"{UUID},GPU-x")
    assert (fault.what, fault.advice) == ("gpus names GPU-x, which is not there", f"there are: {UUID}")


def test_a_daemon_without_a_tier_on_a_device_that_is_here_says_why() -> None:
    fault = the_only_fault(WELL, Running(off="the keeper at /run/x.sock did not start: no"))
    assert f"no gpu tier, though {UUID} is here: the keeper at /run/x.sock did not start: no" in fault.what
    assert "restart the daemon" in fault.advice
    assert [each for each in found(WELL, Running([UUID])) if each.verdict != "ok"] == []


def test_a_daemon_whose_keeper_is_gone_says_so() -> None:
    fault = the_only_fault(WELL, Running([UUID], ["gpu:0: the keeper of gpu:0 has ended"]))
    assert "gpu:0: the keeper of gpu:0 has ended" in fault.what


def test_a_daemon_that_has_only_some_of_the_devices_is_a_note() -> None:
    both = replace(WELL, surveyed=[*WELL.surveyed, Surveyed(OTHER, "H200", 100 << 30, 139 << 30)],
                   seen=[*WELL.seen, Device(OTHER, "H200", 1)])  # fmt: skip
    assert OTHER in the_only_fault(both, Running([UUID]), verdict="note").what


def test_the_device_of_a_fake_is_examined_as_any(folder: Path) -> None:
    kind = make_devices(folder, [Device(UUID, "Fake", 8 << 30)])
    facts = look(kind)
    assert facts.seen[0].uuid == facts.surveyed[0].uuid == UUID
    explained = list(explain(facts, settings(cuda=kind), None))
    assert any("shared by vmm" in each.what for each in explained)
    assert "holds no fake devices" in the_only_fault(look("fake:/nowhere"), cuda="fake:/nowhere").what


# -- looking -------------------------------------------------------------------------------------------------------


def test_looking_at_a_machine_without_anything_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pynvml", "cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "trims.memory.cuda.bindings", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    facts = look("driver")
    assert "nvidia-ml-py is not installed" in facts.no_survey
    assert "cuda-bindings is not installed" in facts.not_seen
    assert facts.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert facts.versions is None
